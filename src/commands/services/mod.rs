//! `shunt services`: the frontends of Services with their endpoints, counters and states.
//!
//! Owns: the picture ([`Picture`]) that the command takes of the agent's objects and of the kernel's
//! verdict maps, as text and as JSON.
//!
//! Field names of the JSON are an interface, described in `docs/json.md`: new ones may come,
//! existing ones stay.

pub(in crate::commands) mod command;
mod kernel;
mod picture;
mod sort;
mod text;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::Serialize;
use shunt_core::explain::EndpointView;
use shunt_core::model::ObjectName;

use crate::serve::status::{Problem, Time};

use kernel::picture_of_kernel;
use picture::{Kernel, Selected, differing, picture, rate};

/// The Services of a node at one time.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Picture {
    /// When the picture was taken.
    taken: Time,
    /// The name of the node.
    node: String,
    /// The zone of the node.
    zone: Option<String>,
    /// The source of the objects: `agent`, `manifests` without a kernel, or `kernel` without an agent.
    source: &'static str,
    /// The number of syncs that the agent has applied.
    revision: Option<u64>,
    /// Problems of the agent, and why the kernel's state is unknown.
    problems: Vec<Problem>,
    /// The numbers of frontends by [`Frontend::state`], including frontends that `--problems` leaves out.
    pub states: BTreeMap<&'static str, usize>,
    /// The Services, sorted by namespace and name.
    services: Vec<ServiceRow>,
    /// The Services that shunt does not implement, sorted by namespace and name.
    ignored: Vec<Ignored>,
    /// True if a Service is asked for by its name.
    #[serde(skip)]
    detailed: bool,
}

/// A Service.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct ServiceRow {
    #[serde(flatten)]
    name: ObjectName,
    /// `spec.internalTrafficPolicy`.
    internal_traffic_policy: &'static str,
    /// `spec.externalTrafficPolicy`.
    external_traffic_policy: &'static str,
    /// The timeout of session affinity; `None` without session affinity.
    session_affinity_seconds: Option<u32>,
    /// `spec.loadBalancerSourceRanges`.
    source_ranges: Vec<String>,
    /// `spec.healthCheckNodePort`.
    health_check_node_port: Option<u16>,
    /// The frontends, in the order of `spec.ports`.
    frontends: Vec<Frontend>,
}

/// A frontend of a Service port.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Frontend {
    /// The Service port, as `namespace/name:port`.
    service: String,
    /// The name of the Service port.
    port_name: String,
    /// ClusterIP, LoadBalancer, ExternalIP or NodePort.
    kind: &'static str,
    /// The address; `None` for a node port.
    address: Option<IpAddr>,
    /// The addresses of a node port; `None` for all local addresses but loopback, or if they are
    /// unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    node_addresses: Option<Vec<IpAddr>>,
    /// The port.
    port: u16,
    /// TCP, UDP or SCTP.
    protocol: String,
    /// IPv4 or IPv6.
    family: String,
    /// Cluster or Local.
    policy: &'static str,
    /// The number of endpoints that new connections may get.
    endpoints_used: usize,
    /// The number of endpoints of this family in the EndpointSlices.
    endpoints_listed: usize,
    /// The new connections that the kernel has counted; `None` if they are unknown.
    new_connections: Option<u64>,
    /// The new connections a second since the last picture.
    new_connections_per_second: Option<f64>,
    /// The state in a word: `ok` if new connections get an endpoint.
    state: &'static str,
    /// Why the state is not ok, and what to do.
    reason: Option<String>,
    /// True if the kernel masquerades all connections, regardless of their source.
    masquerade: bool,
    /// The topology hints that select endpoints: zone or node.
    topology: Option<&'static str>,
    /// The kind of load balancing in the kernel, such as `random`.
    load_balancing: Option<&'static str>,
    /// The timeout of session affinity in the kernel.
    session_affinity_seconds: Option<u32>,
    /// The allowed sources; `None` for all sources.
    allowed_sources: Option<Vec<String>>,
    /// The endpoints for local pods and the node itself, if the policy is Local.
    short_circuit: Option<ShortCircuit>,
    /// The endpoints, if a Service is asked for by its name.
    #[serde(skip_serializing_if = "Option::is_none")]
    endpoints: Option<Vec<EndpointView>>,
}

/// The exception from policy Local for local pods and the node itself.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct ShortCircuit {
    /// The number of endpoints.
    endpoints_used: usize,
    /// The new connections, which `newConnections` of the frontend includes.
    new_connections: Option<u64>,
}

/// A Service that shunt does not implement.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Ignored {
    #[serde(flatten)]
    name: ObjectName,
    /// The code of the reason.
    code: &'static str,
    /// The reason as text.
    reason: String,
}
