//! Tables that nobody else can change, where the kernel can have such.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use nfnetlink::nft::{Error, Socket};
use shunt::dataplane::{Dataplane, Ownership, SyncReport};
use shunt_core::model::Change;
use shunt_core::plan::Options;
use shunt_fake_nftables::{Call, Faulty, NODE};
use shunt_testbed::{Netns, eventually};

use super::start::some_cluster;

fn owner(ns: &Netns) -> Result<Dataplane> {
    let open = || Ok(Dataplane::open(Options::default(), NODE, Ownership::Own)?);
    let mut dataplane = ns.run(open)?;
    dataplane.apply_all(some_cluster());
    dataplane.apply(Change::Synced);
    Ok(dataplane)
}

/// Syncs as soon as a former owner is gone. Its socket is closed for good once no process has it:
/// other tests that fork at this moment have it until they execute their program.
fn sync_after(dataplane: &mut Dataplane) -> Result<Option<SyncReport>> {
    eventually("no owner", || match dataplane.sync() {
        Err(Error::Owned { .. }) => Ok(None),
        other => Ok(Some(other?)),
    })
}

/// An hour after the time of the last call: elements are compared only now and then.
fn later() -> Instant {
    static HOURS: AtomicUsize = AtomicUsize::new(0);
    let hours = HOURS.fetch_add(1, Ordering::Relaxed) + 1;
    Instant::now() + Duration::from_secs(3600) * hours as u32
}

/// What the agent does once a second, wherever others can change its tables and where they cannot.
#[test]
fn nothing_is_listed_without_foreign_commits() -> Result<()> {
    for ownership in [Ownership::Own, Ownership::Share] {
        let ns = Netns::new()?;
        let lists = Arc::new(AtomicUsize::new(0));
        let seen = Arc::clone(&lists);
        let count = move |call: Call<'_>| {
            seen.fetch_add(usize::from(matches!(call, Call::List)), Ordering::Relaxed);
            None
        };
        let kernel = Faulty::new(ns.run(|| Ok(Socket::open()?))?, count);
        let options = Options::default();
        let mut running = Dataplane::with_kernel(Box::new(kernel), options, NODE, ownership)?;
        running.apply_all(some_cluster());
        running.apply(Change::Synced);
        running.sync()?;
        let listed = || lists.swap(0, Ordering::Relaxed);
        assert!(listed() > 0, "a start looks at what there is");
        for _ in 0..3 {
            assert!(!running.check(later())?);
            assert!(running.sync()?.is_none());
        }
        assert_eq!(listed(), 0, "{ownership:?}");
        ns.nft("add table ip theirs")?;
        assert!(!running.check(later())?);
        let lists = !running.snapshot().is_owner;
        assert_eq!(listed() > 0, lists, "{ownership:?}: another process wrote");
        assert!(running.sync()?.is_none());
        assert!(!running.check(later())?);
        assert_eq!(listed(), 0, "{ownership:?}: nobody wrote since");
    }
    Ok(())
}

#[test]
fn start_repairs_changes_to_tables_without_an_owner() -> Result<()> {
    for damage in [
        "flush map ip shunt service-ips",
        "add element ip shunt service-ips { * : drop }",
        "delete table ip6 shunt",
        // The kernel adds no base chain behind a message that takes the table over.
        "flush chain ip shunt nat-prerouting; delete chain ip shunt nat-prerouting",
        "flush chain ip shunt nat-postrouting; delete chain ip shunt nat-postrouting; \
         add chain ip shunt nat-postrouting { type nat hook postrouting priority 107; }",
    ] {
        let ns = Netns::new()?;
        owner(&ns)?.sync()?;
        let wanted = ns.ruleset()?;
        // The socket of the owner may be open for a moment longer: see `sync_after`.
        eventually(damage, || Ok(ns.nft(damage).ok()))?;
        let mut next = owner(&ns)?;
        sync_after(&mut next)?;
        assert_eq!(ns.ruleset()?, wanted, "{damage}");
    }
    Ok(())
}
