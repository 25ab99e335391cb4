//! Over fake nf_tables, which an agent programs.

use std::time::Instant;

use nfnetlink::nft::TableFamily;
use shunt_core::model::{Change, Family, Kind, TrafficPolicy};
use shunt_core::plan::{Options, Set, TABLE};
use shunt_fake_nftables::{Call, Fault, Faulty, NODE, Namespace, name, service, slice};

use super::*;
use crate::dataplane::{Dataplane, Ownership};

/// An agent that programs the fake, and the reader of its counters.
struct World {
    namespace: Namespace,
    dataplane: Dataplane,
    counters: ServiceCounters,
}

/// The key of a ClusterIP and of an ExternalIP of a Service, port 80, TCP.
fn cluster_ip(n: u8) -> [u8; 12] {
    [10, 96, 0, n, 6, 0, 0, 0, 0, 80, 0, 0]
}

fn external_ip(n: u8) -> [u8; 12] {
    [198, 51, 0, n, 6, 0, 0, 0, 0, 80, 0, 0]
}

fn endpoints(n: u16, numbers: &[u16]) -> Change {
    Change::Slice(slice(n, Family::V4, numbers).into())
}

impl World {
    fn new(limit: usize) -> World {
        World::over(Namespace::new(), limit)
    }

    fn over(namespace: Namespace, limit: usize) -> World {
        let kernel = Box::new(namespace.open());
        let dataplane = Dataplane::with_kernel(kernel, Options::default(), NODE, Ownership::Share);
        World {
            dataplane: dataplane.expect("fake nf_tables"),
            counters: ServiceCounters::with_kernel(Box::new(namespace.open()), limit),
            namespace,
        }
    }

    fn sync(&mut self, changes: impl IntoIterator<Item = Change>) {
        self.dataplane.apply_all(changes);
        self.dataplane.apply(Change::Synced);
        self.dataplane.sync().expect("a commit");
    }

    fn connect(&self, map: Set, key: &[u8], times: usize) {
        for _ in 0..times {
            self.namespace.count(TableFamily::Ip, TABLE, map.name(), key, 60);
        }
    }

    /// What a scrape reads.
    fn read(&mut self) -> Vec<(String, u64)> {
        let read = self.counters.read().expect("it can be read").ports.into_iter();
        read.map(|(label, protocol, count)| (format!("{label}/{protocol}"), count)).collect()
    }

    /// The number of Service 1.
    fn first(&mut self) -> u64 {
        let read = self.read();
        let first = read.iter().find(|(port, _)| port == "default/service-1:http/tcp");
        first.unwrap_or_else(|| panic!("{read:?}")).1
    }
}

fn with(n: u16, numbers: &[u16]) -> [Change; 2] {
    [Change::Service(service(n).into()), endpoints(n, numbers)]
}

#[test]
fn connections_to_all_frontends_of_a_port_are_added() {
    let mut world = World::new(10);
    assert_eq!(world.read(), []);
    world.sync(with(1, &[11, 12]));
    assert_eq!(world.read(), [("default/service-1:http/tcp".to_owned(), 0)]);
    world.connect(Set::ServiceIps, &cluster_ip(1), 3);
    world.connect(Set::ServiceIps, &external_ip(1), 4);
    world.connect(Set::ServiceNodeports, &[6, 0, 0, 0, 0x75, 0x31, 0, 0], 5);
    assert_eq!(world.first(), 12);
    // Another number of endpoints makes no difference.
    world.sync([endpoints(1, &[11])]);
    assert_eq!(world.first(), 12);
    world.connect(Set::ServiceIps, &cluster_ip(1), 1);
    assert_eq!(world.first(), 13);
    world.sync([Change::Gone(Kind::Service, name(1))]);
    assert_eq!(world.read(), []);
}

#[test]
fn connections_of_earlier_agents_do_not_count() {
    let mut first = World::new(10);
    first.sync(with(1, &[11]));
    first.connect(Set::ServiceIps, &cluster_ip(1), 7);
    let mut next = World::over(first.namespace.clone(), 10);
    assert_eq!(next.first(), 0);
    next.connect(Set::ServiceIps, &cluster_ip(1), 2);
    assert_eq!(next.first(), 2);
    // Those of a Service that comes later all do.
    first.sync(with(2, &[21]));
    next.connect(Set::ServiceIps, &cluster_ip(2), 3);
    assert_eq!(next.read()[1].1, 3);
}

#[test]
fn sum_never_decreases() {
    let mut world = World::new(10);
    world.sync(with(1, &[11, 12]));
    world.connect(Set::ServiceIps, &cluster_ip(1), 10);
    world.connect(Set::ServiceIps, &external_ip(1), 20);
    assert_eq!(world.first(), 30);
    // A frontend goes, and comes back.
    let mut fewer = service(1);
    fewer.external_ips.clear();
    world.sync([Change::Service(fewer.into())]);
    assert_eq!(world.first(), 30);
    world.sync([Change::Service(service(1).into())]);
    world.connect(Set::ServiceIps, &external_ip(1), 1);
    assert_eq!(world.first(), 31);
    // The table goes, and comes back.
    let mut batch = nfnetlink::nft::Batch::new(None);
    batch.delete_table(TableFamily::Ip, TABLE);
    nfnetlink::nft::Kernel::commit(&mut world.namespace.open(), &batch.finish()).expect("a commit");
    assert!(world.dataplane.check(Instant::now()).expect("an answer"));
    world.sync([]);
    world.connect(Set::ServiceIps, &cluster_ip(1), 2);
    assert_eq!(world.first(), 33);
}

/// A scrape between the reading of an old element and the commit of the new one sees more than the
/// new one has.
#[test]
fn counter_that_steps_back_is_no_new_one() {
    let counted = |main, short_circuit| {
        let [main, short_circuit] = [main, short_circuit]
            .map(|connections| Installed { connections, ..Installed::default() });
        FrontendVerdict { main, short_circuit, label: "a/b".into() }
    };
    let before = counted(1_000, 0);
    assert_eq!(since(&counted(998, 0), Some(&before)), 0);
    assert_eq!(since(&counted(3, 0), Some(&before)), 3);
    assert_eq!(since(&counted(1_004, 0), Some(&before)), 4);
    assert_eq!(since(&counted(900, 102), Some(&before)), 2);
    // Another Service port starts at zero.
    let other = FrontendVerdict { label: "a/c".into(), ..counted(1_001, 0) };
    assert_eq!(since(&other, Some(&before)), 1_001);
}

/// With policy Local there are two elements; the count of one moves to the other when it goes.
#[test]
fn lost_short_circuit_counts_once() {
    let mut world = World::new(10);
    world.sync(with(1, &[11, 12]));
    let mut local = service(1);
    local.external_policy = TrafficPolicy::Local;
    world.sync([Change::Service(local.into())]);
    world.connect(Set::ServiceIps, &external_ip(1), 3);
    world.connect(Set::ShortCircuit, &external_ip(1), 4);
    assert_eq!(world.first(), 7);
    world.sync([endpoints(1, &[])]);
    assert_eq!(world.first(), 7);
    world.sync([endpoints(1, &[12])]);
    world.connect(Set::ShortCircuit, &external_ip(1), 1);
    assert_eq!(world.first(), 8);
}

/// While the kernel resizes a map, a listing has some elements twice and lacks others.
#[test]
fn torn_listing_changes_no_sum() {
    let namespace = Namespace::new();
    let mut world = World::over(namespace.clone(), 10);
    world.sync((1..=4).flat_map(|n| with(n, &[11])));
    for n in 1..=4 {
        world.connect(Set::ServiceIps, &cluster_ip(n), 5);
    }
    let torn = |call: Call<'_>| matches!(call, Call::List).then_some(Fault::Torn);
    let expected = world.read();
    assert!(expected.iter().all(|(_, count)| *count == 5), "{expected:?}");
    world.counters.kernel = Box::new(Faulty::new(namespace.open(), torn));
    assert_eq!(world.read(), expected);
    world.counters.kernel = Box::new(namespace.open());
    assert_eq!(world.read(), expected);
}

#[test]
fn ports_beyond_the_limit_are_left_out_until_there_is_room() {
    let mut world = World::new(2);
    world.sync((1..=3).flat_map(|n| with(n, &[11])));
    let names = |read: &[(String, u64)]| -> Vec<u8> {
        read.iter()
            .filter_map(|(port, _)| port.as_bytes().get("default/service-".len()).copied())
            .collect()
    };
    let read = world.read();
    assert_eq!((names(&read), world.counters.omitted), (vec![b'1', b'2'], 1));
    world.sync([Change::Gone(Kind::Service, name(1))]);
    world.connect(Set::ServiceIps, &cluster_ip(3), 2);
    let read = world.read();
    assert_eq!((names(&read), world.counters.omitted), (vec![b'2', b'3'], 0));
    assert_eq!(read[1].1, 2);
}

#[test]
fn kernel_that_does_not_answer_exports_nothing() {
    let namespace = Namespace::new();
    let mut world = World::over(namespace.clone(), 10);
    world.sync(with(1, &[11]));
    let mute = |_: Call<'_>| {
        let reason = std::io::Error::from_raw_os_error(nix::errno::Errno::ENOBUFS as i32);
        Some(Fault::Before(Error::Receive(reason)))
    };
    world.counters.kernel = Box::new(Faulty::new(namespace.open(), mute));
    assert_eq!(world.counters.read(), None);
    world.counters.kernel = Box::new(namespace.open());
    assert_eq!(world.first(), 0);
}
