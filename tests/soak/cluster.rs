//! The testbed with an API server, Services that do not change, and many that do.

use anyhow::Result;
use shunt_fake_apiserver::{Api, Gate, Kubeconfig, Marker, Standin, TOKEN};
use shunt_testbed::{Echo, EndpointSlice, Host, Node, Protocol, Random, Service, Topology};

/// The port that the servers in the pods listen on.
const TARGET: u16 = 8080;

const SERVICE_CIDR: &str = "---\napiVersion: networking.k8s.io/v1\nkind: ServiceCIDR\n\
    metadata: {name: kubernetes}\nspec: {cidrs: [10.96.0.0/12, 'fd00:96::/108']}\n";

pub(crate) struct Cluster {
    pub(crate) lab: Topology,
    pub(crate) api: Api,
    /// On the node's loopback address: the way that is cut and closed.
    pub(crate) gate: Gate,
    pub(crate) kubeconfig: Kubeconfig,
    /// Straight to the server.
    pub(crate) direct: Kubeconfig,
    _servers: Vec<Echo>,
}

impl Cluster {
    /// With so many Services that change.
    pub(crate) fn new(api: Api, services: usize) -> Result<Self> {
        let lab = Topology::new()?;
        let servers = lab.serve(TARGET)?;
        let standin = api.standin()?;
        standin.put(SERVICE_CIDR)?;
        let (gate, kubeconfig) = api.reach(&lab.node)?;
        let direct = Kubeconfig::new(&format!("https://{}", standin.address()))?;
        let direct = direct.authority(&api.authority().unwrap_or_default())?.token_file(TOKEN)?;
        let cluster = Self { lab, api, gate, kubeconfig, direct, _servers: servers };
        cluster.put_node("a")?;
        // The Service that does not change, with every kind of frontend.
        cluster.api.put(Service::everywhere("stable", 10))?;
        let pods = cluster.lab.pods();
        cluster.api.put(EndpointSlice::of("stable", &pods))?;
        let mut random = Random::new(0);
        for n in 0..services {
            cluster.api.put(changing(n, &mut random))?;
            cluster.api.put(endpoints(n, &mut random))?;
        }
        Ok(cluster)
    }

    pub(crate) fn standin(&self) -> Result<&Standin> {
        self.api.standin()
    }

    /// Our Node, in that zone.
    pub(crate) fn put_node(&self, zone: &str) -> Result<()> {
        self.api.put(Node::of(&self.lab.node).label("topology.kubernetes.io/zone", zone))
    }

    /// From where clients ask the Service that does not change, and under which address.
    pub(crate) fn stable_flows(&self) -> Vec<(&Host, Protocol, &'static str)> {
        let lab = &self.lab;
        vec![
            (&lab.client, Protocol::Tcp, "10.96.0.10:80"),
            (&lab.client, Protocol::Tcp, "[2001:db8:2::10]:30080"),
            (&lab.client, Protocol::Udp, "203.0.113.10:80"),
            (&lab.client, Protocol::Udp, "[fd00:96::10]:80"),
            (&lab.pod2, Protocol::Tcp, "[fd00:96::10]:80"),
            (&lab.pod2, Protocol::Udp, "10.96.0.10:80"),
            (&lab.node, Protocol::Tcp, "192.0.2.10:30080"),
            (&lab.node, Protocol::Udp, "[2001:db8:2::10]:30080"),
        ]
    }

    /// Makes a Service, changes it, and waits each time until that works: by then the agent has seen all
    /// that was written before.
    pub(crate) fn mark(&self) -> Result<()> {
        let marker = Marker::default();
        for _ in 0..2 {
            marker.next(None).iter().try_for_each(|object| self.api.put(object))?;
            // Not from where traffic comes from: some of these get no answer.
            marker.wait(self.lab.from(&self.lab.pod1))?;
        }
        Ok(())
    }
}

/// The name of the n-th Service that changes.
pub(crate) fn name(n: usize) -> String {
    format!("changing-{n:05}")
}

/// The n-th Service that changes, in one of its shapes.
pub(crate) fn changing(n: usize, random: &mut Random) -> Service {
    let service = Service::new(&name(n));
    let node_port = 31_000 + n as u16 * 2 % 1_600;
    let service = match random.below(4) {
        // More than there are node ports want one: some of them go without, in turn.
        0 => service.all_protocols(80, Some(node_port)),
        1 => service.port("udp", Protocol::Udp, 53),
        _ => service.all_protocols(80, None),
    };
    let v4 = format!("10.97.{}.{}", n / 250, 1 + n % 250);
    let service = match random.below(2) {
        0 => service.cluster_ips(&[&v4, &format!("fd00:96::97:{n:x}")]),
        _ => service.cluster_ips(&[&v4]),
    };
    match random.below(8) {
        0 => service.spec("sessionAffinity: ClientIP"),
        1 => service.spec("internalTrafficPolicy: Local"),
        2 => service.spec("externalTrafficPolicy: Local"),
        3 => service
            .load_balancer(&[&format!("203.0.113.{}", 20 + n % 200)])
            .spec("loadBalancerSourceRanges: [192.0.2.0/24, 10.244.0.0/16]"),
        _ => service,
    }
}

/// A slice of the n-th Service, with some endpoints of all sorts.
pub(crate) fn endpoints(n: usize, random: &mut Random) -> EndpointSlice {
    let mut slice = EndpointSlice::v4(&name(n)).all_protocols(TARGET);
    for e in 0..random.below(8) {
        let node = if random.below(4) == 0 { "node-1" } else { "node-2" };
        let state = random.one_of(&[
            "ready: true",
            "ready: true",
            "ready: true",
            "ready: false",
            "ready: false, serving: true, terminating: true",
        ]);
        let zone = random.one_of(&["a", "b"]);
        let address = format!("10.244.{}.{}", 10 + n % 200, 1 + (e * 16 + random.below(16)) % 250);
        slice = slice.endpoint(
            &address,
            &format!(
                "nodeName: {node}, conditions: {{{state}}}, hints: {{forZones: [{{name: {zone}}}]}}"
            ),
        );
    }
    slice
}
