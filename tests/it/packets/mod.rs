//! What becomes of packets: the real agent on a node of the testbed, programmed by manifests,
//! and clients on all sides of it.

mod another_server;
mod exclusive;
mod failing;
mod killed;
mod lifecycle;
mod shrinking;
mod status;
mod transactions;
mod unread_log;
