//! Somebody else who writes to nf_tables without a pause.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use nfnetlink::nft::{Batch, Error, Kernel, Socket, TableFamily};
use shunt::dataplane::{Dataplane, Ownership};
use shunt_core::model::{Change, Family};
use shunt_core::plan::Options;
use shunt_fake_nftables::{NODE, service, slice};
use shunt_testbed::Netns;

use super::start::some_cluster;

const CHANGES: u16 = 15;

/// Commits to a table of its own until it is over.
fn write_until(ns: &Netns, over: &AtomicBool) -> Result<()> {
    let mut socket = ns.run(|| Ok(Socket::open()?))?;
    while !over.load(Ordering::Relaxed) {
        for add in [true, false] {
            let mut batch = Batch::new(None);
            if add {
                batch.add_table(TableFamily::Ip, "theirs", 0, "of somebody else");
            } else {
                batch.delete_table(TableFamily::Ip, "theirs");
            }
            socket.commit(&batch.finish())?;
        }
    }
    Ok(())
}

/// Changes under the storm, and what there is when it is over.
fn weather(ownership: Ownership, may_fail: bool) -> Result<()> {
    let ns = Netns::new()?;
    let open = |ns: &Netns| -> Result<Dataplane> {
        let mut dataplane = ns.run(|| Ok(Dataplane::open(Options::default(), NODE, ownership)?))?;
        dataplane.apply_all(some_cluster());
        dataplane.apply(Change::Synced);
        Ok(dataplane)
    };
    let change = |n: u16| Change::slice(slice(1, Family::V4, &[n, n + 1]));
    let mut running = open(&ns)?;
    running.sync()?;
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| write_until(&ns, &over));
        let changed = (|| {
            for n in 0..CHANGES {
                running.apply(change(n));
                running.apply(Change::service(service(100 + n)));
                match running.sync().map_err(|error| error.to_string()) {
                    Ok(report) => assert!(report.is_some(), "there was something to write"),
                    Err(error) if !may_fail => bail!(error),
                    Err(error) => {
                        let wanted = [Error::StaleGeneration, Error::Interrupted];
                        let wanted = wanted.map(|error| error.to_string());
                        assert!(wanted.contains(&error), "{error}");
                    }
                }
            }
            Ok(())
        })();
        over.store(true, Ordering::Relaxed);
        writer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        changed
    })?;
    running.sync()?;
    while running.has_unused_chains() {
        running.remove_unused_chains(Instant::now(), |_| Duration::ZERO);
    }
    let fresh = Netns::new()?;
    let mut other = open(&fresh)?;
    other.apply(change(CHANGES - 1));
    other.apply_all((0..CHANGES).map(|n| Change::service(service(100 + n))));
    other.sync()?;
    assert_eq!(ns.ruleset()?, fresh.ruleset()?);
    Ok(())
}

#[test]
fn owned_tables_are_written_in_a_storm_of_foreign_commits() -> Result<()> {
    // Before kernel 6.9 there are none.
    let ns = Netns::new()?;
    let mut dataplane =
        ns.run(|| Ok(Dataplane::open(Options::default(), NODE, Ownership::Own)?))?;
    dataplane.apply(Change::Synced);
    dataplane.sync()?;
    weather(Ownership::Own, !dataplane.snapshot().is_owner)
}

/// They have to be read again after each foreign commit; who writes faster than that can keep us
/// from writing, until he makes a pause.
#[test]
fn shared_tables_are_right_once_a_storm_of_foreign_commits_is_over() -> Result<()> {
    weather(Ownership::Share, true)
}
