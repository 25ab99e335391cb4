//! The shunt agent. All of it is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    shunt::cli::main()
}
