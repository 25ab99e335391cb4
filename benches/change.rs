//! One change among so many other Services, beside the kernel's part of it.

use std::time::{Duration, Instant};

use shunt::dataplane::Dataplane;
use shunt_core::model::{Balancing, Change, Service};
use shunt_testbed::Netns;

use super::Size;
use super::cluster::{load, median, open, service, slice};
use super::table::Table;

const CHANGES: u32 = 200;
const SIZES: [Size; 4] = [(1_000, 10), (10_000, 10), (30_000, 10), (1, 5_000)];

pub(crate) fn measure(table: &mut Table, sizes: &[Size]) {
    for size in if sizes.is_empty() { &SIZES[..] } else { sizes } {
        let ns = Netns::new().expect("a namespace");
        let mut dataplane = open(&ns);
        load(&mut dataplane, *size);
        dataplane.sync().expect("a commit");
        one_by_one(table, *size, &mut dataplane);
        if size.1 > 1 {
            fewer(table, *size, &mut dataplane);
        }
        if size.0 > 1 {
            hashed(table, *size, &mut dataplane);
        }
    }
}

fn one_by_one(table: &mut Table, size: Size, dataplane: &mut Dataplane) {
    let (services, endpoints) = size;
    let mut added = Times::default();
    let mut moved = Times::default();
    for change in 0..CHANGES {
        let n = change % services;
        added.sync(dataplane, Change::slice(slice(n, endpoints + 1, 0)));
        moved.sync(dataplane, Change::slice(slice(n, endpoints + 1, 1)));
        dataplane.apply(Change::slice(slice(n, endpoints, 0)));
        dataplane.sync().expect("a commit").expect("something to write");
    }
    for (what, times) in [("one endpoint more", added), ("one endpoint replaced", moved)] {
        times.row(table, what, size);
    }
}

/// One endpoint goes and comes back. The balancers for both numbers are there, so that the kernel
/// need not walk all backends for a chain that begins to use their map.
fn fewer(table: &mut Table, size: Size, dataplane: &mut Dataplane) {
    let (services, endpoints) = size;
    let mut fewer = Times::default();
    let mut again = Times::default();
    for change in 0..CHANGES {
        let n = change * 37 % services;
        fewer.sync(dataplane, Change::slice(slice(n, endpoints - 1, 0)));
        again.sync(dataplane, Change::slice(slice(n, endpoints, 0)));
    }
    let less = endpoints - 1;
    for (what, times) in [
        (format!("{endpoints} to {less} endpoints"), fewer),
        (format!("{less} to {endpoints} endpoints"), again),
    ] {
        times.row(table, &what, size);
    }
}

/// One of 100 endpoints of a Service with a hash table of 1 021 slots is replaced, goes, comes back.
fn hashed(table: &mut Table, size: Size, dataplane: &mut Dataplane) {
    const ENDPOINTS: u32 = 100;
    let n = size.0;
    let balancing = Some(Balancing::SourceHash);
    dataplane.apply(Change::service(Service { balancing, ..service(n) }));
    dataplane.apply(Change::slice(slice(n, ENDPOINTS, 0)));
    dataplane.sync().expect("a commit");
    let [mut replaced, mut removed, mut added] = [(); 3].map(|()| Times::default());
    for version in (1..=CHANGES).map(|change| 1 + change % 15) {
        replaced.sync(dataplane, Change::slice(slice(n, ENDPOINTS, version)));
        removed.sync(dataplane, Change::slice(slice(n, ENDPOINTS - 1, 0)));
        added.sync(dataplane, Change::slice(slice(n, ENDPOINTS, 0)));
    }
    for (what, times) in [("replaced", replaced), ("removed", removed), ("added", added)] {
        let what = format!("one of 100 endpoints {what}, hash table of 1021 slots");
        times.row(table, &what, size);
    }
}

#[derive(Default)]
struct Times {
    total: Vec<Duration>,
    commit: Vec<Duration>,
}

impl Times {
    fn row(self, table: &mut Table, what: &str, size: Size) {
        let (n, total) = (self.total.len(), median(self.total));
        table.of(n).times(what, size, total, "the commit alone", median(self.commit));
    }

    fn sync(&mut self, dataplane: &mut Dataplane, change: Change) {
        let started = Instant::now();
        dataplane.apply(change);
        let prepared =
            dataplane.prepare(Instant::now()).expect("a plan").expect("something to write");
        let planned = started.elapsed();
        dataplane.commit(prepared).expect("a commit");
        // As the thread that commits does; else they pile up.
        dataplane.take_flows();
        self.total.push(started.elapsed());
        self.commit.push(started.elapsed() - planned);
    }
}
