//! `shunt render`: the planned ruleset as text, without a kernel.

use anyhow::Context;
use shunt_core::model::{Dirty, Store};
use shunt_core::plan::{Desired, render as text};

use super::args::Render;
use crate::agent::Failure;
use crate::agent::observe::{report_conflict, report_oversized};
use crate::agent::settings::effective;
use crate::dataplane::{SpecConflict, rule_text};
use crate::source::manifests::{self, Locations};

pub(super) fn render(arguments: &Render) -> Result<(), Failure> {
    let settings = effective(&arguments.settings, &arguments.logging)?;
    let locations = Locations::default();
    let round = manifests::load(&arguments.manifests, &settings.node_name, &locations)
        .context("cannot read the manifests")?;
    round.problems.iter().for_each(|problem| problem.log());
    let mut store = Store::new();
    let mut dirty = Dirty::default();
    for change in round.changes {
        store.apply(change, &mut dirty);
    }
    let mut desired = Desired::new(settings.options(), &settings.node_name);
    desired.update(&store, &dirty);
    for conflict in desired.conflicts() {
        report_conflict(&SpecConflict::new(conflict, &store), &locations);
    }
    desired.oversized().iter().for_each(report_oversized);
    Ok(super::print(&text(&desired, rule_text))?)
}
