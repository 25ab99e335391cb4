//! The set of gone endpoints and its chains, with made-up time.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use shunt::dataplane::{Dataplane, Ownership, Progress, SyncReport};
use shunt_core::model::{Change, EndpointSlice, Family, GONE_FOR, ObjectName, SETTLE};
use shunt_core::plan::Options;
use shunt_fake_nftables::{NODE, name, service, slice};
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
    match dataplane.reconcile(now, &mut |_, _| {})? {
        Progress::Unchanged => Ok(None),
        Progress::Wrote(report) => Ok(Some(report)),
        Progress::ReadAgain(_) => anyhow::bail!("the kernel cannot be read"),
    }
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

#[test]
fn set_and_chains_exist_while_there_are_gone_endpoints() -> Result<()> {
    let ns = Netns::new()?;
    let mut changes = vec![Change::service(service(1))];
    changes.extend(both(&[11, 12, 13], &[]));
    let mut dataplane = open(&ns, &resets(), changes)?;
    let start = Instant::now();
    reconcile(&mut dataplane, start)?.context("nothing was written")?;

    dataplane.apply_all(both(&[11, 12, 13], &[11, 12]));
    reconcile(&mut dataplane, start)?;
    dataplane.apply_all(both(&[13], &[]));
    reconcile(&mut dataplane, start)?;
    assert!(!has_traces(&ns)?);
    assert_eq!(dataplane.next_gone(), Some(start + SETTLE));

    let generation = ns.nft_generation()?;
    let report = reconcile(&mut dataplane, start + SETTLE)?.context("nothing was written")?;
    assert_eq!((report.added, report.deleted, report.repaired), (4, 0, 0));
    assert_eq!(ns.nft_generation()?, generation + 1);
    assert!(has_traces(&ns)?);
    let wanted =
        ["10.244.0.11 . 8080", "10.244.0.12 . 8080", "fd00:244::b . 8080", "fd00:244::c . 8080"];
    assert_eq!(gone(&ns)?, wanted);
    assert_eq!(dataplane.snapshot().gone_endpoints, [2, 2]);
    assert_eq!(reconcile(&mut dataplane, start + SETTLE)?, None);
    // A check for modifications by other processes finds none.
    ns.nft("add table ip other")?;
    assert!(!dataplane.check(start + SETTLE)?);

    // The address of one is an endpoint again: one transaction, without anything else.
    let generation = ns.nft_generation()?;
    dataplane.apply_all(both(&[12, 13], &[]));
    let report = reconcile(&mut dataplane, start + SETTLE)?.context("nothing was written")?;
    assert_eq!(ns.nft_generation()?, generation + 1);
    assert!(report.deleted >= 2, "{report:?}");
    assert_eq!(gone(&ns)?, [wanted[0], wanted[2]]);

    let end = start + SETTLE + GONE_FOR;
    assert_eq!(dataplane.next_gone(), Some(end));
    let just_before = end - Duration::from_millis(1);
    assert_eq!(reconcile(&mut dataplane, just_before)?, None);
    dataplane.apply_all(both(&[11, 12, 13], &[]));
    // An endpoint that comes back takes the last elements with it.
    reconcile(&mut dataplane, just_before)?.context("nothing was written")?;
    assert!(!has_traces(&ns)?);
    assert_eq!(dataplane.next_gone(), None);
    Ok(())
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
fn set_and_chains_go_when_the_time_is_over() -> Result<()> {
    let ns = Netns::new()?;
    let (mut dataplane, since) = with_gone(&ns)?;
    assert_eq!(reconcile(&mut dataplane, since + GONE_FOR - Duration::from_secs(1))?, None);
    let generation = ns.nft_generation()?;
    reconcile(&mut dataplane, since + GONE_FOR)?.context("nothing was written")?;
    assert_eq!(ns.nft_generation()?, generation + 1);
    assert!(!has_traces(&ns)?);
    assert_eq!(dataplane.snapshot().gone_endpoints, [0, 0]);
    assert_eq!(dataplane.next_gone(), None);
    assert_eq!(reconcile(&mut dataplane, since + 2 * GONE_FOR)?, None);
    Ok(())
}

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
fn next_agent_continues_with_the_remaining_time_and_writes_nothing() -> Result<()> {
    let ns = Netns::new()?;
    drop(with_gone(&ns)?);
    let objects = || {
        let mut changes = vec![Change::service(service(1))];
        changes.extend(both(&[12], &[]));
        changes
    };
    let generation = ns.nft_generation()?;
    let mut next = open(&ns, &resets(), objects())?;
    let now = Instant::now();
    assert_eq!(reconcile(&mut next, now)?, None);
    assert_eq!(ns.nft_generation()?, generation);
    assert_eq!(next.snapshot().gone_endpoints, [1, 1]);
    let end = next.next_gone().context("no end")?;
    assert!(end > now && end <= now + GONE_FOR, "{:?}", end - now);
    reconcile(&mut next, now + GONE_FOR)?.context("nothing was written")?;
    assert!(!has_traces(&ns)?);
    Ok(())
}

#[test]
fn next_agent_removes_what_is_an_endpoint_again_or_not_wanted() -> Result<()> {
    for (options, listed) in [(resets(), &[11, 12][..]), (Options::default(), &[12])] {
        let ns = Netns::new()?;
        drop(with_gone(&ns)?);
        let mut changes = vec![Change::service(service(1))];
        changes.extend(both(listed, &[]));
        let mut next = open(&ns, &options, changes)?;
        reconcile(&mut next, Instant::now())?.context("nothing was written")?;
        assert!(!has_traces(&ns)?, "{options:?}");
        assert_eq!(reconcile(&mut next, Instant::now())?, None);
    }
    Ok(())
}

#[test]
fn option_can_change_at_any_time() -> Result<()> {
    let ns = Netns::new()?;
    let (mut dataplane, now) = with_gone(&ns)?;
    dataplane.configure(Options::default(), NODE);
    reconcile(&mut dataplane, now)?.context("nothing was written")?;
    assert!(!has_traces(&ns)?);
    assert_eq!(dataplane.next_gone(), None);
    dataplane.apply_all(both(&[12], &[12]));
    reconcile(&mut dataplane, now)?;
    // It was terminating before the option was set.
    dataplane.configure(resets(), NODE);
    reconcile(&mut dataplane, now)?;
    assert!(!has_traces(&ns)?);
    let slices = Family::ALL.map(|family| slice(1, family, &[]).name);
    dataplane.apply_all(slices.map(Change::SliceGone));
    reconcile(&mut dataplane, now)?;
    reconcile(&mut dataplane, now + SETTLE)?.context("nothing was written")?;
    assert_eq!(gone(&ns)?, ["10.244.0.12 . 8080", "fd00:244::c . 8080"]);
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

#[test]
fn slices_of_any_service_count_and_a_list_deletes_slices() -> Result<()> {
    let ns = Netns::new()?;
    let other = |dying: &[u16]| -> EndpointSlice {
        let Change::Slice(slice) = endpoints(Family::V4, &[11], dying) else { unreachable!() };
        EndpointSlice {
            name: ObjectName::new("default", "other"),
            service: Some(name(2).name),
            ..(*slice).clone()
        }
    };
    let mut changes = [1, 2].map(|n| Change::service(service(n))).to_vec();
    changes.push(Change::slice(other(&[11])));
    changes.push(endpoints(Family::V4, &[11], &[11]));
    let mut dataplane = open(&ns, &resets(), changes)?;
    let now = Instant::now();
    reconcile(&mut dataplane, now)?;
    dataplane.apply(endpoints(Family::V4, &[], &[]));
    reconcile(&mut dataplane, now)?;
    reconcile(&mut dataplane, now + SETTLE)?;
    assert!(!has_traces(&ns)?, "the slice of another Service has the endpoint");
    let all = [slice(1, Family::V4, &[]).name].into_iter().collect();
    dataplane.apply(Change::Listed(shunt_core::model::Listed::Slices(std::sync::Arc::new(all))));
    reconcile(&mut dataplane, now + SETTLE)?;
    reconcile(&mut dataplane, now + 2 * SETTLE)?.context("nothing was written")?;
    assert_eq!(gone(&ns)?, [GONE[0]]);
    Ok(())
}
