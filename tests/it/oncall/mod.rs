//! The commands for people on call, beside the running agent and with real packets.

mod check;
mod escapes;
mod history;
mod pings;
mod random;
mod trace;
