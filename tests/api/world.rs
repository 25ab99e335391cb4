//! What every test starts from: the testbed with servers in all pods, an API server behind a
//! gate on the node's loopback address, and a Service in it.

use anyhow::Result;
use shunt_fake_apiserver::{Api, Gate, Key, Kind, Kubeconfig, Marker, Standin};
use shunt_testbed::{
    Agent, AgentBuilder, CLUSTER_CIDR, Echo, EndpointSlice, Host, Node, Protocol, Service, Topology,
};

/// The agent's binary.
pub(crate) const SHUNT: &str = env!("CARGO_BIN_EXE_shunt");

/// The port that the servers in the pods listen on.
const TARGET: u16 = 8080;

/// What a cluster has from the start, and what the real server makes by itself.
const SERVICE_CIDR: &str = "---\napiVersion: networking.k8s.io/v1\nkind: ServiceCIDR\n\
    metadata: {name: kubernetes}\nspec: {cidrs: [10.96.0.0/16, 'fd00:96::/108']}\n";

/// The addresses of [`web`].
pub(crate) const WEB: [&str; 2] = ["10.96.0.10:80", "[fd00:96::10]:80"];

/// The testbed with an API server, and an agent about to be started.
pub(crate) struct World {
    pub(crate) lab: Topology,
    pub(crate) api: Api,
    pub(crate) gate: Gate,
    pub(crate) kubeconfig: Kubeconfig,
    marker: Marker,
    _servers: Vec<Echo>,
}

impl World {
    /// With nothing but the Node and the ServiceCIDR.
    pub(crate) fn new(api: Api) -> Result<Self> {
        let lab = Topology::new()?;
        let servers = lab.serve(TARGET)?;
        if let Api::Standin(standin) = &api {
            standin.put(SERVICE_CIDR)?;
        }
        api.put(Node::of(&lab.node))?;
        let (gate, kubeconfig) = api.reach(&lab.node)?;
        let marker = Marker::default();
        Ok(Self { lab, api, gate, kubeconfig, marker, _servers: servers })
    }

    /// With [`web`] on pods of both nodes.
    pub(crate) fn with_web(api: Api) -> Result<Self> {
        let world = Self::new(api)?;
        world.api.put(web())?;
        world.put_slices("web", &[&world.lab.pod1, &world.lab.pod2, &world.lab.pod3])?;
        Ok(world)
    }

    /// The server that does wrong on command.
    pub(crate) fn standin(&self) -> Result<&Standin> {
        self.api.standin()
    }

    /// An agent for the node.
    pub(crate) fn agent(&self) -> Result<AgentBuilder> {
        self.agent_with(&self.kubeconfig)
    }

    /// An agent for the node with this kubeconfig.
    pub(crate) fn agent_with(&self, kubeconfig: &Kubeconfig) -> Result<AgentBuilder> {
        let path = kubeconfig.path();
        let config = format!("{CLUSTER_CIDR}clientConnection: {{kubeconfig: {path:?}}}\n");
        // Who owns its tables has to say so at each start, which is one transaction more.
        let agent = Agent::builder(SHUNT, &self.lab.node).arg("--own-tables=false");
        // What is no concern of an operator shows that a test has made happen what it meant to.
        agent.arg("-v=4").config(&config)
    }

    /// An agent without a configuration file.
    pub(crate) fn agent_by_flags(&self) -> AgentBuilder {
        let path = self.kubeconfig.path().display().to_string();
        Agent::builder(SHUNT, &self.lab.node)
            .arg("--kubeconfig")
            .arg(path)
            .arg("--proxy-mode=nftables")
            .arg("--cluster-cidr=10.244.0.0/16,fd00:244::/48")
    }

    /// The agent, ready.
    pub(crate) fn start(&self) -> Result<Agent> {
        self.agent()?.start()
    }

    /// Replaces the slices of a Service with these pods as endpoints.
    pub(crate) fn put_slices(&self, service: &str, pods: &[&Host]) -> Result<()> {
        self.api.put(slices(service, pods))
    }

    /// Deletes a Service and its slices.
    pub(crate) fn delete(&self, service: &str) -> Result<()> {
        self.api.delete(&Key::new(Kind::Service, service))?;
        self.api.delete(&Key::new(Kind::EndpointSlice, &format!("{service}-v4")))?;
        self.api.delete(&Key::new(Kind::EndpointSlice, &format!("{service}-v6")))
    }

    /// Asserts that [`web`] goes to these pods, in both families.
    #[track_caller]
    pub(crate) fn assert_web(&self, pods: &[&str]) {
        let client = self.lab.from(&self.lab.client);
        for to in WEB {
            client.tcp(to).reaches(pods);
        }
    }

    /// The same, once the agent has come so far.
    #[track_caller]
    pub(crate) fn assert_web_becomes(&self, pods: &[&str]) {
        let client = self.lab.from(&self.lab.client);
        for to in WEB {
            client.tcp(to).eventually().reaches(pods);
        }
    }

    /// Asserts that there is, before long, no Service at these addresses.
    #[track_caller]
    pub(crate) fn assert_gone(&self, addresses: &[&str]) {
        for to in addresses {
            self.lab.from(&self.lab.client).tcp(to).eventually().dropped();
        }
    }

    /// Makes a Service, changes it, and waits each time until that works: by then the agent has seen all
    /// that was written before, and follows Services and slices.
    pub(crate) fn mark(&self) -> Result<()> {
        for _ in 0..2 {
            self.marker.next(None).iter().try_for_each(|object| self.api.put(object))?;
            self.marker.wait(self.lab.from(&self.lab.client))?;
        }
        Ok(())
    }

    /// The number of transactions that the node's rules have seen.
    pub(crate) fn generation(&self) -> Result<u32> {
        self.lab.node.nft_generation()
    }
}

/// A Service with every kind of frontend in both families, port 80 and node port 30080.
pub(crate) fn web() -> Service {
    Service::new("web")
        .node_port("tcp", Protocol::Tcp, 80, 30080)
        .node_port("udp", Protocol::Udp, 80, 30080)
        .cluster_ips(&["10.96.0.10", "fd00:96::10"])
        .spec("ipFamilyPolicy: RequireDualStack")
        .external_ips(&["198.51.100.10", "2001:db8:51::10"])
        .load_balancer(&["203.0.113.10", "2001:db8:113::10"])
}

/// A Service with one address and port 80.
pub(crate) fn cluster_ip_service(name: &str, ip: &str) -> Service {
    Service::new(name).port("tcp", Protocol::Tcp, 80).cluster_ips(&[ip])
}

/// Slices for both families with these pods as endpoints.
pub(crate) fn slices(service: &str, pods: &[&Host]) -> String {
    EndpointSlice::pair(service, |slice| {
        let slice = slice.port("tcp", Protocol::Tcp, TARGET).port("udp", Protocol::Udp, TARGET);
        slice.hosts(pods)
    })
}
