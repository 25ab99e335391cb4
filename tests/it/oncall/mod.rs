//! The commands for people on call, beside the running agent and with real packets.

mod check;
mod diff;
mod random;
mod services;
mod situations;
mod top;
mod trace;
