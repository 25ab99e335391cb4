//! The agent as a process that follows an API server: what it takes of memory and, when nothing
//! happens, of the processor.
//!
//! `cargo bench --bench api`; sizes as arguments, e.g. `-- 1000x10`. Needs root: a user namespace
//! may not raise a socket's buffer far enough. The server is a stand-in; kube-apiserver, too, where
//! `KUBEBUILDER_ASSETS` names a folder with it.

#![allow(
    clippy::print_stdout,
    clippy::expect_used,
    missing_docs,
    reason = "a benchmark prints its result and stops at the first surprise"
)]

mod objects;
mod process;

use std::io;
use std::net::TcpStream;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use hyper::Method;
use process::{Memory, cpu_time, memory};
use serde_json::Value;
use shunt_apiserver::{Client, Gate, Key, Kind, Kubeconfig, Kubernetes, Standin, TOKEN};
use shunt_lab::{Agent, Topology};

/// What is asked for at 10 000 Services with 10 endpoints each.
const TARGET_MEMORY: u64 = 120_000_000;
const TARGET_CPU: f64 = 0.01;

/// How long an agent with nothing to do is watched.
const IDLE: Duration = Duration::from_secs(10);
/// Its start is over when it has used less than 1 % of a core for this long.
const CALM: Duration = Duration::from_secs(2);
const PATIENCE: Duration = Duration::from_secs(120);
/// Connections at a time while a real server is filled.
const FILLERS: usize = 4;

fn main() {
    let sizes: Vec<(u32, u32)> = std::env::args()
        .filter_map(|a| {
            a.split_once('x').and_then(|(s, e)| Some((s.parse().ok()?, e.parse().ok()?)))
        })
        .collect();
    println!(
        "{:>14} {:>14} {:>8} {:>8} {:>9} {:>9} {:>9} {:>6} {:>9} {:>8}",
        "API server",
        "services x ep",
        "objects",
        "start",
        "RSS",
        "of files",
        "peak",
        "B/ep",
        "ready",
        "idle"
    );
    for (services, endpoints) in if sizes.is_empty() { vec![(10_000, 10)] } else { sizes } {
        with_standin(services, endpoints).expect("figures with the stand-in");
        match Kubernetes::installed() {
            Ok(assets) => {
                with_kubernetes(&assets, services, endpoints).expect("figures with kube-apiserver");
            }
            Err(reason) => println!("{:>14} not measured: {reason}", "kube-apiserver"),
        }
    }
    println!(
        "RSS: of the agent once it is calm; of files: the part of it that is the program itself, \
         which the kernel can drop.\nB/ep: what RSS is above that of an agent without objects, per \
         endpoint. peak: the largest RSS so far.\nready: start to the first commit. idle: of one \
         core, over {} s.",
        IDLE.as_secs()
    );
}

fn with_standin(services: u32, endpoints: u32) -> Result<()> {
    let server = Standin::start()?;
    let address = server.address();
    let authority = server.authority().unwrap_or_default();
    let connect = move || TcpStream::connect(address);
    let node = || server.put_object(objects::node()).map(drop);
    measure("stand-in", (services, endpoints), connect, &authority, node, || {
        (0..services).try_for_each(|n| {
            server.put_object(objects::service(n))?;
            server.put_object(objects::slice(n, endpoints)).map(drop)
        })
    })
}

fn with_kubernetes(assets: &Path, services: u32, endpoints: u32) -> Result<()> {
    let server = Kubernetes::start(assets)?;
    let authority = server.authority().pem();
    let node = || post(server.admin(), Kind::Node, &objects::node());
    measure("kube-apiserver", (services, endpoints), server.connector(), &authority, node, || {
        fill(server.admin(), services, endpoints)
    })
}

/// Measures an agent on an empty server and one on the server that has been filled.
fn measure(
    server: &str,
    (services, endpoints): (u32, u32),
    connect: impl Fn() -> io::Result<TcpStream> + Send + Sync + 'static,
    authority: &str,
    node: impl FnOnce() -> Result<()>,
    fill: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let lab = Topology::new()?;
    let gate = Gate::open(&lab.node, connect)?;
    let url = format!("https://{}", gate.address());
    let kubeconfig = Kubeconfig::new(&url)?.authority(authority)?.token(TOKEN)?;
    node()?;
    let empty = Figures::of(&lab, &kubeconfig)?;
    fill()?;
    // The kernel holds nothing at first, and then everything.
    for start in ["cold", "restart"] {
        let full = Figures::of(&lab, &kubeconfig)?;
        let per_endpoint = full.memory.resident.saturating_sub(empty.memory.resident)
            / (u64::from(services) * u64::from(endpoints)).max(1);
        println!(
            "{server:>14} {:>14} {:>8} {start:>8} {:>9} {:>9} {:>9} {per_endpoint:>6} {:>9} {:>8}",
            format!("{services} x {endpoints}"),
            2 * services,
            megabytes(full.memory.resident),
            megabytes(full.memory.of_files),
            megabytes(full.memory.peak),
            format!("{:.2} s", full.ready.as_secs_f64()),
            format!("{:.2} %", full.idle * 100.0),
        );
        if (services, endpoints) == (10_000, 10) {
            for (what, met) in [
                ("RSS < 120 MB", full.memory.resident < TARGET_MEMORY),
                ("idle < 1 % of a core", full.idle < TARGET_CPU),
            ] {
                println!("{:>14} {what}: {}", "", if met { "met" } else { "MISSED" });
            }
        }
    }
    Ok(())
}

struct Figures {
    memory: Memory,
    ready: Duration,
    /// The share of a core.
    idle: f64,
}

impl Figures {
    /// Starts an agent, waits until it is calm, and looks at it.
    fn of(lab: &Topology, kubeconfig: &Kubeconfig) -> Result<Figures> {
        let started = Instant::now();
        let agent = Agent::builder(env!("CARGO_BIN_EXE_shunt"), &lab.node)
            .arg("--kubeconfig")
            .arg(kubeconfig.path().display().to_string())
            .arg("--cluster-cidr=10.244.0.0/14")
            .start()?;
        let ready = started.elapsed();
        while share(agent.pid(), CALM)? >= TARGET_CPU {
            ensure!(started.elapsed() < PATIENCE, "the agent does not become calm");
        }
        let idle = share(agent.pid(), IDLE)?;
        let memory = memory(agent.pid())?;
        agent.stop()?;
        Ok(Figures { memory, ready, idle })
    }
}

/// The share of a core that a process uses for some time.
fn share(pid: i32, time: Duration) -> Result<f64> {
    let (before, started) = (cpu_time(pid)?, Instant::now());
    thread::sleep(time);
    Ok((cpu_time(pid)? - before).as_secs_f64() / started.elapsed().as_secs_f64())
}

fn megabytes(bytes: u64) -> String {
    format!("{:.1} MB", bytes as f64 / 1e6)
}

/// Makes all objects, over several connections: each object is a request.
fn fill(admin: &Client, services: u32, endpoints: u32) -> Result<()> {
    thread::scope(|scope| {
        let fillers: Vec<_> = (0..FILLERS)
            .map(|first| {
                scope.spawn(move || {
                    (first as u32..services).step_by(FILLERS).try_for_each(|n| {
                        post(admin, Kind::Service, &objects::service(n))?;
                        post(admin, Kind::EndpointSlice, &objects::slice(n, endpoints))
                    })
                })
            })
            .collect();
        fillers.into_iter().try_for_each(|filler| {
            filler.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    })
}

fn post(admin: &Client, kind: Kind, object: &Value) -> Result<()> {
    let key = Key::new(kind, object["metadata"]["name"].as_str().unwrap_or_default());
    let reply = admin.call(Method::POST, &key.collection(), Some(object))?;
    ensure!(reply.status == 201, "{key} is not taken: {reply:?}");
    Ok(())
}
