//! Scenarios on the testbed: the real agent on a node in a network namespace, what the kernel holds,
//! and what becomes of packets.
//!
//! One binary, so that it is linked once. `tests/README.md` says which module is for what, and how to
//! add a scenario.

mod conntrack;
mod endpoints;
mod kernel;
mod loopback;
mod metrics;
mod oncall;
mod packets;
mod world;
