//! Cold start, restart and repair.

use std::time::{Duration, Instant};

use anyhow::Result;
use nfnetlink::nft::{Kernel as _, Socket, TableFamily};
use shunt_core::model::{Change, Family, Kind};
use shunt_fake_nftables::{service, slice};
use shunt_testbed::Netns;

use super::cluster::dataplane;

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
    running.apply(Change::Gone(Kind::Service, service(1).name));
    running.sync()?;
    running.remove_unused_chains(Instant::now(), |_| Duration::ZERO);
    assert_eq!(count()?, 6);
    Ok(())
}
