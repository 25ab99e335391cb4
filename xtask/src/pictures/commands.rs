//! The pictures of commands on a terminal.
//!
//! The agent programs the testbed's node, and clients connect to its Services. One endpoint dies on the
//! way.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use shunt_testbed::{Agent, EndpointSlice, ManifestDir, Protocol, Topology};

use super::load::{Load, PORT_NAME, load};
use super::svg::Picture;
use super::terminal::{Size, record, record_until};

/// The port of all endpoints.
const PORT: u16 = 8080;
/// How long `shunt top` runs: its graphs have the last minute.
const TOP: Duration = Duration::from_secs(64);
/// How long the kernel may look for a neighbour.
const SEARCH: Duration = Duration::from_secs(30);

const LOADS: [Load; 6] = [
    load("shop", "web", "10.96.0.10", 80, 4),
    load("shop", "cart", "10.96.0.20", 80, 12),
    load("shop", "search", "10.96.0.30", 9200, 9),
    load("shop", "checkout", "10.96.0.40", 443, 40),
    load("kube-system", "kube-dns", "10.96.0.53", 53, 20),
    load("monitoring", "prometheus", "10.96.0.60", 9090, 250),
];

/// Makes the pictures with this binary.
pub(super) fn draw(shunt: &Path) -> Result<()> {
    let lab = Topology::new()?;
    let frontend = lab.add_pod(&lab.node, "frontend", [10, 244, 0, 10], "fd00:244::10")?;
    let _servers = lab.serve(PORT)?;
    let manifests = ManifestDir::new()?;
    for load in &LOADS {
        manifests.write(&format!("{}.yaml", load.name), manifests_of(load, &lab))?;
    }
    let agent = Agent::builder(shunt, &lab.node)
        .arg("--cluster-cidr=10.244.0.0/16,fd00:244::/48")
        .manifests(manifests.path())
        .start()?;
    let enough = AtomicBool::new(false);
    let outcome = thread::scope(|scope| {
        let clients: Vec<_> =
            LOADS.iter().map(|load| scope.spawn(|| load.send_until(&frontend, &enough))).collect();
        let outcome = pictures(shunt, &lab);
        enough.store(true, Ordering::Relaxed);
        for client in clients {
            client.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        }
        outcome
    });
    outcome.with_context(|| format!("the agent's log:\n{}", agent.log()))?;
    agent.stop()
}

fn pictures(shunt: &Path, lab: &Topology) -> Result<()> {
    let on_node = |words: &str| {
        let mut command = lab.node.command(shunt);
        command.args(words.split(' '));
        command
    };
    let began = Instant::now();
    let size = Size { columns: 100, rows: 13 };
    let top = record_until(on_node("top"), size, |_| began.elapsed() > TOP)?;
    write("top", "shunt top: new connections a second of each Service", "shunt top", &top)?;

    lab.node2.ip("link set eth0 down")?;
    let words = "explain --from 10.244.0.10 --to 10.96.0.10:80";
    let size = Size { columns: 134, rows: 40 };
    let deadline = Instant::now() + SEARCH;
    let screen = loop {
        let screen = record(on_node(words), size)?;
        if screen.contents().contains("is unreachable") {
            break screen;
        }
        ensure!(Instant::now() < deadline, "the endpoint is reachable:\n{}", screen.contents());
    };
    let title = "shunt explain: a Service port with three endpoints, of which one is unreachable";
    write("explain", title, &format!("shunt {words}"), &screen)
}

fn write(name: &str, title: &str, command: &str, screen: &vt100::Screen) -> Result<()> {
    super::write(name, &Picture { title, command, screen }.svg()?)
}

fn manifests_of(load: &Load, lab: &Topology) -> String {
    let slice = EndpointSlice::v4(load.name)
        .namespace(load.namespace)
        .port(PORT_NAME, Protocol::Tcp, PORT)
        .hosts(&[&lab.pod1, &lab.pod2, &lab.pod3]);
    format!("{}{slice}", load.service())
}
