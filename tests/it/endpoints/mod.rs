//! Which endpoint a packet reaches, and for how long: session affinity, terminating endpoints,
//! slices, hints, balance, flows that outlive their endpoint, conflicts and the life of a Service;
//! the real agent and packets, as in `packets`.
//!
//! `table` names every scenario with the protocols and frontends it is tried on; both families
//! always.

mod affinity;
mod balance;
mod conflicts;
mod established;
mod flows;
mod half_open;
mod lifecycle;
mod rescue;
mod slices;
mod table;
