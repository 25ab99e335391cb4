//! What the dataplane counts for metrics.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use nfnetlink::nft::{Error, Socket};
use nix::errno::Errno;
use shunt::dataplane::{CommitStats, Dataplane, Ownership};
use shunt_core::model::{Change, Family, Kind};
use shunt_core::plan::Options;
use shunt_fake_nftables::{Call, Fault, Faulty, NODE, name, service, slice};
use shunt_testbed::Netns;

#[test]
fn transactions_are_counted_by_how_they_end() -> Result<()> {
    let ns = Netns::new()?;
    let refuses = Arc::new(AtomicBool::new(false));
    let is_refused = Arc::clone(&refuses);
    let decide = move |call: Call<'_>| {
        let Call::Commit(batch) = call else { return None };
        is_refused.load(Ordering::Relaxed).then(|| {
            let refusals = (1..=batch.messages()).map(|n| batch.refusal(n, Errno::ENFILE, None));
            Fault::Before(Error::Refused(refusals.collect()))
        })
    };
    let kernel = Box::new(Faulty::new(ns.run(|| Ok(Socket::open()?))?, decide));
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
    dataplane.apply(Change::Gone(Kind::Service, name(2)));
    dataplane.sync()?;
    let overtaken = dataplane.take_stats();
    assert!(overtaken.full, "all was read again");
    assert_eq!((overtaken.commits.len(), overtaken.overtaken, overtaken.refused), (1, 1, 0));

    refuses.store(true, Ordering::Relaxed);
    dataplane.apply(Change::service(service(3)));
    dataplane.sync()?;
    let refused = dataplane.take_stats();
    assert!(refused.refused > 0 && refused.commits.is_empty(), "{refused:?}");
    assert_eq!(dataplane.snapshot().quarantined_service_ports, 1);

    refuses.store(false, Ordering::Relaxed);
    dataplane.apply(Change::slice(slice(3, Family::V4, &[1])));
    dataplane.sync()?;
    assert_eq!(dataplane.take_stats().commits.len(), 1);
    // The chain for a number of endpoints that no frontend has any more.
    let endpoints: Vec<u16> = (0..20).collect();
    dataplane.apply(Change::slice(slice(3, Family::V4, &endpoints)));
    dataplane.sync()?;
    dataplane.apply(Change::Gone(Kind::Service, name(3)));
    dataplane.sync()?;
    dataplane.take_stats();
    assert!(dataplane.has_unused_chains());
    dataplane.remove_unused_chains(Instant::now(), |_| Duration::ZERO);
    assert!(!dataplane.has_unused_chains());
    assert_eq!(dataplane.take_stats().commits.len(), 1);
    Ok(())
}
