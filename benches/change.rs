//! One change among so many other Services, beside the kernel's part of it; and many at once.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use shunt::dataplane::{Dataplane, Event, Order, Pace, Update, spawn};
use shunt::model::Change;
use shunt_lab::Netns;

use super::Size;
use super::cluster::{load, median, open, slice};
use super::table::Table;

const CHANGES: u32 = 200;
const AT_ONCE: u32 = 1_000;
const SIZES: [Size; 4] = [(1_000, 10), (10_000, 10), (30_000, 10), (1, 5_000)];

pub(crate) fn measure(table: &mut Table, sizes: &[Size]) {
    for size in if sizes.is_empty() { &SIZES[..] } else { sizes } {
        let ns = Netns::new().expect("a namespace");
        let mut dataplane = open(&ns);
        load(&mut dataplane, *size);
        dataplane.sync().expect("a commit");
        one_by_one(table, *size, &mut dataplane);
        if size.0 >= AT_ONCE {
            at_once(table, *size, dataplane);
        }
    }
}

fn one_by_one(table: &mut Table, size: Size, dataplane: &mut Dataplane) {
    let (services, endpoints) = size;
    let mut added = Times::default();
    let mut moved = Times::default();
    for change in 0..CHANGES {
        let n = change % services;
        added.sync(dataplane, Change::Slice(slice(n, endpoints + 1, 0)));
        moved.sync(dataplane, Change::Slice(slice(n, endpoints + 1, 1)));
        dataplane.apply(Change::Slice(slice(n, endpoints, 0)));
        dataplane.sync().expect("a commit").expect("something to write");
    }
    for (what, times) in [("one endpoint more", added), ("one endpoint replaced", moved)] {
        let kernel = "the commit alone";
        table.times(what, size, median(times.total), kernel, median(times.commit));
    }
}

#[derive(Default)]
struct Times {
    total: Vec<Duration>,
    commit: Vec<Duration>,
}

impl Times {
    fn sync(&mut self, dataplane: &mut Dataplane, change: Change) {
        let started = Instant::now();
        dataplane.apply(change);
        let prepared = dataplane.prepare().expect("a plan").expect("something to write");
        let planned = started.elapsed();
        dataplane.commit(prepared).expect("a commit");
        self.total.push(started.elapsed());
        self.commit.push(started.elapsed() - planned);
    }
}

/// As many changes as sources can send, to the thread that commits.
fn at_once(table: &mut Table, size: Size, dataplane: Dataplane) {
    let (services, endpoints) = size;
    let (sender, synced) = mpsc::channel();
    let pace = Pace { min_period: Duration::ZERO, check_period: Duration::ZERO };
    let orders = spawn(
        dataplane,
        pace,
        |_| {},
        move |event| {
            if let Event::Synced { causes, .. } = event {
                // The receiver goes when it has seen enough.
                let _ = sender.send(causes.len());
            }
        },
    )
    .expect("a thread");
    let changes: Vec<Change> =
        (0..AT_ONCE).map(|n| Change::Slice(slice(n * 7 % services, endpoints + 1, 0))).collect();
    let started = Instant::now();
    for change in changes {
        orders.send(Order::Update(Update::now(vec![change]))).expect("a thread that listens");
    }
    let (mut done, mut transactions) = (0, 0);
    while done < AT_ONCE as usize {
        done += synced.recv().expect("a commit");
        transactions += 1;
    }
    table.row(
        &format!("{AT_ONCE} Services change at once"),
        size,
        &super::table::time(started.elapsed()),
        "transactions",
        &transactions.to_string(),
        "",
    );
}
