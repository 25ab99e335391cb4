//! The commands for people on call.

mod check;
