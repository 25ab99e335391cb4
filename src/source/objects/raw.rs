//! Kubernetes objects in their API form, with only the fields that shunt uses: from JSON, YAML and
//! protobuf.
//!
//! The numbers of fields are those of `generated.proto` in `k8s.io/api` and `k8s.io/apimachinery`.
//! Deserialization is tolerant, as in the API machinery: it skips unknown fields, and takes an
//! absent field or `null` as the field's default (see [`typed`](crate::source::spanned_yaml::typed)). Numbers are `i64`, so that a number out of range
//! is an error of its field only.

use std::borrow::Cow;
use std::collections::BTreeMap;

use prost::Message;
use serde::de::Error;
use serde::{Deserialize, Deserializer};

/// The `metadata` of an object.
#[derive(Deserialize, Message)]
#[serde(default, rename_all = "camelCase")]
pub struct Metadata {
    /// The name, unique per kind and namespace.
    #[prost(string, tag = "1")]
    pub name: String,
    /// The namespace; empty means `default` for namespaced kinds.
    #[prost(string, tag = "3")]
    pub namespace: String,
    /// The API server's version of the object, at which a watch can resume.
    #[prost(string, tag = "6")]
    pub resource_version: String,
    /// The creation time; decides conflicts between Services.
    #[prost(message, optional, tag = "8")]
    pub creation_timestamp: Option<Time>,
    /// The start of a graceful deletion; makes a Node ineligible for load balancers.
    #[prost(message, optional, tag = "9")]
    pub deletion_timestamp: Option<Time>,
    #[prost(message, repeated, tag = "11")]
    #[serde(deserialize_with = "entries")]
    labels: Vec<MapEntry>,
    #[prost(message, repeated, tag = "12")]
    #[serde(deserialize_with = "entries")]
    annotations: Vec<MapEntry>,
}

/// An entry of a map, in bytes: the API server accepts annotations that are not UTF-8.
#[derive(Message)]
struct MapEntry {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

/// A time. Go's zero time is the start of 1970 in protobuf.
#[derive(Message)]
pub struct Time {
    /// The seconds since then.
    #[prost(int64, tag = "1")]
    pub seconds: i64,
}

/// A Service of `v1`.
#[derive(Deserialize, Message)]
#[serde(default)]
pub struct Service {
    /// Name, labels and age of the Service.
    #[prost(message, required, tag = "1")]
    pub metadata: Metadata,
    /// The desired frontends and policies.
    #[prost(message, required, tag = "2")]
    pub spec: ServiceSpec,
    /// The addresses that a load balancer has assigned.
    #[prost(message, required, tag = "3")]
    pub status: ServiceStatus,
}

/// The `spec` of a Service.
#[derive(Deserialize, Message)]
#[serde(default, rename_all = "camelCase")]
pub struct ServiceSpec {
    /// `ClusterIP` (also if empty), `NodePort`, `LoadBalancer` or `ExternalName`, which shunt
    /// ignores.
    #[prost(string, tag = "4")]
    #[serde(rename = "type")]
    pub type_: String,
    /// The first ClusterIP; `None` marks a headless Service.
    #[prost(string, tag = "3")]
    #[serde(rename = "clusterIP")]
    pub cluster_ip: String,
    /// All ClusterIPs, at most one per family; replaces `clusterIP` unless empty.
    #[prost(string, repeated, tag = "18")]
    #[serde(rename = "clusterIPs")]
    pub cluster_ips: Vec<String>,
    /// Additional addresses for all service ports.
    #[prost(string, repeated, tag = "5")]
    #[serde(rename = "externalIPs")]
    pub external_ips: Vec<String>,
    /// The prefixes that may use the load-balancer VIPs; empty for all sources.
    #[prost(string, repeated, tag = "9")]
    pub load_balancer_source_ranges: Vec<String>,
    /// The service ports, at least one.
    #[prost(message, repeated, tag = "1")]
    pub ports: Vec<ServicePort>,
    /// `Cluster` (also if empty) or `Local`, for ClusterIPs.
    #[prost(string, tag = "22")]
    pub internal_traffic_policy: String,
    /// `Cluster` (also if empty) or `Local`, for VIPs, ExternalIPs and node ports.
    #[prost(string, tag = "11")]
    pub external_traffic_policy: String,
    /// `None` (also if empty) or `ClientIP`.
    #[prost(string, tag = "7")]
    pub session_affinity: String,
    /// The timeout of session affinity.
    #[prost(message, required, tag = "14")]
    pub session_affinity_config: SessionAffinityConfig,
    /// The port of the health check for load balancers with policy Local; 0 for none.
    #[prost(int64, tag = "12")]
    pub health_check_node_port: i64,
    /// False if a load balancer needs no node ports, of which the API server allocates none then.
    #[prost(bool, optional, tag = "20")]
    pub allocate_load_balancer_node_ports: Option<bool>,
}

/// An entry of a Service's `spec.ports`.
#[derive(Deserialize, Message)]
#[serde(default, rename_all = "camelCase")]
pub struct ServicePort {
    /// The name, by which EndpointSlices refer to the service port; empty for a single port.
    #[prost(string, tag = "1")]
    pub name: String,
    /// `TCP` (also if empty), `UDP` or `SCTP`.
    #[prost(string, tag = "2")]
    pub protocol: String,
    /// The port of the frontends, except the node port.
    #[prost(int64, optional, tag = "3")]
    pub port: Option<i64>,
    /// The port on the node's own addresses; 0 for none.
    #[prost(int64, tag = "5")]
    pub node_port: i64,
}

/// A Service's `spec.sessionAffinityConfig`.
#[derive(Deserialize, Message)]
#[serde(default)]
pub struct SessionAffinityConfig {
    /// The options for `ClientIP`, the only kind of session affinity.
    #[prost(message, required, tag = "1")]
    #[serde(rename = "clientIP")]
    pub client_ip: ClientIpConfig,
}

/// A Service's `spec.sessionAffinityConfig.clientIP`.
#[derive(Deserialize, Message)]
#[serde(default, rename_all = "camelCase")]
pub struct ClientIpConfig {
    /// The time that a client keeps its backend; `None` for the default.
    #[prost(int64, optional, tag = "1")]
    pub timeout_seconds: Option<i64>,
}

/// The `status` of a Service.
#[derive(Deserialize, Message)]
#[serde(default, rename_all = "camelCase")]
pub struct ServiceStatus {
    /// The state of the load balancer.
    #[prost(message, required, tag = "1")]
    pub load_balancer: LoadBalancerStatus,
}

/// A Service's `status.loadBalancer`.
#[derive(Deserialize, Message)]
#[serde(default)]
pub struct LoadBalancerStatus {
    /// The entry points of the load balancer.
    #[prost(message, repeated, tag = "1")]
    pub ingress: Vec<Ingress>,
}

/// An entry of a Service's `status.loadBalancer.ingress`.
#[derive(Deserialize, Message)]
#[serde(default, rename_all = "camelCase")]
pub struct Ingress {
    /// The VIP; empty if the load balancer has a host name.
    #[prost(string, tag = "1")]
    pub ip: String,
    /// `VIP` (also if empty), which shunt implements, or `Proxy`, which it leaves to the load balancer.
    #[prost(string, tag = "3")]
    pub ip_mode: String,
}

/// An EndpointSlice of `discovery.k8s.io/v1`.
#[derive(Deserialize, Message)]
#[serde(default, rename_all = "camelCase")]
pub struct EndpointSlice {
    /// Name and labels; a label names the Service.
    #[prost(message, required, tag = "1")]
    pub metadata: Metadata,
    /// `IPv4`, `IPv6` or `FQDN`, which shunt ignores.
    #[prost(string, tag = "4")]
    pub address_type: String,
    /// The endpoints, all with the ports of the slice.
    #[prost(message, repeated, tag = "2")]
    pub endpoints: Vec<Endpoint>,
    /// The ports of every endpoint of the slice.
    #[prost(message, repeated, tag = "3")]
    pub ports: Vec<EndpointPort>,
}

/// An entry of an EndpointSlice's `endpoints`.
#[derive(Deserialize, Message)]
#[serde(default, rename_all = "camelCase")]
pub struct Endpoint {
    /// The addresses.
    #[prost(string, repeated, tag = "1")]
    pub addresses: Vec<String>,
    /// The readiness of the endpoint.
    #[prost(message, required, tag = "2")]
    pub conditions: Conditions,
    /// The node of the endpoint, for policy Local; empty if unknown.
    #[prost(string, tag = "6")]
    pub node_name: String,
    /// The topology hints: the preferred clients of the endpoint.
    #[prost(message, required, tag = "8")]
    pub hints: Hints,
}

/// The `conditions` of an endpoint.
#[derive(Deserialize, Message)]
#[serde(default)]
pub struct Conditions {
    /// True if new connections may go to the endpoint; `None` means true.
    #[prost(bool, optional, tag = "1")]
    pub ready: Option<bool>,
    /// True if the endpoint serves, even while terminating; `None` means true.
    #[prost(bool, optional, tag = "2")]
    pub serving: Option<bool>,
    /// True if the endpoint shuts down; `None` means false.
    #[prost(bool, optional, tag = "3")]
    pub terminating: Option<bool>,
}

/// The `hints` of an endpoint.
#[derive(Deserialize, Message)]
#[serde(default, rename_all = "camelCase")]
pub struct Hints {
    /// The zones whose nodes prefer the endpoint.
    #[prost(message, repeated, tag = "1")]
    pub for_zones: Vec<Hint>,
    /// The nodes that prefer the endpoint, ahead of zones.
    #[prost(message, repeated, tag = "2")]
    pub for_nodes: Vec<Hint>,
}

/// A zone or node of an endpoint's hints.
#[derive(Deserialize, Message)]
#[serde(default)]
pub struct Hint {
    /// The name of the zone or node.
    #[prost(string, tag = "1")]
    pub name: String,
}

/// An entry of an EndpointSlice's `ports`.
#[derive(Deserialize, Message)]
#[serde(default)]
pub struct EndpointPort {
    /// The name of the service port that the port belongs to.
    #[prost(string, tag = "1")]
    pub name: String,
    /// `TCP` (also if empty), `UDP` or `SCTP`.
    #[prost(string, tag = "2")]
    pub protocol: String,
    /// The port of the backends; shunt ignores an entry without it.
    #[prost(int64, optional, tag = "3")]
    pub port: Option<i64>,
}

/// A Node of `v1`.
#[derive(Deserialize, Message)]
#[serde(default)]
pub struct Node {
    /// Name, zone and deletion time of the Node.
    #[prost(message, required, tag = "1")]
    pub metadata: Metadata,
    /// The pod prefixes and taints.
    #[prost(message, required, tag = "2")]
    pub spec: NodeSpec,
    /// The addresses of the Node.
    #[prost(message, required, tag = "3")]
    pub status: NodeStatus,
}

/// The `spec` of a Node.
#[derive(Deserialize, Message)]
#[serde(default)]
pub struct NodeSpec {
    /// The first pod prefix; shunt reads it only if `podCIDRs` is empty.
    #[prost(string, tag = "1")]
    #[serde(rename = "podCIDR")]
    pub pod_cidr: String,
    /// The prefixes of the node's pods, one per family.
    #[prost(string, repeated, tag = "7")]
    #[serde(rename = "podCIDRs")]
    pub pod_cidrs: Vec<String>,
    /// The taints; the cluster autoscaler's makes the Node ineligible for load balancers.
    #[prost(message, repeated, tag = "5")]
    pub taints: Vec<Taint>,
}

/// An entry of a Node's `spec.taints`.
#[derive(Deserialize, Message)]
#[serde(default)]
pub struct Taint {
    /// The key, which identifies the taint.
    #[prost(string, tag = "1")]
    pub key: String,
}

/// The `status` of a Node.
#[derive(Deserialize, Message)]
#[serde(default)]
pub struct NodeStatus {
    /// The addresses of all types; earlier ones of a type take precedence.
    #[prost(message, repeated, tag = "5")]
    pub addresses: Vec<NodeAddress>,
}

/// An entry of a Node's `status.addresses`.
#[derive(Deserialize, Message)]
#[serde(default)]
pub struct NodeAddress {
    /// The type of the address: shunt uses `InternalIP`, then `ExternalIP`, and ignores others.
    #[prost(string, tag = "1")]
    #[serde(rename = "type")]
    pub type_: String,
    /// The IP address, or a name for other types.
    #[prost(string, tag = "2")]
    pub address: String,
}

/// A ServiceCIDR of `networking.k8s.io/v1` or `v1beta1`.
#[derive(Deserialize, Message)]
#[serde(default)]
pub struct ServiceCidr {
    /// The name of the ServiceCIDR.
    #[prost(message, required, tag = "1")]
    pub metadata: Metadata,
    /// The prefixes of the ServiceCIDR.
    #[prost(message, required, tag = "2")]
    pub spec: ServiceCidrSpec,
}

/// The `spec` of a ServiceCIDR.
#[derive(Deserialize, Message)]
#[serde(default)]
pub struct ServiceCidrSpec {
    /// The prefixes from which the API server allocates ClusterIPs.
    #[prost(string, repeated, tag = "1")]
    pub cidrs: Vec<String>,
}

impl Metadata {
    /// Returns the value of a label.
    #[must_use]
    pub fn label(&self, key: &str) -> Option<Cow<'_, str>> {
        value(&self.labels, key)
    }

    /// Returns the value of an annotation.
    #[must_use]
    pub fn annotation(&self, key: &str) -> Option<Cow<'_, str>> {
        value(&self.annotations, key)
    }
}

/// Returns the value of a key. Each invalid byte sequence becomes U+FFFD, as it does when the API
/// server encodes the object as JSON.
fn value<'a>(entries: &'a [MapEntry], key: &str) -> Option<Cow<'a, str>> {
    let entry = entries.iter().rfind(|entry| entry.key == key.as_bytes())?;
    Some(String::from_utf8_lossy(&entry.value))
}

fn entries<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<MapEntry>, D::Error> {
    let map = BTreeMap::<String, Option<String>>::deserialize(deserializer)?;
    let entry = |(key, value): (String, Option<String>)| MapEntry {
        key: key.into(),
        value: value.unwrap_or_default().into(),
    };
    Ok(map.into_iter().map(entry).collect())
}

impl Time {
    /// Returns the seconds since 1970; none for Go's zero time.
    #[must_use]
    pub fn seconds(&self) -> Option<i64> {
        Some(self.seconds).filter(|seconds| *seconds != 0)
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Time, D::Error> {
        let text = String::deserialize(deserializer)?;
        let time = text.parse::<jiff::Timestamp>();
        let time = time.map_err(|_| Error::custom("not a time such as 2026-01-31T12:00:00Z"))?;
        Ok(Time { seconds: time.as_second() })
    }
}
