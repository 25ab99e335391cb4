//! Finds processes of the node that listen on a node port in use.
//!
//! Destination NAT comes before the socket, so packets to that port go to the Service. At the
//! addresses with node ports, no client reaches the process. It still answers elsewhere, as on loopback.
//! kube-proxy up to 1.20 held the ports, so that no other process could have them. shunt holds none:
//! it reports such a process, and blocks nothing.
//!
//! Owns: which sockets are in the way (`conflict`, pure), when such a socket is reported (`tracker`,
//! pure), the thread that lists sockets ([`Inputs::start`]), and the [`Report`].
//!
//! Must not know: the kernel's rules, logs of other parts, Events and metrics. It calls functions.

mod conflict;
mod report;
mod tracker;
mod worker;

pub use conflict::NodePorts;
pub use report::{Report, TakenPort};
pub use worker::{Inputs, NodePortsSince, taken_now};
