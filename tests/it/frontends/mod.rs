//! What the real agent offers beside packets: health checks for load balancers, taken node ports, and
//! addresses that come while a client sends. `tests/scenarios` has who reaches what.

mod health_checks;
mod node_ports;
mod taken_ports;
