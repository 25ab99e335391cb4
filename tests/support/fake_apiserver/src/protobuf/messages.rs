//! The numbers of the fields that the agent reads, by their names in JSON, and of some that it skips.

/// A field of a message: its number, its name in JSON, and what it holds.
pub(super) struct Field(pub(super) u32, pub(super) &'static str, pub(super) Holds);

/// What a field holds, or each of its values if there are several.
#[derive(Clone, Copy)]
pub(super) enum Holds {
    /// A text, a number or a flag, as in JSON.
    Scalar,
    /// Entries of texts.
    Map,
    /// `meta.v1.Time`.
    Time,
    Message(&'static [Field]),
}

use Holds::{Map, Message, Scalar, Time};

/// `meta.v1.ListMeta`.
pub(super) const LIST_META: &[Field] = &[
    Field(2, "resourceVersion", Scalar),
    Field(3, "continue", Scalar),
    Field(4, "remainingItemCount", Scalar),
];

/// `meta.v1.Status`.
pub(super) const STATUS: &[Field] = &[
    Field(2, "status", Scalar),
    Field(3, "message", Scalar),
    Field(4, "reason", Scalar),
    Field(5, "details", Message(STATUS_DETAILS)),
    Field(6, "code", Scalar),
];

const STATUS_DETAILS: &[Field] =
    &[Field(4, "causes", Message(STATUS_CAUSE)), Field(5, "retryAfterSeconds", Scalar)];

const STATUS_CAUSE: &[Field] =
    &[Field(1, "reason", Scalar), Field(2, "message", Scalar), Field(3, "field", Scalar)];

const OBJECT_META: &[Field] = &[
    Field(1, "name", Scalar),
    Field(3, "namespace", Scalar),
    Field(5, "uid", Scalar),
    Field(6, "resourceVersion", Scalar),
    Field(8, "creationTimestamp", Time),
    Field(9, "deletionTimestamp", Time),
    Field(11, "labels", Map),
    Field(12, "annotations", Map),
    Field(14, "finalizers", Scalar),
];

/// An object of which only the metadata is known.
pub(super) const BARE: &[Field] = &[Field(1, "metadata", Message(OBJECT_META))];

/// `core.v1.Service`.
pub(super) const SERVICE: &[Field] = &[
    Field(1, "metadata", Message(OBJECT_META)),
    Field(2, "spec", Message(SERVICE_SPEC)),
    Field(3, "status", Message(SERVICE_STATUS)),
];

const SERVICE_SPEC: &[Field] = &[
    Field(1, "ports", Message(SERVICE_PORT)),
    Field(2, "selector", Map),
    Field(3, "clusterIP", Scalar),
    Field(4, "type", Scalar),
    Field(5, "externalIPs", Scalar),
    Field(7, "sessionAffinity", Scalar),
    Field(9, "loadBalancerSourceRanges", Scalar),
    Field(11, "externalTrafficPolicy", Scalar),
    Field(12, "healthCheckNodePort", Scalar),
    Field(13, "publishNotReadyAddresses", Scalar),
    Field(14, "sessionAffinityConfig", Message(SESSION_AFFINITY_CONFIG)),
    Field(18, "clusterIPs", Scalar),
    Field(22, "internalTrafficPolicy", Scalar),
    Field(23, "trafficDistribution", Scalar),
];

const SERVICE_PORT: &[Field] = &[
    Field(1, "name", Scalar),
    Field(2, "protocol", Scalar),
    Field(3, "port", Scalar),
    Field(5, "nodePort", Scalar),
];

const SESSION_AFFINITY_CONFIG: &[Field] =
    &[Field(1, "clientIP", Message(&[Field(1, "timeoutSeconds", Scalar)]))];

const SERVICE_STATUS: &[Field] =
    &[Field(1, "loadBalancer", Message(&[Field(1, "ingress", Message(INGRESS))]))];

const INGRESS: &[Field] =
    &[Field(1, "ip", Scalar), Field(2, "hostname", Scalar), Field(3, "ipMode", Scalar)];

/// `discovery.v1.EndpointSlice`.
pub(super) const ENDPOINT_SLICE: &[Field] = &[
    Field(1, "metadata", Message(OBJECT_META)),
    Field(2, "endpoints", Message(ENDPOINT)),
    Field(3, "ports", Message(ENDPOINT_PORT)),
    Field(4, "addressType", Scalar),
];

const ENDPOINT: &[Field] = &[
    Field(1, "addresses", Scalar),
    Field(2, "conditions", Message(CONDITIONS)),
    Field(3, "hostname", Scalar),
    Field(6, "nodeName", Scalar),
    Field(7, "zone", Scalar),
    Field(8, "hints", Message(HINTS)),
];

const CONDITIONS: &[Field] =
    &[Field(1, "ready", Scalar), Field(2, "serving", Scalar), Field(3, "terminating", Scalar)];

const HINTS: &[Field] = &[Field(1, "forZones", Message(HINT)), Field(2, "forNodes", Message(HINT))];

const HINT: &[Field] = &[Field(1, "name", Scalar)];

const ENDPOINT_PORT: &[Field] = &[
    Field(1, "name", Scalar),
    Field(2, "protocol", Scalar),
    Field(3, "port", Scalar),
    Field(4, "appProtocol", Scalar),
];

/// `core.v1.Node`.
pub(super) const NODE: &[Field] = &[
    Field(1, "metadata", Message(OBJECT_META)),
    Field(2, "spec", Message(NODE_SPEC)),
    Field(3, "status", Message(&[Field(5, "addresses", Message(ADDRESS))])),
];

const NODE_SPEC: &[Field] = &[
    Field(1, "podCIDR", Scalar),
    Field(3, "providerID", Scalar),
    Field(5, "taints", Message(TAINT)),
    Field(7, "podCIDRs", Scalar),
];

const TAINT: &[Field] =
    &[Field(1, "key", Scalar), Field(2, "value", Scalar), Field(3, "effect", Scalar)];

const ADDRESS: &[Field] = &[Field(1, "type", Scalar), Field(2, "address", Scalar)];

/// `networking.v1.ServiceCIDR`.
pub(super) const SERVICE_CIDR: &[Field] = &[
    Field(1, "metadata", Message(OBJECT_META)),
    Field(2, "spec", Message(&[Field(1, "cidrs", Scalar)])),
];
