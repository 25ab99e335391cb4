//! What every scenario starts from: the topology, servers in all pods, and a directory of manifests.

use std::fmt::Display;
use std::process::{Command, Output};

use anyhow::{Context, Result, ensure};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use serde_json::Value;
pub(crate) use shunt_testbed::CLUSTER_CIDR;
use shunt_testbed::{
    Agent, AgentBuilder, Echo, EndpointSlice, Host, ManifestDir, Netns, Node, Protocol, Service,
    Topology,
};

/// The agent's binary.
pub(crate) const SHUNT: &str = env!("CARGO_BIN_EXE_shunt");

/// The port that the servers in the pods listen on.
pub(crate) const TARGET: u16 = 8080;

/// The testbed with an agent about to be started.
pub(crate) struct World {
    pub(crate) lab: Topology,
    pub(crate) manifests: ManifestDir,
    _servers: Vec<Echo>,
}

impl World {
    /// Without any manifest, and without servers: for what sends no packet to a pod.
    pub(crate) fn empty() -> Result<Self> {
        Ok(Self { lab: Topology::new()?, manifests: ManifestDir::new()?, _servers: Vec::new() })
    }

    /// With servers in all pods, and without any manifest but that of the node itself.
    pub(crate) fn new() -> Result<Self> {
        let empty = Self::empty()?;
        empty.manifests.write("node.yaml", Node::of(&empty.lab.node))?;
        Ok(Self { _servers: empty.lab.serve(TARGET)?, ..empty })
    }

    /// With the Service that [`web`] describes, on pods of both nodes.
    pub(crate) fn with_web() -> Result<Self> {
        let world = Self::new()?;
        let pods = [&world.lab.pod1, &world.lab.pod2, &world.lab.pod3];
        world.manifests.write("web.yaml", manifest(&web(), "web", &pods))?;
        Ok(world)
    }

    /// An agent for the node, on the directory of manifests and without a configuration.
    pub(crate) fn plain_agent(&self) -> AgentBuilder {
        Agent::builder(SHUNT, &self.lab.node).manifests(&self.manifests)
    }

    /// An agent for the node, on the directory of manifests and with this configuration.
    pub(crate) fn agent(&self, config: &str) -> Result<AgentBuilder> {
        self.plain_agent().config(config)
    }

    /// The agent with [`CLUSTER_CIDR`], ready.
    pub(crate) fn start(&self) -> Result<Agent> {
        self.agent(CLUSTER_CIDR)?.start()
    }

    /// Whether the tables on the node have flags: an owner, and that they outlive it.
    pub(crate) fn tables_are_owned(&self) -> Result<bool> {
        let table = self.lab.node.output("nft", &["list", "table", "ip", "shunt"])?;
        // Flags of the table are indented once, those of its sets twice.
        Ok(table.contains("\n\tflags "))
    }

    /// Asserts that [`web`] works: from outside and from a pod, in both families.
    #[track_caller]
    pub(crate) fn assert_web_works(&self) {
        let pods = ["pod-1", "pod-2", "pod-3"];
        self.lab.from(&self.lab.client).tcp("10.96.0.10:80").reaches(&pods);
        self.lab.from(&self.lab.pod2).udp("[fd00:96::10]:80").reaches(&pods);
    }
}

/// Runs the agent's binary with these arguments for a namespace, to its end.
pub(crate) fn run_shunt(ns: &Netns, args: &[&str]) -> Result<Output> {
    Ok(Command::new(SHUNT).args(args).arg("--netns").arg(ns.path()).output()?)
}

/// What `shunt status` prints as JSON, whose exit code must say whether there is a problem.
pub(crate) fn status_json(ns: &Netns) -> Result<Value> {
    let output = run_shunt(ns, &["status", "--output=json"])?;
    ensure!(!output.stdout.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    let json: Value = serde_json::from_slice(&output.stdout).context("no JSON")?;
    let problems = json["problems"].as_array().context("no problems")?;
    assert_eq!(output.status.code(), Some((!problems.is_empty()).into()), "{json:#}");
    Ok(json)
}

/// A Service with every kind of frontend, in both families and on all protocols: port 80 and node
/// port 30080.
pub(crate) fn web() -> Service {
    Service::everywhere("web", 10).metadata("creationTimestamp: 2020-01-01T00:00:00Z")
}

/// A Service of this name with only cluster IPs, port 80 on all protocols.
pub(crate) fn cluster_ip_service(name: &str, ips: &[&str]) -> Service {
    Service::new(name).all_protocols(80, None).cluster_ips(ips)
}

/// A Service of this name with only cluster IPs, TCP port 80.
pub(crate) fn http_service(name: &str, ips: &[&str]) -> Service {
    Service::new(name).cluster_ips(ips).port("http", Protocol::Tcp, 80)
}

/// The slices of a Service with a port for each protocol, one for each family.
pub(crate) fn slices(service: &str, hosts: &[&Host]) -> String {
    EndpointSlice::pair(service, |slice| slice.all_protocols(TARGET).hosts(hosts))
}

/// The slices of a Service such as [`http_service`].
pub(crate) fn http_slices(service: &str, hosts: &[&Host]) -> String {
    EndpointSlice::pair(service, |slice| slice.port("http", Protocol::Tcp, TARGET).hosts(hosts))
}

/// A Service and its slices.
pub(crate) fn manifest(service: &impl Display, name: &str, hosts: &[&Host]) -> String {
    format!("{service}{}", slices(name, hosts))
}

/// Permits this process and those that it starts so many open files, or as many as the system
/// does. Returns their number.
pub(crate) fn allow_files(wanted: u64) -> Result<u64> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    if hard < wanted && setrlimit(Resource::RLIMIT_NOFILE, wanted, wanted).is_ok() {
        return Ok(wanted);
    }
    setrlimit(Resource::RLIMIT_NOFILE, soft.max(hard.min(wanted)), hard)?;
    Ok(hard)
}
