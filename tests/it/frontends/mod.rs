//! What becomes of packets to each kind of frontend under all that a Service and the configuration
//! can say about it, with the real agent.
//!
//! Each module has a table `expected` from a scenario, a frontend and a sender to what must happen;
//! [`crate::table::check`] sends the packets for both families and all protocols. A combination without a
//! row does not compile.

mod cluster_ips;
mod detection;
mod health_checks;
mod load_balancers;
mod node_ports;
mod policies;
mod taken_ports;
