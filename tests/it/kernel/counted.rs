//! What the dataplane counts for metrics, compared with the kernel.

use std::time::{Duration, Instant};

use anyhow::Result;
use nfnetlink::nft::{Kernel, Socket, TableFamily};
use nix::errno::Errno;
use shunt::dataplane::{CommitStats, Dataplane, Ownership};
use shunt_core::model::{Change, Family};
use shunt_core::plan::{Options, Set};
use shunt_fake_nftables::{NODE, name, service, slice};
use shunt_testbed::Netns;

use super::cluster::dataplane;
use super::faults::Faults;

/// Asserts that as many elements are in the kernel as were counted.
#[track_caller]
fn assert_counted(ns: &Netns, dataplane: &Dataplane) -> Result<()> {
    let mut kernel = ns.run(|| Ok(Socket::open()?))?;
    for (family, table) in [(Family::V4, TableFamily::Ip), (Family::V6, TableFamily::Ip6)] {
        let snapshot = dataplane.snapshot();
        let frontends = snapshot.frontends[family as usize];
        let elements = snapshot.elements[family as usize];
        for set in Set::ALL.into_iter().filter(|set| *set != Set::Affinity) {
            let mut listed = 0;
            kernel.elements(table, "shunt", set.name(), &mut |_| listed += 1)?;
            assert_eq!(elements[set as usize], listed, "{family} {}", set.name());
        }
        let all = dataplane.desired().frontends().into_keys();
        assert_eq!(frontends, all.filter(|key| key.family() == family).count(), "{family}");
    }
    Ok(())
}

#[test]
fn counts_follow_the_kernel() -> Result<()> {
    let ns = Netns::new()?;
    let with = |n: u16, endpoints: &[u16]| {
        let slices = Family::ALL.map(|family| Change::slice(slice(n, family, endpoints)));
        std::iter::once(Change::service(service(n))).chain(slices).collect::<Vec<_>>()
    };
    let mut running = dataplane(&ns, with(1, &[1, 2, 3]))?;
    running.sync()?;
    assert_counted(&ns, &running)?;
    for changes in [
        with(2, &[]),
        with(1, &[2, 4]),
        with(3, &[5, 6, 7, 8]),
        with(2, &[9]),
        vec![Change::ServiceGone(name(1)), Change::ServiceGone(name(3))],
    ] {
        running.apply_all(changes);
        running.sync()?;
        assert_counted(&ns, &running)?;
    }
    // One that has to read them first.
    drop(running);
    let mut next = dataplane(&ns, with(2, &[9, 10]))?;
    next.sync()?;
    assert_counted(&ns, &next)
}

#[test]
fn transactions_are_counted_by_how_they_end() -> Result<()> {
    let ns = Netns::new()?;
    let (faults, kernel) = Faults::new(ns.run(|| Ok(Socket::open()?))?);
    let mut dataplane = Dataplane::with_kernel(kernel, Options::default(), NODE, Ownership::Share)?;
    dataplane.apply(Change::Synced);
    let report = dataplane.sync()?.expect("something to write");
    let start = dataplane.take_stats();
    assert!(start.full);
    assert_eq!((start.commits.len(), start.overtaken, start.refused), (1, 0, 0));
    assert_eq!(start.commits[0].bytes, report.bytes);
    assert_eq!(dataplane.take_stats(), CommitStats::default());

    dataplane.apply(Change::service(service(1)));
    dataplane.sync()?;
    let change = dataplane.take_stats();
    assert_eq!((change.full, change.commits.len()), (false, 1));

    // A commit does not depend on what other processes do to their tables.
    ns.nft("add table ip other")?;
    dataplane.apply(Change::service(service(2)));
    dataplane.sync()?;
    let beside = dataplane.take_stats();
    assert_eq!((beside.full, beside.commits.len(), beside.overtaken), (false, 1, 0));

    // That the record is wrong shows in the kernel's answer.
    ns.nft("delete table ip shunt")?;
    dataplane.apply(Change::ServiceGone(name(2)));
    dataplane.sync()?;
    let overtaken = dataplane.take_stats();
    assert!(overtaken.full, "all was read again");
    assert_eq!((overtaken.commits.len(), overtaken.overtaken, overtaken.refused), (1, 1, 0));

    faults.refuse(|_| Some(Errno::ENFILE));
    dataplane.apply(Change::service(service(3)));
    dataplane.sync()?;
    let refused = dataplane.take_stats();
    assert!(refused.refused > 0 && refused.commits.is_empty(), "{refused:?}");
    assert_eq!(dataplane.snapshot().quarantined_service_ports, 1);

    faults.refuse(|_| None);
    dataplane.apply(Change::slice(slice(3, Family::V4, &[1])));
    dataplane.sync()?;
    assert_eq!(dataplane.take_stats().commits.len(), 1);
    // The chain for a number of endpoints that no frontend has any more.
    let endpoints: Vec<u16> = (0..20).collect();
    dataplane.apply(Change::slice(slice(3, Family::V4, &endpoints)));
    dataplane.sync()?;
    dataplane.apply(Change::ServiceGone(name(3)));
    dataplane.sync()?;
    dataplane.take_stats();
    assert!(dataplane.has_unused_chains());
    dataplane.remove_unused_chains(Instant::now(), |_| Duration::ZERO);
    assert!(!dataplane.has_unused_chains());
    assert_eq!(dataplane.take_stats().commits.len(), 1);
    Ok(())
}
