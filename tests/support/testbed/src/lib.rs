//! A testbed for packet tests: namespaces that play nodes, pods and clients, servers that tell
//! whom they saw, and expectations about what becomes of packets.
//!
//! ```no_run
//! # fn main() -> anyhow::Result<()> {
//! use shunt_testbed::{Echo, Topology};
//!
//! let lab = Topology::new()?;
//! let _servers = [Echo::on(&lab.pod1, 8080)?, Echo::on(&lab.pod2, 8080)?];
//! lab.node.nft("table ip t { … dnat rules … }")?;
//! lab.from(&lab.client).tcp("10.96.0.10:80").reaches(&["pod-1", "pod-2"]).source_masqueraded();
//! lab.from(&lab.pod1).udp("10.96.0.10:81").refused();
//! # Ok(())
//! # }
//! ```
//!
//! Everything belongs to the process that makes it: namespaces are held by file descriptors,
//! servers are threads, the agent is tied to its supervisor. However the process ends, nothing
//! but temporary files stays behind; and any number of testbeds can exist at once, also for a user who is only
//! root in a user namespace.

mod agent;
mod check;
mod datagram;
mod echo;
mod evidence;
mod expect;
mod exposition;
mod flow;
mod foreign_writer;
mod http;
mod manifest;
mod netns;
mod not_run;
mod occupier;
mod patience;
mod probe;
mod program;
mod random;
mod repository;
mod ruleset;
mod sctp;
mod topology;
mod traffic;

pub use agent::{Agent, AgentBuilder, HEALTH_PORT, METRICS_PORT};
pub use check::CheckLines;
pub use echo::Echo;
pub use expect::{Origin, Probe, Reached, Tally};
pub use exposition::{Exposition, MetricFamily, Sample};
pub use flow::{Flow, Question, probe, volley};
pub use http::{HttpAnswer, http_get};
pub use manifest::{EndpointSlice, ManifestDir, Node, Object, Service};
pub use netns::{Holder, Netns};
pub use not_run::record_not_run;
pub use occupier::Occupier;
pub use patience::{eventually, patience};
pub use probe::{Outcome, Protocol};
pub use program::Program;
pub use random::{Random, seed};
pub use repository::{read, repository};
pub use tempfile::TempDir;
pub use topology::{CLUSTER_CIDR, Host, Topology};
pub use traffic::{Delivered, Traffic};
