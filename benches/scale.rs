//! The agent beside its floor: the time in which the kernel takes the very same bytes.
//!
//! `cargo bench` or `cargo xtask bench`; sizes as arguments, e.g. `-- 1000x10 30000x10`. Needs root
//! or a user namespace. Every figure is a median; compare ratios, machines are noisy.

#![allow(
    clippy::print_stdout,
    clippy::expect_used,
    missing_docs,
    reason = "a benchmark prints its result and stops at the first surprise"
)]

mod cluster;

use std::time::{Duration, Instant};

use cluster::{median, open, service, slice};
use shunt::dataplane::Dataplane;
use shunt::model::Change;
use shunt::nft::{FinishedBatch, Kernel, Socket};
use shunt_lab::Netns;

const RUNS: usize = 5;
const UPDATES: u32 = 200;

fn main() {
    let sizes: Vec<(u32, u32)> = std::env::args()
        .filter_map(|a| {
            a.split_once('x').and_then(|(s, e)| Some((s.parse().ok()?, e.parse().ok()?)))
        })
        .collect();
    let sizes = if sizes.is_empty() { vec![(1_000, 10), (10_000, 10)] } else { sizes };
    println!(
        "{:>14} {:>10} {:>9} {:>9} {:>9} {:>9} {:>7} {:>9} {:>9} {:>9}",
        "services x ep",
        "bytes",
        "plan",
        "commit",
        "total",
        "floor",
        "ratio",
        "restart",
        "1 added",
        "1 moved"
    );
    for (services, endpoints) in sizes {
        measure(services, endpoints);
    }
    println!(
        "plan: planning, comparing, encoding. floor: the same transaction sent again to an empty namespace."
    );
    println!(
        "restart: dump and compare, nothing to write. 1 added / moved: one endpoint, plan to committed."
    );
}

fn measure(services: u32, endpoints: u32) {
    let mut plans = Vec::new();
    let mut commits = Vec::new();
    let mut totals = Vec::new();
    let mut floors = Vec::new();
    let mut restarts = Vec::new();
    let mut added = Vec::new();
    let mut moved = Vec::new();
    let mut bytes = 0;
    for run in 0..RUNS {
        let ns = Netns::new().expect("a namespace");
        let mut dataplane = open(&ns);
        load(&mut dataplane, services, endpoints);
        let started = Instant::now();
        let prepared = dataplane.prepare().expect("a plan").expect("something to write");
        let planned = started.elapsed();
        let again = prepared.batch().with_generation(0);
        dataplane.commit(prepared).expect("a commit");
        let total = started.elapsed();
        bytes = again.bytes().len();
        plans.push(planned);
        commits.push(total - planned);
        totals.push(total);
        floors.push(floor(&again));

        if run == 0 {
            for update in 0..UPDATES {
                let n = update % services;
                let started = Instant::now();
                dataplane.apply(Change::Slice(slice(n, endpoints + 1, 0)));
                dataplane.sync().expect("a commit").expect("something to write");
                added.push(started.elapsed());
                let started = Instant::now();
                dataplane.apply(Change::Slice(slice(n, endpoints + 1, 1)));
                dataplane.sync().expect("a commit").expect("something to write");
                moved.push(started.elapsed());
                dataplane.apply(Change::Slice(slice(n, endpoints, 0)));
                dataplane.sync().expect("a commit").expect("something to write");
            }
        }
        drop(dataplane);
        let mut next = open(&ns);
        load(&mut next, services, endpoints);
        let started = Instant::now();
        let wrote = next.sync().expect("a comparison");
        // Taking the tables over is a message for each.
        assert!(wrote.is_none_or(|wrote| wrote.added + wrote.deleted == 0), "{wrote:?}");
        restarts.push(started.elapsed());
    }
    let ratios: Vec<f64> = totals
        .iter()
        .zip(&floors)
        .map(|(total, floor)| total.as_secs_f64() / floor.as_secs_f64())
        .collect();
    println!(
        "{:>14} {:>10} {:>9} {:>9} {:>9} {:>9} {:>7.2} {:>9} {:>9} {:>9}",
        format!("{services} x {endpoints}"),
        bytes,
        text(median(plans)),
        text(median(commits)),
        text(median(totals)),
        text(median(floors)),
        median_of(ratios),
        text(median(restarts)),
        text(median(added)),
        text(median(moved)),
    );
}

fn load(dataplane: &mut Dataplane, services: u32, endpoints: u32) {
    for n in 0..services {
        dataplane.apply(Change::Service(service(n)));
        dataplane.apply(Change::Slice(slice(n, endpoints, 0)));
    }
    dataplane.apply(Change::Synced);
}

/// How long the kernel takes for the same bytes.
fn floor(batch: &FinishedBatch) -> Duration {
    let ns = Netns::new().expect("a namespace");
    ns.run(|| {
        let mut socket = Socket::open()?;
        let batch = batch.with_generation(socket.generation()?.id);
        let started = Instant::now();
        socket.commit(&batch)?;
        Ok(started.elapsed())
    })
    .expect("a replay")
}

fn median_of(mut ratios: Vec<f64>) -> f64 {
    ratios.sort_by(f64::total_cmp);
    ratios.get(ratios.len() / 2).copied().unwrap_or(f64::NAN)
}

fn text(time: Duration) -> String {
    if time < Duration::from_millis(10) {
        format!("{:.0} µs", time.as_secs_f64() * 1e6)
    } else {
        format!("{:.1} ms", time.as_secs_f64() * 1e3)
    }
}
