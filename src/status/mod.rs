//! What a running agent tells a person on its node: `shunt status`.
//!
//! Owns: what the agent notes of itself ([`Known`]), what is told ([`Status`]), its two forms (JSON,
//! and text with what is wrong first), and the way from the agent to the command.
//!
//! Field names of the JSON are a contract: they are added to and not changed.

mod known;
mod socket;
mod text;
mod time;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use shunt_core::model::Family;
use shunt_core::plan::Surroundings;

use crate::kube_proxy::Found;

pub use known::{Following, Known};
pub use socket::{NoStatus, ask, serve};
pub use time::Time;

/// How the agent is at a moment.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Status {
    /// What is wrong: a sentence for each thing that needs attention now.
    pub problems: Vec<String>,
    /// What may be wrong.
    pub warnings: Vec<String>,
    /// The agent's version.
    pub version: String,
    /// Its process; to the command, in the numbers of whoever asks.
    pub process: u32,
    /// Since when it runs.
    pub started: Time,
    /// The time on its clock when it told this.
    pub told: Time,
    /// The node that it programs for.
    pub node: String,
    /// The API has no Node of that name.
    pub missing_node: bool,
    /// As `/livez` answers: no change has waited for too long.
    pub healthy: bool,
    /// For how long the oldest change has waited that the kernel does not hold; none if it holds all.
    pub waiting_seconds: Option<f64>,
    /// Where objects come from.
    pub source: Source,
    /// Why the configuration that was last written is not in force; none if it is.
    pub refused_configuration: Option<String>,
    /// The kernel, as of the last sync.
    #[serde(flatten)]
    pub rules: Rules,
    /// What there is of kube-proxy on this node.
    pub kube_proxy: Found,
    /// Ports for probes and metrics that cannot be bound at the moment.
    pub unbound_ports: Vec<UnboundServer>,
    /// Health-check ports that cannot be bound at the moment.
    pub unbound_health_ports: Vec<UnboundPort>,
}

/// Says that the API has no Node of our name, and what to do.
#[must_use]
pub fn missing_node(name: &str) -> String {
    format!(
        "the API has no Node {name}, so load balancers are told to avoid this node (/healthz answers \
         503): set hostnameOverride or --hostname-override to the name of the Node, or register it"
    )
}

/// Where objects come from, and how it goes with that.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "kind")]
pub enum Source {
    /// None yet.
    #[default]
    None,
    /// Files.
    #[serde(rename_all = "camelCase")]
    Manifests {
        /// Files and folders.
        paths: Vec<PathBuf>,
    },
    /// An API server.
    #[serde(rename_all = "camelCase")]
    Api {
        /// Its URL.
        server: String,
        /// What is in the way; none if all is well.
        trouble: Option<Trouble>,
    },
}

/// The API server does not answer as it should.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Trouble {
    /// Why, for a person.
    pub reason: String,
    /// For how long.
    pub seconds: f64,
}

/// What the agent knows of the kernel and of what it has to hold, as of the last sync.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Rules {
    /// The last sync that went well, whether there was something to write or not.
    pub last_sync: Option<Sync>,
    /// The last one that wrote something.
    pub last_commit: Option<Sync>,
    /// Why the kernel does not hold what is planned; none if the last sync went well.
    pub failure: Option<SyncFailure>,
    /// nf_tables' generation after the last sync.
    pub generation: Option<u32>,
    /// Nobody else can change our tables.
    pub owns_tables: bool,
    /// On which addresses node ports answer; none before the first sync.
    pub node_ports: Option<NodePorts>,
    /// How much there is.
    pub counts: Counts,
    /// What the kernel refuses.
    pub quarantined: Vec<Quarantined>,
    /// Frontends that a Service goes without because another one has them.
    pub conflicts: Vec<Conflict>,
    /// How often somebody else's changes of our tables were repaired.
    pub drift_repairs: u64,
    /// The last of these times.
    pub last_drift_repair: Option<Repair>,
}

/// On which addresses of the node node ports answer. Without a list it is every local address except
/// loopback.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodePorts {
    /// Of IPv4.
    #[serde(rename = "IPv4")]
    pub v4: Option<BTreeSet<IpAddr>>,
    /// Of IPv6.
    #[serde(rename = "IPv6")]
    pub v6: Option<BTreeSet<IpAddr>>,
}

impl NodePorts {
    /// Those of the plan.
    #[must_use]
    pub fn of(surroundings: &Surroundings) -> NodePorts {
        let [v4, v6] = Family::ALL.map(|family| surroundings.node_port_addresses(family));
        NodePorts { v4, v6 }
    }
}

/// A sync that went well.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Sync {
    /// When it was done.
    pub at: Time,
    /// How long it took to plan, compare and commit.
    pub seconds: f64,
    /// Elements that were added.
    pub added: usize,
    /// Elements that were deleted.
    pub deleted: usize,
    /// The size of the transaction in bytes; 0 if there was nothing to write.
    pub bytes: usize,
}

/// A sync that failed.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SyncFailure {
    /// When.
    pub at: Time,
    /// Why.
    pub reason: String,
}

/// How much there is.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Counts {
    /// Services that have frontends.
    pub services: usize,
    /// Their ports.
    pub service_ports: usize,
    /// EndpointSlices.
    pub endpoint_slices: usize,
    /// Endpoints in these.
    pub endpoints: usize,
    /// Frontends in the kernel.
    pub frontends: Families,
    /// Elements in the kernel, by set or map.
    pub elements: BTreeMap<String, Families>,
}

/// A number for each IP family.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Families {
    /// For IPv4.
    #[serde(rename = "IPv4")]
    pub v4: usize,
    /// For IPv6.
    #[serde(rename = "IPv6")]
    pub v6: usize,
}

impl From<[usize; 2]> for Families {
    /// From numbers in the order of [`Family::ALL`].
    fn from(numbers: [usize; 2]) -> Families {
        Families { v4: numbers[Family::V4 as usize], v6: numbers[Family::V6 as usize] }
    }
}

/// Something that the kernel refuses.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Quarantined {
    /// The frontend, with the service port that it belongs to.
    pub what: String,
    /// The kernel's reason.
    pub reason: String,
    /// When it is tried again.
    pub retry_at: Time,
}

/// A frontend that two Services want.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Conflict {
    /// The frontend.
    pub frontend: String,
    /// The Service that has it, as `namespace/name`.
    pub winner: String,
    /// The Service that goes without.
    pub loser: String,
    /// What decided.
    pub reason: String,
}

/// Our tables were repaired.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Repair {
    /// When.
    pub at: Time,
    /// Who had changed them, as far as it is known.
    pub writers: String,
}

/// A port for probes or metrics where the agent does not answer.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct UnboundServer {
    /// What it is for.
    pub purpose: String,
    /// The field of the configuration with the address.
    pub field: String,
    /// The address and port.
    pub address: String,
    /// Why.
    pub reason: String,
}

/// A port of `healthCheckNodePort` where load balancers get no answer.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct UnboundPort {
    /// The Service, as `namespace/name`.
    pub service: String,
    /// The address and port.
    pub address: String,
    /// Why.
    pub reason: String,
}
