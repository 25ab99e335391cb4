//! Session affinity with many clients: one endpoint goes, and all entries that name it have to. How
//! long that takes, and how long changes of other Services wait meanwhile.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use nfnetlink::nft::{Batch, ElementData, Elements, Kernel, Socket, TableFamily};
use shunt::dataplane::{Command, Commands, Dataplane, Event, Ownership, Pace, spawn};
use shunt_core::model::{Change, ChangeBatch, EndpointSlice};
use shunt_core::plan::{Options, Set, TABLE};
use shunt_testbed::Netns;

use super::Size;
use super::cluster::{load, median, service, slice};
use super::table::Table;

const SIZES: [Size; 1] = [(1_000, 10)];
/// Clients that the kernel remembers: nearly as many as the map has room for.
const CLIENTS: u32 = 120_000;
const AT_ONCE: u32 = 10_000;
const RUNS: usize = 3;
/// Changes of other Services before the endpoint goes.
const CALM_CHANGES: u32 = 200;
const TIMEOUT: Duration = Duration::from_secs(120);

pub(crate) fn measure(table: &mut Table, sizes: &[Size]) {
    for size in if sizes.is_empty() { &SIZES[..] } else { sizes } {
        assert!(size.0 > 1 && size.1 > 1, "needs two Services, and an endpoint that can go");
        let mut figures = Figures::default();
        (0..RUNS).for_each(|_| figures.measure(*size));
        let calm = "without a sweep";
        let (alone, meanwhile) = (figures.calm, figures.meanwhile);
        let worst = |times: &[Duration]| times.iter().max().copied().unwrap_or_default();
        let what = format!("an endpoint of {CLIENTS} clients removed");
        let none = "an endpoint without clients removed";
        table.of(RUNS).times(&what, *size, median(figures.removal), none, median(figures.empty));
        table.of(RUNS).time(&format!("{what}: all swept"), *size, median(figures.sweep));
        let what = "another Service during the sweep";
        let (ours, theirs) = (median(meanwhile.clone()), median(alone.clone()));
        let n = meanwhile.len();
        table.of(n).times(&format!("{what}: median"), *size, ours, calm, theirs);
        let (ours, theirs) = (worst(&meanwhile), worst(&alone));
        table.of(n).times(&format!("{what}: worst"), *size, ours, calm, theirs);
    }
}

#[derive(Default)]
struct Figures {
    /// From the order that removes an endpoint to the end of its transaction: with clients and before
    /// there are any.
    removal: Vec<Duration>,
    empty: Vec<Duration>,
    /// From the same order until no sweep is due any more.
    sweep: Vec<Duration>,
    /// The same of an endpoint of another Service, before and during the sweep.
    calm: Vec<Duration>,
    meanwhile: Vec<Duration>,
}

impl Figures {
    fn measure(&mut self, size: Size) {
        let (services, endpoints) = size;
        let ns = Netns::new().expect("a namespace");
        // Otherwise only the agent could fill the map.
        let mut dataplane = ns
            .run(|| Ok(Dataplane::open(Options::default(), "node-1", Ownership::Share)?))
            .expect("a dataplane");
        load(&mut dataplane, size);
        let mut sticky = service(0);
        sticky.affinity_seconds = Some(10_800);
        dataplane.apply(Change::service(sticky));
        dataplane.sync().expect("a commit");
        let worker = Worker::start(dataplane);
        let all = slice(0, endpoints, 0);
        let mut fewer = all.clone();
        fewer.endpoints.remove(0);
        self.empty.push(worker.sync(&fewer).0);
        worker.sync(&all);
        let mut version = 0;
        let mut other = || {
            // All of them in turn, each time with another endpoint than before.
            let (round, n) = (version / (services - 1), version % (services - 1));
            version += 1;
            worker.sync(&slice(1 + n, endpoints, 1 + round % 2))
        };
        // Until nothing is left to sweep of the removal above.
        while other().1 {}
        remember(&ns, &all);
        self.calm.extend((0..CALM_CHANGES).map(|_| other().0));

        let started = Instant::now();
        let (took, mut sweeps) = worker.sync(&fewer);
        self.removal.push(took);
        while sweeps {
            assert!(started.elapsed() < TIMEOUT, "the sweep does not end");
            let (took, more) = other();
            self.meanwhile.push(took);
            sweeps = more;
        }
        self.sweep.push(started.elapsed());
        let left = entries(&ns);
        assert_eq!(left, CLIENTS - CLIENTS.div_ceil(endpoints), "entries of an endpoint that went");
    }
}

/// The thread that commits.
struct Worker {
    commands: Commands,
    /// For each sync, whether a sweep is due or at work behind it.
    synced: Receiver<bool>,
}

impl Worker {
    fn start(dataplane: Dataplane) -> Worker {
        let (sender, synced) = mpsc::channel();
        let pace = Pace { min_period: Duration::ZERO, check_period: Duration::ZERO };
        let report = move |event: Event<'_>| {
            if let Event::Synced { snapshot, .. } = event {
                // The receiver goes when it has seen enough.
                let _ = sender.send(snapshot.is_sweeping);
            }
        };
        let commands = spawn(dataplane, pace, |_| {}, report).expect("a thread");
        Worker { commands, synced }
    }

    /// How long a change takes, and whether a sweep is due or at work behind it.
    fn sync(&self, slice: &EndpointSlice) -> (Duration, bool) {
        let batch = ChangeBatch::new(vec![Change::slice(slice.clone())], Instant::now());
        let started = Instant::now();
        self.commands.send(Command::Changes(batch)).expect("a thread that listens");
        let sweeps = self.synced.recv_timeout(TIMEOUT).expect("a commit");
        (started.elapsed(), sweeps)
    }
}

/// Adds clients of the first Service to the map, as rules would: evenly over its endpoints.
fn remember(ns: &Netns, slice: &EndpointSlice) {
    let frontend = service(0).cluster_ips[0];
    let pods: Vec<[u8; 4]> = slice.endpoints.iter().map(|e| octets(e.address)).collect();
    let mut socket = ns.run(|| Ok(Socket::open()?)).expect("a socket");
    for first in (0..CLIENTS).step_by(AT_ONCE as usize) {
        let mut elements = Elements::new();
        for client in first..CLIENTS.min(first + AT_ONCE) {
            let from = Ipv4Addr::from(0x0b00_0000 + client).octets();
            // Client, address, protocol and port of the frontend, each filled up to four bytes.
            let key = [&from[..], &octets(frontend), &[6, 0, 0, 0], &[0, 80, 0, 0]].concat();
            let port = 8080_u16.to_be_bytes();
            let data = [&pods[client as usize % pods.len()][..], &port, &[0, 0]].concat();
            elements.push(&key, Some(ElementData::Value(&data)), None);
        }
        let mut batch = Batch::new(None);
        batch.add_elements(TableFamily::Ip, TABLE, Set::Affinity.name(), &elements);
        socket.commit(&batch.finish()).expect("room for all clients");
    }
}

/// How many clients the kernel remembers.
fn entries(ns: &Netns) -> u32 {
    let mut count = 0;
    ns.run(|| {
        let mut socket = Socket::open()?;
        let set = Set::Affinity.name();
        Ok(socket.elements(TableFamily::Ip, TABLE, set, &mut |_| count += 1)?)
    })
    .expect("a listing");
    count
}

fn octets(address: IpAddr) -> [u8; 4] {
    match address {
        IpAddr::V4(v4) => v4.octets(),
        IpAddr::V6(_) => [0; 4],
    }
}
