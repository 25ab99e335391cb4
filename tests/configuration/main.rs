//! The configuration, as a user meets it: flags and files, given to the real program.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests stop the test")]

mod explain;
mod habits;
mod man;
mod precedence;
mod program;
mod reference;
mod written;
mod yaml;
