//! One change among so many other Services, beside the kernel's part of it; and many at once. Then one
//! change of a Service whose endpoints are in many slices.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use shunt::dataplane::{Command, Dataplane, Event, Pace, spawn};
use shunt_core::model::{
    Balancing, Change, ChangeBatch, Endpoint, EndpointSlice, ObjectName, Service,
};
use shunt_testbed::Netns;

use super::Size;
use super::cluster::{load, median, open, service, slice};
use super::table::{Table, Value};

const CHANGES: u32 = 200;
const AT_ONCE: u32 = 1_000;
/// The most endpoints of a slice that the controllers of Kubernetes write.
const SLICE: u32 = 100;
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
        if size.0 >= AT_ONCE {
            at_once(table, *size, dataplane);
        }
        if size.1 > SLICE {
            in_many_slices(table, size.1);
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
        let kernel = "the commit alone";
        let (n, total) = (times.total.len(), median(times.total));
        table.of(n).times(what, size, total, kernel, median(times.commit));
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
        let worst = times.total.iter().max().copied().unwrap_or_default();
        let kernel = "the commit alone";
        let (n, total) = (times.total.len(), median(times.total));
        table.of(n).times(&what, size, total, kernel, median(times.commit));
        table.of(n).time(&format!("{what}: worst"), size, worst);
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
        let n = times.total.len();
        table.of(n).times(
            &what,
            size,
            median(times.total),
            "the commit alone",
            median(times.commit),
        );
    }
}

/// One endpoint of a Service in full slices changes. Their addresses are in no order, neither within
/// a slice nor from one to the next.
fn in_many_slices(table: &mut Table, endpoints: u32) {
    let ns = Netns::new().expect("a namespace");
    let mut dataplane = open(&ns);
    let mut slices: Vec<EndpointSlice> =
        (0..endpoints.div_ceil(SLICE)).map(|at| scattered(at, endpoints)).collect();
    dataplane.apply(Change::service(service(0)));
    for slice in &slices {
        dataplane.apply(Change::slice(slice.clone()));
    }
    dataplane.apply(Change::Synced);
    dataplane.sync().expect("a commit");

    let mut replaced = Times::default();
    let mut removed = Times::default();
    let mut added = Times::default();
    for change in 0..CHANGES {
        let slice = change as usize * 37 % slices.len();
        let slice = &mut slices[slice];
        let at = change as usize * 61 % slice.endpoints.len();
        slice.endpoints[at].address = Ipv4Addr::from(0x0b00_0000 + change).into();
        replaced.sync(&mut dataplane, Change::slice(slice.clone()));
        let gone = slice.endpoints.remove(at);
        removed.sync(&mut dataplane, Change::slice(slice.clone()));
        slice.endpoints.insert(at, gone);
        added.sync(&mut dataplane, Change::slice(slice.clone()));
    }
    let size = (1, endpoints);
    for (what, times) in [("replaced", replaced), ("removed", removed), ("added", added)] {
        let what = format!("one endpoint {what}, {} slices: our part", slices.len());
        let commit = median(times.commit.clone());
        let own = times.total.iter().zip(&times.commit).map(|(total, commit)| *total - *commit);
        let n = times.total.len();
        table.of(n).times(&what, size, median(own.collect()), "the commit", commit);
    }
}

/// One of the slices.
fn scattered(at: u32, endpoints: u32) -> EndpointSlice {
    /// A prime, so that every address comes once.
    const STEP: u32 = 7_919;
    let numbers = at * SLICE..endpoints.min((at + 1) * SLICE);
    let mut all = slice(0, 1, 0);
    let Some(pattern) = all.endpoints.pop() else { return all };
    let endpoint = |number: u32| {
        let address = Ipv4Addr::from(0x0af4_0000 + number * STEP % endpoints);
        Endpoint { address: IpAddr::from(address), ..pattern.clone() }
    };
    EndpointSlice {
        name: ObjectName::new("bench", format!("service-0-{at:05}")),
        endpoints: numbers.map(endpoint).collect(),
        ..all
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

/// As many changes as sources can send, to the thread that commits.
fn at_once(table: &mut Table, size: Size, dataplane: Dataplane) {
    let (services, endpoints) = size;
    let (sender, synced) = mpsc::channel();
    let pace = Pace { min_period: Duration::ZERO, check_period: Duration::ZERO };
    let commands = spawn(
        dataplane,
        pace,
        |_| {},
        move |event| {
            if let Event::Synced { batches, .. } = event {
                // The receiver goes when it has seen enough.
                let _ = sender.send(batches.len());
            }
        },
    )
    .expect("a thread");
    let changes: Vec<Change> =
        (0..AT_ONCE).map(|n| Change::slice(slice(n * 7 % services, endpoints + 1, 0))).collect();
    let started = Instant::now();
    for change in changes {
        let batch = ChangeBatch::new(vec![change], Instant::now());
        commands.send(Command::Changes(batch)).expect("a thread that listens");
    }
    let (mut done, mut transactions) = (0, 0);
    while done < AT_ONCE as usize {
        done += synced.recv().expect("a commit");
        transactions += 1;
    }
    let (what, took) = (format!("{AT_ONCE} Services change at once"), started.elapsed());
    let transactions = Value::count(transactions);
    table.of(1).beside(&what, size, Value::time(took), "transactions", transactions);
}
