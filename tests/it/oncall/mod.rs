//! The commands for people on call.

mod diff;
