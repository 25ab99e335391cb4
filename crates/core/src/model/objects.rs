//! The objects, validated: a value of these types can be planned as it is.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

/// An IP family. Every service port exists once per family that its Service has a ClusterIP for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// Both families, in the order in which they are programmed.
    pub const ALL: [Family; 2] = [Family::V4, Family::V6];

    /// Returns the family of an address.
    #[must_use]
    pub fn of(address: IpAddr) -> Family {
        match address {
            IpAddr::V4(_) => Family::V4,
            IpAddr::V6(_) => Family::V6,
        }
    }

    /// Returns the family of a prefix.
    #[must_use]
    pub fn of_net(net: &IpNet) -> Family {
        Family::of(net.addr())
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Family::V4 => "IPv4",
            Family::V6 => "IPv6",
        })
    }
}

/// A transport protocol of a service port. The discriminants are those of the IP header (IANA).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[repr(u8)]
pub enum Protocol {
    /// TCP.
    Tcp = 6,
    /// UDP.
    Udp = 17,
    /// SCTP.
    Sctp = 132,
}

impl Protocol {
    /// All protocols a service port can have.
    pub const ALL: [Protocol; 3] = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];

    /// Returns the number in the IP header.
    #[must_use]
    pub fn number(self) -> u8 {
        self as u8
    }

    /// Returns the protocol with this number in the IP header, if service ports can have it.
    #[must_use]
    pub fn from_number(number: u8) -> Option<Protocol> {
        Protocol::ALL.into_iter().find(|p| p.number() == number)
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Protocol::Tcp => "tcp",
            Protocol::Udp => "udp",
            Protocol::Sctp => "sctp",
        })
    }
}

/// The kinds of objects that shunt uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Kind {
    /// `Service` of `v1`.
    Service,
    /// `EndpointSlice` of `discovery.k8s.io/v1`.
    EndpointSlice,
    /// `Node` of `v1`.
    Node,
    /// `ServiceCIDR` of `networking.k8s.io/v1` or `v1beta1`.
    ServiceCidr,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Kind; 4] = [Kind::Service, Kind::EndpointSlice, Kind::Node, Kind::ServiceCidr];

    /// Returns the name in `kind`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Kind::Service => "Service",
            Kind::EndpointSlice => "EndpointSlice",
            Kind::Node => "Node",
            Kind::ServiceCidr => "ServiceCIDR",
        }
    }

    /// Returns the plural in the paths of the API.
    #[must_use]
    pub fn resource(self) -> &'static str {
        match self {
            Kind::Service => "services",
            Kind::EndpointSlice => "endpointslices",
            Kind::Node => "nodes",
            Kind::ServiceCidr => "servicecidrs",
        }
    }

    /// Returns the supported values of `apiVersion`, the preferred one first.
    #[must_use]
    pub fn versions(self) -> &'static [&'static str] {
        match self {
            Kind::Service | Kind::Node => &["v1"],
            Kind::EndpointSlice => &["discovery.k8s.io/v1"],
            Kind::ServiceCidr => &["networking.k8s.io/v1", "networking.k8s.io/v1beta1"],
        }
    }

    /// Returns true if objects of this kind have a namespace.
    #[must_use]
    pub fn is_namespaced(self) -> bool {
        matches!(self, Kind::Service | Kind::EndpointSlice)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Namespace and name of an object. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ObjectName {
    /// The namespace.
    pub namespace: Arc<str>,
    /// The name within the namespace.
    pub name: Arc<str>,
}

impl ObjectName {
    /// Joins a namespace and a name.
    pub fn new(namespace: impl Into<Arc<str>>, name: impl Into<Arc<str>>) -> ObjectName {
        ObjectName { namespace: namespace.into(), name: name.into() }
    }
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// Which endpoints traffic may use (`internalTrafficPolicy`, `externalTrafficPolicy`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum TrafficPolicy {
    /// All endpoints of the cluster.
    #[default]
    Cluster,
    /// Only endpoints on this node.
    Local,
}

/// The choice of a backend for a new connection.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub enum Balancing {
    /// At random.
    #[default]
    Random,
    /// By a hash of the client's address: a client gets the same backend on every node.
    SourceHash,
    /// By a hash of the client's address and port: the connections of a client go to several
    /// backends, and each to the same one on every node.
    SourceAndPortHash,
}

impl Balancing {
    /// All kinds.
    pub const ALL: [Balancing; 3] =
        [Balancing::Random, Balancing::SourceHash, Balancing::SourceAndPortHash];

    /// Returns the name in annotations and the configuration.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Balancing::Random => "random",
            Balancing::SourceHash => "source-hash",
            Balancing::SourceAndPortHash => "source-and-port-hash",
        }
    }
}

impl FromStr for Balancing {
    type Err = String;

    fn from_str(name: &str) -> Result<Balancing, String> {
        let named = Balancing::ALL.into_iter().find(|it| it.name() == name);
        named.ok_or_else(|| {
            "not a kind of load balancing; write random, source-hash or source-and-port-hash"
                .to_owned()
        })
    }
}

/// A Service that has frontends: neither headless nor `ExternalName`, nor some other proxy's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Service {
    /// `metadata.namespace` and `metadata.name`.
    pub name: ObjectName,
    /// `metadata.creationTimestamp` in seconds since 1970. Of frontends of one kind, the older Service
    /// has what two claim; one that does not say counts as the youngest.
    pub created: Option<i64>,
    /// `spec.clusterIPs`: at most one address per family.
    pub cluster_ips: Vec<IpAddr>,
    /// `spec.externalIPs`.
    pub external_ips: Vec<IpAddr>,
    /// `status.loadBalancer.ingress[].ip` of the entries whose `ipMode` is absent or `VIP`.
    pub load_balancer_ips: Vec<IpAddr>,
    /// `status.loadBalancer.ingress[].ip` of the entries with the `ipMode` `Proxy`. They have no
    /// frontend: packets to them go to the load balancer.
    pub proxied_ips: Vec<IpAddr>,
    /// `spec.loadBalancerSourceRanges`, both families together.
    pub source_ranges: Vec<IpNet>,
    /// `spec.ports`.
    pub ports: Vec<ServicePort>,
    /// `spec.internalTrafficPolicy`: for traffic to the ClusterIP.
    pub internal_policy: TrafficPolicy,
    /// `spec.externalTrafficPolicy`: for all other frontends.
    pub external_policy: TrafficPolicy,
    /// `spec.sessionAffinity: ClientIP`: how long a client sticks, in seconds.
    pub affinity_seconds: Option<u32>,
    /// The annotation `shunt.dev/load-balancing`; `None` for the configured default.
    #[serde(default)]
    pub balancing: Option<Balancing>,
    /// `spec.healthCheckNodePort`, where the Service has one.
    pub health_check_node_port: Option<u16>,
}

/// Why shunt implements nothing of a Service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ignored {
    /// `spec.clusterIP` is `None`: clients find the endpoints by DNS.
    Headless,
    /// `spec.type` is `ExternalName`: an alias in the DNS.
    ExternalName,
    /// The label `service.kubernetes.io/service-proxy-name` names this other proxy. With the valid
    /// parts of the Service.
    OtherProxy(Arc<str>, Arc<Service>),
    /// No ClusterIP is allocated.
    NoClusterIp,
    /// The Service is invalid: the field, the value and the reason.
    Invalid(Arc<str>),
}

/// One entry of `spec.ports`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServicePort {
    /// `name`; empty where a Service has a single, unnamed port.
    pub name: Arc<str>,
    /// `protocol`; absent means TCP.
    pub protocol: Protocol,
    /// The port on ClusterIP, ExternalIPs and VIPs. Never 0.
    pub port: u16,
    /// The port on the node's own addresses, for types NodePort and LoadBalancer. Never 0.
    pub node_port: Option<u16>,
}

/// An EndpointSlice of one IP family.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndpointSlice {
    /// The slice's own name (not that of the Service).
    pub name: ObjectName,
    /// The label `kubernetes.io/service-name`: the Service it belongs to, in the same namespace.
    pub service: Option<Arc<str>>,
    /// `addressType`, without `FQDN`.
    pub family: Family,
    /// The annotation `shunt.dev/weight`: the weight of each endpoint; `None` without one.
    #[serde(default)]
    pub weight: Option<u16>,
    /// The ports that have a number.
    pub ports: Vec<EndpointPort>,
    /// The endpoints with a usable address.
    pub endpoints: Vec<Endpoint>,
}

impl EndpointSlice {
    /// Returns the name of the Service that this slice belongs to.
    #[must_use]
    pub fn service_name(&self) -> Option<ObjectName> {
        let service = self.service.clone()?;
        Some(ObjectName { namespace: self.name.namespace.clone(), name: service })
    }
}

/// One entry of an EndpointSlice's `ports`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndpointPort {
    /// The name of the service port that it serves.
    pub name: Arc<str>,
    /// `protocol`; absent means TCP.
    pub protocol: Protocol,
    /// The port that the endpoint listens on. Never 0.
    pub port: u16,
}

/// One entry of an EndpointSlice's `endpoints`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endpoint {
    /// The first of `addresses`; the others do not count (KEP-752).
    pub address: IpAddr,
    /// `conditions.ready`; absent means true.
    pub ready: bool,
    /// `conditions.serving`; absent means true.
    pub serving: bool,
    /// `conditions.terminating`; absent means false.
    pub terminating: bool,
    /// `nodeName`.
    pub node: Option<Arc<str>>,
    /// `hints`, boxed: a cluster has hundreds of thousands of endpoints, most of them without.
    pub hints: Option<Box<Hints>>,
}

impl Endpoint {
    /// Returns `hints.forZones[].name`.
    #[must_use]
    pub fn zone_hints(&self) -> &[Arc<str>] {
        self.hints.as_ref().map_or(&[], |hints| &hints.zones)
    }

    /// Returns `hints.forNodes[].name`.
    #[must_use]
    pub fn node_hints(&self) -> &[Arc<str>] {
        self.hints.as_ref().map_or(&[], |hints| &hints.nodes)
    }
}

/// The preferred clients of an endpoint.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hints {
    /// `forZones[].name`.
    pub zones: Box<[Arc<str>]>,
    /// `forNodes[].name`.
    pub nodes: Box<[Arc<str>]>,
}

impl Hints {
    /// Returns the hints for an endpoint; `None` if there are none.
    #[must_use]
    pub fn boxed(zones: Box<[Arc<str>]>, nodes: Box<[Arc<str>]>) -> Option<Box<Hints>> {
        let is_empty = zones.is_empty() && nodes.is_empty();
        (!is_empty).then(|| Box::new(Hints { zones, nodes }))
    }
}

/// The Node that the agent runs on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// `metadata.name`, which EndpointSlices name in `nodeName`.
    pub name: Arc<str>,
    /// `status.addresses`, internal addresses before external ones, otherwise in their order. The
    /// first of each family is the primary one.
    pub addresses: Vec<IpAddr>,
    /// `spec.podCIDRs`.
    pub pod_cidrs: Vec<IpNet>,
    /// The label `topology.kubernetes.io/zone`.
    pub zone: Option<Arc<str>>,
    /// False while it is being deleted or has the taint `ToBeDeletedByClusterAutoscaler`: load
    /// balancers should not send it new traffic.
    pub eligible: bool,
}

impl Node {
    /// Adds what is missing here and was known before: the addresses and pod CIDRs of each family
    /// that this Node has none of. A Node that is registered again gets them one after the other.
    pub fn keep_missing(&mut self, known: &Node) {
        for family in Family::ALL {
            let of_family = |address: &&IpAddr| Family::of(**address) == family;
            if !self.addresses.iter().any(|address| of_family(&address)) {
                self.addresses.extend(known.addresses.iter().filter(of_family));
            }
            let of_family = |net: &&IpNet| Family::of_net(net) == family;
            if !self.pod_cidrs.iter().any(|net| of_family(&net)) {
                self.pod_cidrs.extend(known.pod_cidrs.iter().filter(of_family));
            }
        }
    }

    /// Keeps the addresses and pod CIDRs that were known of a Node that has none of any family yet.
    pub fn keep_lacking(&mut self, known: &Node) {
        if self.addresses.is_empty() {
            self.addresses.clone_from(&known.addresses);
        }
        if self.pod_cidrs.is_empty() {
            self.pod_cidrs.clone_from(&known.pod_cidrs);
        }
    }

    /// Returns the primary address of a family.
    #[must_use]
    pub fn primary_address(&self, family: Family) -> Option<IpAddr> {
        self.addresses.iter().copied().find(|a| Family::of(*a) == family)
    }
}
