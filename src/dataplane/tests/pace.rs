//! When the worker commits.

use std::time::{Duration, Instant, SystemTime};

use shunt_core::model::{Change, ChangeBatch, Family, Kind, Service, TrafficPolicy};
use shunt_core::plan::{Set, Unserved};
use shunt_fake_nftables::{Namespace, name, service, slice};

use super::world::{PACE, What, World, cluster, endpoints};
use crate::dataplane::{Ownership, Pace};

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn changes_that_wait_form_one_transaction() {
    let mut world = World::new();
    world.send(cluster(&[11]));
    for endpoint in 12..20 {
        world.send(endpoints(&[11, endpoint]));
    }
    world.settle();
    assert!(matches!(world.events()[..], [What::Wrote { .. }]));
    assert_eq!(world.snapshot().store.endpoint_count(), 2);
    assert_eq!(world.backlog.oldest(), None);
}

#[test]
fn commits_are_a_minimum_period_apart() {
    let pace = Pace { min_period: 5 * SECOND, ..PACE };
    let mut world = World::with(Namespace::new(), Ownership::Own, pace);
    world.send(cluster(&[11]));
    world.pass(SECOND);
    assert!(matches!(world.events()[..], [What::Wrote { .. }]));
    for endpoint in 12..15 {
        world.send(endpoints(&[endpoint]));
        world.pass(SECOND);
    }
    assert_eq!(world.events(), [], "the last commit was 4 s ago");
    assert!(world.backlog.oldest().is_some());
    world.pass(SECOND);
    let log = world.log();
    assert_eq!(log.len(), 1, "{log:?}");
    assert_eq!(log[0].at, 5 * SECOND);
    // A commit that is long ago holds up nothing.
    world.pass(60 * SECOND);
    world.apply(vec![Change::Gone(Kind::Service, name(1))]);
    assert!(matches!(world.events()[..], [What::Wrote { added: 0, .. }]));
}

#[test]
fn unused_balancer_is_deleted_after_an_hour() {
    let mut world = World::new();
    let many: Vec<u16> = (1..=17).collect();
    world.apply(cluster(&many));
    let has_balancer =
        |world: &World| world.listing().chains.iter().any(|chain| chain.name == "lb-17");
    assert!(has_balancer(&world));
    world.send(endpoints(&[1]));
    world.pass(3590 * SECOND);
    assert!(has_balancer(&world));
    // A number that comes back finds its chain, and the hour begins anew.
    world.send(endpoints(&many));
    world.pass(20 * SECOND);
    world.send(endpoints(&[1]));
    world.pass(3590 * SECOND);
    assert!(has_balancer(&world));
    world.pass(30 * SECOND);
    assert!(!has_balancer(&world));
}

#[test]
fn idle_agent_wakes_only_for_what_others_can_modify_or_chains_it_can_delete() {
    let mut world = World::new();
    let many: Vec<u16> = (1..=17).collect();
    world.send(cluster(&many));
    // The first commit is followed by a look for stale entries of session affinity.
    world.pass(SECOND);
    assert_eq!(world.next_wake(), None, "nobody else can modify owned tables");
    world.apply(endpoints(&[1]));
    assert!(world.next_wake().is_some(), "a chain is unused");
    world.pass(4000 * SECOND);
    assert_eq!(world.next_wake(), None);

    let mut shared = World::with(Namespace::new(), Ownership::Share, PACE);
    shared.send(cluster(&[11]));
    shared.pass(60 * SECOND);
    assert!(shared.next_wake().is_some_and(|wake| wake <= 61 * SECOND));
}

#[test]
fn triggers_of_an_unchanged_slice_are_not_reported() {
    let mut world = World::serving(&[11]);
    let batch = |endpoint| ChangeBatch {
        changes: endpoints(&[endpoint]),
        received: Instant::now(),
        triggers: vec![(Family::V4, SystemTime::now())],
    };
    world.send_batch(batch(11));
    world.settle();
    assert_eq!(world.triggers(), 0);
    world.send_batch(batch(12));
    world.settle();
    assert_eq!(world.triggers(), 1);
}

#[test]
fn conflict_is_reported_once_with_the_field() {
    let mut world = World::new();
    let mut other = service(2);
    other.external_ips = service(1).external_ips;
    world.send(cluster(&[11]));
    world.apply(vec![Change::service(other.clone())]);
    let conflict = What::Conflict("spec.externalIPs".to_owned());
    assert!(world.events().contains(&conflict));
    world.apply(endpoints(&[12]));
    assert!(!world.events().contains(&conflict));
    // It ends, and is reported again when it comes back.
    world.apply(vec![Change::service(service(2))]);
    assert!(world.snapshot().conflicts.is_empty());
    world.apply(vec![Change::service(other)]);
    assert!(world.events().contains(&conflict));
}

#[test]
fn snapshot_counts_what_the_kernel_holds() {
    let world = World::serving(&[11, 12]);
    let snapshot = world.snapshot();
    let listing = world.listing();
    for set in Set::ALL.into_iter().filter(|set| *set != Set::Affinity) {
        let listed = listing.elements.get(set.name()).map_or(0, Vec::len);
        assert_eq!(snapshot.elements[0][set as usize], listed, "{}", set.name());
    }
    assert!(snapshot.is_owner);
    assert_eq!(snapshot.store.service_count(), 1);
    assert_eq!(snapshot.store.node(), None);
}

#[test]
fn service_ports_without_endpoints_count_for_their_family() {
    let mut world = World::serving(&[11]);
    assert_eq!(world.snapshot().unserved.without_endpoints, [0, 1]);

    // Endpoints with odd numbers are on another node.
    let (internal_policy, external_policy) = (TrafficPolicy::Local, TrafficPolicy::Local);
    let local = Service { internal_policy, external_policy, ..service(1) };
    world.apply(vec![
        Change::service(local),
        Change::slice(slice(1, Family::V4, &[12])),
        Change::slice(slice(1, Family::V6, &[11])),
    ]);
    let (no_local_internal, no_local_external) = ([0, 1], [0, 1]);
    let without_endpoints = [0, 0];
    let expected = Unserved { without_endpoints, no_local_internal, no_local_external };
    assert_eq!(world.snapshot().unserved, expected);
}
