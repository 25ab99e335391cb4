//! The shunt agent. All of it is in the library.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    shunt::cli::main()
}
