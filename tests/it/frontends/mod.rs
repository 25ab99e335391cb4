//! Addresses that come while a client sends. `tests/scenarios` has who reaches what, and taken node ports.

mod node_ports;
