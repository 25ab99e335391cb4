//! Taken node ports, and addresses that come while a client sends. `tests/scenarios` has who reaches what.

mod node_ports;
mod taken_ports;
