//! The shunt agent. All of it is in the library.
#![forbid(unsafe_code)]
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

use std::process::ExitCode;

fn main() -> ExitCode {
    shunt::commands::main()
}
