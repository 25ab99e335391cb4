//! Kubernetes objects in their API form, with only the fields that shunt uses.
//!
//! Tolerant like the API machinery: unknown fields are skipped, and an absent field or `null` is
//! the field's default. Numbers are wide, so that a number out of range is a problem of its field
//! only.

use serde::{Deserialize, Deserializer};

/// `metadata`, with the labels that shunt uses.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Metadata {
    /// `name`.
    #[serde(deserialize_with = "null_is_default")]
    pub name: String,
    /// `namespace`.
    #[serde(deserialize_with = "null_is_default")]
    pub namespace: String,
    /// `labels`.
    #[serde(deserialize_with = "null_is_default")]
    pub labels: Labels,
    /// `annotations`.
    #[serde(deserialize_with = "null_is_default")]
    pub annotations: Annotations,
    /// `resourceVersion`: the API server's mark for this version of the object.
    #[serde(deserialize_with = "null_is_default")]
    pub resource_version: String,
    /// `creationTimestamp`, RFC 3339.
    pub creation_timestamp: Option<String>,
    /// `deletionTimestamp`, RFC 3339.
    pub deletion_timestamp: Option<String>,
}

/// The labels that shunt uses.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Labels {
    /// On an EndpointSlice: the name of its Service.
    #[serde(rename = "kubernetes.io/service-name")]
    pub service_name: Option<String>,
    /// On a Service: the proxy that implements it in place of shunt.
    #[serde(rename = "service.kubernetes.io/service-proxy-name")]
    pub service_proxy_name: Option<String>,
    /// On an EndpointSlice of a headless Service.
    #[serde(rename = "service.kubernetes.io/headless")]
    pub headless: Option<String>,
    /// On a Node.
    #[serde(rename = "topology.kubernetes.io/zone")]
    pub zone: Option<String>,
}

/// The annotations that shunt uses.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Annotations {
    /// On an EndpointSlice: the time of the change of a Pod or the Service behind it, RFC 3339.
    #[serde(rename = "endpoints.kubernetes.io/last-change-trigger-time")]
    pub last_change_trigger_time: Option<String>,
    /// On a bookmark of a watch: the end of a streamed list.
    #[serde(rename = "k8s.io/initial-events-end")]
    pub initial_events_end: Option<String>,
}

/// A Service of `v1`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Service {
    /// `metadata`.
    #[serde(deserialize_with = "null_is_default")]
    pub metadata: Metadata,
    /// `spec`.
    #[serde(deserialize_with = "null_is_default")]
    pub spec: ServiceSpec,
    /// `status`.
    #[serde(deserialize_with = "null_is_default")]
    pub status: ServiceStatus,
}

/// `spec` of a Service.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ServiceSpec {
    /// `type`.
    #[serde(rename = "type", deserialize_with = "null_is_default")]
    pub type_: String,
    /// `clusterIP`.
    #[serde(rename = "clusterIP", deserialize_with = "null_is_default")]
    pub cluster_ip: String,
    /// `clusterIPs`.
    #[serde(rename = "clusterIPs", deserialize_with = "null_is_default")]
    pub cluster_ips: Vec<String>,
    /// `externalIPs`.
    #[serde(rename = "externalIPs", deserialize_with = "null_is_default")]
    pub external_ips: Vec<String>,
    /// `loadBalancerSourceRanges`.
    #[serde(deserialize_with = "null_is_default")]
    pub load_balancer_source_ranges: Vec<String>,
    /// `ports`.
    #[serde(deserialize_with = "null_is_default")]
    pub ports: Vec<ServicePort>,
    /// `internalTrafficPolicy`.
    #[serde(deserialize_with = "null_is_default")]
    pub internal_traffic_policy: String,
    /// `externalTrafficPolicy`.
    #[serde(deserialize_with = "null_is_default")]
    pub external_traffic_policy: String,
    /// `sessionAffinity`.
    #[serde(deserialize_with = "null_is_default")]
    pub session_affinity: String,
    /// `sessionAffinityConfig`.
    #[serde(deserialize_with = "null_is_default")]
    pub session_affinity_config: SessionAffinityConfig,
    /// `healthCheckNodePort`.
    #[serde(deserialize_with = "null_is_default")]
    pub health_check_node_port: i64,
}

/// One entry of a Service's `spec.ports`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ServicePort {
    /// `name`.
    #[serde(deserialize_with = "null_is_default")]
    pub name: String,
    /// `protocol`.
    #[serde(deserialize_with = "null_is_default")]
    pub protocol: String,
    /// `port`.
    pub port: Option<i64>,
    /// `nodePort`.
    #[serde(deserialize_with = "null_is_default")]
    pub node_port: i64,
}

/// `spec.sessionAffinityConfig`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct SessionAffinityConfig {
    /// `clientIP`.
    #[serde(rename = "clientIP", deserialize_with = "null_is_default")]
    pub client_ip: ClientIpConfig,
}

/// `spec.sessionAffinityConfig.clientIP`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ClientIpConfig {
    /// `timeoutSeconds`.
    pub timeout_seconds: Option<i64>,
}

/// `status` of a Service.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ServiceStatus {
    /// `loadBalancer`.
    #[serde(deserialize_with = "null_is_default")]
    pub load_balancer: LoadBalancerStatus,
}

/// `status.loadBalancer`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct LoadBalancerStatus {
    /// `ingress`.
    #[serde(deserialize_with = "null_is_default")]
    pub ingress: Vec<Ingress>,
}

/// One entry of `status.loadBalancer.ingress`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Ingress {
    /// `ip`; empty if the load balancer has a host name.
    #[serde(deserialize_with = "null_is_default")]
    pub ip: String,
    /// `ipMode`.
    #[serde(deserialize_with = "null_is_default")]
    pub ip_mode: String,
}

/// An EndpointSlice of `discovery.k8s.io/v1`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct EndpointSlice {
    /// `metadata`.
    #[serde(deserialize_with = "null_is_default")]
    pub metadata: Metadata,
    /// `addressType`.
    #[serde(deserialize_with = "null_is_default")]
    pub address_type: String,
    /// `endpoints`.
    #[serde(deserialize_with = "null_is_default")]
    pub endpoints: Vec<Endpoint>,
    /// `ports`.
    #[serde(deserialize_with = "null_is_default")]
    pub ports: Vec<EndpointPort>,
}

/// One entry of an EndpointSlice's `endpoints`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Endpoint {
    /// `addresses`.
    #[serde(deserialize_with = "null_is_default")]
    pub addresses: Vec<String>,
    /// `conditions`.
    #[serde(deserialize_with = "null_is_default")]
    pub conditions: Conditions,
    /// `nodeName`.
    #[serde(deserialize_with = "null_is_default")]
    pub node_name: String,
    /// `hints`.
    #[serde(deserialize_with = "null_is_default")]
    pub hints: Hints,
}

/// `conditions` of an endpoint.
#[derive(Debug, Clone, Copy, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Conditions {
    /// `ready`.
    pub ready: Option<bool>,
    /// `serving`.
    pub serving: Option<bool>,
    /// `terminating`.
    pub terminating: Option<bool>,
}

/// `hints` of an endpoint.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Hints {
    /// `forZones`.
    #[serde(deserialize_with = "null_is_default")]
    pub for_zones: Vec<Hint>,
    /// `forNodes`.
    #[serde(deserialize_with = "null_is_default")]
    pub for_nodes: Vec<Hint>,
}

/// One zone or node of an endpoint's hints.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Hint {
    /// `name`.
    #[serde(deserialize_with = "null_is_default")]
    pub name: String,
}

/// One entry of an EndpointSlice's `ports`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct EndpointPort {
    /// `name`.
    #[serde(deserialize_with = "null_is_default")]
    pub name: String,
    /// `protocol`.
    #[serde(deserialize_with = "null_is_default")]
    pub protocol: String,
    /// `port`.
    pub port: Option<i64>,
}

/// A Node of `v1`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Node {
    /// `metadata`.
    #[serde(deserialize_with = "null_is_default")]
    pub metadata: Metadata,
    /// `spec`.
    #[serde(deserialize_with = "null_is_default")]
    pub spec: NodeSpec,
    /// `status`.
    #[serde(deserialize_with = "null_is_default")]
    pub status: NodeStatus,
}

/// `spec` of a Node.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct NodeSpec {
    /// `podCIDR`.
    #[serde(rename = "podCIDR", deserialize_with = "null_is_default")]
    pub pod_cidr: String,
    /// `podCIDRs`.
    #[serde(rename = "podCIDRs", deserialize_with = "null_is_default")]
    pub pod_cidrs: Vec<String>,
    /// `taints`.
    #[serde(deserialize_with = "null_is_default")]
    pub taints: Vec<Taint>,
}

/// One of a Node's `spec.taints`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Taint {
    /// `key`.
    #[serde(deserialize_with = "null_is_default")]
    pub key: String,
}

/// `status` of a Node.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct NodeStatus {
    /// `addresses`.
    #[serde(deserialize_with = "null_is_default")]
    pub addresses: Vec<NodeAddress>,
}

/// One of a Node's `status.addresses`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct NodeAddress {
    /// `type`: `InternalIP`, `ExternalIP`, `Hostname`, …
    #[serde(rename = "type", deserialize_with = "null_is_default")]
    pub type_: String,
    /// `address`.
    #[serde(deserialize_with = "null_is_default")]
    pub address: String,
}

/// A ServiceCIDR of `networking.k8s.io/v1` or `v1beta1`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ServiceCidr {
    /// `metadata`.
    #[serde(deserialize_with = "null_is_default")]
    pub metadata: Metadata,
    /// `spec`.
    #[serde(deserialize_with = "null_is_default")]
    pub spec: ServiceCidrSpec,
}

/// `spec` of a ServiceCIDR.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ServiceCidrSpec {
    /// `cidrs`.
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
