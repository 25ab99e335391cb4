//! What is written before the source has listed everything.

use std::collections::BTreeMap;
use std::io;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use nfnetlink::nft::{Batch, DumpedChain, Error, TableFamily};
use nix::errno::Errno;
use shunt_core::model::{Change, Family, Listed, Node};
use shunt_core::plan::{Set, TABLE};
use shunt_fake_nftables::{Call, Fault, Listing, NODE, Namespace, name, service, slice};

use super::world::{PACE, What, World};
use crate::dataplane::Ownership;

/// More than what is written at once, and not a multiple of it.
const SERVICES: u16 = 1500;

/// All but the EndpointSlices.
fn without_slices() -> Vec<Change> {
    let names = (1..=SERVICES).map(name).collect();
    let mut changes = vec![
        Change::node(Node {
            name: NODE.into(),
            addresses: Vec::new(),
            pod_cidrs: Vec::new(),
            zone: None,
            eligible: true,
        }),
        Change::Listed(Listed::ServiceCidrs(Arc::default())),
    ];
    changes.extend((1..=SERVICES).map(|n| Change::service(service(n))));
    changes.push(Change::Listed(Listed::Services(Arc::new(names))));
    changes
}

/// Slices of these Services, each with an endpoint of its own.
fn slices(services: RangeInclusive<u16>) -> Vec<Change> {
    services.map(|n| Change::slice(slice(n, Family::V4, &[n]))).collect()
}

fn table(world: &World) -> Option<Listing> {
    Listing::of(&mut world.namespace.open(), TableFamily::Ip, TABLE).expect("a listing")
}

/// A world in which this part of the slices has arrived.
fn begun(arrived: RangeInclusive<u16>) -> World {
    let mut world = World::new();
    world.send(without_slices());
    world.send(slices(arrived));
    world.settle();
    world
}

/// The rest arrives, and is all.
fn finish(world: &mut World) -> Vec<What> {
    let mut rest = slices(1..=SERVICES);
    rest.push(Change::Synced);
    world.send(rest);
    world.pass(Duration::from_secs(1));
    world.events()
}

/// What does not depend on the order of transactions.
fn contents(listing: &Listing) -> impl PartialEq + std::fmt::Debug + use<> {
    let rules = |chain: &DumpedChain| {
        let rules = listing.rules.iter().filter(|rule| rule.chain == chain.name);
        let unnumbered = rules.cloned().map(|mut rule| {
            rule.handle = None;
            rule
        });
        unnumbered.collect::<Vec<_>>()
    };
    let chains: BTreeMap<String, _> = listing
        .chains
        .iter()
        .map(|chain| (chain.name.clone(), (chain.base.clone(), rules(chain))))
        .collect();
    let sizes: BTreeMap<String, _> =
        listing.sets.iter().map(|set| (set.name.clone(), set.size)).collect();
    (chains, sizes, listing.elements.clone())
}

/// The kernel is as after a start at which everything arrived at once.
fn assert_complete(world: &World) {
    assert_complete_of(world, Ownership::Own);
}

fn assert_complete_of(world: &World, ownership: Ownership) {
    let mut at_once = World::with(Namespace::new(), ownership, PACE);
    at_once.send(without_slices());
    finish(&mut at_once);
    assert_eq!(contents(&world.listing()), contents(&at_once.listing()));
}

#[test]
fn what_arrives_early_is_written_without_base_chains() {
    let mut world = begun(1..=1100);
    let listing = table(&world).expect("a table");
    assert!(listing.chains.iter().all(|chain| chain.base.is_none()), "packets meet {listing:?}");
    // Each Service has a ClusterIP and an ExternalIP.
    assert_eq!(listing.elements[Set::Endpoints.name()].len(), 2 * 1100);
    assert_eq!(world.events(), [], "no sync so far");
    assert_eq!(world.backlog.oldest(), None);

    let events = finish(&mut world);
    let mut at_once = World::new();
    at_once.send(without_slices());
    assert_eq!(events, finish(&mut at_once), "the report counts what was written before");
    assert_complete(&world);
}

#[test]
fn a_small_cluster_is_written_at_once() {
    let mut world = begun(1..=499);
    assert_eq!(table(&world), None);
    world.send(slices(500..=500));
    world.settle();
    assert!(table(&world).is_some());
}

#[test]
fn services_without_endpoints_so_far_wait() {
    let world = begun(1..=1000);
    let listing = table(&world).expect("a table");
    let frontends = &listing.elements[Set::ServiceIps.name()];
    assert_eq!(frontends.len(), 2 * 1000);
}

#[test]
fn tables_of_an_earlier_agent_stay_as_they_are_until_everything_is_listed() {
    let namespace = Namespace::new();
    let mut before = World::with(namespace.clone(), Ownership::Share, PACE);
    before.send(without_slices());
    finish(&mut before);
    let listing = before.listing();

    let mut world = World::with(namespace, Ownership::Share, PACE);
    world.send(without_slices());
    world.send(vec![Change::slice(slice(1, Family::V4, &[77]))]);
    world.send(slices(2..=SERVICES));
    world.settle();
    assert_eq!(world.listing(), listing);
    world.send(vec![Change::Synced]);
    world.settle();
    assert_eq!(world.events(), [What::Wrote { added: 3, deleted: 3 }]);
}

#[test]
fn tables_of_an_agent_that_was_killed_meanwhile_are_completed() {
    let namespace = Namespace::new();
    let mut killed = World::with(namespace.clone(), Ownership::Share, PACE);
    killed.send(without_slices());
    killed.send(slices(1..=1200));
    killed.settle();
    drop(killed);

    let mut world = World::with(namespace, Ownership::Share, PACE);
    world.send(without_slices());
    assert!(matches!(finish(&mut world)[..], [What::Wrote { .. }]), "and nothing is repaired");
    assert_complete_of(&world, Ownership::Share);
}

#[test]
fn changed_and_deleted_objects_are_corrected_by_the_first_sync() {
    let mut world = begun(1..=1200);
    // The list broke off and came anew: some objects are gone, others have changed.
    let mut names: std::collections::HashSet<_> = (1..=SERVICES).map(name).collect();
    names.remove(&name(7));
    world.send(vec![
        Change::Listed(Listed::Services(Arc::new(names))),
        Change::slice(slice(8, Family::V4, &[8, 9])),
    ]);
    world.send(slices(1201..=SERVICES));
    world.send(vec![Change::Synced]);
    world.settle();
    let listing = world.listing();
    let endpoints = &listing.elements[Set::Endpoints.name()];
    let of = |service: u8| endpoints.iter().filter(|e| e.key[..4] == [10, 96, 0, service]).count();
    assert_eq!((of(6), of(7), of(8)), (1, 0, 2));
}

#[test]
fn failures_end_the_writing_ahead_and_are_no_repairs() {
    let no_buffers = || Error::Receive(io::Error::from_raw_os_error(Errno::ENOBUFS as i32));
    for is_lost in [false, true] {
        let mut world = World::new();
        let commits = Arc::new(AtomicUsize::new(0));
        let count = commits.clone();
        world.on_call(move |call| {
            let is_commit = matches!(call, Call::Commit(_));
            let first = is_commit && count.fetch_add(1, Ordering::Relaxed) == 0;
            let fault = if is_lost { Fault::After } else { Fault::Before };
            first.then(|| fault(no_buffers()))
        });
        world.send(without_slices());
        world.send(slices(1..=1200));
        world.settle();
        assert_eq!(world.events(), [], "the first sync does it all");
        assert!(matches!(finish(&mut world)[..], [What::Wrote { .. }]));
        assert_eq!(commits.load(Ordering::Relaxed), 2);
        let listing = world.listing();
        assert_eq!(listing.elements[Set::Endpoints.name()].len(), 2 * usize::from(SERVICES));
        assert!(listing.chains.iter().any(|chain| chain.base.is_some()));
    }
}

#[test]
fn tables_that_another_process_deletes_meanwhile_come_back() {
    let mut world = World::with(Namespace::new(), Ownership::Share, PACE);
    world.send(without_slices());
    world.send(slices(1..=1200));
    world.settle();
    let mut deletion = Batch::new(None);
    deletion.delete_table(TableFamily::Ip, TABLE);
    world.foreign(&deletion.finish());
    finish(&mut world);
    let listing = world.listing();
    assert_eq!(listing.elements[Set::Endpoints.name()].len(), 2 * usize::from(SERVICES));
    assert!(listing.chains.iter().any(|chain| chain.base.is_some()));
}

#[test]
fn sets_that_turn_out_too_small_are_replaced() {
    let mut world = begun(1..=1000);
    let size = |world: &World| {
        let sets = world.listing().sets;
        sets.into_iter().find(|set| set.name == Set::Endpoints.name()).and_then(|set| set.size)
    };
    let before = size(&world);
    let many: Vec<u16> = (1..=30).collect();
    let rest = 1001..=SERVICES;
    world.send(rest.map(|n| Change::slice(slice(n, Family::V4, &many))).collect());
    world.send(vec![Change::Synced]);
    world.settle();
    assert!(size(&world) > before);
    let listing = world.listing();
    assert_eq!(listing.elements[Set::Endpoints.name()].len(), 2 * (1000 + 500 * 30));
}
