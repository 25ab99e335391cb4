//! What becomes of packets: the real agent on a node of the testbed, programmed by manifests,
//! and clients on all sides of it.

mod bad_input;
mod drift;
mod exclusive;
mod failing;
mod killed;
mod leftovers;
mod lifecycle;
mod shrinking;
mod status;
mod transactions;
mod unread_log;
