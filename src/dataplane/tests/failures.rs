//! What the kernel refuses, and what becomes of it.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use nfnetlink::nft::{Error, Kernel, Refusal, TableFamily};
use nix::errno::Errno;
use shunt_core::model::{Balancing, Change, Family, Kind, Service};
use shunt_core::plan::{ChainName, Options, TABLE, TcpTimeouts};
use shunt_fake_nftables::{Call, Fault, Features, Ipv6, Namespace, service, slice};

use super::world::{PACE, What, World, cluster, elsewhere, endpoints, no_buffers, over_udp};
use crate::dataplane::Ownership;

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn failed_sync_is_tried_again_after_growing_pauses() {
    let mut world = World::new();
    let fails = Arc::new(AtomicBool::new(true));
    let still = fails.clone();
    world.on_commit(move |_| still.load(Ordering::Relaxed).then(no_buffers));
    world.send(cluster(&[11]));
    world.pass(60 * SECOND);
    let log = world.log();
    let millis: Vec<u128> = log.iter().map(|logged| logged.at.as_millis()).collect();
    let begin = [0, 100, 300, 700, 1500, 3100, 6300, 12_700, 22_700, 32_700, 42_700, 52_700];
    assert_eq!(millis, begin, "{log:?}");
    assert!(world.backlog.oldest().is_some(), "an agent that cannot commit is late");

    fails.store(false, Ordering::Relaxed);
    world.pass(10 * SECOND);
    assert!(matches!(world.events()[..], [What::Wrote { .. }]));
    assert_eq!(world.backlog.oldest(), None);
    // The next failure begins with the short pause.
    fails.store(true, Ordering::Relaxed);
    world.apply(endpoints(&[12]));
    let first = Duration::from_millis(100);
    assert!(matches!(&world.events()[..], [What::Failed { retry_in, .. }] if *retry_in == first));
}

#[test]
fn changes_wait_for_the_pause_after_a_failure() {
    let mut world = World::new();
    world.on_commit(|_| Some(no_buffers()));
    world.send(cluster(&[11]));
    world.pass(Duration::from_millis(700));
    assert_eq!(world.events().len(), 4);
    world.send(endpoints(&[12]));
    world.pass(Duration::from_millis(790));
    assert_eq!(world.events(), [], "a change does not end the pause");
    world.pass(Duration::from_millis(20));
    assert_eq!(world.events().len(), 1);
}

#[test]
fn transaction_whose_answer_is_lost_is_read_back() {
    let mut world = World::new();
    let commits = Arc::new(AtomicUsize::new(0));
    let count = commits.clone();
    world.on_call(move |call| {
        let first = matches!(call, Call::Commit(_)) && count.fetch_add(1, Ordering::Relaxed) == 0;
        first.then(|| Fault::After(no_buffers()))
    });
    world.send(cluster(&[11]));
    world.pass(SECOND);
    let [What::Failed { .. }, What::Unchanged] = &world.events()[..] else {
        panic!("a failure, and nothing to write after it");
    };
    assert_eq!(commits.load(Ordering::Relaxed), 1);
}

#[test]
fn refused_frontend_costs_nothing_but_itself_and_is_tried_after_growing_pauses() {
    let mut world = World::new();
    // The ClusterIP 10.96.0.2.
    world.namespace.refuse(|_, key| key.starts_with(&[10, 96, 0, 2]).then_some(Errno::ENOSPC));
    world.send(cluster(&[11]));
    world.apply(vec![Change::service(service(2)), Change::slice(slice(2, Family::V4, &[21]))]);
    let events = world.events();
    assert!(matches!(events[0], What::Wrote { .. }), "{events:?}");
    assert!(
        matches!(&events[1], What::Quarantined(what) if what.contains("10.96.0.2")),
        "{events:?}"
    );
    let snapshot = world.snapshot();
    let services: Vec<_> = snapshot.quarantined.iter().filter_map(|q| q.service.clone()).collect();
    assert_eq!(services[0], service(2).name);
    assert_eq!(world.backlog.oldest(), None, "what the kernel refuses is not late");

    // 1 s, 2 s, 4 s, ... up to five minutes: the syncs that try again say so by nothing else.
    world.pass(1000 * SECOND);
    let tried: Vec<u64> = world.log().iter().map(|logged| logged.at.as_secs()).collect();
    assert_eq!(tried, [1, 3, 7, 15, 31, 63, 127, 255, 511, 811]);
    world.namespace.relent();
    world.pass(301 * SECOND);
    let events = world.events();
    assert!(matches!(events[0], What::Wrote { .. }), "{events:?}");
    assert!(events[1..].iter().all(|event| matches!(event, What::Released(_))), "{events:?}");
    assert!(world.snapshot().quarantined.is_empty());
}

#[test]
fn flows_of_a_refused_frontend_are_swept_once_the_kernel_accepts_it() {
    let mut world = World::new();
    world.apply(over_udp(cluster(&[11])));
    let all = world.take_swept();
    assert!(!all.is_empty());
    world.namespace.refuse(|set, _| set.ends_with("endpoints").then_some(Errno::ENOSPC));
    world.apply(over_udp(endpoints(&[12])));
    assert!(!world.snapshot().quarantined.is_empty());
    let of_refused = world.take_swept();
    assert!(of_refused.is_empty(), "the kernel has the former endpoint: {of_refused:?}");
    world.namespace.relent();
    world.pass(2 * SECOND);
    assert!(world.snapshot().quarantined.is_empty());
    assert!(!world.take_swept().is_empty());
}

#[test]
fn change_of_a_refused_service_is_tried_at_once() {
    let mut world = World::new();
    world.namespace.refuse(|set, key| {
        let refused = set == "endpoints" && key.starts_with(&[10, 96, 0, 1]);
        refused.then_some(Errno::ENOSPC)
    });
    world.send(cluster(&[11]));
    world.pass(100 * SECOND);
    assert!(!world.snapshot().quarantined.is_empty());
    world.namespace.relent();
    world.apply(endpoints(&[12]));
    assert!(world.snapshot().quarantined.is_empty());
}

/// The socket dies: what it owned is an orphan, and is taken over by the next one in the same sync.
#[test]
fn dead_socket_is_replaced_within_the_sync() {
    let mut world = World::serving(&[11]);
    let mut dies = true;
    let gone = || Error::Receive(io::Error::from_raw_os_error(Errno::EBADF as i32));
    world.on_commit(move |_| std::mem::take(&mut dies).then(gone));
    world.apply(endpoints(&[12]));
    let events = world.events();
    assert!(events.iter().all(|event| matches!(event, What::Wrote { .. })), "{events:?}");
    assert!(world.snapshot().is_owner);
}

#[test]
fn tables_of_another_owner_are_taken_over_once_it_ends() {
    let namespace = Namespace::new();
    let mut other = World::with(namespace.clone(), Ownership::Own, PACE);
    other.apply(cluster(&[11]));
    let mut world = World::with(namespace, Ownership::Own, PACE);
    world.send(cluster(&[11]));
    world.pass(5 * SECOND);
    let events = world.events();
    let owned = |event: &What| matches!(event, What::Failed { error, .. } if error.contains("belongs to another process"));
    assert!(!events.is_empty() && events.iter().all(owned), "{events:?}");
    drop(other);
    world.pass(10 * SECOND);
    assert!(matches!(world.events()[..], [What::Wrote { added: 0, deleted: 0 }]));
    assert!(world.snapshot().is_owner);
}

/// More bytes than a transaction has without that Service.
const MUCH: usize = 150_000;

/// A Service with a hash table of 1 021 slots for each of its three frontends of IPv4.
fn large() -> Vec<Change> {
    let endpoints: Vec<u16> = (100..130).collect();
    let service = Service { balancing: Some(Balancing::SourceHash), ..service(2) };
    vec![Change::service(service), Change::slice(slice(2, Family::V4, &endpoints))]
}

/// The frontends in quarantine, all of which must be of that large Service.
fn left_out(world: &World) -> usize {
    let quarantined = &world.snapshot().quarantined;
    assert!(quarantined.iter().all(|it| it.service == Some(service(2).name)), "{quarantined:?}");
    quarantined.len()
}

/// As in a user namespace, where only `net.core.wmem_max` bounds the send buffer.
#[test]
fn transaction_that_is_too_large_leaves_the_largest_service_out() {
    let mut world = World::new();
    let limit = Arc::new(AtomicUsize::new(MUCH));
    let still = limit.clone();
    world.on_commit(move |batch| {
        let bytes = batch.bytes().len();
        let reason = || io::Error::from_raw_os_error(Errno::EPERM as i32);
        (bytes > still.load(Ordering::Relaxed)).then(|| Error::TooLarge { bytes, reason: reason() })
    });
    world.send(cluster(&[11]));
    world.apply(large());
    let events = world.events();
    assert!(matches!(events[0], What::Wrote { .. }), "{events:?}");
    assert_eq!(left_out(&world), 5, "three of IPv4, two of IPv6");
    let told = events.iter().filter(|event| matches!(event, What::Quarantined(_))).count();
    assert_eq!(told, 1, "{events:?}");
    let quarantined = &world.snapshot().quarantined[0];
    for part in ["exceed the socket's send buffer", "the most elements in this transaction, 3063"] {
        assert!(quarantined.reason.contains(part), "{}", quarantined.reason);
    }
    assert_eq!(world.snapshot().frontends, [3, 2]);

    // The others go on.
    world.commit(endpoints(&[12]));
    limit.store(usize::MAX, Ordering::Relaxed);
    world.pass(SECOND);
    assert_eq!(left_out(&world), 0);
    assert_eq!(world.snapshot().frontends, [6, 4]);
    // Its deletion is as large.
    limit.store(MUCH / 3, Ordering::Relaxed);
    world.events();
    world.apply(vec![
        Change::Gone(Kind::Service, service(2).name),
        Change::Gone(Kind::Service, service(1).name),
    ]);
    assert!(matches!(world.events()[0], What::Wrote { .. }));
    assert_eq!(world.snapshot().quarantined.len(), 5);
}

/// Its sets would be too small for that Service. Without it they are large enough.
#[test]
fn a_service_that_is_left_out_costs_no_new_table() {
    let mut world = World::new();
    let written = Arc::new(AtomicUsize::new(0));
    let sum = written.clone();
    world.on_commit(move |batch| {
        if batch.bytes().len() > MUCH {
            let refusal = batch.refusal(batch.messages(), Errno::ENOMEM, None);
            return Some(Error::Refused(vec![refusal]));
        }
        sum.fetch_add(batch.bytes().len(), Ordering::Relaxed);
        None
    });
    world.apply(cluster(&[11]));
    let table = written.swap(0, Ordering::Relaxed);
    world.apply(large());
    assert_eq!(left_out(&world), 5);
    world.pass(20 * SECOND);
    assert_eq!(left_out(&world), 5);
    // The members of plain sets, such as its ClusterIP.
    let written = written.load(Ordering::Relaxed);
    assert!(0 < written && written < table / 10, "{written} of {table} bytes");
}

/// Memory is missing for some transactions, whatever is in them.
#[test]
fn want_of_memory_delays_a_large_service_only() {
    for large_one in [true, false] {
        let mut world = World::new();
        let mut left = 3;
        world.on_commit(move |batch| {
            left = i32::max(left - 1, -1);
            let refusal = || batch.refusal(batch.messages(), Errno::ENOMEM, None);
            (left >= 0).then(|| Error::Refused(vec![refusal()]))
        });
        world.send(cluster(&[11]));
        if large_one {
            world.send(large());
        }
        world.settle();
        let events = world.events();
        assert!(
            matches!(&events[..], [What::Failed { .. }]),
            "small ones are innocent: {events:?}"
        );
        world.pass(Duration::from_millis(900));
        let events = world.events();
        assert!(
            events.iter().any(|event| matches!(event, What::Wrote { .. })),
            "{large_one}: {events:?}"
        );
        assert_eq!(left_out(&world), if large_one { 5 } else { 0 });
        world.pass(2 * SECOND);
        assert_eq!(left_out(&world), 0);
        assert_eq!(world.snapshot().frontends[0], if large_one { 6 } else { 3 });
    }
}

/// A chain that only one Service needs costs only that Service.
#[test]
fn refused_chain_on_demand_costs_its_users() {
    let mut world = World::new();
    world.on_commit(|batch| {
        let refusals = (1..=batch.messages()).map(|n| batch.refusal(n, Errno::EOPNOTSUPP, None));
        let chain = |it: &Refusal| ChainName::parse(&it.object).is_some_and(|it| it.is_on_demand());
        let refused: Vec<Refusal> = refusals.filter(chain).take(1).collect();
        (!refused.is_empty()).then_some(Error::Refused(refused))
    });
    world.send(cluster(&[11]));
    let hashed = Service { balancing: Some(Balancing::SourceHash), ..service(2) };
    world.apply(vec![Change::service(hashed), Change::slice(slice(2, Family::V4, &[21]))]);
    let snapshot = world.snapshot();
    let services: BTreeSet<_> =
        snapshot.quarantined.iter().filter_map(|it| it.service.clone()).collect();
    assert_eq!(services.into_iter().collect::<Vec<_>>(), [service(2).name]);
    assert!(snapshot.frontends[0] > 0, "the other Service works");
}

/// Memory is missing for one Service only.
#[test]
fn want_of_memory_for_a_large_service_costs_itself() {
    let (mut world, mut is_sent) = (World::new(), false);
    world.on_commit(move |batch| {
        let refusal = || batch.refusal(batch.messages(), Errno::ENOMEM, None);
        let send = || Error::Send { bytes: batch.bytes().len(), reason: Errno::ENOBUFS.into() };
        let is_large = batch.bytes().len() > MUCH;
        is_sent ^= is_large;
        is_large.then(|| if is_sent { Error::Refused(vec![refusal()]) } else { send() })
    });
    world.send(cluster(&[11]));
    world.apply(large());
    assert_eq!(left_out(&world), 5);
    world.events();
    world.pass(1000 * SECOND);
    assert_eq!(world.log().len(), 10, "1 s, 2 s, 4 s, and so on");
    assert_eq!(left_out(&world), 5);
}

/// A kernel before 6.9 refuses the flags of owned tables; the agent shares them then.
#[test]
fn kernel_without_owned_tables_gets_shared_ones() {
    let namespace = Namespace::new();
    namespace.limit(Features { table_flags: 1, ..Features::default() });
    let mut world = World::with(namespace, Ownership::Own, PACE);
    world.commit(cluster(&[11]));
    assert!(!world.snapshot().is_owner);
}

/// Linux 6.8 refuses tables of IPv6 if it is built without, older kernels their base chains.
#[test]
fn kernel_without_ipv6_gets_the_rules_of_ipv4() {
    for (ipv6, table_flags) in [(Ipv6::Absent, 7), (Ipv6::Absent, 1), (Ipv6::TablesOnly, 1)] {
        let namespace = Namespace::new();
        namespace.limit(Features { ipv6, table_flags, ..Features::default() });
        let mut world = World::with(namespace.clone(), Ownership::Own, PACE);
        let v6 = |endpoints: &[u16]| Change::slice(slice(1, Family::V6, endpoints));
        world.send(cluster(&[11]));
        world.commit(vec![v6(&[11])]);
        let snapshot = world.snapshot();
        assert_eq!(snapshot.frontends, [3, 0], "ClusterIP, ExternalIP and node port of IPv4");
        assert_eq!(snapshot.is_owner, table_flags == 7);
        assert_eq!(namespace.open().table(TableFamily::Ip6, TABLE).expect("a listing"), None);

        // Another process's commit, a configuration and changes of both families cause no failure.
        world.foreign(&elsewhere("other"));
        world.pass(5 * SECOND);
        assert_eq!(world.events(), []);
        world.configure(Options { masquerade_bit: 3, ..Options::default() });
        world.commit(vec![v6(&[12]), Change::slice(slice(1, Family::V4, &[12]))]);

        drop(world);
        let mut next = World::with(namespace, Ownership::Own, PACE);
        next.send(cluster(&[12]));
        next.configure(Options { masquerade_bit: 3, ..Options::default() });
        next.settle();
        let events = next.events();
        assert!(
            matches!(events[..], [What::Wrote { added: 0, .. }] | [What::Unchanged]),
            "{events:?}"
        );
    }
}

/// The kernel is asked again for what it seemed to have.
#[test]
fn abilities_that_the_kernel_loses_fail_no_sync() {
    let mut world = World::new();
    let (ipv6, table_flags, timeouts) = (Ipv6::Absent, 1, false);
    world.namespace.limit(Features { ipv6, table_flags, timeouts });
    world.commit(cluster(&[11]));
    assert!(!world.snapshot().is_owner);
}

/// Two processes that both take a batch for theirs cannot go on for ever.
#[test]
fn endless_refusals_end_the_sync_with_an_error() {
    let mut world = World::new();
    // A refusal of the first message, as when the whole table cannot be made.
    world.on_commit(|batch| Some(Error::Refused(vec![batch.refusal(1, Errno::ENOMEM, None)])));
    world.apply(cluster(&[11]));
    assert!(matches!(world.events()[..], [What::Failed { .. }]));
}

#[test]
fn kernel_without_timeouts_of_connections_gets_all_other_rules() {
    let namespace = Namespace::new();
    namespace.limit(Features { timeouts: false, ..Features::default() });
    let mut world = World::with(namespace, Ownership::Own, PACE);
    world.commit(cluster(&[11]));
    world.configure(Options { masquerade_all: true, ..Options::default() });
    world.settle();
    assert!(matches!(world.events()[..], [What::Wrote { .. }]), "it is not tried again");
}

/// The kernel cannot change an object: other timeouts are another one, and the old one stays.
#[test]
fn timeouts_follow_the_options_in_one_commit() {
    let mut world = World::serving(&[11]);
    let objects = |world: &World| world.namespace.open().timeouts(TableFamily::Ip, TABLE);
    let default = TcpTimeouts::default();
    let longer = TcpTimeouts::with(|state| (state == "established").then_some(7));
    for (timeouts, count) in [(longer, 2), (default, 2), (longer, 2)] {
        let options = Options { tcp_timeouts: Some(timeouts), ..Options::default() };
        world.configure(options);
        world.settle();
        assert!(matches!(world.events()[..], [What::Wrote { .. }]));
        assert_eq!(objects(&world).expect("a listing").len(), count);
    }
}
