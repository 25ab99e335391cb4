//! The agent as a process that follows an API server: what it takes of memory and, when nothing
//! happens, of the processor. The server is a stand-in.

use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use hyper::Method;
use serde_json::Value;
use shunt_fake_apiserver::{Client, Gate, Key, Kind, Kubeconfig, Standin, TOKEN};
use shunt_testbed::{Agent, Topology};

use super::process::{Memory, memory, share};
use super::table::{self, Table};
use super::{Size, objects};

/// The share of a core that an agent with nothing to do stays below.
const CALM_SHARE: f64 = 0.01;

/// How long an agent with nothing to do is watched.
const IDLE: Duration = Duration::from_secs(10);
/// Its start is over when it has used less than 1 % of a core for this long.
const CALM: Duration = Duration::from_secs(2);
const PATIENCE: Duration = Duration::from_secs(120);
/// Connections at a time while a real server is filled.
const WRITERS: u32 = 16;

pub(crate) fn measure(table: &mut Table, sizes: &[Size]) {
    for size in if sizes.is_empty() { &[(10_000, 10)] } else { sizes } {
        follow(table, *size).expect("figures of an agent");
    }
}

/// Measures an agent on an empty server and one on the server that has been filled.
fn follow(table: &mut Table, size: Size) -> Result<()> {
    let server = Standin::start()?;
    let address = server.address();
    let authority = server.authority().unwrap_or_default();
    let lab = Topology::new()?;
    let gate = Gate::open(&lab.node, move || TcpStream::connect(address))?;
    let url = format!("https://{}", gate.address());
    let kubeconfig = Kubeconfig::new(&url)?.authority(&authority)?.token(TOKEN)?;
    server.put_object(objects::node())?;
    let empty = Figures::of(&lab, &kubeconfig)?;
    for n in 0..size.0 {
        server.put_object(objects::service(n))?;
        server.put_object(objects::slice(n, size.1))?;
    }
    // The kernel holds nothing at first, and then everything.
    for start in ["cold", "restarted"] {
        let Figures { memory, ready, idle } = Figures::of(&lab, &kubeconfig)?;
        let what = |what: &str| format!("{start}: {what}");
        table.of(1).time(&what("ready after"), size, ready);
        let resident = memory.resident;
        table.of(1).value(&what("memory when settled"), size, table::Value::bytes(resident));
        let (peak, files) =
            (table::Value::bytes(memory.peak), table::Value::bytes(memory.of_files));
        table.of(1).beside(&what("largest memory"), size, peak, "the program's own file", files);
        let objects_only = resident.saturating_sub(empty.memory.resident);
        let per_endpoint = objects_only / (u64::from(size.0) * u64::from(size.1)).max(1);
        table.of(1).value(&what("memory per endpoint"), size, table::Value::bytes(per_endpoint));
        table.of(1).value(&what("idle, of a core"), size, table::Value::percent(idle));
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
        while share(agent.pid(), CALM)? >= CALM_SHARE {
            ensure!(started.elapsed() < PATIENCE, "the agent does not become calm");
        }
        let idle = share(agent.pid(), IDLE)?;
        let memory = memory(agent.pid())?;
        agent.stop()?;
        Ok(Figures { memory, ready, idle })
    }
}

/// Makes all objects.
pub(crate) fn fill(admin: &Client, services: u32, endpoints: u32) -> Result<()> {
    write_all(admin, services, |n| vec![objects::service(n), objects::slice(n, endpoints)])
}

/// Makes the objects of all numbers below a number, over several connections.
pub(crate) fn write_all(
    admin: &Client,
    numbers: u32,
    objects: impl Fn(u32) -> Vec<Value> + Sync,
) -> Result<()> {
    let objects = &objects;
    thread::scope(|scope| {
        let write = |first: u32| -> Result<()> {
            let mut connection = admin.connection()?;
            for object in (first..numbers).step_by(WRITERS as usize).flat_map(objects) {
                let key = Key::of(&object)?;
                let reply = connection.call(Method::POST, &key.collection(), Some(&object))?;
                ensure!(reply.status == 201, "{key} is not taken: {reply:?}");
            }
            Ok(())
        };
        let writers: Vec<_> = (0..WRITERS).map(|first| scope.spawn(move || write(first))).collect();
        writers.into_iter().try_for_each(|writer| {
            writer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    })
}

/// Makes an object that is not there yet.
pub(crate) fn post(admin: &Client, kind: Kind, object: &Value) -> Result<()> {
    let key = Key::new(kind, object["metadata"]["name"].as_str().unwrap_or_default());
    let reply = admin.call(Method::POST, &key.collection(), Some(object))?;
    ensure!(reply.status == 201, "{key} is not taken: {reply:?}");
    Ok(())
}
