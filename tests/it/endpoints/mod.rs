//! Which endpoint a packet reaches, and for how long: session affinity, terminating endpoints,
//! slices, hints, balance, flows that outlive their endpoint, conflicts and the life of a Service;
//! the real agent and packets, as in `packets`.
//!
//! Each scenario is tried on a [`Table`](crate::table::Table) of frontends and protocols, in both
//! families.

mod affinity;
pub(crate) mod balance;
pub(crate) mod changes;
mod conflicts;
mod dead;
mod established;
mod flows;
mod gone;
mod half_open;
mod lifecycle;
mod slices;
