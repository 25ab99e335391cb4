//! `shunt render`: the planned ruleset as text, without a kernel.

use shunt_core::plan::render as text;

use super::args::Render;
use super::objects::of_manifests;
use crate::agent::Failure;
use crate::agent::observe::{report_conflict, report_oversized};
use crate::agent::settings::effective;
use crate::dataplane::{SpecConflict, rule_text};

pub(super) fn render(arguments: &Render) -> Result<(), Failure> {
    let settings = effective(&arguments.settings, &arguments.logging)?;
    let (store, desired) = of_manifests(&arguments.manifests, &settings)?.planned();
    for conflict in desired.conflicts() {
        report_conflict(&SpecConflict::new(conflict, &store));
    }
    desired.oversized().iter().for_each(report_oversized);
    Ok(super::print(&text(&desired, rule_text))?)
}
