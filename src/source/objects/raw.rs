//! Kubernetes objects in their API form, with only the fields that shunt uses.
//!
//! Deserialization is tolerant, as in the API machinery: it skips unknown fields, and takes an
//! absent field or `null` as the field's default. Numbers are `i64`, so that a number out of range
//! is an error of its field only.

use serde::{Deserialize, Deserializer};

/// The `metadata` of an object, with the labels and annotations that shunt uses.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Metadata {
    /// The name, unique per kind and namespace.
    #[serde(deserialize_with = "null_is_default")]
    pub name: String,
    /// The namespace; empty means `default` for namespaced kinds.
    #[serde(deserialize_with = "null_is_default")]
    pub namespace: String,
    /// The labels of Services, EndpointSlices and Nodes that shunt uses.
    #[serde(deserialize_with = "null_is_default")]
    pub labels: Labels,
    /// The annotations on EndpointSlices and bookmarks.
    #[serde(deserialize_with = "null_is_default")]
    pub annotations: Annotations,
    /// The API server's version of the object, at which a watch can resume.
    #[serde(deserialize_with = "null_is_default")]
    pub resource_version: String,
    /// The creation time, RFC 3339; decides conflicts between Services.
    pub creation_timestamp: Option<String>,
    /// The start of a graceful deletion, RFC 3339; makes a Node ineligible for load balancers.
    pub deletion_timestamp: Option<String>,
}

/// The labels that shunt uses.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Labels {
    /// The name of an EndpointSlice's Service.
    #[serde(rename = "kubernetes.io/service-name")]
    pub service_name: Option<String>,
    /// The proxy that implements a Service in place of shunt.
    #[serde(rename = "service.kubernetes.io/service-proxy-name")]
    pub service_proxy_name: Option<String>,
    /// The mark of an EndpointSlice of a headless Service, which shunt ignores.
    #[serde(rename = "service.kubernetes.io/headless")]
    pub headless: Option<String>,
    /// The zone of a Node, for topology hints.
    #[serde(rename = "topology.kubernetes.io/zone")]
    pub zone: Option<String>,
}

/// The annotations that shunt uses.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Annotations {
    /// The time of the change of a Pod or Service that changed the EndpointSlice, RFC 3339.
    #[serde(rename = "endpoints.kubernetes.io/last-change-trigger-time")]
    pub last_change_trigger_time: Option<String>,
    /// The mark of the bookmark that ends a streamed list.
    #[serde(rename = "k8s.io/initial-events-end")]
    pub initial_events_end: Option<String>,
}

/// A Service of `v1`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Service {
    /// Name, labels and age of the Service.
    #[serde(deserialize_with = "null_is_default")]
    pub metadata: Metadata,
    /// The desired frontends and policies.
    #[serde(deserialize_with = "null_is_default")]
    pub spec: ServiceSpec,
    /// The addresses that a load balancer has assigned.
    #[serde(deserialize_with = "null_is_default")]
    pub status: ServiceStatus,
}

/// The `spec` of a Service.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ServiceSpec {
    /// `ClusterIP` (also if empty), `NodePort`, `LoadBalancer` or `ExternalName`, which shunt
    /// ignores.
    #[serde(rename = "type", deserialize_with = "null_is_default")]
    pub type_: String,
    /// The first ClusterIP; `None` marks a headless Service.
    #[serde(rename = "clusterIP", deserialize_with = "null_is_default")]
    pub cluster_ip: String,
    /// All ClusterIPs, at most one per family; replaces `clusterIP` unless empty.
    #[serde(rename = "clusterIPs", deserialize_with = "null_is_default")]
    pub cluster_ips: Vec<String>,
    /// Additional addresses for all service ports.
    #[serde(rename = "externalIPs", deserialize_with = "null_is_default")]
    pub external_ips: Vec<String>,
    /// The prefixes that may use the load-balancer VIPs; empty for all sources.
    #[serde(deserialize_with = "null_is_default")]
    pub load_balancer_source_ranges: Vec<String>,
    /// The service ports, at least one.
    #[serde(deserialize_with = "null_is_default")]
    pub ports: Vec<ServicePort>,
    /// `Cluster` (also if empty) or `Local`, for ClusterIPs.
    #[serde(deserialize_with = "null_is_default")]
    pub internal_traffic_policy: String,
    /// `Cluster` (also if empty) or `Local`, for VIPs, ExternalIPs and node ports.
    #[serde(deserialize_with = "null_is_default")]
    pub external_traffic_policy: String,
    /// `None` (also if empty) or `ClientIP`.
    #[serde(deserialize_with = "null_is_default")]
    pub session_affinity: String,
    /// The timeout of session affinity.
    #[serde(deserialize_with = "null_is_default")]
    pub session_affinity_config: SessionAffinityConfig,
    /// The port of the health check for load balancers with policy Local; 0 for none.
    #[serde(deserialize_with = "null_is_default")]
    pub health_check_node_port: i64,
}

/// An entry of a Service's `spec.ports`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ServicePort {
    /// The name, by which EndpointSlices refer to the service port; empty for a single port.
    #[serde(deserialize_with = "null_is_default")]
    pub name: String,
    /// `TCP` (also if empty), `UDP` or `SCTP`.
    #[serde(deserialize_with = "null_is_default")]
    pub protocol: String,
    /// The port of the frontends, except the node port.
    pub port: Option<i64>,
    /// The port on the node's own addresses; 0 for none.
    #[serde(deserialize_with = "null_is_default")]
    pub node_port: i64,
}

/// A Service's `spec.sessionAffinityConfig`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct SessionAffinityConfig {
    /// The options for `ClientIP`, the only kind of session affinity.
    #[serde(rename = "clientIP", deserialize_with = "null_is_default")]
    pub client_ip: ClientIpConfig,
}

/// A Service's `spec.sessionAffinityConfig.clientIP`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ClientIpConfig {
    /// The time that a client keeps its backend; `None` for the default.
    pub timeout_seconds: Option<i64>,
}

/// The `status` of a Service.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ServiceStatus {
    /// The state of the load balancer.
    #[serde(deserialize_with = "null_is_default")]
    pub load_balancer: LoadBalancerStatus,
}

/// A Service's `status.loadBalancer`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct LoadBalancerStatus {
    /// The entry points of the load balancer.
    #[serde(deserialize_with = "null_is_default")]
    pub ingress: Vec<Ingress>,
}

/// An entry of a Service's `status.loadBalancer.ingress`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Ingress {
    /// The VIP; empty if the load balancer has a host name.
    #[serde(deserialize_with = "null_is_default")]
    pub ip: String,
    /// `VIP` (also if empty), which shunt implements, or `Proxy`, which it leaves to the load balancer.
    #[serde(deserialize_with = "null_is_default")]
    pub ip_mode: String,
}

/// An EndpointSlice of `discovery.k8s.io/v1`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct EndpointSlice {
    /// Name and labels; a label names the Service.
    #[serde(deserialize_with = "null_is_default")]
    pub metadata: Metadata,
    /// `IPv4`, `IPv6` or `FQDN`, which shunt ignores.
    #[serde(deserialize_with = "null_is_default")]
    pub address_type: String,
    /// The endpoints, all with the ports of the slice.
    #[serde(deserialize_with = "null_is_default")]
    pub endpoints: Vec<Endpoint>,
    /// The ports of every endpoint of the slice.
    #[serde(deserialize_with = "null_is_default")]
    pub ports: Vec<EndpointPort>,
}

/// An entry of an EndpointSlice's `endpoints`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Endpoint {
    /// The addresses, of which only the first has a meaning (KEP-752).
    #[serde(deserialize_with = "null_is_default")]
    pub addresses: Vec<String>,
    /// The readiness of the endpoint.
    #[serde(deserialize_with = "null_is_default")]
    pub conditions: Conditions,
    /// The node of the endpoint, for policy Local; empty if unknown.
    #[serde(deserialize_with = "null_is_default")]
    pub node_name: String,
    /// The topology hints: the preferred clients of the endpoint.
    #[serde(deserialize_with = "null_is_default")]
    pub hints: Hints,
}

/// The `conditions` of an endpoint.
#[derive(Debug, Clone, Copy, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Conditions {
    /// True if new connections may go to the endpoint; `None` means true.
    pub ready: Option<bool>,
    /// True if the endpoint serves, even while terminating; `None` means true.
    pub serving: Option<bool>,
    /// True if the endpoint shuts down; `None` means false.
    pub terminating: Option<bool>,
}

/// The `hints` of an endpoint.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Hints {
    /// The zones whose nodes prefer the endpoint.
    #[serde(deserialize_with = "null_is_default")]
    pub for_zones: Vec<Hint>,
    /// The nodes that prefer the endpoint, ahead of zones.
    #[serde(deserialize_with = "null_is_default")]
    pub for_nodes: Vec<Hint>,
}

/// A zone or node of an endpoint's hints.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Hint {
    /// The name of the zone or node.
    #[serde(deserialize_with = "null_is_default")]
    pub name: String,
}

/// An entry of an EndpointSlice's `ports`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct EndpointPort {
    /// The name of the service port that the port belongs to.
    #[serde(deserialize_with = "null_is_default")]
    pub name: String,
    /// `TCP` (also if empty), `UDP` or `SCTP`.
    #[serde(deserialize_with = "null_is_default")]
    pub protocol: String,
    /// The port of the backends; shunt ignores an entry without it.
    pub port: Option<i64>,
}

/// A Node of `v1`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Node {
    /// Name, zone and deletion time of the Node.
    #[serde(deserialize_with = "null_is_default")]
    pub metadata: Metadata,
    /// The pod prefixes and taints.
    #[serde(deserialize_with = "null_is_default")]
    pub spec: NodeSpec,
    /// The addresses of the Node.
    #[serde(deserialize_with = "null_is_default")]
    pub status: NodeStatus,
}

/// The `spec` of a Node.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct NodeSpec {
    /// The first pod prefix; shunt reads it only if `podCIDRs` is empty.
    #[serde(rename = "podCIDR", deserialize_with = "null_is_default")]
    pub pod_cidr: String,
    /// The prefixes of the node's pods, one per family.
    #[serde(rename = "podCIDRs", deserialize_with = "null_is_default")]
    pub pod_cidrs: Vec<String>,
    /// The taints; the cluster autoscaler's makes the Node ineligible for load balancers.
    #[serde(deserialize_with = "null_is_default")]
    pub taints: Vec<Taint>,
}

/// An entry of a Node's `spec.taints`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Taint {
    /// The key, which identifies the taint.
    #[serde(deserialize_with = "null_is_default")]
    pub key: String,
}

/// The `status` of a Node.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct NodeStatus {
    /// The addresses of all types; earlier ones of a type take precedence.
    #[serde(deserialize_with = "null_is_default")]
    pub addresses: Vec<NodeAddress>,
}

/// An entry of a Node's `status.addresses`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct NodeAddress {
    /// The type of the address: shunt uses `InternalIP`, then `ExternalIP`, and ignores others.
    #[serde(rename = "type", deserialize_with = "null_is_default")]
    pub type_: String,
    /// The IP address, or a name for other types.
    #[serde(deserialize_with = "null_is_default")]
    pub address: String,
}

/// A ServiceCIDR of `networking.k8s.io/v1` or `v1beta1`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ServiceCidr {
    /// The name of the ServiceCIDR.
    #[serde(deserialize_with = "null_is_default")]
    pub metadata: Metadata,
    /// The prefixes of the ServiceCIDR.
    #[serde(deserialize_with = "null_is_default")]
    pub spec: ServiceCidrSpec,
}

/// The `spec` of a ServiceCIDR.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ServiceCidrSpec {
    /// The prefixes from which the API server allocates ClusterIPs.
    #[serde(deserialize_with = "null_is_default")]
    pub cidrs: Vec<String>,
}

/// Deserializes `null` as the default: Go writes it for an empty list or an absent field.
fn null_is_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}
