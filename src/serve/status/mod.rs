//! `shunt status`: the state of the running agent, for a person on its node.
//!
//! Owns: the state that the agent notes ([`AgentState`]), the report ([`AgentStatus`]) as JSON and as text
//! with problems first.
//!
//! Field names of the JSON are an interface: new ones may come, existing ones stay.

mod agent_state;
mod text;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use shunt_core::model::Family;
use shunt_core::plan::{NodeContext, loopback_address};

use crate::dataplane::Snapshot;
use crate::dataplane::kube_proxy::KubeProxyTraces;
use crate::serve::loopback::LoopbackReport;
use crate::serve::unbound_ports::UnboundPort;
use crate::taken_ports;

pub use super::time::{Time, now, passed};
pub use agent_state::AgentState;
pub(crate) use text::span;

/// A report of the agent about itself.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AgentStatus {
    /// What changes the exit code; empty until the command fills it.
    #[serde(skip_deserializing)]
    pub problems: Vec<Problem>,
    /// What does not change the exit code.
    #[serde(skip_deserializing)]
    pub warnings: Vec<Problem>,
    /// The version of the agent, which may differ from that of the command.
    pub version: String,
    /// The process ID of the agent, as the process that asks sees it.
    pub process: u32,
    /// The start of the agent.
    pub started: Time,
    /// The time of this report on the agent's clock.
    pub told: Time,
    /// The name of the node.
    pub node: String,
    /// True if the API has no Node of that name.
    pub missing_node: bool,
    /// What the rules go by, if the API has no such Node or it cannot be read; `None` otherwise.
    pub without_node: Option<WithoutNode>,
    /// The result of `/livez`: true if no change is overdue.
    pub healthy: bool,
    /// The age of the oldest change that the kernel does not have; `None` if there is none.
    pub waiting_seconds: Option<f64>,
    /// The age of the oldest change whose stale flows connection tracking may still have; `None` if
    /// there is none.
    pub unswept_seconds: Option<f64>,
    /// Why stale flows stay; `None` if the last sweep deleted all.
    pub sweep_trouble: Option<String>,
    /// The number of log lines that were lost because nothing read standard error in time.
    pub lost_log_lines: u64,
    /// The source of objects.
    pub source: SourceStatus,
    /// Why the last written configuration is not in force; `None` if it is.
    pub refused_configuration: Option<String>,
    /// The state of the last sync.
    #[serde(flatten)]
    pub rules: Rules,
    /// kube-proxy and its leftovers on this node.
    pub kube_proxy: KubeProxyTraces,
    /// Node ports on which other processes listen.
    pub taken_node_ports: taken_ports::TakenPorts,
    /// Ports that the agent cannot bind.
    pub unbound_ports: Vec<UnboundPort>,
    /// The proxy of node ports on loopback addresses.
    pub loopback: LoopbackReport,
}

/// A problem or a warning.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// A name that stays.
    pub code: &'static str,
    /// A sentence: what is so, and what to do.
    pub text: String,
}

impl Problem {
    /// Makes a problem.
    pub fn new(code: &'static str, text: impl Into<String>) -> Problem {
        Problem { code, text: text.into() }
    }
}

/// What the rules go by while the API has no Node of the agent's name, or it cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum WithoutNode {
    /// The last known state of the Node.
    LastKnown,
    /// Nothing: zone and pod CIDRs are unknown, and node ports are closed.
    Closed,
    /// The tables, which do not remember the Node, stay as they are.
    Held,
}

impl WithoutNode {
    /// Returns what the rules of a sync go by; `None` if the source has sent the Node, or needs none.
    #[must_use]
    pub fn of(snapshot: &Snapshot) -> Option<WithoutNode> {
        let context = snapshot.node_context.as_ref()?;
        let is_lacking = context.options.requires_node && snapshot.store.node().is_none();
        let how = match context.node {
            Some(_) => WithoutNode::LastKnown,
            None => WithoutNode::Closed,
        };
        is_lacking.then_some(how)
    }

    /// Describes the cause, what it leads to, and what to do.
    #[must_use]
    pub fn describe(self, name: &str, is_missing: bool) -> String {
        let (cause, remedy) = match is_missing {
            true => (
                "the API has no Node",
                "set hostnameOverride or --hostname-override to the name of the Node, or register it",
            ),
            false => (
                "the API server has not sent the Node",
                "let the agent's role list and watch nodes",
            ),
        };
        let effect = match self {
            WithoutNode::LastKnown => "its last known zone, addresses and pod CIDRs stay in effect",
            WithoutNode::Closed => "node ports are closed, its zone and pod CIDRs are unknown",
            WithoutNode::Held => {
                "nothing is programmed, the rules in the kernel stay until the Node is known"
            }
        };
        format!(
            "{cause} {name}: {effect}; /healthz answers 503 and load balancers avoid this node; \
             {remedy}"
        )
    }
}

/// The source of objects and its state.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "kind")]
pub enum SourceStatus {
    /// No source has started.
    #[default]
    None,
    /// Manifests.
    #[serde(rename_all = "camelCase")]
    Manifests {
        /// The files and directories of `--manifests`.
        paths: Vec<PathBuf>,
    },
    /// An API server.
    #[serde(rename_all = "camelCase")]
    Api {
        /// The URL of the server.
        server: String,
        /// The current failure, if any.
        trouble: Option<Trouble>,
    },
}

/// A failure of the API server that lasts.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Trouble {
    /// A sentence with the server and the error.
    pub reason: String,
    /// The time since it began.
    pub seconds: f64,
}

/// The state of plan and kernel at the last sync.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Rules {
    /// The last successful sync, with or without a commit.
    pub last_sync: Option<Sync>,
    /// The last sync with a commit.
    pub last_commit: Option<Sync>,
    /// The failure of the last sync; `None` if it succeeded.
    pub failure: Option<SyncFailure>,
    /// True if the agent owns the tables, so that no other process can modify them.
    pub owns_tables: bool,
    /// True if the kernel has no nf_tables for IPv6.
    #[serde(rename = "IPv4Only")]
    pub ipv4_only: bool,
    /// The addresses of node ports; `None` before the first sync.
    pub node_ports: Option<NodePortStatus>,
    /// The number of objects and elements.
    pub counts: Counts,
    /// Frontends that the kernel refuses.
    pub quarantined: Vec<QuarantinedFrontend>,
    /// Frontends that a Service does not get, because another Service holds them.
    pub conflicts: Vec<Conflict>,
    /// Services whose hash tables or weights would need too many elements, as `namespace/name`.
    pub oversized: Vec<String>,
    /// The number of repairs after modifications by other processes.
    pub drift_repairs: u64,
    /// The last repair.
    pub last_drift_repair: Option<Repair>,
}

/// The addresses of node ports. Without a list, every local address except loopback.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodePortStatus {
    /// The IPv4 addresses.
    #[serde(rename = "IPv4")]
    pub v4: Option<BTreeSet<IpAddr>>,
    /// The IPv6 addresses.
    #[serde(rename = "IPv6")]
    pub v6: Option<BTreeSet<IpAddr>>,
    /// The loopback addresses, on which a proxy in the agent serves node ports of TCP.
    pub loopback: BTreeSet<IpAddr>,
}

impl NodePortStatus {
    /// Returns the addresses in the plan.
    #[must_use]
    pub fn of(node_context: &NodeContext) -> NodePortStatus {
        let [v4, v6] = Family::ALL.map(|family| node_context.node_port_addresses(family));
        let addresses = &node_context.options.node_port_addresses;
        let loopback = Family::ALL.into_iter().filter(|family| addresses.has_loopback(*family));
        let loopback = loopback.map(loopback_address).collect();
        NodePortStatus { v4, v6, loopback }
    }
}

/// A successful sync.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Sync {
    /// The end of the sync.
    pub at: Time,
    /// The time to plan, compare and commit.
    pub seconds: f64,
    /// The number of added elements.
    pub added: usize,
    /// The number of deleted elements.
    pub deleted: usize,
    /// The size of the transaction in bytes; 0 without a commit.
    pub bytes: usize,
}

/// A failed sync.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SyncFailure {
    /// The end of the failed attempt.
    pub at: Time,
    /// The error of the kernel or the agent.
    pub reason: String,
}

/// The number of objects and elements.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Counts {
    /// Services with frontends.
    pub services: usize,
    /// The ports of these Services.
    pub service_ports: usize,
    /// EndpointSlices of any Service.
    pub endpoint_slices: usize,
    /// The endpoints in all slices.
    pub endpoints: usize,
    /// Frontends in the kernel.
    pub frontends: Families,
    /// Elements in the kernel, by set or map.
    pub elements: BTreeMap<String, Families>,
    /// Service ports without any endpoint, which reject connections.
    pub without_endpoints: Families,
    /// Those with `internalTrafficPolicy: Local` and endpoints on other nodes only, which drop
    /// connections of pods and of the node.
    pub no_local_internal: Families,
    /// Those with `externalTrafficPolicy: Local` and endpoints on other nodes only, which drop
    /// connections from outside of the node.
    pub no_local_external: Families,
}

/// A number for each IP family.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Families {
    /// The number for IPv4.
    #[serde(rename = "IPv4")]
    pub v4: usize,
    /// The number for IPv6.
    #[serde(rename = "IPv6")]
    pub v6: usize,
}

impl From<[usize; 2]> for Families {
    /// Converts numbers in the order of [`Family::ALL`].
    fn from(numbers: [usize; 2]) -> Families {
        Families { v4: numbers[Family::V4 as usize], v6: numbers[Family::V6 as usize] }
    }
}

/// A frontend that the kernel refuses.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct QuarantinedFrontend {
    /// The frontend with its Service port.
    pub what: String,
    /// The frontend alone; `None` for an address in a set.
    pub frontend: Option<String>,
    /// The error of the kernel.
    pub reason: String,
    /// The time of the next attempt.
    pub retry_at: Time,
}

/// A frontend that two Services claim.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Conflict {
    /// Address, port and protocol.
    pub frontend: String,
    /// The Service that gets it, as `namespace/name`.
    pub winner: String,
    /// The Service that does not get it.
    pub loser: String,
    /// The rule that decided.
    pub reason: String,
}

/// A repair of the tables.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Repair {
    /// The end of the repair.
    pub at: Time,
    /// The processes that had modified the tables, if known.
    pub writers: String,
}
