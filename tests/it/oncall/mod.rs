//! The commands for those who are on call.

mod check;
mod random;
mod trace;
