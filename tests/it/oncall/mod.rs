//! The commands for those who are on call.

mod diff;
mod random;
