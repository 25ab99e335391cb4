//! Tables that nobody else can change, where the kernel can have such.

use anyhow::Result;
use nfnetlink::nft::Error;
use shunt::dataplane::{Dataplane, Ownership, SyncReport};
use shunt_core::model::Change;
use shunt_core::plan::Options;
use shunt_fake_nftables::NODE;
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
        Err(error) if matches!(error.kernel(), Error::Owned { .. }) => Ok(None),
        other => Ok(Some(other?)),
    })
}

#[test]
fn start_repairs_changes_to_tables_without_an_owner() -> Result<()> {
    for damage in [
        "flush map ip shunt service-ips",
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
