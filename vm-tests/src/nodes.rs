//! Several nodes, each with an agent of its own, and routing between them.

use std::fs;

use anyhow::{Result, ensure};
use shunt_testbed::{
    Agent, Echo, EndpointSlice, Host, ManifestDir, Node, Protocol, Service, Topology,
};

use crate::Test;
use crate::node::agent_binary;

/// What is done with them.
pub(crate) const TESTS: [Test; 3] = [
    ("nodes::policy_cluster_leads_from_any_node_to_any_pod_and_hides_the_client", cluster),
    ("nodes::policy_local_leads_to_the_nodes_own_pods_and_shows_the_client", local),
    ("nodes::tables_have_owners_as_docs_kernels_md_says", owners),
];

const CONFIG: &str = "detectLocalMode: ClusterCIDR\nclusterCIDR: 10.244.0.0/16,fd00:244::/48\n";

const TARGET: u16 = 8080;
const PROTOCOLS: [Protocol; 2] = [Protocol::Tcp, Protocol::Udp];

/// The node port of `web`, whose endpoints are on both nodes, and of `remote`, which has one only on
/// the second.
const WEB: u16 = 30080;
const REMOTE: u16 = 30081;

/// Two nodes with an agent on each.
struct Cluster {
    lab: Topology,
    _agents: [Agent; 2],
    _manifests: ManifestDir,
    _servers: Vec<Echo>,
}

impl Cluster {
    fn new(policy: &str) -> Result<Self> {
        let lab = Topology::new()?;
        let servers = lab.serve(TARGET)?;
        let manifests = ManifestDir::new()?;
        let mut objects = format!("{}{}", Node::of(&lab.node), Node::of(&lab.node2));
        for (name, node_port, pods, ips) in [
            ("web", WEB, &[&lab.pod1, &lab.pod2, &lab.pod3][..], ["10.96.0.10", "fd00:96::10"]),
            ("remote", REMOTE, &[&lab.pod3], ["10.96.0.11", "fd00:96::11"]),
        ] {
            let policy = format!("externalTrafficPolicy: {policy}");
            let mut service = Service::new(name).cluster_ips(&ips).spec(&policy);
            let mut slices = [EndpointSlice::v4(name), EndpointSlice::v6(name)];
            for protocol in PROTOCOLS {
                let port = protocol.to_string().to_lowercase();
                service = service.node_port(&port, protocol, 80, node_port);
                slices = slices.map(|slice| slice.port(&port, protocol, TARGET));
            }
            let [v4, v6] = slices.map(|slice| slice.hosts(pods));
            objects += &format!("{service}{v4}{v6}");
        }
        manifests.write("objects.yaml", objects)?;
        let start = |node: &Host| -> Result<Agent> {
            Agent::builder(agent_binary()?, node).manifests(&manifests).config(CONFIG)?.start()
        };
        let agents = [start(&lab.node)?, start(&lab.node2)?];
        Ok(Self { lab, _agents: agents, _manifests: manifests, _servers: servers })
    }

    /// Calls `check` for each node, family and protocol, with the address of the node port.
    fn each(&self, node_port: u16, mut check: impl FnMut(&Host, Protocol, &str)) {
        for node in [&self.lab.node, &self.lab.node2] {
            for protocol in PROTOCOLS {
                check(node, protocol, &format!("{}:{node_port}", node.ipv4[0]));
                check(node, protocol, &format!("[{}]:{node_port}", node.ipv6[0]));
            }
        }
    }
}

fn cluster() -> Result<()> {
    let cluster = Cluster::new("Cluster")?;
    let client = cluster.lab.from(&cluster.lab.client);
    cluster.each(WEB, |node, protocol, to| {
        let all = ["pod-1", "pod-2", "pod-3"];
        client.probe(protocol, to).reaches(&all).source_of(node);
    });
    cluster.each(REMOTE, |node, protocol, to| {
        client.probe(protocol, to).times(4).reaches(&["pod-3"]).source_of(node);
    });
    Ok(())
}

fn local() -> Result<()> {
    let cluster = Cluster::new("Local")?;
    let client = cluster.lab.from(&cluster.lab.client);
    cluster.each(WEB, |node, protocol, to| {
        let own: &[&str] = if node.name == "node-1" { &["pod-1", "pod-2"] } else { &["pod-3"] };
        client.probe(protocol, to).reaches(own).source_preserved();
    });
    cluster.each(REMOTE, |node, protocol, to| {
        let probe = client.probe(protocol, to);
        match node.name.as_str() {
            "node-1" => probe.dropped(),
            _ => drop(probe.times(4).reaches(&["pod-3"]).source_preserved()),
        }
    });
    Ok(())
}

/// The kernel lets nobody else modify the agent's tables from 6.9 on. Tables of `shunt trace` have an owner
/// from 5.12 on.
fn owners() -> Result<()> {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease")?;
    let mut numbers = release.split('.').map_while(|number| number.parse::<u32>().ok());
    let (major, minor) = (numbers.next(), numbers.next());
    let at_least = |least: (u32, u32)| (major, minor) >= (Some(least.0), Some(least.1));
    let cluster = Cluster::new("Cluster")?;
    let node = &cluster.lab.node;
    let with_owner = node.nft("add table ip t { flags owner; }\n");
    ensure!(with_owner.is_ok() == at_least((5, 12)), "an owner on {release}: {with_owner:?}");
    let deleted = node.nft("delete table ip shunt\n");
    ensure!(deleted.is_err() == at_least((6, 9)), "an owner that stays on {release}: {deleted:?}");
    Ok(())
}
