//! Sets have a size: a cluster that outgrows it gets larger ones, without a gap.

use std::collections::BTreeSet;
use std::net::IpAddr;

use anyhow::{Context, Result, ensure};
use nfnetlink::nft::{Kernel, Socket, TableFamily};
use shunt_core::model::{Change, Family};
use shunt_core::plan::FrontendKey;
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

fn services(numbers: impl Iterator<Item = u16>) -> Vec<Change> {
    numbers
        .flat_map(|n| {
            [Change::service(service(n)), Change::slice(slice(n, Family::V4, &[n, n + 5_000]))]
        })
        .collect()
}

#[test]
fn a_table_whose_sets_are_too_small_is_replaced_in_one_transaction() -> Result<()> {
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
    dataplane.take_flows();
    let generation = ns.nft_generation()?;
    dataplane.apply_all(services(128..129));
    let report = dataplane.sync()?.context("nothing was written")?;
    assert_eq!(ns.nft_generation()?, generation + 1);
    assert_eq!(size(&ns, "endpoints")?, Some(2_048));
    assert!(report.added > 3 * 129, "{report:?}");
    assert_eq!((report.deleted, report.repaired), (0, 0));
    // A packet may have passed between the tables: the flows of all Services are searched.
    let searched = dataplane.take_flows().into_iter().filter(|(_, flow)| flow.search);
    let searched: BTreeSet<IpAddr> = searched
        .filter_map(|(key, _)| match key {
            FrontendKey::Address(address, ..) => Some(address),
            FrontendKey::NodePort(..) => None,
        })
        .collect();
    assert!((0..129).all(|n| searched.contains(&service(n).cluster_ips[0])), "{searched:?}");

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
