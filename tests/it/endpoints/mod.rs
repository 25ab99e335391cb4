//! Which endpoint a packet reaches, and for how long: session affinity, terminating endpoints,
//! balance, thousands of endpoints; the real agent and packets, as in `packets`. Conditions, hints,
//! conflicts, flows and the life of a Service are in `tests/scenarios`.
//!
//! Each scenario is tried on a [`Table`](crate::table::Table) of frontends and protocols, in both
//! families.

mod affinity;
pub(crate) mod balance;
pub(crate) mod changes;
mod dead;
mod established;
mod gone;
mod half_open;
mod slices;
