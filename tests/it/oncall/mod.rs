//! The commands for those who are on call.

mod random;
mod trace;
