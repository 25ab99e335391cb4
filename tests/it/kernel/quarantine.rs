//! What the kernel refuses costs itself and nothing else.

use std::time::{Duration, Instant};

use anyhow::Result;
use nfnetlink::nft::{Refusal, Socket};
use nix::errno::Errno;
use shunt::dataplane::{Dataplane, Ownership};
use shunt_core::model::{Change, Family};
use shunt_core::plan::Options;
use shunt_fake_nftables::{NODE, service, slice};
use shunt_testbed::Netns;

use super::faults::Faults;

/// The Service that the kernel shall refuse. Nobody else has as many endpoints.
const POISON: u16 = 27;
const OTHERS: [u16; 3] = [1, 2, 300];

fn faulty(ns: &Netns) -> Result<(Faults, Dataplane)> {
    let (faults, kernel) = Faults::new(ns.run(|| Ok(Socket::open()?))?);
    let open = Dataplane::with_kernel(kernel, Options::default(), NODE, Ownership::Share);
    Ok((faults, open?))
}

fn of_service(n: u16) -> Vec<Change> {
    let endpoints: Vec<u16> = (0..n % 50).map(|e| n * 64 + e).collect();
    let slices = Family::ALL.map(|family| Change::slice(slice(n, family, &endpoints)));
    std::iter::once(Change::service(service(n))).chain(slices).collect()
}

/// What a fresh start with these Services makes.
fn wanted(services: &[u16]) -> Result<Vec<String>> {
    let ns = Netns::new()?;
    let (_, mut dataplane) = faulty(&ns)?;
    dataplane.apply_all(services.iter().flat_map(|n| of_service(*n)));
    dataplane.apply(Change::Synced);
    dataplane.sync()?;
    ns.ruleset()
}

/// Elements for the ClusterIP of the refused Service.
fn is_its_cluster_ip(refusal: &Refusal) -> bool {
    let [high, low] = POISON.to_be_bytes();
    refusal.keys.iter().any(|key| key.starts_with(&[10, 96, high, low]))
}

#[test]
fn a_refused_element_costs_its_frontend_only() -> Result<()> {
    for (operation, set) in [
        ("add an element to", "service-ips"),
        ("add an element to", "endpoints"),
        ("add an element to", "cluster-ips"),
    ] {
        let ns = Netns::new()?;
        let (faults, mut dataplane) = faulty(&ns)?;
        faults.refuse(move |refusal| {
            let it = refusal.operation == operation && refusal.object == set;
            (it && is_its_cluster_ip(refusal)).then_some(Errno::ENFILE)
        });
        for n in OTHERS.into_iter().chain([POISON]) {
            dataplane.apply_all(of_service(n));
        }
        dataplane.apply(Change::Synced);
        dataplane.sync()?;
        // Once as it is, once with each element alone, once without what was refused.
        assert_eq!(faults.commits(), 3, "{set}");

        let all = wanted(&[1, 2, 300, POISON])?;
        let live_now = ns.ruleset()?;
        let missing: Vec<&String> = all.iter().filter(|line| !live_now.contains(line)).collect();
        assert!(
            !missing.is_empty() && missing.iter().all(|line| line.contains("10.96.0.27")),
            "{missing:?}"
        );
        let quarantined: Vec<_> = dataplane.snapshot().quarantined;
        assert_eq!(quarantined.len(), 1, "{quarantined:?}");
        assert!(quarantined[0].reason.contains("(23)"), "{quarantined:?}");

        // Other changes go on in one transaction, as if nothing was, until it is time for a trial.
        let trial = dataplane.next_trial().expect("something in quarantine");
        dataplane.apply_all(of_service(20));
        dataplane.sync()?;
        let commits = faults.commits();
        assert!(commits == 1 || Instant::now() >= trial, "{set}: {commits}");

        // As soon as it changes and the kernel agrees, all is there.
        faults.refuse(|_| None);
        dataplane.apply(Change::ServiceGone(service(20).name));
        dataplane.apply(Change::ServiceGone(service(POISON).name));
        dataplane.sync()?;
        dataplane.apply(Change::service(service(POISON)));
        dataplane.sync()?;
        dataplane.remove_unused_chains(Instant::now(), |_| Duration::ZERO);
        assert_eq!(dataplane.snapshot().quarantined.len(), 0);
        assert_eq!(ns.ruleset()?, all, "{set}");
    }
    Ok(())
}

#[test]
fn a_refused_chain_or_rule_costs_the_frontends_that_need_it() -> Result<()> {
    for operation in ["add chain", "add a rule to chain"] {
        let ns = Netns::new()?;
        let (faults, mut dataplane) = faulty(&ns)?;
        faults.refuse(move |refusal| {
            let it = refusal.operation == operation && refusal.object == "lb-27";
            it.then_some(Errno::ENFILE)
        });
        for n in OTHERS.into_iter().chain([POISON]) {
            dataplane.apply_all(of_service(n));
        }
        dataplane.apply(Change::Synced);
        dataplane.sync()?;
        assert_eq!(faults.commits(), 2, "{operation}");
        let of_it = |what: &str| what.ends_with("of default/service-27:http");
        assert_eq!(
            dataplane.snapshot().quarantined.iter().filter(|q| of_it(&q.what)).count(),
            3,
            "{operation}"
        );
        let live = ns.ruleset()?.join("\n");
        for n in [1, 2, 44] {
            let low = if n == 44 { "1.44".to_owned() } else { format!("0.{n}") };
            assert!(live.contains(&format!("\"10.96.{low}\"")), "{n} is missing in {live}");
        }
    }
    Ok(())
}

#[test]
fn a_deletion_that_is_refused_is_tried_again_in_time() -> Result<()> {
    let ns = Netns::new()?;
    let (faults, mut dataplane) = faulty(&ns)?;
    dataplane.apply_all([1, POISON].into_iter().flat_map(of_service));
    dataplane.apply(Change::Synced);
    dataplane.sync()?;
    faults.refuse(|refusal| {
        let deletion = refusal.operation == "delete an element of";
        (deletion && is_its_cluster_ip(refusal)).then_some(Errno::EINVAL)
    });
    dataplane.apply(Change::ServiceGone(service(POISON).name));
    dataplane.apply(Change::ServiceGone(service(1).name));
    dataplane.sync()?;
    let live_now = ns.ruleset()?.join("\n");
    assert!(live_now.contains("10.96.0.27") && !live_now.contains("10.96.0.1\""), "{live_now}");

    faults.refuse(|_| None);
    let trial = dataplane.next_trial().expect("something in quarantine");
    // Nothing changes before its time.
    let mut report = dataplane.sync()?;
    assert!(report.is_none() || Instant::now() >= trial, "{report:?}");
    if report.is_none() {
        std::thread::sleep(trial.saturating_duration_since(Instant::now()));
        report = dataplane.sync()?;
    }
    report.expect("the deletion");
    assert_eq!(dataplane.snapshot().quarantined.len(), 0);
    assert!(!ns.ruleset()?.join("\n").contains("10.96.0.27"));
    Ok(())
}

#[test]
fn refused_shared_object_is_retried_with_all_changes() -> Result<()> {
    let ns = Netns::new()?;
    let (faults, mut dataplane) = faulty(&ns)?;
    dataplane.apply_all(OTHERS.into_iter().flat_map(of_service));
    dataplane.apply(Change::Synced);
    for (operation, object) in [
        ("add table", ""),
        ("add chain", "services"),
        ("add set", "endpoints"),
        ("add a rule to chain", "nat-postrouting"),
    ] {
        faults.refuse(move |refusal| {
            let it = refusal.operation == operation && refusal.object == object;
            it.then_some(Errno::ENOMEM)
        });
        let error = dataplane.sync().expect_err("a refusal").to_string();
        assert!(error.contains(operation) && error.contains("ip shunt"), "{error}");
        assert_eq!(dataplane.snapshot().quarantined.len(), 0);
    }
    faults.refuse(|_| None);
    dataplane.sync()?;
    assert_eq!(ns.ruleset()?, wanted(&OTHERS)?);
    Ok(())
}
