//! The agent as a process: from a file to the kernel, also while another process commits ten times a
//! second.

use std::fmt::Write as _;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use nfnetlink::nft::{Batch, Elements, Kernel, SetType, Socket, TableFamily};
use shunt_testbed::Netns;

use super::Size;
use super::process::share;
use super::table::{Table, Value};

const CHANGES: u32 = 200;
const DAMAGES: u32 = 9;
/// Under a storm: the agent compares all elements only now and then.
const DAMAGES_IN_STORM: u32 = 5;
const CHANGES_IN_STORM: u32 = 100;
/// The pause between two commits of the other process, and between two changes of ours.
const FOREIGN_PERIOD: Duration = Duration::from_millis(100);
const CHANGE_PERIOD: Duration = Duration::from_millis(37);
/// How long the agent's use of the processor is measured.
const IDLE: Duration = Duration::from_secs(20);
const PATIENCE: Duration = Duration::from_secs(120);

pub(crate) fn measure(table: &mut Table, sizes: &[Size]) {
    for size in if sizes.is_empty() { &[(10_000, 10)] } else { sizes } {
        measure_size(table, *size);
    }
}

fn measure_size(table: &mut Table, size: Size) {
    let (services, endpoints) = size;
    let manifests = tempfile::tempdir().expect("a directory");
    for n in 0..services {
        write(manifests.path(), n, endpoints, 0);
    }
    let once = Netns::new().expect("a namespace");
    let started = Instant::now();
    let status = agent(&once, manifests.path(), &["--once"]).wait().expect("an end");
    assert!(status.success(), "shunt run --once: {status}");
    table.of(1).time("shunt run --once, files read, empty kernel", size, started.elapsed());
    let started = Instant::now();
    let status = agent(&once, manifests.path(), &["--once"]).wait().expect("an end");
    assert!(status.success(), "shunt run --once: {status}");
    table.of(1).time("shunt run --once, nothing to write", size, started.elapsed());

    let ns = Netns::new().expect("a namespace");
    let mut generation = ns.nft_generation().expect("a generation");
    let mut running = agent(&ns, manifests.path(), &["--healthz-bind-address="]);
    let times = ns.run(|| {
        let mut socket = Socket::open()?;
        let mut next = |since: Instant| {
            while since.elapsed() < PATIENCE {
                let now = socket.generation()?.id;
                if now != generation {
                    generation = now;
                    return anyhow::Ok(since.elapsed());
                }
            }
            anyhow::bail!("no commit came")
        };
        next(Instant::now())?;
        let mut times = Vec::new();
        for change in 0..CHANGES {
            // What replaces the file is written before; the rename is the event.
            let n = change * 37 % services;
            let place = prepare(manifests.path(), n, endpoints, 1 + change / services % 2);
            let started = Instant::now();
            place();
            times.push(next(started)?);
            // A chain that is not needed any more may be deleted a second later; not between.
        }
        Ok(times)
    });
    running.kill().expect("a process");
    running.wait().expect("an end");
    let mut times = times.expect("measurements");
    times.sort_unstable();
    for (name, at) in [("median", times.len() / 2), ("99 %", times.len() * 99 / 100)] {
        table.of(times.len()).time(
            &format!("one endpoint, file event to kernel: {name}"),
            size,
            times[at],
        );
    }

    let mut times = repairs(manifests.path(), services);
    times.sort_unstable();
    for (name, at) in [("median", times.len() / 2), ("worst", times.len() - 1)] {
        let what = format!("damage by others, until repaired: {name}");
        table.of(times.len()).time(&what, size, times[at]);
    }
    storm(table, size, manifests.path());
}

/// Another process commits to a table of its own ten times a second, as CNI plugins and kubelet do,
/// and the agent does not own its tables.
fn storm(table: &mut Table, size: Size, manifests: &Path) {
    let (services, endpoints) = size;
    let ns = Netns::new().expect("a namespace");
    let foreign = ns.run(Foreign::new).expect("a table of another process");
    let mut running = agent(&ns, manifests, &["--healthz-bind-address=", "--own-tables=false"]);
    let pid = running.id() as i32;
    let figures = ns.run(|| {
        let mut socket = Socket::open()?;
        let mut commits = |before: u32, since: Instant| {
            while since.elapsed() < PATIENCE {
                let now = foreign.commits_of_others(&mut socket)?;
                if now != before {
                    return anyhow::Ok((now, since.elapsed()));
                }
                thread::yield_now();
            }
            anyhow::bail!("no commit came")
        };
        let (mut known, _) = commits(0, Instant::now())?;
        // The start is over when it has compared all elements, because of the commits before it.
        while share(pid, Duration::from_secs(2))? > 0.01 {}
        let calm = share(pid, IDLE)?;
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            let storm = scope.spawn(|| foreign.commit_until(&over));
            let figures = (|| {
                // At first, comparisons may take some processor time in advance.
                thread::sleep(IDLE);
                let busy = share(pid, IDLE)?;
                let mut changes = Vec::new();
                for change in 0..CHANGES_IN_STORM {
                    let n = change * 37 % services;
                    let place = prepare(manifests, n, endpoints, 3 + change / services % 2);
                    let started = Instant::now();
                    place();
                    let (now, took) = commits(known, started)?;
                    known = now;
                    changes.push(took);
                    thread::sleep(CHANGE_PERIOD);
                }
                let mut repairs = Vec::new();
                for damage in 0..DAMAGES_IN_STORM {
                    let started = Instant::now();
                    foreign.commit(delete_frontend(damage * 37 % services, None))?;
                    let (now, took) = commits(known, started)?;
                    known = now;
                    repairs.push(took);
                }
                anyhow::Ok((calm, busy, changes, repairs))
            })();
            over.store(true, Ordering::Relaxed);
            storm.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            figures
        })
    });
    running.kill().expect("a process");
    running.wait().expect("an end");
    let (calm, busy, mut changes, mut repairs) = figures.expect("measurements");
    let (what, calm) = ("foreign commits: idle, of a core", Value::percent(calm));
    table.of(1).beside(what, size, Value::percent(busy), "without them", calm);
    changes.sort_unstable();
    repairs.sort_unstable();
    let half = |times: &[Duration]| times[times.len() / 2];
    let last = |times: &[Duration]| times[times.len() - 1];
    let what = "foreign commits: file event to kernel";
    table.of(changes.len()).time(&format!("{what}: median"), size, half(&changes));
    table.of(changes.len()).time(&format!("{what}: worst"), size, last(&changes));
    let what = "foreign commits: damage until repaired";
    table.of(repairs.len()).time(&format!("{what}: median"), size, half(&repairs));
    table.of(repairs.len()).time(&format!("{what}: worst"), size, last(&repairs));
}

/// A process that commits, and that knows how many commits are its own.
struct Foreign {
    /// Locked during a commit, so that readers see counted commits only.
    state: Mutex<(Socket, u32)>,
    start: u32,
}

impl Foreign {
    const TABLE: &str = "foreign";
    const SET: &str = "seen";

    /// Opens nf_tables in the network namespace of the calling thread, and makes a table there.
    fn new() -> anyhow::Result<Foreign> {
        let mut socket = Socket::open()?;
        let start = socket.generation()?.id;
        let foreign = Foreign { state: Mutex::new((socket, 0)), start };
        let mut batch = Batch::new(None);
        batch.add_table(TableFamily::Ip, Foreign::TABLE, 0, "not the agent's");
        let kind = SetType {
            // nft's number of ipv4_addr.
            key_type: 7,
            key_length: 4,
            data: None,
            range_fields: None,
            learned: None,
            counter: false,
            type_of: None,
        };
        batch.add_set(TableFamily::Ip, Foreign::TABLE, Foreign::SET, &kind);
        foreign.commit(batch)?;
        Ok(foreign)
    }

    fn lock(&self) -> MutexGuard<'_, (Socket, u32)> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn commit(&self, batch: Batch) -> anyhow::Result<()> {
        let mut state = self.lock();
        state.0.commit(&batch.finish())?;
        state.1 += 1;
        Ok(())
    }

    /// Adds an element and deletes it, again and again.
    fn commit_until(&self, over: &AtomicBool) -> anyhow::Result<()> {
        let mut elements = Elements::new();
        elements.push(&[192, 0, 2, 1], None, None);
        let mut is_there = false;
        while !over.load(Ordering::Relaxed) {
            let mut batch = Batch::new(None);
            if is_there {
                batch.delete_elements(TableFamily::Ip, Foreign::TABLE, Foreign::SET, &elements);
            } else {
                batch.add_elements(TableFamily::Ip, Foreign::TABLE, Foreign::SET, &elements);
            }
            self.commit(batch)?;
            is_there = !is_there;
            thread::sleep(FOREIGN_PERIOD);
        }
        Ok(())
    }

    /// How many commits others made: here the agent.
    fn commits_of_others(&self, socket: &mut Socket) -> anyhow::Result<u32> {
        let state = self.lock();
        Ok(socket.generation()?.id.wrapping_sub(self.start).wrapping_sub(state.1))
    }
}

/// The deletion of the frontend of the n-th Service.
fn delete_frontend(n: u32, generation: Option<u32>) -> Batch {
    let ip = Ipv4Addr::from(0x0a60_0000 + n).octets();
    let mut elements = Elements::new();
    elements.push(&[&ip[..], &[6, 0, 0, 0, 0, 80, 0, 0]].concat(), None, None);
    let mut batch = Batch::new(generation);
    batch.delete_elements(TableFamily::Ip, "shunt", "service-ips", &elements);
    batch
}

/// How long it takes until tables that others can change are as they were. Each damage follows the
/// repair of the one before, so that nearly all of the agent's period passes before it looks again.
fn repairs(manifests: &Path, services: u32) -> Vec<Duration> {
    let ns = Netns::new().expect("a namespace");
    let arguments = ["--healthz-bind-address=", "--own-tables=false"];
    let before = ns.nft_generation().expect("a generation");
    let mut running = agent(&ns, manifests, &arguments);
    let times = ns.run(|| {
        let mut socket = Socket::open()?;
        let mut after = |generation: u32, since: Instant| {
            while since.elapsed() < PATIENCE {
                let now = socket.generation()?.id;
                if now != generation {
                    return anyhow::Ok((now, since.elapsed()));
                }
            }
            anyhow::bail!("no commit came")
        };
        let mut culprit = Socket::open()?;
        let (mut generation, _) = after(before, Instant::now())?;
        let mut times = Vec::new();
        for damage in 0..DAMAGES {
            let batch = delete_frontend(damage * 37 % services, Some(generation));
            let started = Instant::now();
            culprit.commit(&batch.finish())?;
            let (repaired, took) = after(generation + 1, started)?;
            generation = repaired;
            times.push(took);
        }
        Ok(times)
    });
    running.kill().expect("a process");
    running.wait().expect("an end");
    times.expect("measurements")
}

fn agent(ns: &Netns, manifests: &Path, arguments: &[&str]) -> Child {
    Command::new(env!("CARGO_BIN_EXE_shunt"))
        .args(["run", "--hostname-override=node-1", "--netns"])
        .arg(ns.path())
        .arg("--manifests")
        .arg(manifests)
        .args(arguments)
        .stderr(Stdio::null())
        .spawn()
        .expect("the agent")
}

fn write(manifests: &Path, n: u32, endpoints: u32, version: u32) {
    prepare(manifests, n, endpoints, version)();
}

/// Writes a file under another name; calling what is returned puts it in its place.
fn prepare(manifests: &Path, n: u32, endpoints: u32, version: u32) -> impl FnOnce() + use<> {
    let place = manifests.join(format!("service-{n}.yaml"));
    let aside = manifests.join(format!(".service-{n}.tmp"));
    std::fs::write(&aside, manifest(n, endpoints, version)).expect("a file");
    move || std::fs::rename(aside, place).expect("a rename")
}

/// A Service with its slice, whose last endpoint is another one for every version.
fn manifest(n: u32, endpoints: u32, version: u32) -> String {
    let mut text = format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: service-{n}, namespace: bench}}\nspec:\n  \
         clusterIP: {}\n  ports: [{{name: http, port: 80, protocol: TCP}}]\n---\n\
         apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata:\n  name: service-{n}-a\n  \
         namespace: bench\n  labels: {{kubernetes.io/service-name: service-{n}}}\n\
         addressType: IPv4\nports: [{{name: http, port: 8080, protocol: TCP}}]\nendpoints:\n",
        Ipv4Addr::from(0x0a60_0000 + n)
    );
    for e in 0..endpoints {
        let address = if e + 1 == endpoints && version > 0 {
            0x0b00_0000 + n * 16 + version
        } else {
            0x0af4_0000 + (n * 16 + e) % 0x000b_0000
        };
        let address = Ipv4Addr::from(address);
        writeln!(
            text,
            "- {{addresses: [{address}], conditions: {{ready: true}}, nodeName: node-2}}"
        )
        .expect("a String");
    }
    text
}
