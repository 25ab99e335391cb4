//! Counters of frontends continue when their verdicts change.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use nfnetlink::nft::{Error, TableFamily};
use nix::errno::Errno;
use shunt_core::model::{Change, Kind, TrafficPolicy};
use shunt_core::plan::{Set, TABLE};
use shunt_fake_nftables::{Call, Fault, Namespace, service};

use super::world::{PACE, What, World, cluster, elsewhere, endpoints};
use crate::dataplane::Ownership;

const SECOND: Duration = Duration::from_secs(1);
/// The ClusterIP of Service 1, port 80, TCP.
const CLUSTER_IP: &[u8] = &[10, 96, 0, 1, 6, 0, 0, 0, 0, 80, 0, 0];
/// Its ExternalIP.
const EXTERNAL_IP: &[u8] = &[198, 51, 0, 1, 6, 0, 0, 0, 0, 80, 0, 0];
/// Its node port, 30001.
const NODE_PORT: &[u8] = &[6, 0, 0, 0, 0x75, 0x31, 0, 0];

/// What a frontend has counted, by packets and bytes; `None` without an element.
fn counted(world: &World, set: Set, key: &[u8]) -> Option<(u64, u64)> {
    let listing = world.listing();
    let element = listing.elements[set.name()].iter().find(|element| element.key == key)?;
    Some(element.counter.expect("a counter"))
}

/// Connections to a frontend, of 60 bytes each.
fn connect(world: &World, set: Set, key: &[u8], times: usize) {
    for _ in 0..times {
        world.namespace.count(TableFamily::Ip, TABLE, set.name(), key, 60);
    }
}

#[test]
fn counter_continues_over_every_number_of_endpoints() {
    let mut world = World::serving(&[11, 12, 13]);
    let frontends = [
        (Set::ServiceIps, CLUSTER_IP),
        (Set::ServiceIps, EXTERNAL_IP),
        (Set::ServiceNodeports, NODE_PORT),
    ];
    let steps: [&[u16]; 7] =
        [&[11, 12, 13, 14], &[11, 12, 13], &[], &[11, 12, 13], &[21, 22, 23], &[11], &[11, 12]];
    for (step, numbers) in (1_u64..).zip(steps) {
        for (times, (set, key)) in (1..).zip(frontends) {
            connect(&world, set, key, times);
        }
        world.commit(endpoints(numbers));
        for (times, (set, key)) in (1..).zip(frontends) {
            let packets = times * step;
            assert_eq!(counted(&world, set, key), Some((packets, packets * 60)), "{numbers:?}");
        }
    }
}

/// Policy Local: connections of local pods and the node count at another element, which goes when
/// the Service has no endpoint, or its policy becomes Cluster.
#[test]
fn counter_of_a_lost_short_circuit_goes_to_the_verdict() {
    let mut world = World::serving(&[11, 12]);
    let local = || {
        let mut local = service(1);
        local.external_policy = TrafficPolicy::Local;
        Change::Service(local.into())
    };
    let sum = |world: &World| {
        let of = |set| counted(world, set, EXTERNAL_IP).map_or(0, |(packets, _)| packets);
        of(Set::ServiceIps) + of(Set::ShortCircuit)
    };
    world.commit(vec![local()]);
    connect(&world, Set::ServiceIps, EXTERNAL_IP, 3);
    connect(&world, Set::ShortCircuit, EXTERNAL_IP, 4);
    // No endpoint: the short circuit goes, and comes back.
    world.commit(endpoints(&[]));
    assert_eq!(counted(&world, Set::ShortCircuit, EXTERNAL_IP), None);
    assert_eq!(sum(&world), 7);
    world.commit(endpoints(&[12]));
    connect(&world, Set::ShortCircuit, EXTERNAL_IP, 5);
    assert_eq!(counted(&world, Set::ShortCircuit, EXTERNAL_IP), Some((5, 300)));
    world.commit(endpoints(&[12, 14]));
    assert_eq!(counted(&world, Set::ShortCircuit, EXTERNAL_IP), Some((5, 300)));
    // Here the verdict itself does not change: `lb-2` for all endpoints as for the local ones.
    world.commit(vec![Change::Service(service(1).into())]);
    assert_eq!(sum(&world), 12);
    assert_eq!(counted(&world, Set::ServiceIps, EXTERNAL_IP), Some((12, 720)));
}

#[test]
fn counter_of_another_service_port_starts_at_zero() {
    let mut world = World::serving(&[11, 12]);
    connect(&world, Set::ServiceIps, CLUSTER_IP, 5);
    let mut other = service(2);
    other.cluster_ips = service(1).cluster_ips;
    let gone = Change::Gone(Kind::Service, service(1).name);
    world.apply(vec![gone, Change::Service(other.into())]);
    assert_eq!(counted(&world, Set::ServiceIps, CLUSTER_IP), Some((0, 0)));
}

#[test]
fn changes_of_data_only_read_no_counter() {
    let mut world = World::serving(&[11, 12]);
    let reads = Arc::new(AtomicUsize::new(0));
    let count = reads.clone();
    world.on_call(move |call| {
        count.fetch_add(matches!(call, Call::Lookup).into(), Ordering::Relaxed);
        None
    });
    world.commit(endpoints(&[11, 13]));
    assert_eq!(reads.load(Ordering::Relaxed), 0);
    world.commit(endpoints(&[11, 13, 14]));
    // One request each for `service-ips` and `service-nodeports`.
    assert_eq!(reads.load(Ordering::Relaxed), 2);
}

#[test]
fn counter_that_cannot_be_read_fails_no_sync() {
    let mut world = World::serving(&[11, 12]);
    connect(&world, Set::ServiceIps, CLUSTER_IP, 5);
    world.on_call(|call| {
        let request = "look up an element";
        let fails = matches!(call, Call::Lookup);
        fails.then_some(Fault::Before(Error::Request { request, errno: Errno::ENOMEM }))
    });
    world.commit(endpoints(&[11]));
    assert_eq!(counted(&world, Set::ServiceIps, CLUSTER_IP), Some((0, 0)));
}

/// The transaction that the kernel refuses is made again with one element per message, and the
/// counters are read again.
#[test]
fn counter_survives_a_refused_neighbour() {
    let mut world = World::serving(&[11, 12]);
    connect(&world, Set::ServiceIps, CLUSTER_IP, 5);
    world.namespace.refuse(|_, key| key.starts_with(&[10, 96, 0, 2]).then_some(Errno::ENOSPC));
    world.send(endpoints(&[11]));
    world.apply(vec![Change::Service(service(2).into())]);
    assert!(world.events().iter().any(|event| matches!(event, What::Quarantined(_))));
    assert_eq!(counted(&world, Set::ServiceIps, CLUSTER_IP), Some((5, 300)));
}

/// The flags of a table cannot be set later, so that the next agent replaces it.
#[test]
fn counters_move_into_a_replaced_table() {
    let namespace = Namespace::new();
    let mut first = World::with(namespace.clone(), Ownership::Share, PACE);
    first.apply(cluster(&[11, 12]));
    connect(&first, Set::ServiceIps, CLUSTER_IP, 5);
    connect(&first, Set::ServiceNodeports, NODE_PORT, 6);
    let flags = first.listing().table.flags;
    let mut next = World::with(namespace, Ownership::Own, PACE);
    next.apply(cluster(&[11, 12, 13]));
    assert_ne!(next.listing().table.flags, flags, "the table is another one");
    assert_eq!(counted(&next, Set::ServiceIps, CLUSTER_IP), Some((5, 300)));
    assert_eq!(counted(&next, Set::ServiceNodeports, NODE_PORT), Some((6, 360)));
    assert_eq!(counted(&next, Set::ServiceIps, EXTERNAL_IP), Some((0, 0)));
}

/// Sets that are too small are made anew, with their elements.
#[test]
fn counters_move_into_larger_sets() {
    let mut world = World::serving(&[11, 12]);
    connect(&world, Set::ServiceIps, CLUSTER_IP, 5);
    let elements = |world: &World| world.listing().elements[Set::ServiceIps.name()].len();
    world.apply((2..400).map(|n| Change::Service(service(n).into())).collect());
    assert!(elements(&world) > 512, "more than had room");
    assert_eq!(counted(&world, Set::ServiceIps, CLUSTER_IP), Some((5, 300)));
}

/// A frontend without one of its endpoints is written anew as a whole.
#[test]
fn counter_survives_the_repair_of_its_frontend() {
    let mut world = World::shared(cluster(&[11, 12]));
    connect(&world, Set::ServiceIps, CLUSTER_IP, 5);
    world.lose_endpoints(CLUSTER_IP);
    world.pass(SECOND);
    assert!(matches!(world.events()[..], [What::Wrote { .. }, What::Repaired(_)]));
    assert_eq!(counted(&world, Set::ServiceIps, CLUSTER_IP), Some((5, 300)));
}

#[test]
fn counted_connections_are_no_drift() {
    let mut world = World::shared(cluster(&[11, 12]));
    for n in 0..10 {
        connect(&world, Set::ServiceIps, CLUSTER_IP, 5);
        world.foreign(&elsewhere(&format!("other-{n}")));
        world.pass(10 * SECOND);
    }
    assert_eq!(world.events(), []);
    // A start writes nothing either.
    let mut next = World::with(world.namespace.clone(), Ownership::Share, PACE);
    next.apply(cluster(&[11, 12]));
    assert_eq!(next.events(), [What::Unchanged]);
}
