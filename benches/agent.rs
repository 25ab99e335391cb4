//! The agent as a process: from a file to the kernel.

use std::fmt::Write as _;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use shunt::nft::{Batch, Elements, Kernel, Socket, TableFamily};
use shunt_lab::Netns;

use super::Size;
use super::table::Table;

const CHANGES: u32 = 200;
const DAMAGES: u32 = 15;
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
    table.time("shunt run --once, files read, empty kernel", size, started.elapsed());
    let started = Instant::now();
    let status = agent(&once, manifests.path(), &["--once"]).wait().expect("an end");
    assert!(status.success(), "shunt run --once: {status}");
    table.time("shunt run --once, nothing to write", size, started.elapsed());

    let ns = Netns::new().expect("a namespace");
    let mut running = agent(&ns, manifests.path(), &["--healthz-bind-address="]);
    let times = ns.run(|| {
        let mut socket = Socket::open()?;
        let mut generation = socket.generation()?.id;
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
            let place = prepare(manifests.path(), n, endpoints, 1 + change % 2);
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
        table.time(&format!("one endpoint, file event to kernel: {name}"), size, times[at]);
    }

    let mut times = repairs(manifests.path(), services);
    times.sort_unstable();
    for (name, at) in [("median", times.len() / 2), ("worst", times.len() - 1)] {
        let what = format!("damage by others, until repaired: {name}");
        table.times(&what, size, times[at], "at the most", Duration::from_millis(1_500));
    }
}

/// How long it takes until tables that others can change are as they were. Each damage follows the
/// repair of the one before, so that nearly all of the agent's period passes before it looks again.
fn repairs(manifests: &Path, services: u32) -> Vec<Duration> {
    let ns = Netns::new().expect("a namespace");
    let arguments = ["--healthz-bind-address=", "--own-tables=false"];
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
        let (mut generation, _) = after(culprit.generation()?.id, Instant::now())?;
        let mut times = Vec::new();
        for damage in 0..DAMAGES {
            let ip = Ipv4Addr::from(0x0a60_0000 + damage * 37 % services).octets();
            let mut elements = Elements::new();
            elements.push(&[&ip[..], &[6, 0, 0, 0, 0, 80, 0, 0]].concat(), None, None);
            let mut batch = Batch::new(Some(generation));
            batch.delete_elements(TableFamily::Ip, "shunt", "service-ips", &elements);
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
