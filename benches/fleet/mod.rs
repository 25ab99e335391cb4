//! The cost of a fleet for a real kube-apiserver: processor time of the server and bytes that it sends
//! to many clients, while all start at once and while EndpointSlices change.
//!
//! The clients are the part of the agent that lists and watches, hundreds in this process, each with a
//! connection of its own; what they receive is counted and dropped. Beside them,
//! a few kube-proxy processes program their rules once and only receive afterwards.
//!
//! Bytes are those of the server's TCP connections, with TLS. Processor time that the server uses
//! while nothing happens is subtracted. `xtask` derives the cost of each client.

mod clients;
mod proxies;
mod server;

use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use jiff::Timestamp;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use serde_json::json;

use self::clients::Clients;
use self::proxies::Proxies;
use self::server::{Server, Usage};
use crate::Size;
use crate::beside::churn::{TRIGGER, slice_after};
use crate::beside::{Cluster, assets, replace};
use crate::table::{Figure, SHUNT, Table, Value};

const SIZES: [Size; 1] = [(1_000, 10)];
/// Numbers of clients.
const FLEETS: [usize; 3] = [40, 80, 160];
/// Numbers of kube-proxy processes.
const PROXIES: [usize; 2] = [12, 24];
const CHANGES_PER_SECOND: u32 = 50;
const SECONDS: u32 = 10;
const TIMEOUT: Duration = Duration::from_secs(180);

const KUBE_PROXY: &str = "kube-proxy";

pub(crate) fn measure(table: &mut Table, sizes: &[Size]) {
    for size in if sizes.is_empty() { &SIZES[..] } else { sizes } {
        if let Some(assets) = assets(table, *size) {
            raise_limit_of_files().expect("a limit of open files");
            let cluster = Cluster::start(&assets, *size).expect("a cluster");
            measure_all(table, &cluster).expect("figures of a fleet");
        }
    }
}

/// Each client has a connection, and the limit is inherited by kube-apiserver.
fn raise_limit_of_files() -> Result<()> {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    Ok(setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?)
}

fn measure_all(table: &mut Table, cluster: &Cluster) -> Result<()> {
    let size = cluster.size;
    let server = Server::new(cluster)?;
    let mut churn = Churn { cluster, written: 0 };
    churn.run_alone(&server)?.record(table, 0, size, SHUNT);
    for count in FLEETS {
        println!("   {count} clients: {SHUNT}");
        let before = server.before()?;
        let own = cpu_time_of_this_process()?;
        let clients = Clients::start(cluster, count)?;
        let synced = clients.wait_until_synced(TIMEOUT)?;
        let start = Start {
            usage: server.usage_since(&before)?,
            synced: Some(synced),
            own: Some(cpu_time_of_this_process()?.saturating_sub(own)),
        };
        start.record(table, count, size, SHUNT);
        let received = clients.changes();
        let expected = received + count as u64 * u64::from(CHANGES_PER_SECOND * SECONDS);
        let change = churn.run(&server, || clients.wait_for_changes(expected, TIMEOUT))?;
        change.record(table, count, size, SHUNT);
        clients.stop()?;
    }
    churn.run_alone(&server)?.record(table, 0, size, SHUNT);
    for count in PROXIES {
        println!("   {count} clients: {KUBE_PROXY}");
        let before = server.before()?;
        let proxies = Proxies::start(cluster, count)?;
        proxies.wait_until_calm(TIMEOUT)?;
        let usage = server.usage_since(&before)?;
        Start { usage, synced: None, own: None }.record(table, count, size, KUBE_PROXY);
        let change = churn.run(&server, || proxies.wait_until_calm(TIMEOUT))?;
        change.record(table, count, size, KUBE_PROXY);
    }
    churn.run_alone(&server)?.record(table, 0, size, SHUNT);
    Ok(())
}

/// The start of all clients at the same time.
struct Start {
    usage: Usage,
    /// From the first request until all clients have all lists.
    synced: Option<Duration>,
    /// The processor time of this process.
    own: Option<Duration>,
}

impl Start {
    fn record(&self, table: &mut Table, clients: usize, size: Size, subject: &str) {
        let mut row = |what: &str, value| {
            let what = format!("start, {clients} clients: {what}");
            table.figures(&what, size, &[Figure::new(subject, value, 1)]);
        };
        row("processor time of the server", Value::time(self.usage.processor));
        row("bytes sent", Value::bytes(self.usage.sent));
        if let Some(synced) = self.synced {
            row("until all have all lists", Value::time(synced));
        }
        if let Some(own) = self.own {
            row("processor time of the clients", Value::time(own));
        }
    }
}

/// The cost of a change of an EndpointSlice, the write included: a mean.
struct Change {
    processor: Duration,
    sent: u64,
    per_second: f64,
}

impl Change {
    fn record(&self, table: &mut Table, clients: usize, size: Size, subject: &str) {
        let mut row = |what: &str, value| {
            let what = format!("change, {clients} clients: {what}");
            table.figures(&what, size, &[Figure::new(subject, value, 1)]);
        };
        row("processor time of the server", Value::time(self.processor));
        row("bytes sent", Value::bytes(self.sent));
        row("changes a second", Value::per_second(self.per_second));
    }
}

/// Writes slices in the place of the EndpointSlice controller.
struct Churn<'a> {
    cluster: &'a Cluster,
    /// Each write differs from all others: an object that stays the same is no event.
    written: u32,
}

impl Churn<'_> {
    fn run_alone(&mut self, server: &Server<'_>) -> Result<Change> {
        println!("   no client");
        self.run(server, || Ok(()))
    }

    /// Writes slices at fixed times, and then waits until `received` returns.
    fn run(&mut self, server: &Server<'_>, received: impl Fn() -> Result<()>) -> Result<Change> {
        let before = server.before()?;
        let mut connection = self.cluster.kubernetes.admin().connection()?;
        let (changes, started) = (CHANGES_PER_SECOND * SECONDS, Instant::now());
        for turn in 0..changes {
            let due = started + Duration::from_secs(1) * turn / CHANGES_PER_SECOND;
            thread::sleep(due.saturating_duration_since(Instant::now()));
            let mut slice = slice_after(self.cluster.size, self.written);
            slice["metadata"]["annotations"][TRIGGER] = json!(Timestamp::now().to_string());
            replace(&mut connection, &slice)?;
            self.written += 1;
        }
        let per_second = f64::from(changes) / started.elapsed().as_secs_f64();
        received()?;
        // The connections of before only: not that of the writer.
        let usage = server.usage_of_connections_since(&before)?;
        Ok(Change {
            processor: usage.processor / changes,
            sent: usage.sent / u64::from(changes),
            per_second,
        })
    }
}

fn cpu_time_of_this_process() -> Result<Duration> {
    let time = nix::time::clock_gettime(nix::time::ClockId::CLOCK_PROCESS_CPUTIME_ID)?;
    Ok(time.into())
}
