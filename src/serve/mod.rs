//! What the agent serves: health and metrics over HTTP, Events, answers to commands, and node ports on
//! loopback addresses.
//!
//! Must not know: how rules are planned or committed.

pub mod escape;
pub mod events;
pub mod history;
pub mod http;
mod listener;
pub mod loopback;
pub mod metrics;
pub mod presence;
pub mod query;
pub mod service_counters;
pub mod status;
mod time;
pub mod unbound_ports;
