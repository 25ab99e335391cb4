//! `cargo xtask pictures`: the pictures of commands in the pages, from a real run.
//!
//! The agent programs the testbed's node, clients connect to its Services, and commands run on a
//! terminal. One endpoint dies on the way. Numbers differ from run to run, so nothing compares the
//! pictures with another run.

mod svg;
mod terminal;

use std::env;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use shunt_testbed::{Agent, EndpointSlice, Host, ManifestDir, Protocol, Service, Topology, probe};

use self::svg::Picture;
use self::terminal::{Size, record, record_until};
use crate::agent;
use crate::command::{cargo, repository, run as run_command};
use crate::packages::{Installer, Purpose};
use crate::privilege::Privilege;

/// The folder of the pictures.
const OUTPUT: &str = "docs/pictures";
/// The port of all endpoints.
const PORT: u16 = 8080;
/// How long `shunt top` runs: its graphs have the last minute.
const TOP: Duration = Duration::from_secs(64);
/// Rules of a pod that answers nothing.
const DEAD: &str = "add table ip dead
add chain ip dead input { type filter hook input priority 0; policy drop; }
";
/// How long a connection may take, and how long the search for dead endpoints.
const PATIENCE: Duration = Duration::from_secs(2);
const SEARCH: Duration = Duration::from_secs(30);

/// A Service: namespace, name, ClusterIP, port, and the mean pause between two connections.
struct Load {
    namespace: &'static str,
    name: &'static str,
    address: &'static str,
    port: u16,
    pause: Duration,
}

const fn load(
    namespace: &'static str,
    name: &'static str,
    address: &'static str,
    port: u16,
    pause: u64,
) -> Load {
    Load { namespace, name, address, port, pause: Duration::from_millis(pause) }
}

const LOADS: [Load; 6] = [
    load("shop", "web", "10.96.0.10", 80, 4),
    load("shop", "cart", "10.96.0.20", 80, 12),
    load("shop", "search", "10.96.0.30", 9200, 9),
    load("shop", "checkout", "10.96.0.40", 443, 40),
    load("kube-system", "kube-dns", "10.96.0.53", 53, 20),
    load("monitoring", "prometheus", "10.96.0.60", 9090, 250),
];

/// Builds the agent, then runs this program once more in a network namespace of its own.
pub(crate) fn prepare(installer: &Installer) -> Result<()> {
    installer.ensure(&[Purpose::Build, Purpose::Demo])?;
    let privilege = Privilege::probe()?;
    run_command(cargo().args(["build", "--quiet", "--locked", "--package", "shunt"]))?;
    let agent = agent::built("debug")?;
    let xtask = env::current_exe().context("cannot find the program that runs")?;
    run_command(privilege.isolated(&xtask).args(["pictures", "--agent"]).arg(agent))
}

/// Makes all pictures with this binary.
pub(crate) fn run(shunt: &Path) -> Result<()> {
    let lab = Topology::new()?;
    let frontend = lab.add_pod(&lab.node, "frontend", [10, 244, 0, 10], "fd00:244::10")?;
    let _servers = lab.serve(PORT)?;
    let manifests = ManifestDir::new()?;
    for load in &LOADS {
        manifests.write(&format!("{}.yaml", load.name), load.manifests(&lab))?;
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

    lab.pod3.nft(DEAD)?;
    let words = "explain --from 10.244.0.10 --to 10.96.0.10:80";
    let size = Size { columns: 134, rows: 40 };
    let deadline = Instant::now() + SEARCH;
    let screen = loop {
        let screen = record(on_node(words), size)?;
        if screen.contents().contains("has not answered for") {
            break screen;
        }
        ensure!(Instant::now() < deadline, "no dead endpoint was found:\n{}", screen.contents());
    };
    let title = "shunt explain: a Service port with three endpoints, of which one does not answer";
    write("explain", title, &format!("shunt {words}"), &screen)
}

fn write(name: &str, title: &str, command: &str, screen: &vt100::Screen) -> Result<()> {
    let folder = repository().join(OUTPUT);
    fs::create_dir_all(&folder).context(OUTPUT)?;
    let path = folder.join(format!("{name}.svg"));
    let picture = Picture { title, command, screen };
    fs::write(&path, picture.svg()?).with_context(|| path.display().to_string())?;
    println!("wrote {OUTPUT}/{name}.svg");
    Ok(())
}

impl Load {
    fn manifests(&self, lab: &Topology) -> String {
        let service = Service::new(self.name)
            .namespace(self.namespace)
            .cluster_ips(&[self.address])
            .port("http", Protocol::Tcp, self.port);
        let slice = EndpointSlice::v4(self.name)
            .namespace(self.namespace)
            .port("http", Protocol::Tcp, PORT)
            .hosts(&[&lab.pod1, &lab.pod2, &lab.pod3]);
        format!("{service}{slice}")
    }

    /// Connects from a host until this is enough, at a rate that rises and falls.
    fn send_until(&self, client: &Host, enough: &AtomicBool) -> Result<()> {
        let to = format!("{}:{}", self.address, self.port).parse()?;
        let began = Instant::now();
        client.run(|| {
            while !enough.load(Ordering::Relaxed) {
                probe(Protocol::Tcp, None, to, PATIENCE)?;
                let wave = (began.elapsed().as_secs_f64() / 7.0 + f64::from(self.port)).sin();
                thread::sleep(self.pause.mul_f64(1.0 + 0.5 * wave));
            }
            Ok(())
        })
    }
}
