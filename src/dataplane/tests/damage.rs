//! What other processes do to nf_tables.

use std::time::Duration;

use nfnetlink::nft::{Batch, Elements, TableFamily};
use nix::errno::Errno;
use shunt_core::model::{Change, Family};
use shunt_core::plan::{Set, TABLE};
use shunt_fake_nftables::{Call, Namespace, service, slice};

use super::world::{
    PACE, What, World, cluster, elsewhere, endpoints, foreign, no_buffers, over_udp,
};
use crate::dataplane::{Ownership, Pace};

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn deleted_element_is_repaired_within_the_check_period() {
    let mut world = World::shared(cluster(&[11, 12]));
    let before = world.listing();
    world.lose_endpoints(&[]);
    world.pass(SECOND);
    let events = world.events();
    assert!(matches!(events[..], [What::Wrote { .. }, What::Repaired(_)]), "{events:?}");
    assert_eq!(world.listing(), before);
}

#[test]
fn deleted_table_is_made_anew_within_the_check_period() {
    let mut world = World::shared(cluster(&[11, 12]));
    let before = world.listing();
    world.lose_table();
    world.pass(SECOND);
    assert!(matches!(world.events()[..], [What::Wrote { .. }, What::Repaired(_)]));
    assert_eq!(world.listing(), before);
}

/// A change of ours in a transaction that follows from a reading is not counted as damage.
#[test]
fn own_changes_are_no_damage() {
    let mut world = World::shared(cluster(&[11, 12]));
    let mut fails = true;
    world.on_commit(move |_| std::mem::take(&mut fails).then(no_buffers));
    world.send(endpoints(&[13]));
    world.pass(SECOND);
    let events = world.events();
    assert!(matches!(events[..], [What::Failed { .. }, What::Wrote { .. }]), "{events:?}");
}

/// Packets that met no rules made entries of connection tracking without address translation.
#[test]
fn flows_of_all_frontends_are_swept_after_a_repair() {
    let mut world = World::shared(over_udp(cluster(&[11, 12])));
    world.commit(over_udp(of_service(2)));
    let all = world.take_swept();
    world.lose_table();
    world.pass(2 * SECOND);
    assert!(world.events().iter().any(|event| matches!(event, What::Repaired(_))));
    assert_eq!(world.take_swept(), all);
    world.apply(over_udp(endpoints(&[11, 12, 13])));
    assert!(world.take_swept().len() < all.len(), "only those of the Service");
}

/// A refusal on the way does not hide that there was damage.
#[test]
fn repair_beside_a_refused_frontend_is_reported() {
    let mut world = World::shared(cluster(&[11, 12]));
    world.commit(of_service(3));
    // The ClusterIPs of the Services 1 and 3 lose an endpoint each. The change of Service 1 finds out.
    world.lose_endpoints(&[10, 96]);
    world.namespace.refuse(|_, key| key.starts_with(&[10, 96, 0, 2]).then_some(Errno::ENOSPC));
    world.send(endpoints(&[13]));
    world.send(of_service(2));
    world.pass(SECOND / 10);
    let events = world.events();
    let is_repaired = events.iter().any(|event| matches!(event, What::Repaired(_)));
    let is_refused = events.iter().any(|event| matches!(event, What::Quarantined(_)));
    assert!(is_repaired && is_refused, "{events:?}");
}

fn of_service(n: u16) -> Vec<Change> {
    vec![Change::service(service(n)), Change::slice(slice(n, Family::V4, &[n * 10]))]
}

#[test]
fn commits_of_others_to_their_own_tables_are_no_damage() {
    let mut world = World::shared(cluster(&[11, 12]));
    for n in 0..10 {
        world.foreign(&elsewhere(&format!("other-{n}")));
        world.pass(SECOND);
    }
    assert_eq!(world.events(), []);
}

/// Other processes commit all the time, and each listing is dear.
#[test]
fn storm_of_foreign_commits_neither_starves_changes_nor_takes_a_core() {
    let mut world = World::shared(cluster(&[11, 12]));
    world.listings_cost(Duration::from_millis(10));
    let (mut commits, minutes) = (0, 10);
    for n in 0..minutes * 60 {
        world.foreign(&elsewhere(&format!("other-{n}")));
        world.apply(endpoints(&[11, 20 + n]));
        commits += world.events().len();
        world.pass(SECOND);
    }
    assert_eq!(commits, usize::from(minutes) * 60, "each change is committed at once");
    // Tables, sets, objects, chains and rules at least each 0.8 s; the elements of all sets for a thirtieth of
    // the time.
    let structure = 12 * Duration::from_millis(10) * u32::from(minutes) * 60;
    let most = structure + u32::from(minutes) * 60 * SECOND / 30 + 2 * SECOND;
    assert!(world.processor() < most, "{:?} of {most:?}", world.processor());
    assert!(world.processor() > structure / 2, "something is looked at");
}

/// The same with damage: it is found within the pause that a comparison earns.
#[test]
fn damage_in_a_storm_is_repaired() {
    let mut world = World::shared(cluster(&[11, 12]));
    world.listings_cost(Duration::from_millis(10));
    for n in 0..60 {
        world.foreign(&elsewhere(&format!("other-{n}")));
        world.pass(SECOND);
    }
    world.events();
    world.lose_endpoints(&[]);
    let mut seconds = 0;
    while !world.events().iter().any(|event| matches!(event, What::Repaired(_))) {
        world.foreign(&elsewhere(&format!("late-{seconds}")));
        world.pass(SECOND);
        seconds += 1;
        assert!(seconds < 60, "damage is not found");
    }
}

/// A listing during which another process commits, again and again, is worth what it says.
#[test]
fn interrupted_listings_do_not_hold_up_a_start() {
    let namespace = Namespace::new();
    let mut world = World::with(namespace.clone(), Ownership::Share, PACE);
    let mut n = 0;
    world.on_call(move |call| {
        if matches!(call, Call::List) {
            n += 1;
            foreign(&namespace, &elsewhere(&format!("other-{n}"))).ok()?;
        }
        None
    });
    world.send(cluster(&[11]));
    world.pass(SECOND);
    assert!(world.events().iter().any(|event| matches!(event, What::Wrote { .. })));
}

/// Another process modifies the tables after the agent has read them, and just before it owns them.
#[test]
fn damage_just_before_a_takeover_is_repaired() {
    let namespace = Namespace::new();
    let mut first = World::with(namespace.clone(), Ownership::Leave, PACE);
    first.apply(cluster(&[11, 12]));
    let before = first.listing().elements;
    let mut elements = Elements::new();
    elements.push(&before[Set::Endpoints.name()][0].key, None, None);
    let mut batch = Batch::new(None);
    batch.delete_elements(TableFamily::Ip, TABLE, Set::Endpoints.name(), &elements);
    let batch = batch.finish();
    drop(first);
    let mut world = World::with(namespace.clone(), Ownership::Own, PACE);
    let mut is_first = true;
    world.on_call(move |call| {
        if matches!(call, Call::Commit(_)) && std::mem::take(&mut is_first) {
            foreign(&namespace, &batch).ok()?;
        }
        None
    });
    world.send(cluster(&[11, 12]));
    world.pass(2 * SECOND);
    assert_eq!(world.listing().elements, before);
    assert!(world.snapshot().is_owner);
    // It listens a while for who has done that.
    world.pass(20 * SECOND);
    assert_eq!(world.next_wake(), None, "nobody else can modify the tables any more");
}

/// Another process goes on while the agent repairs.
#[test]
fn damage_during_a_repair_blames_nothing_on_innocent_frontends() {
    let mut world = World::shared(cluster(&[11, 12, 13]));
    let before = world.listing();
    let mut elements = Elements::new();
    elements.push(&before.elements[Set::Endpoints.name()][1].key, None, None);
    let mut batch = Batch::new(None);
    batch.delete_elements(TableFamily::Ip, TABLE, Set::Endpoints.name(), &elements);
    let (batch, namespace, mut is_first) = (batch.finish(), world.namespace.clone(), true);
    world.on_call(move |call| {
        if matches!(call, Call::Commit(_)) && std::mem::take(&mut is_first) {
            foreign(&namespace, &batch).ok()?;
        }
        None
    });
    world.lose_endpoints(&[]);
    world.pass(5 * SECOND);
    assert!(world.snapshot().quarantined.is_empty(), "{:?}", world.events());
    assert_eq!(world.listing(), before);
}

/// It learns of damage when the kernel refuses a change, and listens for who does that.
#[test]
fn agent_that_never_checks_listens_for_a_while_only() {
    let pace = Pace { check_period: Duration::ZERO, ..PACE };
    let mut world = World::with(Namespace::new(), Ownership::Share, pace);
    world.apply(cluster(&[11, 12]));
    world.lose_endpoints(&[]);
    world.apply(endpoints(&[21, 22]));
    assert!(world.events().iter().any(|event| matches!(event, What::Repaired(_))));
    assert!(world.next_wake().is_some(), "it listens until then");
    world.pass(20 * SECOND);
    assert_eq!(world.next_wake(), None);
}

/// A repair may be delayed. What the check has found may not be all any more then.
#[test]
fn delayed_repair_blames_nothing_on_innocent_frontends() {
    let pace = Pace { min_period: 20 * SECOND, ..PACE };
    let mut world = World::with(Namespace::new(), Ownership::Share, pace);
    world.apply(cluster(&[11, 12]));
    let before = world.listing();
    world.lose_endpoints(&[]);
    world.pass(5 * SECOND);
    // The check has seen the damage above, but not this one.
    world.lose_endpoints(&[]);
    world.pass(30 * SECOND);
    assert!(world.snapshot().quarantined.is_empty(), "{:?}", world.events());
    assert_eq!(world.listing(), before);
}
