//! A start on an empty kernel, beside the time in which the kernel takes the very same bytes; and a
//! start on one that holds everything, beside reading alone.

use std::time::{Duration, Instant};

use nfnetlink::nft::{FinishedBatch, Kernel, Socket, TableFamily};
use shunt_core::plan::{Set, TABLE};
use shunt_testbed::Netns;

use super::Size;
use super::cluster::{load, median, open};
use super::table::Table;

const RUNS: usize = 5;
const SIZES: [Size; 4] = [(1_000, 10), (10_000, 10), (30_000, 10), (1, 5_000)];

pub(crate) fn measure(table: &mut Table, sizes: &[Size]) {
    for size in if sizes.is_empty() { &SIZES[..] } else { sizes } {
        let mut figures = Figures::default();
        (0..RUNS).for_each(|_| figures.measure(*size));
        let floor = median(figures.floor);
        let kernel = "the kernel, the same bytes again";
        table.of(RUNS).times("cold start", *size, median(figures.total), kernel, floor);
        let plan = "  of it planning, comparing, encoding";
        table.of(RUNS).times(plan, *size, median(figures.plan), kernel, floor);
        table.of(RUNS).times(
            "restart: read and compare, write nothing",
            *size,
            median(figures.restart),
            "listing all elements, and no more",
            median(figures.listing),
        );
    }
}

#[derive(Default)]
struct Figures {
    plan: Vec<Duration>,
    total: Vec<Duration>,
    floor: Vec<Duration>,
    restart: Vec<Duration>,
    listing: Vec<Duration>,
}

impl Figures {
    fn measure(&mut self, size: Size) {
        let ns = Netns::new().expect("a namespace");
        let mut dataplane = open(&ns);
        load(&mut dataplane, size);
        let started = Instant::now();
        let prepared =
            dataplane.prepare(Instant::now()).expect("a plan").expect("something to write");
        let plan = started.elapsed();
        let again = prepared.batch().with_generation(0);
        let started = Instant::now();
        dataplane.commit(prepared).expect("a commit");
        self.total.push(plan + started.elapsed());
        self.plan.push(plan);
        self.floor.push(floor(&again));
        drop(dataplane);

        self.listing.push(listing(&ns));
        let mut next = open(&ns);
        load(&mut next, size);
        let started = Instant::now();
        let wrote = next.sync().expect("a comparison");
        self.restart.push(started.elapsed());
        // Taking the tables over is a message for each.
        assert!(wrote.is_none_or(|wrote| wrote.added + wrote.deleted == 0), "{wrote:?}");
    }
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

/// How long it takes to be told all elements.
fn listing(ns: &Netns) -> Duration {
    ns.run(|| {
        let mut socket = Socket::open()?;
        let started = Instant::now();
        for family in [TableFamily::Ip, TableFamily::Ip6] {
            for set in Set::ALL {
                socket.elements(family, TABLE, set.name(), &mut |_| {})?;
            }
        }
        Ok(started.elapsed())
    })
    .expect("a listing")
}
