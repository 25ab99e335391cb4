//! What the larger commands find out: each room gathers facts, judges them without effects, and writes
//! them as text or JSON. [`crate::cli`] reads the arguments and prints.
//!
//! Must not know: arguments, exit codes.

pub mod check;
pub mod explain;
pub mod services;
pub mod trace;
