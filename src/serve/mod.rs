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

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a value that is consistent by itself, whatever happens to a thread that has it.
fn lock<T>(value: &Mutex<T>) -> MutexGuard<'_, T> {
    value.lock().unwrap_or_else(PoisonError::into_inner)
}
