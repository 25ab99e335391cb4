//! Cold start, restart and repair.

use std::time::{Duration, Instant};

use anyhow::Result;
use nfnetlink::nft::{Kernel as _, Socket, TableFamily};
use shunt::dataplane::{Dataplane, Ownership};
use shunt_core::model::{Change, Family};
use shunt_core::plan::Options;
use shunt_fake_nftables::{NODE, service, slice};
use shunt_testbed::Netns;

use super::cluster::dataplane;
use super::faults::Faults;

pub(crate) fn some_cluster() -> Vec<Change> {
    let mut changes = Vec::new();
    for n in 0..20 {
        changes.push(Change::service(service(n)));
        // Every third has no endpoints at all.
        if n % 3 != 0 {
            let endpoints: Vec<u16> = (0..=n).map(|e| n * 100 + e).collect();
            changes.push(Change::slice(slice(n, Family::V4, &endpoints)));
            changes.push(Change::slice(slice(n, Family::V6, &endpoints)));
        }
    }
    changes
}

#[test]
fn a_cold_start_is_one_generation_and_nft_can_list_it() -> Result<()> {
    let ns = Netns::new()?;
    let before = ns.nft_generation()?;
    let report = dataplane(&ns, some_cluster())?.sync()?.expect("something to write");
    assert_eq!(ns.nft_generation()?, before + 1);
    assert_eq!(report.generation, before + 1);
    let text = ns.output("nft", &["list", "ruleset"])?;
    for wanted in [
        "table ip shunt",
        "table ip6 shunt",
        "10.96.0.1 . tcp . 80",
        "comment \"default/service-1:http\"",
        "numgen random mod 2 map @endpoints",
        "goto reject-no-endpoints",
    ] {
        assert!(text.contains(wanted), "{wanted} is missing in\n{text}");
    }
    Ok(())
}

/// Where nft cannot print the flags of a table, the testbed asks for its objects one by one.
#[test]
fn listing_by_object_is_that_of_the_ruleset() -> Result<()> {
    let ns = Netns::new()?;
    dataplane(&ns, some_cluster())?.sync()?;
    let ruleset = ns.ruleset()?;
    assert!(ruleset.len() > 50, "{ruleset:?}");
    assert_eq!(ns.ruleset_by_object()?, ruleset);
    Ok(())
}

/// A filter chain runs for every packet of every connection on the node. There is one, at forward.
#[test]
fn base_chains_for_services_are_of_type_nat() -> Result<()> {
    let ns = Netns::new()?;
    let mut with_affinity = service(1);
    with_affinity.affinity_seconds = Some(600);
    let mut running = dataplane(&ns, some_cluster())?;
    running.sync()?;
    let count = || -> Result<usize> {
        let mut kernel = ns.run(|| Ok(Socket::open()?))?;
        let mut nat = 0;
        for family in [TableFamily::Ip, TableFamily::Ip6] {
            let chains = kernel.chains(family, "shunt")?;
            let (others, filters): (Vec<_>, Vec<_>) = chains
                .into_iter()
                .filter(|it| it.base.is_some())
                .partition(|chain| chain.base.as_ref().is_some_and(|(kind, ..)| kind == "nat"));
            let names: Vec<&str> = filters.iter().map(|chain| chain.name.as_str()).collect();
            assert_eq!(names, ["forward"]);
            nat += others.len();
        }
        Ok(nat)
    };
    assert_eq!(count()?, 6);
    running.apply(Change::service(with_affinity));
    running.sync()?;
    assert_eq!(count()?, 10);
    running.apply(Change::ServiceGone(service(1).name));
    running.sync()?;
    running.remove_unused_chains(Instant::now(), |_| Duration::ZERO);
    assert_eq!(count()?, 6);
    Ok(())
}

/// The kernel lists so while it makes a hash table larger, which can still go on when an agent starts
/// right after the commit of another one.
#[test]
fn a_restart_on_lists_that_are_torn_writes_nothing() -> Result<()> {
    let ns = Netns::new()?;
    dataplane(&ns, some_cluster())?.sync()?;
    let generation = ns.nft_generation()?;
    let (faults, kernel) = Faults::new(ns.run(|| Ok(Socket::open()?))?);
    let mut next = Dataplane::with_kernel(kernel, Options::default(), NODE, Ownership::Share)?;
    next.apply_all(some_cluster());
    next.apply(Change::Synced);
    // Two readings and a part of the third.
    faults.tear_lists(120);
    assert_eq!(next.sync()?, None);
    assert_eq!(next.snapshot().quarantined.len(), 0);
    assert_eq!(ns.nft_generation()?, generation);
    Ok(())
}

#[test]
fn a_restart_after_changes_writes_only_these() -> Result<()> {
    let ns = Netns::new()?;
    dataplane(&ns, some_cluster())?.sync()?;
    let mut changes = some_cluster();
    changes.push(Change::slice(slice(4, Family::V4, &[401, 402, 403, 404])));
    changes.push(Change::ServiceGone(service(3).name));
    let mut running = dataplane(&ns, changes.clone())?;
    let report = running.sync()?.expect("something to write");
    assert!(report.added + report.deleted < 60, "{report:?}");
    running.remove_unused_chains(Instant::now(), |_| Duration::ZERO);
    assert!(!running.has_unused_chains());
    let fresh = Netns::new()?;
    dataplane(&fresh, changes)?.sync()?;
    assert_eq!(ns.ruleset()?, fresh.ruleset()?);
    Ok(())
}

#[test]
fn foreign_changes_to_shared_tables_are_repaired() -> Result<()> {
    let ns = Netns::new()?;
    let mut running = dataplane(&ns, some_cluster())?;
    running.sync()?;
    let wanted = ns.ruleset()?;
    let mut hours = 0;
    for damage in [
        "delete table ip shunt",
        "flush ruleset",
        "flush map ip shunt service-ips",
        "delete element ip shunt endpoints { 10.96.0.1 . tcp . 80 . 0 }",
        "add element ip shunt cluster-ips { 1.2.3.4 }",
        "add rule ip shunt services accept",
        "insert rule ip6 shunt nat-postrouting drop",
        "flush chain ip shunt services",
        "flush chain ip shunt lb-2",
        "add rule ip6 shunt lb-3 drop",
        "add chain ip shunt foreign",
        "add set ip shunt foreign { type ipv4_addr; }",
        "add element ip shunt short-circuit { 10.96.0.1 . tcp . 80 : drop }",
    ] {
        ns.nft(damage)?;
        assert_ne!(ns.ruleset()?, wanted, "`{damage}` did no damage");
        // Elements are compared only now and then; an hour later it is time.
        hours += 1;
        assert!(running.check(Instant::now() + Duration::from_secs(3600) * hours)?, "{damage}");
        running.sync()?;
        assert_eq!(ns.ruleset()?, wanted, "after `{damage}`");
    }
    Ok(())
}

/// As another version of the agent may have left it.
#[test]
fn tables_of_another_layout_are_replaced_in_one_transaction() -> Result<()> {
    let fresh = Netns::new()?;
    dataplane(&fresh, some_cluster())?.sync()?;
    let ns = Netns::new()?;
    dataplane(&ns, some_cluster())?.sync()?;
    let other = "delete table ip6 shunt\n\
                 table ip6 shunt {\n\
                 \tcomment \"layout 0\"\n\
                 \tmap old { type ipv6_addr : verdict; }\n\
                 \tchain old-prerouting { type nat hook prerouting priority -100; }\n\
                 }\n";
    ns.output_with_input("nft", &["-f", "-"], other)?;
    let before = ns.nft_generation()?;
    dataplane(&ns, some_cluster())?.sync()?.expect("something to write");
    assert_eq!(ns.nft_generation()?, before + 1);
    assert_eq!(ns.ruleset()?, fresh.ruleset()?);
    Ok(())
}

#[test]
fn foreign_tables_are_left_alone() -> Result<()> {
    let ns = Netns::new()?;
    ns.nft("table ip theirs {\n chain c {\n type filter hook input priority 0;\n }\n}")?;
    let mut running = dataplane(&ns, some_cluster())?;
    running.sync()?;
    ns.nft("add rule ip theirs c accept")?;
    running.apply(Change::ServiceGone(service(1).name));
    running.sync()?;
    assert!(ns.output("nft", &["list", "table", "ip", "theirs"])?.contains("accept"));
    Ok(())
}
