//! Two nodes with an agent each, an API server, clients and endpoints.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, Scope, ScopedJoinHandle};
use std::time::Duration;

use anyhow::{Context as _, Result};
use shunt_testbed::{
    Agent, Echo, EndpointSlice, Flow, HEALTH_PORT, Host, METRICS_PORT, Node, Protocol, Topology,
    http_get,
};

use super::events;
use super::prometheus::Prometheus;
use super::standin::Standin;
use crate::pictures::Programs;
use crate::pictures::load::{Load, PORT_NAME, load};

/// The port of all endpoints.
const PORT: u16 = 8080;
/// All that the dashboard can show. Other processes can modify tables that have no owner.
const ARGUMENTS: [&str; 3] =
    ["--service-metrics=counters", "--eject-unresponsive=on", "--own-tables=false"];

pub(super) const CART: Load = load("shop", "cart", "10.96.0.20", 80, 24);
pub(super) const CHECKOUT: Load = load("shop", "checkout", "10.96.0.40", 443, 60);
pub(super) const DNS: Load =
    Load { protocol: Protocol::Udp, ..load("kube-system", "kube-dns", "10.96.0.53", 53, 30) };
const LOADS: [Load; 6] = [
    load("shop", "web", "10.96.0.10", 80, 12),
    CART,
    load("shop", "search", "10.96.0.30", 9200, 36),
    CHECKOUT,
    DNS,
    load("monitoring", "prometheus", "10.96.0.60", 9090, 250),
];

/// UDP flows of each client that stay open, and the time for three questions.
const FLOWS: usize = 6;
const QUESTIONS: Duration = Duration::from_millis(900);
/// The time between two questions of the kubelets and load balancers about health.
const HEALTH: Duration = Duration::from_millis(500);

/// The nodes and everything on them.
pub(super) struct Cluster {
    lab: Lab,
    control: Control,
    agents: Vec<Agent>,
}

/// What the agents follow: an API server, and files with their configurations.
pub(super) struct Control {
    pub(super) api: Standin,
    folder: tempfile::TempDir,
}

/// The hosts.
pub(super) struct Lab {
    pub(super) topology: Topology,
    /// A pod on the second node, beside its endpoint pod.
    pub(super) pod4: Host,
    /// A client on each node.
    clients: [Host; 2],
    _servers: Vec<Echo>,
}

impl Lab {
    fn new() -> Result<Self> {
        let topology = Topology::new()?;
        let pod4 =
            topology.add_pod(&topology.node2, "pod-4", [10, 244, 1, 22], "fd00:244:1::22")?;
        let mut servers = topology.serve(PORT)?;
        servers.push(Echo::on(&pod4, PORT)?);
        let clients = [
            topology.add_pod(&topology.node, "frontend", [10, 244, 0, 10], "fd00:244::10")?,
            topology.add_pod(&topology.node2, "batch", [10, 244, 1, 10], "fd00:244:1::10")?,
        ];
        Ok(Self { topology, pod4, clients, _servers: servers })
    }

    pub(super) fn nodes(&self) -> [&Host; 2] {
        [&self.topology.node, &self.topology.node2]
    }

    /// The pods that are endpoints.
    pub(super) fn pods(&self) -> [&Host; 4] {
        let Topology { pod1, pod2, pod3, .. } = &self.topology;
        [pod1, pod2, pod3, &self.pod4]
    }
}

impl Control {
    /// Writes the configuration of the agent on a node, with further settings.
    pub(super) fn configure(&self, node: &Host, settings: &str) -> Result<()> {
        let text = format!(
            "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n\
             mode: nftables\ndetectLocalMode: ClusterCIDR\n\
             clusterCIDR: 10.244.0.0/16,fd00:244::/48\n\
             metricsBindAddress: 0.0.0.0:{METRICS_PORT}\n\
             clientConnection: {{kubeconfig: {:?}}}\n{settings}",
            self.api.kubeconfig
        );
        let path = self.config_of(node);
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
    }

    fn config_of(&self, node: &Host) -> PathBuf {
        self.folder.path().join(format!("{node}.yaml"))
    }
}

impl Cluster {
    pub(super) fn start(programs: &Programs) -> Result<Self> {
        let lab = Lab::new()?;
        let folder = tempfile::tempdir().context("cannot make a folder for configurations")?;
        let mut control = Control { api: Standin::start(&programs.standin)?, folder };
        for node in lab.nodes() {
            control.api.put(&Node::of(node).to_string())?;
        }
        for load in &LOADS {
            control.api.put(&format!("{}{}", load.service(), slice(load, &lab.pods())))?;
        }
        let mut agents = Vec::new();
        for node in lab.nodes() {
            control.configure(node, "")?;
            let config = format!("--config={}", control.config_of(node).display());
            let builder = Agent::builder(&programs.agent, node).arg(config);
            agents.push(ARGUMENTS.iter().fold(builder, |it, argument| it.arg(*argument)).start()?);
        }
        Ok(Self { lab, control, agents })
    }

    /// Starts a Prometheus server that scrapes the agents.
    pub(super) fn prometheus(&self, program: &Path) -> Result<Prometheus> {
        Prometheus::start(program, &self.lab.topology.client, &self.lab.nodes())
    }

    /// Sends traffic for so many seconds, while events happen.
    pub(super) fn run(&mut self, seconds: u32) -> Result<()> {
        let Self { lab, control, agents } = self;
        let lab = &*lab;
        let enough = AtomicBool::new(false);
        let outcome = thread::scope(|scope| {
            let workers = traffic(scope, lab, &enough);
            let outcome = events::happen(lab, control, seconds);
            enough.store(true, Ordering::Relaxed);
            let ends = workers.into_iter().map(|worker| {
                worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            });
            ends.fold(outcome, Result::and)
        });
        let logs = || agents.iter().map(Agent::log).collect::<Vec<_>>().join("\n");
        outcome.with_context(|| format!("the agents' logs:\n{}", logs()))
    }

    pub(super) fn stop(self) -> Result<()> {
        self.agents.into_iter().try_for_each(Agent::stop)
    }
}

/// Starts all clients.
fn traffic<'scope>(
    scope: &'scope Scope<'scope, '_>,
    lab: &'scope Lab,
    enough: &'scope AtomicBool,
) -> Vec<ScopedJoinHandle<'scope, Result<()>>> {
    let mut workers = Vec::new();
    for client in &lab.clients {
        for load in &LOADS {
            workers.push(scope.spawn(move || load.send_until(client, enough)));
        }
        workers.push(scope.spawn(move || keep_flows_open(client, enough)));
    }
    for node in lab.nodes() {
        workers.push(scope.spawn(move || ask_for_health(node, enough)));
    }
    workers
}

/// Asks on the same UDP flows again and again, as resolvers do.
fn keep_flows_open(client: &Host, enough: &AtomicBool) -> Result<()> {
    let to = format!("{}:{}", DNS.address, DNS.port).parse()?;
    client.run(|| {
        let open = || Flow::open(Protocol::Udp, client.ipv4[0].into(), to);
        let mut flows = (0..FLOWS).map(|_| open()).collect::<Result<Vec<_>>>()?;
        while !enough.load(Ordering::Relaxed) {
            Flow::ask_all(&mut flows.iter_mut().collect::<Vec<_>>(), QUESTIONS)?;
        }
        Ok(())
    })
}

fn ask_for_health(node: &Host, enough: &AtomicBool) -> Result<()> {
    while !enough.load(Ordering::Relaxed) {
        for path in ["/healthz", "/livez"] {
            http_get(node, SocketAddr::from((Ipv4Addr::LOCALHOST, HEALTH_PORT)), path)?;
        }
        thread::sleep(HEALTH);
    }
    Ok(())
}

/// Returns the IPv4 slice of a Service with these pods, as it changes now.
pub(super) fn slice(load: &Load, pods: &[&Host]) -> String {
    fill(EndpointSlice::v4(load.name), load, pods)
}

/// Puts these pods into an empty slice.
pub(super) fn fill(empty: EndpointSlice, load: &Load, pods: &[&Host]) -> String {
    let now = jiff::Timestamp::now().to_string();
    let key = "endpoints.kubernetes.io/last-change-trigger-time";
    empty
        .namespace(load.namespace)
        .metadata(&format!("annotations: {{{key}: {now:?}}}"))
        .port(PORT_NAME, load.protocol, PORT)
        .hosts(pods)
        .to_string()
}
