//! The set of gone endpoints and its chains, with made-up time.

use std::time::Instant;

use anyhow::{Context, Result};
use shunt::dataplane::{Dataplane, Ownership, SyncReport};
use shunt_core::model::{Change, Family, SETTLE};
use shunt_core::plan::Options;
use shunt_fake_nftables::{NODE, service, slice};
use shunt_testbed::Netns;

fn resets() -> Options {
    Options { reset_gone_endpoints: true, ..Options::default() }
}

fn open(ns: &Netns, options: &Options, changes: Vec<Change>) -> Result<Dataplane> {
    let mut dataplane = ns.run(|| Ok(Dataplane::open(options.clone(), NODE, Ownership::Share)?))?;
    dataplane.apply_all(changes);
    dataplane.apply(Change::Synced);
    Ok(dataplane)
}

/// A slice of the first Service; of these endpoints, `dying` are terminating.
fn endpoints(family: Family, all: &[u16], dying: &[u16]) -> Change {
    let mut slice = slice(1, family, all);
    for (endpoint, number) in slice.endpoints.iter_mut().zip(all) {
        endpoint.terminating = dying.contains(number);
        endpoint.ready = !endpoint.terminating;
    }
    Change::slice(slice)
}

fn both(all: &[u16], dying: &[u16]) -> Vec<Change> {
    Family::ALL.map(|family| endpoints(family, all, dying)).into()
}

fn reconcile(dataplane: &mut Dataplane, now: Instant) -> Result<Option<SyncReport>> {
    Ok(dataplane.reconcile(now)?)
}

/// The gone endpoints in the kernel, without their times.
fn gone(ns: &Netns) -> Result<Vec<String>> {
    let rules = ns.output("nft", &["list", "ruleset"])?;
    let mut gone = Vec::new();
    let sets = rules.split("set gone-endpoints {").skip(1);
    for set in sets {
        let set = set.split("\t}").next().unwrap_or_default();
        let Some((_, elements)) = set.split_once("elements = {") else { continue };
        let elements = elements.split('}').next().unwrap_or_default().split(',');
        gone.extend(elements.map(|it| it.split(" timeout").next().unwrap_or(it).trim().to_owned()));
    }
    gone.sort();
    Ok(gone)
}

/// Whether there is anything for gone endpoints in the kernel.
fn has_traces(ns: &Netns) -> Result<bool> {
    let rules = ns.output("nft", &["list", "ruleset"])?;
    let found = ["gone-endpoints", "reset-prerouting", "reset-output"].map(|it| rules.contains(it));
    assert!(found == [true; 3] || found == [false; 3], "{rules}");
    Ok(found[0])
}

/// A dataplane with two gone endpoints: number 11 in both families, and that time.
fn with_gone(ns: &Netns) -> Result<(Dataplane, Instant)> {
    let mut changes = vec![Change::service(service(1))];
    changes.extend(both(&[11, 12], &[11]));
    let mut dataplane = open(ns, &resets(), changes)?;
    let start = Instant::now();
    reconcile(&mut dataplane, start)?;
    dataplane.apply_all(both(&[12], &[]));
    reconcile(&mut dataplane, start)?;
    reconcile(&mut dataplane, start + SETTLE)?.context("nothing was written")?;
    assert_eq!(gone(ns)?, GONE);
    Ok((dataplane, start + SETTLE))
}

const GONE: [&str; 2] = ["10.244.0.11 . 8080", "fd00:244::b . 8080"];

#[test]
fn elements_that_the_kernel_has_removed_do_not_fail_a_transaction() -> Result<()> {
    let ns = Netns::new()?;
    let (mut dataplane, since) = with_gone(&ns)?;
    // As if they had expired in the kernel a moment before they do for the agent.
    ns.nft("flush set ip shunt gone-endpoints\nflush set ip6 shunt gone-endpoints")?;
    dataplane.apply_all(both(&[12, 13], &[13]));
    reconcile(&mut dataplane, since)?;
    dataplane.apply_all(both(&[12], &[]));
    reconcile(&mut dataplane, since)?;
    reconcile(&mut dataplane, since + SETTLE)?.context("nothing was written")?;
    dataplane.apply_all(both(&[11, 12], &[]));
    let report = reconcile(&mut dataplane, since + SETTLE)?.context("nothing was written")?;
    assert_eq!(report.repaired, 0);
    assert_eq!(gone(&ns)?, ["10.244.0.13 . 8080", "fd00:244::d . 8080"]);
    Ok(())
}

#[test]
fn damage_by_another_process_is_repaired() -> Result<()> {
    let ns = Netns::new()?;
    let (mut dataplane, now) = with_gone(&ns)?;
    for damage in [
        "flush chain ip shunt reset-prerouting",
        "delete chain ip shunt reset-output",
        "delete chain ip6 shunt reset-output
         delete chain ip6 shunt reset-prerouting
         delete set ip6 shunt gone-endpoints",
        "delete table ip shunt",
    ] {
        let before = ns.output("nft", &["list", "table", "ip6", "shunt"])?;
        ns.nft(damage)?;
        assert!(dataplane.check(now)?, "{damage}");
        reconcile(&mut dataplane, now)?.context(damage)?;
        assert!(has_traces(&ns)?, "{damage}");
        assert_eq!(gone(&ns)?, GONE, "{damage}");
        let rules = |text: &str| text.matches("reject with tcp reset").count();
        let after = ns.output("nft", &["list", "table", "ip6", "shunt"])?;
        assert_eq!((rules(&before), rules(&after)), (2, 2), "{damage}");
    }
    Ok(())
}
