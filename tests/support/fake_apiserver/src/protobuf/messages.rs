//! The messages, with the numbers of their fields. Each is read from JSON, too.

use std::collections::BTreeMap;

use prost::Message;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

/// `runtime.TypeMeta`.
#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct TypeMeta {
    #[prost(string, required, tag = "1")]
    pub(super) api_version: String,
    #[prost(string, required, tag = "2")]
    pub(super) kind: String,
}

/// `runtime.Unknown`.
#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Unknown {
    #[prost(message, required, tag = "1")]
    pub(super) type_meta: TypeMeta,
    #[prost(bytes = "vec", required, tag = "2")]
    pub(super) raw: Vec<u8>,
    #[prost(string, required, tag = "3")]
    pub(super) content_encoding: String,
    #[prost(string, required, tag = "4")]
    pub(super) content_type: String,
}

/// `runtime.RawExtension`.
#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct RawExtension {
    #[prost(bytes = "vec", required, tag = "1")]
    pub(super) raw: Vec<u8>,
}

/// `meta.v1.WatchEvent`.
#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct WatchEvent {
    #[prost(string, required, tag = "1")]
    #[serde(rename = "type")]
    pub(super) type_: String,
    #[prost(message, required, tag = "2")]
    pub(super) object: RawExtension,
}

/// A list of any kind, of encoded items.
#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct List {
    #[prost(message, required, tag = "1")]
    pub(super) metadata: ListMeta,
    #[prost(bytes = "vec", repeated, tag = "2")]
    pub(super) items: Vec<Vec<u8>>,
}

/// `meta.v1.ListMeta`.
#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct ListMeta {
    #[prost(string, required, tag = "1")]
    pub(super) self_link: String,
    #[prost(string, required, tag = "2")]
    pub(super) resource_version: String,
    #[prost(string, required, tag = "3")]
    #[serde(rename = "continue")]
    pub(super) continue_: String,
    #[prost(int64, optional, tag = "4")]
    pub(super) remaining_item_count: Option<i64>,
}

/// `meta.v1.Status`.
#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Status {
    #[prost(message, required, tag = "1")]
    pub(super) metadata: ListMeta,
    #[prost(string, required, tag = "2")]
    pub(super) status: String,
    #[prost(string, required, tag = "3")]
    pub(super) message: String,
    #[prost(string, required, tag = "4")]
    pub(super) reason: String,
    #[prost(message, optional, tag = "5")]
    pub(super) details: Option<StatusDetails>,
    #[prost(int32, required, tag = "6")]
    pub(super) code: i32,
}

/// `meta.v1.StatusDetails`.
#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct StatusDetails {
    #[prost(string, required, tag = "1")]
    pub(super) name: String,
    #[prost(string, required, tag = "2")]
    pub(super) group: String,
    #[prost(string, required, tag = "3")]
    pub(super) kind: String,
    #[prost(message, repeated, tag = "4")]
    pub(super) causes: Vec<StatusCause>,
    #[prost(int32, required, tag = "5")]
    pub(super) retry_after_seconds: i32,
    #[prost(string, required, tag = "6")]
    pub(super) uid: String,
}

/// `meta.v1.StatusCause`.
#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct StatusCause {
    #[prost(string, required, tag = "1")]
    pub(super) reason: String,
    #[prost(string, required, tag = "2")]
    pub(super) message: String,
    #[prost(string, required, tag = "3")]
    pub(super) field: String,
}

/// `meta.v1.ObjectMeta`.
#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct ObjectMeta {
    #[prost(string, required, tag = "1")]
    pub(super) name: String,
    #[prost(string, required, tag = "2")]
    pub(super) generate_name: String,
    #[prost(string, required, tag = "3")]
    pub(super) namespace: String,
    #[prost(string, required, tag = "4")]
    pub(super) self_link: String,
    #[prost(string, required, tag = "5")]
    pub(super) uid: String,
    #[prost(string, required, tag = "6")]
    pub(super) resource_version: String,
    #[prost(int64, required, tag = "7")]
    pub(super) generation: i64,
    #[prost(message, required, tag = "8")]
    pub(super) creation_timestamp: Time,
    #[prost(message, optional, tag = "9")]
    pub(super) deletion_timestamp: Option<Time>,
    #[prost(int64, optional, tag = "10")]
    pub(super) deletion_grace_period_seconds: Option<i64>,
    #[prost(btree_map = "string, string", tag = "11")]
    pub(super) labels: BTreeMap<String, String>,
    #[prost(btree_map = "string, string", tag = "12")]
    pub(super) annotations: BTreeMap<String, String>,
    #[prost(message, repeated, tag = "13")]
    pub(super) owner_references: Vec<OwnerReference>,
    #[prost(string, repeated, tag = "14")]
    pub(super) finalizers: Vec<String>,
    #[prost(message, repeated, tag = "17")]
    pub(super) managed_fields: Vec<ManagedFieldsEntry>,
}

/// `meta.v1.OwnerReference`.
#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct OwnerReference {
    #[prost(string, required, tag = "1")]
    pub(super) kind: String,
    #[prost(string, required, tag = "3")]
    pub(super) name: String,
    #[prost(string, required, tag = "4")]
    pub(super) uid: String,
    #[prost(string, required, tag = "5")]
    pub(super) api_version: String,
    #[prost(bool, optional, tag = "6")]
    pub(super) controller: Option<bool>,
    #[prost(bool, optional, tag = "7")]
    pub(super) block_owner_deletion: Option<bool>,
}

/// `meta.v1.ManagedFieldsEntry`, without the fields.
#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct ManagedFieldsEntry {
    #[prost(string, required, tag = "1")]
    pub(super) manager: String,
    #[prost(string, required, tag = "2")]
    pub(super) operation: String,
    #[prost(string, required, tag = "3")]
    pub(super) api_version: String,
    #[prost(message, optional, tag = "4")]
    pub(super) time: Option<Time>,
    #[prost(string, required, tag = "6")]
    pub(super) fields_type: String,
    #[prost(string, required, tag = "8")]
    pub(super) subresource: String,
}

/// `meta.v1.Condition`.
#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Condition {
    #[prost(string, required, tag = "1")]
    #[serde(rename = "type")]
    pub(super) type_: String,
    #[prost(string, required, tag = "2")]
    pub(super) status: String,
    #[prost(int64, required, tag = "3")]
    pub(super) observed_generation: i64,
    #[prost(message, required, tag = "4")]
    pub(super) last_transition_time: Time,
    #[prost(string, required, tag = "5")]
    pub(super) reason: String,
    #[prost(string, required, tag = "6")]
    pub(super) message: String,
}

/// An object of any kind, without its content.
#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Bare {
    #[prost(message, required, tag = "1")]
    pub(super) metadata: ObjectMeta,
}

/// `core.v1.Service`.
#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Service {
    #[prost(message, required, tag = "1")]
    pub(super) metadata: ObjectMeta,
    #[prost(message, required, tag = "2")]
    pub(super) spec: ServiceSpec,
    #[prost(message, required, tag = "3")]
    pub(super) status: ServiceStatus,
}

/// `core.v1.ServiceSpec`.
#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct ServiceSpec {
    #[prost(message, repeated, tag = "1")]
    pub(super) ports: Vec<ServicePort>,
    #[prost(btree_map = "string, string", tag = "2")]
    pub(super) selector: BTreeMap<String, String>,
    #[prost(string, required, tag = "3")]
    #[serde(rename = "clusterIP")]
    pub(super) cluster_ip: String,
    #[prost(string, required, tag = "4")]
    #[serde(rename = "type")]
    pub(super) type_: String,
    #[prost(string, repeated, tag = "5")]
    #[serde(rename = "externalIPs")]
    pub(super) external_ips: Vec<String>,
    #[prost(string, required, tag = "7")]
    pub(super) session_affinity: String,
    #[prost(string, required, tag = "8")]
    #[serde(rename = "loadBalancerIP")]
    pub(super) load_balancer_ip: String,
    #[prost(string, repeated, tag = "9")]
    pub(super) load_balancer_source_ranges: Vec<String>,
    #[prost(string, required, tag = "10")]
    pub(super) external_name: String,
    #[prost(string, required, tag = "11")]
    pub(super) external_traffic_policy: String,
    #[prost(int32, required, tag = "12")]
    pub(super) health_check_node_port: i32,
    #[prost(bool, required, tag = "13")]
    pub(super) publish_not_ready_addresses: bool,
    #[prost(message, optional, tag = "14")]
    pub(super) session_affinity_config: Option<SessionAffinityConfig>,
    #[prost(string, optional, tag = "17")]
    pub(super) ip_family_policy: Option<String>,
    #[prost(string, repeated, tag = "18")]
    #[serde(rename = "clusterIPs")]
    pub(super) cluster_ips: Vec<String>,
    #[prost(string, repeated, tag = "19")]
    pub(super) ip_families: Vec<String>,
    #[prost(bool, optional, tag = "20")]
    pub(super) allocate_load_balancer_node_ports: Option<bool>,
    #[prost(string, optional, tag = "21")]
    pub(super) load_balancer_class: Option<String>,
    #[prost(string, optional, tag = "22")]
    pub(super) internal_traffic_policy: Option<String>,
    #[prost(string, optional, tag = "23")]
    pub(super) traffic_distribution: Option<String>,
}

/// `core.v1.ServicePort`.
#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct ServicePort {
    #[prost(string, required, tag = "1")]
    pub(super) name: String,
    #[prost(string, required, tag = "2")]
    pub(super) protocol: String,
    #[prost(int32, required, tag = "3")]
    pub(super) port: i32,
    #[prost(message, required, tag = "4")]
    pub(super) target_port: IntOrString,
    #[prost(int32, required, tag = "5")]
    pub(super) node_port: i32,
    #[prost(string, optional, tag = "6")]
    pub(super) app_protocol: Option<String>,
}

/// `core.v1.SessionAffinityConfig`.
#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct SessionAffinityConfig {
    #[prost(message, optional, tag = "1")]
    #[serde(rename = "clientIP")]
    pub(super) client_ip: Option<ClientIpConfig>,
}

/// `core.v1.ClientIPConfig`.
#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct ClientIpConfig {
    #[prost(int32, optional, tag = "1")]
    pub(super) timeout_seconds: Option<i32>,
}

/// `core.v1.ServiceStatus`.
#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct ServiceStatus {
    #[prost(message, required, tag = "1")]
    pub(super) load_balancer: LoadBalancerStatus,
    #[prost(message, repeated, tag = "2")]
    pub(super) conditions: Vec<Condition>,
}

/// `core.v1.LoadBalancerStatus`.
#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct LoadBalancerStatus {
    #[prost(message, repeated, tag = "1")]
    pub(super) ingress: Vec<LoadBalancerIngress>,
}

/// `core.v1.LoadBalancerIngress`.
#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct LoadBalancerIngress {
    #[prost(string, required, tag = "1")]
    pub(super) ip: String,
    #[prost(string, required, tag = "2")]
    pub(super) hostname: String,
    #[prost(string, optional, tag = "3")]
    pub(super) ip_mode: Option<String>,
    #[prost(message, repeated, tag = "4")]
    pub(super) ports: Vec<PortStatus>,
}

/// `core.v1.PortStatus`.
#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct PortStatus {
    #[prost(int32, required, tag = "1")]
    pub(super) port: i32,
    #[prost(string, required, tag = "2")]
    pub(super) protocol: String,
    #[prost(string, optional, tag = "3")]
    pub(super) error: Option<String>,
}

/// `discovery.v1.EndpointSlice`.
#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct EndpointSlice {
    #[prost(message, required, tag = "1")]
    pub(super) metadata: ObjectMeta,
    #[prost(message, repeated, tag = "2")]
    pub(super) endpoints: Vec<Endpoint>,
    #[prost(message, repeated, tag = "3")]
    pub(super) ports: Vec<EndpointPort>,
    #[prost(string, required, tag = "4")]
    pub(super) address_type: String,
}

/// `discovery.v1.Endpoint`.
#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Endpoint {
    #[prost(string, repeated, tag = "1")]
    pub(super) addresses: Vec<String>,
    #[prost(message, required, tag = "2")]
    pub(super) conditions: EndpointConditions,
    #[prost(string, optional, tag = "3")]
    pub(super) hostname: Option<String>,
    #[prost(message, optional, tag = "4")]
    pub(super) target_ref: Option<ObjectReference>,
    #[prost(btree_map = "string, string", tag = "5")]
    pub(super) deprecated_topology: BTreeMap<String, String>,
    #[prost(string, optional, tag = "6")]
    pub(super) node_name: Option<String>,
    #[prost(string, optional, tag = "7")]
    pub(super) zone: Option<String>,
    #[prost(message, optional, tag = "8")]
    pub(super) hints: Option<EndpointHints>,
}

/// `discovery.v1.EndpointConditions`.
#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct EndpointConditions {
    #[prost(bool, optional, tag = "1")]
    pub(super) ready: Option<bool>,
    #[prost(bool, optional, tag = "2")]
    pub(super) serving: Option<bool>,
    #[prost(bool, optional, tag = "3")]
    pub(super) terminating: Option<bool>,
}

/// `discovery.v1.EndpointHints`.
#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct EndpointHints {
    #[prost(message, repeated, tag = "1")]
    pub(super) for_zones: Vec<Hint>,
    #[prost(message, repeated, tag = "2")]
    pub(super) for_nodes: Vec<Hint>,
}

/// `discovery.v1.ForZone` and `ForNode`.
#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Hint {
    #[prost(string, required, tag = "1")]
    pub(super) name: String,
}

/// `discovery.v1.EndpointPort`.
#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct EndpointPort {
    #[prost(string, optional, tag = "1")]
    pub(super) name: Option<String>,
    #[prost(string, optional, tag = "2")]
    pub(super) protocol: Option<String>,
    #[prost(int32, optional, tag = "3")]
    pub(super) port: Option<i32>,
    #[prost(string, optional, tag = "4")]
    pub(super) app_protocol: Option<String>,
}

/// `core.v1.ObjectReference`.
#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct ObjectReference {
    #[prost(string, required, tag = "1")]
    pub(super) kind: String,
    #[prost(string, required, tag = "2")]
    pub(super) namespace: String,
    #[prost(string, required, tag = "3")]
    pub(super) name: String,
    #[prost(string, required, tag = "4")]
    pub(super) uid: String,
    #[prost(string, required, tag = "5")]
    pub(super) api_version: String,
    #[prost(string, required, tag = "6")]
    pub(super) resource_version: String,
    #[prost(string, required, tag = "7")]
    pub(super) field_path: String,
}

/// `core.v1.Node`.
#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Node {
    #[prost(message, required, tag = "1")]
    pub(super) metadata: ObjectMeta,
    #[prost(message, required, tag = "2")]
    pub(super) spec: NodeSpec,
    #[prost(message, required, tag = "3")]
    pub(super) status: NodeStatus,
}

/// `core.v1.NodeSpec`.
#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct NodeSpec {
    #[prost(string, required, tag = "1")]
    #[serde(rename = "podCIDR")]
    pub(super) pod_cidr: String,
    #[prost(string, required, tag = "2")]
    #[serde(rename = "externalID")]
    pub(super) external_id: String,
    #[prost(string, required, tag = "3")]
    #[serde(rename = "providerID")]
    pub(super) provider_id: String,
    #[prost(bool, required, tag = "4")]
    pub(super) unschedulable: bool,
    #[prost(message, repeated, tag = "5")]
    pub(super) taints: Vec<Taint>,
    #[prost(string, repeated, tag = "7")]
    #[serde(rename = "podCIDRs")]
    pub(super) pod_cidrs: Vec<String>,
}

/// `core.v1.Taint`.
#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Taint {
    #[prost(string, required, tag = "1")]
    pub(super) key: String,
    #[prost(string, required, tag = "2")]
    pub(super) value: String,
    #[prost(string, required, tag = "3")]
    pub(super) effect: String,
    #[prost(message, optional, tag = "4")]
    pub(super) time_added: Option<Time>,
}

/// `core.v1.NodeStatus`.
#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct NodeStatus {
    #[prost(btree_map = "string, message", tag = "1")]
    pub(super) capacity: BTreeMap<String, Quantity>,
    #[prost(btree_map = "string, message", tag = "2")]
    pub(super) allocatable: BTreeMap<String, Quantity>,
    #[prost(string, required, tag = "3")]
    pub(super) phase: String,
    #[prost(message, repeated, tag = "4")]
    pub(super) conditions: Vec<NodeCondition>,
    #[prost(message, repeated, tag = "5")]
    pub(super) addresses: Vec<NodeAddress>,
    #[prost(message, required, tag = "7")]
    pub(super) node_info: NodeSystemInfo,
    #[prost(string, repeated, tag = "9")]
    pub(super) volumes_in_use: Vec<String>,
}

/// `core.v1.NodeCondition`.
#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct NodeCondition {
    #[prost(string, required, tag = "1")]
    #[serde(rename = "type")]
    pub(super) type_: String,
    #[prost(string, required, tag = "2")]
    pub(super) status: String,
    #[prost(message, required, tag = "3")]
    pub(super) last_heartbeat_time: Time,
    #[prost(message, required, tag = "4")]
    pub(super) last_transition_time: Time,
    #[prost(string, required, tag = "5")]
    pub(super) reason: String,
    #[prost(string, required, tag = "6")]
    pub(super) message: String,
}

/// `core.v1.NodeAddress`.
#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct NodeAddress {
    #[prost(string, required, tag = "1")]
    #[serde(rename = "type")]
    pub(super) type_: String,
    #[prost(string, required, tag = "2")]
    pub(super) address: String,
}

/// `core.v1.NodeSystemInfo`.
#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct NodeSystemInfo {
    #[prost(string, required, tag = "1")]
    #[serde(rename = "machineID")]
    pub(super) machine_id: String,
    #[prost(string, required, tag = "2")]
    #[serde(rename = "systemUUID")]
    pub(super) system_uuid: String,
    #[prost(string, required, tag = "3")]
    #[serde(rename = "bootID")]
    pub(super) boot_id: String,
    #[prost(string, required, tag = "4")]
    pub(super) kernel_version: String,
    #[prost(string, required, tag = "5")]
    pub(super) os_image: String,
    #[prost(string, required, tag = "6")]
    pub(super) container_runtime_version: String,
    #[prost(string, required, tag = "7")]
    pub(super) kubelet_version: String,
    #[prost(string, required, tag = "8")]
    pub(super) kube_proxy_version: String,
    #[prost(string, required, tag = "9")]
    pub(super) operating_system: String,
    #[prost(string, required, tag = "10")]
    pub(super) architecture: String,
}

/// `networking.v1.ServiceCIDR`.
#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct ServiceCidr {
    #[prost(message, required, tag = "1")]
    pub(super) metadata: ObjectMeta,
    #[prost(message, required, tag = "2")]
    pub(super) spec: ServiceCidrSpec,
    #[prost(message, required, tag = "3")]
    pub(super) status: ServiceCidrStatus,
}

/// `networking.v1.ServiceCIDRSpec`.
#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct ServiceCidrSpec {
    #[prost(string, repeated, tag = "1")]
    pub(super) cidrs: Vec<String>,
}

/// `networking.v1.ServiceCIDRStatus`.
#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct ServiceCidrStatus {
    #[prost(message, repeated, tag = "1")]
    pub(super) conditions: Vec<Condition>,
}

/// `events.v1.Event`.
#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Event {
    #[prost(message, required, tag = "1")]
    pub(super) metadata: ObjectMeta,
    #[prost(message, required, tag = "2")]
    pub(super) event_time: MicroTime,
    #[prost(message, optional, tag = "3")]
    pub(super) series: Option<EventSeries>,
    #[prost(string, required, tag = "4")]
    pub(super) reporting_controller: String,
    #[prost(string, required, tag = "5")]
    pub(super) reporting_instance: String,
    #[prost(string, required, tag = "6")]
    pub(super) action: String,
    #[prost(string, required, tag = "7")]
    pub(super) reason: String,
    #[prost(message, required, tag = "8")]
    pub(super) regarding: ObjectReference,
    #[prost(message, optional, tag = "9")]
    pub(super) related: Option<ObjectReference>,
    #[prost(string, required, tag = "10")]
    pub(super) note: String,
    #[prost(string, required, tag = "11")]
    #[serde(rename = "type")]
    pub(super) type_: String,
    #[prost(message, required, tag = "12")]
    pub(super) deprecated_source: EventSource,
    #[prost(message, required, tag = "13")]
    pub(super) deprecated_first_timestamp: Time,
    #[prost(message, required, tag = "14")]
    pub(super) deprecated_last_timestamp: Time,
    #[prost(int32, required, tag = "15")]
    pub(super) deprecated_count: i32,
}

/// `events.v1.EventSeries`.
#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct EventSeries {
    #[prost(int32, required, tag = "1")]
    pub(super) count: i32,
    #[prost(message, required, tag = "2")]
    pub(super) last_observed_time: MicroTime,
}

/// `core.v1.EventSource`.
#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct EventSource {
    #[prost(string, required, tag = "1")]
    pub(super) component: String,
    #[prost(string, required, tag = "2")]
    pub(super) host: String,
}

/// `intstr.IntOrString`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct IntOrString {
    #[prost(int64, required, tag = "1")]
    type_: i64,
    #[prost(int32, required, tag = "2")]
    number: i32,
    #[prost(string, required, tag = "3")]
    text: String,
}

impl<'de> Deserialize<'de> for IntOrString {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Json {
            Number(i32),
            Text(String),
        }
        Ok(match Json::deserialize(deserializer)? {
            Json::Number(number) => Self { type_: 0, number, text: String::new() },
            Json::Text(text) => Self { type_: 1, number: 0, text },
        })
    }
}

/// `resource.Quantity`.
#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(transparent)]
pub(super) struct Quantity {
    #[prost(string, required, tag = "1")]
    text: String,
}

/// `meta.v1.Time`; the zero time is an empty message.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Time {
    #[prost(int64, tag = "1")]
    seconds: i64,
    #[prost(int32, tag = "2")]
    nanos: i32,
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let time: jiff::Timestamp = text.parse().map_err(D::Error::custom)?;
        Ok(Self { seconds: time.as_second(), nanos: 0 })
    }
}

/// `meta.v1.MicroTime`; the zero time is an empty message.
#[derive(Clone, PartialEq, Message)]
pub(super) struct MicroTime {
    #[prost(int64, tag = "1")]
    seconds: i64,
    #[prost(int32, tag = "2")]
    nanos: i32,
}

impl<'de> Deserialize<'de> for MicroTime {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let time: jiff::Timestamp = text.parse().map_err(D::Error::custom)?;
        Ok(Self { seconds: time.as_second(), nanos: time.subsec_nanosecond() })
    }
}
