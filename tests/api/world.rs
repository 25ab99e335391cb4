//! What every test starts from: the testbed with servers in all pods, an API server behind a
//! gate on the node's loopback address, and a Service in it.

use std::process::Command;

use anyhow::Result;
use shunt_fake_apiserver::{Api, Gate, Kubeconfig, Marker, Standin};
use shunt_testbed::{
    Agent, AgentBuilder, CLUSTER_CIDR, Echo, EndpointSlice, Node, Protocol, Service, Topology,
    eventually,
};

/// The agent's binary.
pub(crate) const SHUNT: &str = env!("CARGO_BIN_EXE_shunt");

/// The port that the servers in the pods listen on.
const TARGET: u16 = 8080;

/// What a cluster has from the start, and what the real server makes by itself.
const SERVICE_CIDR: &str = "---\napiVersion: networking.k8s.io/v1\nkind: ServiceCIDR\n\
    metadata: {name: kubernetes}\nspec: {cidrs: [10.96.0.0/16, 'fd00:96::/108']}\n";

/// The addresses of [`web`].
const WEB: [&str; 2] = ["10.96.0.10:80", "[fd00:96::10]:80"];

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
        let pods = [&world.lab.pod1, &world.lab.pod2, &world.lab.pod3];
        let slices = EndpointSlice::pair("web", |slice| {
            slice.port("tcp", Protocol::Tcp, TARGET).port("udp", Protocol::Udp, TARGET).hosts(&pods)
        });
        world.api.put(slices)?;
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

    /// Asserts that [`web`] goes to these pods, in both families.
    #[track_caller]
    pub(crate) fn assert_web(&self, pods: &[&str]) {
        let client = self.lab.from(&self.lab.client);
        for to in WEB {
            client.tcp(to).reaches(pods);
        }
    }

    /// Waits until the agent has told something.
    pub(crate) fn wait_for_event(&self, reason: &str) -> Result<()> {
        eventually(reason, || {
            let events = self.api.events()?;
            Ok(events.iter().any(|event| event["reason"] == reason).then_some(()))
        })
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
}

/// What `shunt status` says, once its first line has all of these parts.
pub(crate) fn status(world: &World, parts: &[&str]) -> Result<String> {
    eventually(format_args!("{parts:?}"), || {
        let mut command = Command::new(SHUNT);
        let output = command.args(["status", "--netns"]).arg(world.lab.node.path()).output()?;
        let told = String::from_utf8_lossy(&output.stdout).into_owned();
        let first = told.lines().next().unwrap_or_default();
        Ok(parts.iter().all(|part| first.contains(part)).then_some(told))
    })
}

/// A Service with every kind of frontend in both families, port 80 and node port 30080.
fn web() -> Service {
    Service::new("web")
        .node_port("tcp", Protocol::Tcp, 80, 30080)
        .node_port("udp", Protocol::Udp, 80, 30080)
        .cluster_ips(&["10.96.0.10", "fd00:96::10"])
        .spec("ipFamilyPolicy: RequireDualStack")
        .external_ips(&["198.51.100.10", "2001:db8:51::10"])
        .load_balancer(&["203.0.113.10", "2001:db8:113::10"])
}
