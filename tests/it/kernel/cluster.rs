//! The dataplane in a network namespace.

use anyhow::Result;
use shunt::dataplane::{Dataplane, Ownership};
use shunt_core::model::Change;
use shunt_core::plan::Options;
use shunt_fake_nftables::NODE;
use shunt_testbed::Netns;

/// A dataplane of that namespace that was fed with these changes but has not synced yet.
pub(crate) fn dataplane(ns: &Netns, changes: Vec<Change>) -> Result<Dataplane> {
    let mut dataplane =
        ns.run(|| Ok(Dataplane::open(Options::default(), NODE, Ownership::Share)?))?;
    dataplane.apply_all(changes);
    dataplane.apply(Change::Synced);
    Ok(dataplane)
}
