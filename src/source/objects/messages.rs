//! Kubernetes objects as protobuf messages, with only the fields that shunt uses.
//!
//! The numbers of fields are those of `generated.proto` in `k8s.io/api` and
//! `k8s.io/apimachinery`; a decoder skips other fields. Texts share the received buffer, and are
//! converted into those of [`raw`]: the conversion into the model is the same for all encodings.

use prost::Message;
use prost::bytes::Bytes;

use super::raw::{self, Addresses, Text, Time};

#[derive(Message)]
pub(super) struct Metadata {
    #[prost(bytes = "bytes", tag = "1")]
    name: Bytes,
    #[prost(bytes = "bytes", tag = "3")]
    namespace: Bytes,
    #[prost(bytes = "bytes", tag = "6")]
    resource_version: Bytes,
    #[prost(message, optional, tag = "8")]
    creation_timestamp: Option<Timestamp>,
    #[prost(message, optional, tag = "9")]
    deletion_timestamp: Option<Timestamp>,
    #[prost(message, repeated, tag = "11")]
    labels: Vec<Entry>,
    #[prost(message, repeated, tag = "12")]
    annotations: Vec<Entry>,
}

/// An entry of a map.
#[derive(Message)]
struct Entry {
    #[prost(bytes = "bytes", tag = "1")]
    key: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    value: Bytes,
}

#[derive(Message)]
struct Timestamp {
    #[prost(int64, tag = "1")]
    seconds: i64,
    #[prost(int32, tag = "2")]
    nanos: i32,
}

/// An object of any kind, without its content.
#[derive(Message)]
pub(crate) struct Bare {
    #[prost(message, required, tag = "1")]
    metadata: Metadata,
}

#[derive(Message)]
pub(super) struct Service {
    #[prost(message, required, tag = "1")]
    metadata: Metadata,
    #[prost(message, required, tag = "2")]
    spec: ServiceSpec,
    #[prost(message, required, tag = "3")]
    status: ServiceStatus,
}

#[derive(Message)]
struct ServiceSpec {
    #[prost(message, repeated, tag = "1")]
    ports: Vec<ServicePort>,
    #[prost(bytes = "bytes", tag = "3")]
    cluster_ip: Bytes,
    #[prost(bytes = "bytes", tag = "4")]
    type_: Bytes,
    #[prost(bytes = "bytes", repeated, tag = "5")]
    external_ips: Vec<Bytes>,
    #[prost(bytes = "bytes", tag = "7")]
    session_affinity: Bytes,
    #[prost(bytes = "bytes", repeated, tag = "9")]
    load_balancer_source_ranges: Vec<Bytes>,
    #[prost(bytes = "bytes", tag = "11")]
    external_traffic_policy: Bytes,
    #[prost(int32, tag = "12")]
    health_check_node_port: i32,
    #[prost(message, required, tag = "14")]
    session_affinity_config: SessionAffinityConfig,
    #[prost(bytes = "bytes", repeated, tag = "18")]
    cluster_ips: Vec<Bytes>,
    #[prost(bytes = "bytes", tag = "22")]
    internal_traffic_policy: Bytes,
}

#[derive(Message)]
struct ServicePort {
    #[prost(bytes = "bytes", tag = "1")]
    name: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    protocol: Bytes,
    #[prost(int32, optional, tag = "3")]
    port: Option<i32>,
    #[prost(int32, tag = "5")]
    node_port: i32,
}

#[derive(Message)]
struct SessionAffinityConfig {
    #[prost(message, required, tag = "1")]
    client_ip: ClientIpConfig,
}

#[derive(Message)]
struct ClientIpConfig {
    #[prost(int32, optional, tag = "1")]
    timeout_seconds: Option<i32>,
}

#[derive(Message)]
struct ServiceStatus {
    #[prost(message, required, tag = "1")]
    load_balancer: LoadBalancerStatus,
}

#[derive(Message)]
struct LoadBalancerStatus {
    #[prost(message, repeated, tag = "1")]
    ingress: Vec<Ingress>,
}

#[derive(Message)]
struct Ingress {
    #[prost(bytes = "bytes", tag = "1")]
    ip: Bytes,
    #[prost(bytes = "bytes", tag = "3")]
    ip_mode: Bytes,
}

#[derive(Message)]
pub(super) struct EndpointSlice {
    #[prost(message, required, tag = "1")]
    metadata: Metadata,
    #[prost(message, repeated, tag = "2")]
    endpoints: Vec<Endpoint>,
    #[prost(message, repeated, tag = "3")]
    ports: Vec<EndpointPort>,
    #[prost(bytes = "bytes", tag = "4")]
    address_type: Bytes,
}

#[derive(Message)]
struct Endpoint {
    #[prost(bytes = "bytes", repeated, tag = "1")]
    addresses: Vec<Bytes>,
    #[prost(message, required, tag = "2")]
    conditions: Conditions,
    #[prost(bytes = "bytes", tag = "6")]
    node_name: Bytes,
    #[prost(message, required, tag = "8")]
    hints: Hints,
}

#[derive(Message)]
struct Conditions {
    #[prost(bool, optional, tag = "1")]
    ready: Option<bool>,
    #[prost(bool, optional, tag = "2")]
    serving: Option<bool>,
    #[prost(bool, optional, tag = "3")]
    terminating: Option<bool>,
}

#[derive(Message)]
struct Hints {
    #[prost(message, repeated, tag = "1")]
    for_zones: Vec<Hint>,
    #[prost(message, repeated, tag = "2")]
    for_nodes: Vec<Hint>,
}

#[derive(Message)]
struct Hint {
    #[prost(bytes = "bytes", tag = "1")]
    name: Bytes,
}

#[derive(Message)]
struct EndpointPort {
    #[prost(bytes = "bytes", tag = "1")]
    name: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    protocol: Bytes,
    #[prost(int32, optional, tag = "3")]
    port: Option<i32>,
}

#[derive(Message)]
pub(super) struct Node {
    #[prost(message, required, tag = "1")]
    metadata: Metadata,
    #[prost(message, required, tag = "2")]
    spec: NodeSpec,
    #[prost(message, required, tag = "3")]
    status: NodeStatus,
}

#[derive(Message)]
struct NodeSpec {
    #[prost(bytes = "bytes", tag = "1")]
    pod_cidr: Bytes,
    #[prost(message, repeated, tag = "5")]
    taints: Vec<Taint>,
    #[prost(bytes = "bytes", repeated, tag = "7")]
    pod_cidrs: Vec<Bytes>,
}

#[derive(Message)]
struct Taint {
    #[prost(bytes = "bytes", tag = "1")]
    key: Bytes,
}

#[derive(Message)]
struct NodeStatus {
    #[prost(message, repeated, tag = "5")]
    addresses: Vec<NodeAddress>,
}

#[derive(Message)]
struct NodeAddress {
    #[prost(bytes = "bytes", tag = "1")]
    type_: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    address: Bytes,
}

#[derive(Message)]
pub(super) struct ServiceCidr {
    #[prost(message, required, tag = "1")]
    metadata: Metadata,
    #[prost(message, required, tag = "2")]
    spec: ServiceCidrSpec,
}

#[derive(Message)]
struct ServiceCidrSpec {
    #[prost(bytes = "bytes", repeated, tag = "1")]
    cidrs: Vec<Bytes>,
}

impl Bare {
    /// Returns the metadata, as far as it was decoded.
    pub(crate) fn metadata(&self) -> raw::Metadata<'_> {
        self.metadata.raw()
    }
}

impl Service {
    pub(super) fn raw(&self) -> raw::Service<'_> {
        raw::Service {
            metadata: self.metadata.raw(),
            spec: self.spec.raw(),
            status: raw::ServiceStatus {
                load_balancer: raw::LoadBalancerStatus {
                    ingress: self.status.load_balancer.ingress.iter().map(Ingress::raw).collect(),
                },
            },
        }
    }
}

impl ServiceSpec {
    fn raw(&self) -> raw::ServiceSpec<'_> {
        let SessionAffinityConfig { client_ip } = &self.session_affinity_config;
        raw::ServiceSpec {
            type_: text(&self.type_),
            cluster_ip: text(&self.cluster_ip),
            cluster_ips: texts(&self.cluster_ips),
            external_ips: texts(&self.external_ips),
            load_balancer_source_ranges: texts(&self.load_balancer_source_ranges),
            ports: self.ports.iter().map(ServicePort::raw).collect(),
            internal_traffic_policy: text(&self.internal_traffic_policy),
            external_traffic_policy: text(&self.external_traffic_policy),
            session_affinity: text(&self.session_affinity),
            session_affinity_config: raw::SessionAffinityConfig {
                client_ip: raw::ClientIpConfig {
                    timeout_seconds: client_ip.timeout_seconds.map(i64::from),
                },
            },
            health_check_node_port: self.health_check_node_port.into(),
        }
    }
}

impl ServicePort {
    fn raw(&self) -> raw::ServicePort<'_> {
        raw::ServicePort {
            name: text(&self.name),
            protocol: text(&self.protocol),
            port: self.port.map(i64::from),
            node_port: self.node_port.into(),
        }
    }
}

impl Ingress {
    fn raw(&self) -> raw::Ingress<'_> {
        raw::Ingress { ip: text(&self.ip), ip_mode: text(&self.ip_mode) }
    }
}

impl EndpointSlice {
    pub(super) fn raw(&self) -> raw::EndpointSlice<'_> {
        raw::EndpointSlice {
            metadata: self.metadata.raw(),
            address_type: text(&self.address_type),
            endpoints: self.endpoints.iter().map(Endpoint::raw).collect(),
            ports: self.ports.iter().map(EndpointPort::raw).collect(),
        }
    }
}

impl Endpoint {
    fn raw(&self) -> raw::Endpoint<'_> {
        let Conditions { ready, serving, terminating } = self.conditions;
        raw::Endpoint {
            addresses: Addresses { first: self.addresses.first().map(text) },
            conditions: raw::Conditions { ready, serving, terminating },
            node_name: text(&self.node_name),
            hints: raw::Hints {
                for_zones: self.hints.for_zones.iter().map(Hint::raw).collect(),
                for_nodes: self.hints.for_nodes.iter().map(Hint::raw).collect(),
            },
        }
    }
}

impl Hint {
    fn raw(&self) -> raw::Hint<'_> {
        raw::Hint { name: text(&self.name) }
    }
}

impl EndpointPort {
    fn raw(&self) -> raw::EndpointPort<'_> {
        raw::EndpointPort {
            name: text(&self.name),
            protocol: text(&self.protocol),
            port: self.port.map(i64::from),
        }
    }
}

impl Node {
    pub(super) fn raw(&self) -> raw::Node<'_> {
        raw::Node {
            metadata: self.metadata.raw(),
            spec: raw::NodeSpec {
                pod_cidr: text(&self.spec.pod_cidr),
                pod_cidrs: texts(&self.spec.pod_cidrs),
                taints: self.spec.taints.iter().map(Taint::raw).collect(),
            },
            status: raw::NodeStatus {
                addresses: self.status.addresses.iter().map(NodeAddress::raw).collect(),
            },
        }
    }
}

impl Taint {
    fn raw(&self) -> raw::Taint<'_> {
        raw::Taint { key: text(&self.key) }
    }
}

impl NodeAddress {
    fn raw(&self) -> raw::NodeAddress<'_> {
        raw::NodeAddress { type_: text(&self.type_), address: text(&self.address) }
    }
}

impl ServiceCidr {
    pub(super) fn raw(&self) -> raw::ServiceCidr<'_> {
        raw::ServiceCidr {
            metadata: self.metadata.raw(),
            spec: raw::ServiceCidrSpec { cidrs: texts(&self.spec.cidrs) },
        }
    }
}

impl Metadata {
    fn raw(&self) -> raw::Metadata<'_> {
        let mut labels = raw::Labels::default();
        for Entry { key, value } in &self.labels {
            if let Some(label) = std::str::from_utf8(key).ok().and_then(|key| labels.get_mut(key)) {
                *label = Some(text(value));
            }
        }
        let mut annotations = raw::Annotations::default();
        for Entry { key, value } in &self.annotations {
            let annotation = std::str::from_utf8(key).ok().and_then(|key| annotations.get_mut(key));
            if let Some(annotation) = annotation {
                *annotation = Some(text(value));
            }
        }
        raw::Metadata {
            name: text(&self.name),
            namespace: text(&self.namespace),
            labels,
            annotations,
            resource_version: text(&self.resource_version),
            creation_timestamp: self.creation_timestamp.as_ref().and_then(Timestamp::raw),
            deletion_timestamp: self.deletion_timestamp.as_ref().and_then(Timestamp::raw),
        }
    }
}

impl Timestamp {
    /// Returns the time; none for Go's zero time, which is an empty message here and `null` in
    /// JSON.
    fn raw<'a>(&self) -> Option<Time<'a>> {
        (self.seconds != 0 || self.nanos != 0).then_some(Time::Seconds(self.seconds))
    }
}

fn text(bytes: &Bytes) -> Text<'_> {
    Text::from_bytes(bytes)
}

fn texts(list: &[Bytes]) -> Vec<Text<'_>> {
    list.iter().map(text).collect()
}
