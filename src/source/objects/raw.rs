//! Kubernetes objects in their API form, with only the fields that shunt uses.
//!
//! Deserialization is tolerant, as in the API machinery: it skips unknown fields, and takes an
//! absent field or `null` as the field's default. Numbers are `i64`, so that a number out of range
//! is an error of its field only.

use serde::{Deserialize, Deserializer};

pub use super::text::{Addresses, Text, Time};

/// The `metadata` of an object, with the labels and annotations that shunt uses.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[cfg_attr(any(test, feature = "fuzz"), derive(serde::Serialize))]
#[serde(default, rename_all = "camelCase", bound(deserialize = "'de: 'a"))]
pub struct Metadata<'a> {
    /// The name, unique per kind and namespace.
    #[serde(deserialize_with = "null_is_default")]
    pub name: Text<'a>,
    /// The namespace; empty means `default` for namespaced kinds.
    #[serde(deserialize_with = "null_is_default")]
    pub namespace: Text<'a>,
    /// The labels of Services, EndpointSlices and Nodes that shunt uses.
    #[serde(deserialize_with = "null_is_default")]
    pub labels: Labels<'a>,
    /// The annotations of Services and EndpointSlices that shunt uses.
    #[serde(deserialize_with = "null_is_default")]
    pub annotations: Annotations<'a>,
    /// The API server's version of the object, at which a watch can resume.
    #[serde(deserialize_with = "null_is_default")]
    pub resource_version: Text<'a>,
    /// The creation time; decides conflicts between Services.
    pub creation_timestamp: Option<Time<'a>>,
    /// The start of a graceful deletion; makes a Node ineligible for load balancers.
    pub deletion_timestamp: Option<Time<'a>>,
}

/// The labels that shunt uses.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[cfg_attr(any(test, feature = "fuzz"), derive(serde::Serialize))]
#[serde(default, bound(deserialize = "'de: 'a"))]
pub struct Labels<'a> {
    /// The name of an EndpointSlice's Service.
    #[serde(rename = "kubernetes.io/service-name")]
    pub service_name: Option<Text<'a>>,
    /// The proxy that implements a Service in place of shunt.
    #[serde(rename = "service.kubernetes.io/service-proxy-name")]
    pub service_proxy_name: Option<Text<'a>>,
    /// The mark of an EndpointSlice of a headless Service, which shunt ignores.
    #[serde(rename = "service.kubernetes.io/headless")]
    pub headless: Option<Text<'a>>,
    /// The zone of a Node, for topology hints.
    #[serde(rename = "topology.kubernetes.io/zone")]
    pub zone: Option<Text<'a>>,
}

/// The annotations that shunt uses.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[cfg_attr(any(test, feature = "fuzz"), derive(serde::Serialize))]
#[serde(default, bound(deserialize = "'de: 'a"))]
pub struct Annotations<'a> {
    /// The time of the change of a Pod or Service that changed the EndpointSlice, RFC 3339.
    #[serde(rename = "endpoints.kubernetes.io/last-change-trigger-time")]
    pub last_change_trigger_time: Option<Text<'a>>,
    /// The balancing of a Service.
    #[serde(rename = "shunt.dev/load-balancing")]
    pub load_balancing: Option<Text<'a>>,
    /// The weight of the endpoints of an EndpointSlice.
    #[serde(rename = "shunt.dev/weight")]
    pub weight: Option<Text<'a>>,
    /// The same for Cilium, which counts if `shunt.dev/weight` is absent.
    #[serde(rename = "service.cilium.io/weight")]
    pub cilium_weight: Option<Text<'a>>,
}

/// A Service of `v1`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[cfg_attr(any(test, feature = "fuzz"), derive(serde::Serialize))]
#[serde(default, bound(deserialize = "'de: 'a"))]
pub struct Service<'a> {
    /// Name, labels and age of the Service.
    #[serde(deserialize_with = "null_is_default")]
    pub metadata: Metadata<'a>,
    /// The desired frontends and policies.
    #[serde(deserialize_with = "null_is_default")]
    pub spec: ServiceSpec<'a>,
    /// The addresses that a load balancer has assigned.
    #[serde(deserialize_with = "null_is_default")]
    pub status: ServiceStatus<'a>,
}

/// The `spec` of a Service.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[cfg_attr(any(test, feature = "fuzz"), derive(serde::Serialize))]
#[serde(default, rename_all = "camelCase", bound(deserialize = "'de: 'a"))]
pub struct ServiceSpec<'a> {
    /// `ClusterIP` (also if empty), `NodePort`, `LoadBalancer` or `ExternalName`, which shunt
    /// ignores.
    #[serde(rename = "type", deserialize_with = "null_is_default")]
    pub type_: Text<'a>,
    /// The first ClusterIP; `None` marks a headless Service.
    #[serde(rename = "clusterIP", deserialize_with = "null_is_default")]
    pub cluster_ip: Text<'a>,
    /// All ClusterIPs, at most one per family; replaces `clusterIP` unless empty.
    #[serde(rename = "clusterIPs", deserialize_with = "null_is_default")]
    pub cluster_ips: Vec<Text<'a>>,
    /// Additional addresses for all service ports.
    #[serde(rename = "externalIPs", deserialize_with = "null_is_default")]
    pub external_ips: Vec<Text<'a>>,
    /// The prefixes that may use the load-balancer VIPs; empty for all sources.
    #[serde(deserialize_with = "null_is_default")]
    pub load_balancer_source_ranges: Vec<Text<'a>>,
    /// The service ports, at least one.
    #[serde(deserialize_with = "null_is_default")]
    pub ports: Vec<ServicePort<'a>>,
    /// `Cluster` (also if empty) or `Local`, for ClusterIPs.
    #[serde(deserialize_with = "null_is_default")]
    pub internal_traffic_policy: Text<'a>,
    /// `Cluster` (also if empty) or `Local`, for VIPs, ExternalIPs and node ports.
    #[serde(deserialize_with = "null_is_default")]
    pub external_traffic_policy: Text<'a>,
    /// `None` (also if empty) or `ClientIP`.
    #[serde(deserialize_with = "null_is_default")]
    pub session_affinity: Text<'a>,
    /// The timeout of session affinity.
    #[serde(deserialize_with = "null_is_default")]
    pub session_affinity_config: SessionAffinityConfig,
    /// The port of the health check for load balancers with policy Local; 0 for none.
    #[serde(deserialize_with = "null_is_default")]
    pub health_check_node_port: i64,
}

/// An entry of a Service's `spec.ports`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[cfg_attr(any(test, feature = "fuzz"), derive(serde::Serialize))]
#[serde(default, rename_all = "camelCase", bound(deserialize = "'de: 'a"))]
pub struct ServicePort<'a> {
    /// The name, by which EndpointSlices refer to the service port; empty for a single port.
    #[serde(deserialize_with = "null_is_default")]
    pub name: Text<'a>,
    /// `TCP` (also if empty), `UDP` or `SCTP`.
    #[serde(deserialize_with = "null_is_default")]
    pub protocol: Text<'a>,
    /// The port of the frontends, except the node port.
    pub port: Option<i64>,
    /// The port on the node's own addresses; 0 for none.
    #[serde(deserialize_with = "null_is_default")]
    pub node_port: i64,
}

/// A Service's `spec.sessionAffinityConfig`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[cfg_attr(any(test, feature = "fuzz"), derive(serde::Serialize))]
#[serde(default)]
pub struct SessionAffinityConfig {
    /// The options for `ClientIP`, the only kind of session affinity.
    #[serde(rename = "clientIP", deserialize_with = "null_is_default")]
    pub client_ip: ClientIpConfig,
}

/// A Service's `spec.sessionAffinityConfig.clientIP`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[cfg_attr(any(test, feature = "fuzz"), derive(serde::Serialize))]
#[serde(default, rename_all = "camelCase")]
pub struct ClientIpConfig {
    /// The time that a client keeps its backend; `None` for the default.
    pub timeout_seconds: Option<i64>,
}

/// The `status` of a Service.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[cfg_attr(any(test, feature = "fuzz"), derive(serde::Serialize))]
#[serde(default, rename_all = "camelCase", bound(deserialize = "'de: 'a"))]
pub struct ServiceStatus<'a> {
    /// The state of the load balancer.
    #[serde(deserialize_with = "null_is_default")]
    pub load_balancer: LoadBalancerStatus<'a>,
}

/// A Service's `status.loadBalancer`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[cfg_attr(any(test, feature = "fuzz"), derive(serde::Serialize))]
#[serde(default, bound(deserialize = "'de: 'a"))]
pub struct LoadBalancerStatus<'a> {
    /// The entry points of the load balancer.
    #[serde(deserialize_with = "null_is_default")]
    pub ingress: Vec<Ingress<'a>>,
}

/// An entry of a Service's `status.loadBalancer.ingress`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[cfg_attr(any(test, feature = "fuzz"), derive(serde::Serialize))]
#[serde(default, rename_all = "camelCase", bound(deserialize = "'de: 'a"))]
pub struct Ingress<'a> {
    /// The VIP; empty if the load balancer has a host name.
    #[serde(deserialize_with = "null_is_default")]
    pub ip: Text<'a>,
    /// `VIP` (also if empty), which shunt implements, or `Proxy`, which it leaves to the load balancer.
    #[serde(deserialize_with = "null_is_default")]
    pub ip_mode: Text<'a>,
}

/// An EndpointSlice of `discovery.k8s.io/v1`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[cfg_attr(any(test, feature = "fuzz"), derive(serde::Serialize))]
#[serde(default, rename_all = "camelCase", bound(deserialize = "'de: 'a"))]
pub struct EndpointSlice<'a> {
    /// Name and labels; a label names the Service.
    #[serde(deserialize_with = "null_is_default")]
    pub metadata: Metadata<'a>,
    /// `IPv4`, `IPv6` or `FQDN`, which shunt ignores.
    #[serde(deserialize_with = "null_is_default")]
    pub address_type: Text<'a>,
    /// The endpoints, all with the ports of the slice.
    #[serde(deserialize_with = "null_is_default")]
    pub endpoints: Vec<Endpoint<'a>>,
    /// The ports of every endpoint of the slice.
    #[serde(deserialize_with = "null_is_default")]
    pub ports: Vec<EndpointPort<'a>>,
}

/// An entry of an EndpointSlice's `endpoints`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[cfg_attr(any(test, feature = "fuzz"), derive(serde::Serialize))]
#[serde(default, rename_all = "camelCase", bound(deserialize = "'de: 'a"))]
pub struct Endpoint<'a> {
    /// The addresses.
    #[serde(deserialize_with = "null_is_default")]
    pub addresses: Addresses<'a>,
    /// The readiness of the endpoint.
    #[serde(deserialize_with = "null_is_default")]
    pub conditions: Conditions,
    /// The node of the endpoint, for policy Local; empty if unknown.
    #[serde(deserialize_with = "null_is_default")]
    pub node_name: Text<'a>,
    /// The topology hints: the preferred clients of the endpoint.
    #[serde(deserialize_with = "null_is_default")]
    pub hints: Hints<'a>,
}

/// The `conditions` of an endpoint.
#[derive(Debug, Clone, Copy, Default, PartialEq, Deserialize)]
#[cfg_attr(any(test, feature = "fuzz"), derive(serde::Serialize))]
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
#[cfg_attr(any(test, feature = "fuzz"), derive(serde::Serialize))]
#[serde(default, rename_all = "camelCase", bound(deserialize = "'de: 'a"))]
pub struct Hints<'a> {
    /// The zones whose nodes prefer the endpoint.
    #[serde(deserialize_with = "null_is_default")]
    pub for_zones: Vec<Hint<'a>>,
    /// The nodes that prefer the endpoint, ahead of zones.
    #[serde(deserialize_with = "null_is_default")]
    pub for_nodes: Vec<Hint<'a>>,
}

/// A zone or node of an endpoint's hints.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[cfg_attr(any(test, feature = "fuzz"), derive(serde::Serialize))]
#[serde(default, bound(deserialize = "'de: 'a"))]
pub struct Hint<'a> {
    /// The name of the zone or node.
    #[serde(deserialize_with = "null_is_default")]
    pub name: Text<'a>,
}

/// An entry of an EndpointSlice's `ports`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[cfg_attr(any(test, feature = "fuzz"), derive(serde::Serialize))]
#[serde(default, bound(deserialize = "'de: 'a"))]
pub struct EndpointPort<'a> {
    /// The name of the service port that the port belongs to.
    #[serde(deserialize_with = "null_is_default")]
    pub name: Text<'a>,
    /// `TCP` (also if empty), `UDP` or `SCTP`.
    #[serde(deserialize_with = "null_is_default")]
    pub protocol: Text<'a>,
    /// The port of the backends; shunt ignores an entry without it.
    pub port: Option<i64>,
}

/// A Node of `v1`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[cfg_attr(any(test, feature = "fuzz"), derive(serde::Serialize))]
#[serde(default, bound(deserialize = "'de: 'a"))]
pub struct Node<'a> {
    /// Name, zone and deletion time of the Node.
    #[serde(deserialize_with = "null_is_default")]
    pub metadata: Metadata<'a>,
    /// The pod prefixes and taints.
    #[serde(deserialize_with = "null_is_default")]
    pub spec: NodeSpec<'a>,
    /// The addresses of the Node.
    #[serde(deserialize_with = "null_is_default")]
    pub status: NodeStatus<'a>,
}

/// The `spec` of a Node.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[cfg_attr(any(test, feature = "fuzz"), derive(serde::Serialize))]
#[serde(default, bound(deserialize = "'de: 'a"))]
pub struct NodeSpec<'a> {
    /// The first pod prefix; shunt reads it only if `podCIDRs` is empty.
    #[serde(rename = "podCIDR", deserialize_with = "null_is_default")]
    pub pod_cidr: Text<'a>,
    /// The prefixes of the node's pods, one per family.
    #[serde(rename = "podCIDRs", deserialize_with = "null_is_default")]
    pub pod_cidrs: Vec<Text<'a>>,
    /// The taints; the cluster autoscaler's makes the Node ineligible for load balancers.
    #[serde(deserialize_with = "null_is_default")]
    pub taints: Vec<Taint<'a>>,
}

/// An entry of a Node's `spec.taints`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[cfg_attr(any(test, feature = "fuzz"), derive(serde::Serialize))]
#[serde(default, bound(deserialize = "'de: 'a"))]
pub struct Taint<'a> {
    /// The key, which identifies the taint.
    #[serde(deserialize_with = "null_is_default")]
    pub key: Text<'a>,
}

/// The `status` of a Node.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[cfg_attr(any(test, feature = "fuzz"), derive(serde::Serialize))]
#[serde(default, bound(deserialize = "'de: 'a"))]
pub struct NodeStatus<'a> {
    /// The addresses of all types; earlier ones of a type take precedence.
    #[serde(deserialize_with = "null_is_default")]
    pub addresses: Vec<NodeAddress<'a>>,
}

/// An entry of a Node's `status.addresses`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[cfg_attr(any(test, feature = "fuzz"), derive(serde::Serialize))]
#[serde(default, bound(deserialize = "'de: 'a"))]
pub struct NodeAddress<'a> {
    /// The type of the address: shunt uses `InternalIP`, then `ExternalIP`, and ignores others.
    #[serde(rename = "type", deserialize_with = "null_is_default")]
    pub type_: Text<'a>,
    /// The IP address, or a name for other types.
    #[serde(deserialize_with = "null_is_default")]
    pub address: Text<'a>,
}

/// A ServiceCIDR of `networking.k8s.io/v1` or `v1beta1`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[cfg_attr(any(test, feature = "fuzz"), derive(serde::Serialize))]
#[serde(default, bound(deserialize = "'de: 'a"))]
pub struct ServiceCidr<'a> {
    /// The name of the ServiceCIDR.
    #[serde(deserialize_with = "null_is_default")]
    pub metadata: Metadata<'a>,
    /// The prefixes of the ServiceCIDR.
    #[serde(deserialize_with = "null_is_default")]
    pub spec: ServiceCidrSpec<'a>,
}

/// The `spec` of a ServiceCIDR.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[cfg_attr(any(test, feature = "fuzz"), derive(serde::Serialize))]
#[serde(default, bound(deserialize = "'de: 'a"))]
pub struct ServiceCidrSpec<'a> {
    /// The prefixes from which the API server allocates ClusterIPs.
    #[serde(deserialize_with = "null_is_default")]
    pub cidrs: Vec<Text<'a>>,
}

impl<'a> Labels<'a> {
    /// Returns the value of a label by its key; none for a label that shunt does not use.
    pub(super) fn get_mut(&mut self, key: &str) -> Option<&mut Option<Text<'a>>> {
        match key {
            "kubernetes.io/service-name" => Some(&mut self.service_name),
            "service.kubernetes.io/service-proxy-name" => Some(&mut self.service_proxy_name),
            "service.kubernetes.io/headless" => Some(&mut self.headless),
            "topology.kubernetes.io/zone" => Some(&mut self.zone),
            _ => None,
        }
    }
}

impl<'a> Annotations<'a> {
    /// Returns the value of an annotation by its key; none for one that shunt does not use.
    pub(super) fn get_mut(&mut self, key: &str) -> Option<&mut Option<Text<'a>>> {
        match key {
            "endpoints.kubernetes.io/last-change-trigger-time" => {
                Some(&mut self.last_change_trigger_time)
            }
            "shunt.dev/load-balancing" => Some(&mut self.load_balancing),
            "shunt.dev/weight" => Some(&mut self.weight),
            "service.cilium.io/weight" => Some(&mut self.cilium_weight),
            _ => None,
        }
    }
}

/// Deserializes `null` as the default: Go writes it for an empty list or an absent field.
fn null_is_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}
