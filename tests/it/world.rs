//! What every scenario starts from: the topology, servers in all pods, and an empty directory of
//! manifests.

use std::fmt::Display;

use anyhow::Result;
use shunt_testbed::{
    Agent, AgentBuilder, Echo, EndpointSlice, Host, ManifestDir, Node, Protocol, Service, Topology,
};

/// The agent's binary.
pub(crate) const SHUNT: &str = env!("CARGO_BIN_EXE_shunt");

/// The port that the servers in the pods listen on.
pub(crate) const TARGET: u16 = 8080;

/// A configuration under which the agent knows the pods' addresses, and node ports are on the primary
/// addresses of the node.
pub(crate) const CLUSTER_CIDR: &str =
    "mode: nftables\ndetectLocalMode: ClusterCIDR\nclusterCIDR: 10.244.0.0/16,fd00:244::/48\n";

/// The testbed with an agent about to be started.
pub(crate) struct World {
    pub(crate) lab: Topology,
    pub(crate) manifests: ManifestDir,
    _servers: Vec<Echo>,
}

impl World {
    /// Without any manifest but that of the node itself.
    pub(crate) fn new() -> Result<Self> {
        let lab = Topology::new()?;
        let pods = [&lab.pod1, &lab.pod2, &lab.pod3];
        let servers = pods.iter().map(|pod| Echo::on(pod, TARGET)).collect::<Result<_>>()?;
        let manifests = ManifestDir::new()?;
        manifests.write("node.yaml", Node::of(&lab.node))?;
        Ok(Self { lab, manifests, _servers: servers })
    }

    /// With the Service that [`web`] describes, on pods of both nodes.
    pub(crate) fn with_web() -> Result<Self> {
        let world = Self::new()?;
        let pods = [&world.lab.pod1, &world.lab.pod2, &world.lab.pod3];
        world.manifests.write("web.yaml", manifest(&web(), "web", &pods))?;
        Ok(world)
    }

    /// An agent for the node, on the directory of manifests and with this configuration.
    pub(crate) fn agent(&self, config: &str) -> Result<AgentBuilder> {
        Agent::builder(SHUNT, &self.lab.node).manifests(&self.manifests).config(config)
    }

    /// The agent with [`CLUSTER_CIDR`], ready.
    pub(crate) fn start(&self) -> Result<Agent> {
        self.agent(CLUSTER_CIDR)?.start()
    }

    /// Asserts that [`web`] works: from outside and from a pod, in both families.
    #[track_caller]
    pub(crate) fn assert_web_works(&self) {
        let pods = ["pod-1", "pod-2", "pod-3"];
        self.lab.from(&self.lab.client).tcp("10.96.0.10:80").reaches(&pods);
        self.lab.from(&self.lab.pod2).udp("[fd00:96::10]:80").reaches(&pods);
    }
}

/// A Service with every kind of frontend, in both families and on all protocols: port 80 and node
/// port 30080.
pub(crate) fn web() -> Service {
    on_all_protocols(Service::new("web"), 80, Some(30080))
        .metadata("creationTimestamp: 2020-01-01T00:00:00Z")
        .cluster_ips(&["10.96.0.10", "fd00:96::10"])
        .external_ips(&["198.51.100.10", "2001:db8:51::10"])
        .load_balancer(&["203.0.113.10", "2001:db8:113::10"])
}

/// Adds a port for each protocol, named after it.
pub(crate) fn on_all_protocols(service: Service, port: u16, node_port: Option<u16>) -> Service {
    Protocol::ALL.into_iter().fold(service, |service, protocol| match node_port {
        Some(node_port) => service.node_port(&port_name(protocol), protocol, port, node_port),
        None => service.port(&port_name(protocol), protocol, port),
    })
}

/// A Service of this name with only cluster IPs, port 80 on all protocols.
pub(crate) fn cluster_ip_service(name: &str, ips: &[&str]) -> Service {
    on_all_protocols(Service::new(name), 80, None).cluster_ips(ips)
}

/// The slices of a Service whose ports are those of [`on_all_protocols`], one for each family.
pub(crate) fn slices(service: &str, hosts: &[&Host]) -> String {
    let slice = |slice: EndpointSlice| {
        let ports = Protocol::ALL.into_iter();
        ports
            .fold(slice, |slice, protocol| slice.port(&port_name(protocol), protocol, TARGET))
            .hosts(hosts)
    };
    format!("{}{}", slice(EndpointSlice::v4(service)), slice(EndpointSlice::v6(service)))
}

/// A Service and its slices.
pub(crate) fn manifest(service: &impl Display, name: &str, hosts: &[&Host]) -> String {
    format!("{service}{}", slices(name, hosts))
}

fn port_name(protocol: Protocol) -> String {
    protocol.to_string().to_lowercase()
}
