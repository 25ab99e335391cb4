//! The commands for people on call, against real packets.

mod trace;
