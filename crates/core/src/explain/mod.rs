//! Answers what becomes of a new connection, and why.
//!
//! Owns: the way of a packet through the rules ([`walk()`]), the reasons in the objects
//! ([`reasons()`]), and the codes of findings. Pure: the caller reads the kernel.

mod endpoints;
mod findings;
mod frontend;
mod planned;
mod reasons;
mod walk;

pub use endpoints::{EndpointView, NotUsed};
pub use findings::{Code, Finding};
pub use frontend::frontend_view;
pub use planned::Planned;
pub use reasons::{
    Policy, Reasons, Target, lost_claims, node_port_addresses, reasons, why_ignored,
};
pub use walk::{Choice, End, Line, Masquerade, Match, Packet, Tables, Walk, walk};
