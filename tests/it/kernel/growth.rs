//! Sets have a size: a cluster that outgrows it gets larger ones, without a gap.

use anyhow::{Context, Result, ensure};
use nfnetlink::nft::{Kernel, Socket, TableFamily};
use shunt_core::model::{Change, Family};
use shunt_fake_nftables::{service, slice};
use shunt_testbed::Netns;

use super::cluster::dataplane;

/// Returns the size of a set of the IPv4 table.
fn size(ns: &Netns, set: &str) -> Result<Option<u32>> {
    ns.run(|| {
        let sets = Socket::open()?.sets(TableFamily::Ip, "shunt")?;
        Ok(sets.iter().find(|found| found.name == set).context("no such set")?.size)
    })
}

/// The table, its base chains and its object, with the numbers that the kernel gave them.
fn handles(ns: &Netns) -> Result<Vec<String>> {
    let list = ns.output("nft", &["--handle", "list", "table", "ip", "shunt"])?;
    let lines: Vec<&str> = list.lines().collect();
    let is_base = |n: usize| lines.get(n + 1).is_some_and(|line| line.contains("type "));
    let stays = |(n, line): &(usize, &&str)| {
        line.starts_with("table ")
            || line.starts_with("\tct timeout ")
            || line.starts_with("\tchain ") && is_base(*n)
    };
    let stays = lines.iter().enumerate().filter(stays);
    Ok(stays.map(|(_, line)| (*line).to_owned()).collect())
}

fn services(numbers: impl Iterator<Item = u16>) -> Vec<Change> {
    numbers
        .flat_map(|n| {
            [Change::service(service(n)), Change::slice(slice(n, Family::V4, &[n, n + 5_000]))]
        })
        .collect()
}

#[test]
fn sets_that_are_too_small_are_made_anew_in_one_transaction() -> Result<()> {
    let ns = Netns::new()?;
    let mut first = services(0..3);
    let mut sticky = service(1);
    sticky.affinity_seconds = Some(600);
    first.push(Change::service(sticky));
    let mut dataplane = dataplane(&ns, first)?;
    dataplane.sync()?;
    assert_eq!(size(&ns, "endpoints")?, Some(512));
    assert_eq!(size(&ns, "service-ips")?, Some(512));
    assert_eq!(size(&ns, "allowed-sources")?, None);
    ns.nft(
        "add element ip shunt affinity \
         { 192.0.2.7 . 10.96.0.1 . tcp . 80 timeout 600s : 10.244.0.1 . 8080 }",
    )?;
    // A sync takes the entry for what it is: that of a packet.
    dataplane.sync()?;

    // Each Service has four slots in this map: 512 elements fit, and one more does not.
    dataplane.apply_all(services(3..128));
    let report = dataplane.sync()?.context("nothing was written")?;
    assert_eq!((size(&ns, "endpoints")?, report.deleted), (Some(512), 0));
    let before = handles(&ns)?;
    let generation = ns.nft_generation()?;
    dataplane.apply_all(services(128..129));
    let report = dataplane.sync()?.context("nothing was written")?;
    assert_eq!(ns.nft_generation()?, generation + 1);
    assert_eq!(size(&ns, "endpoints")?, Some(2_048));
    assert!(report.added > 3 * 129, "{report:?}");
    assert_eq!((report.deleted, report.repaired), (0, 0));
    assert_eq!(handles(&ns)?, before, "the table and what packets hold of it stay");

    let endpoints = ns.output("nft", &["list", "map", "ip", "shunt", "endpoints"])?;
    for n in [0_u16, 2, 127, 128] {
        let address = service(n).cluster_ips[0];
        let slot = format!("{address} . tcp . 80 . 1 :");
        ensure!(endpoints.contains(&slot), "{slot} is missing in\n{endpoints}");
    }
    let learned = ns.output("nft", &["list", "map", "ip", "shunt", "affinity"])?;
    assert!(learned.contains("192.0.2.7 . 10.96.0.1 . tcp . 80"), "{learned}");

    // Later changes are small again.
    assert_eq!(dataplane.sync()?, None);
    dataplane.apply_all(services(129..130));
    let report = dataplane.sync()?.context("nothing was written")?;
    assert!(report.added < 20, "{report:?}");
    Ok(())
}

/// A process can add to a table that has no owner.
#[test]
fn table_with_sets_and_chains_of_others_is_made_anew() -> Result<()> {
    let ns = Netns::new()?;
    let mut agent = dataplane(&ns, services(0..3))?;
    agent.sync()?;
    drop(agent);
    let rules = ns.output("nft", &["-s", "list", "ruleset"])?;
    ns.nft(
        "add set ip shunt foreign { type ipv4_addr; }
         add chain ip shunt guest
         add rule ip shunt guest ip saddr @foreign drop
         add rule ip shunt services jump guest
         delete element ip shunt cluster-ips { 10.96.0.1 }",
    )?;
    let mut agent = dataplane(&ns, services(0..3))?;
    agent.sync()?.context("nothing was repaired")?;
    drop(agent);
    let sorted = |rules: &str| {
        let mut lines: Vec<String> = rules.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    assert_eq!(sorted(&ns.output("nft", &["-s", "list", "ruleset"])?), sorted(&rules));
    Ok(())
}
