//! `shunt render`: the planned ruleset as text, without a kernel.

use shunt_core::plan::render as text;

use super::args::Render;
use crate::agent::Failure;
use crate::agent::observe::{report_conflict, report_oversized};
use crate::dataplane::{SpecConflict, rule_text};
use crate::serve::query::Selection;

pub(super) fn render(arguments: &Render) -> Result<(), Failure> {
    let (store, desired) = arguments.objects.start(true)?.read(&Selection::All)?.planned();
    for conflict in desired.conflicts() {
        report_conflict(&SpecConflict::new(conflict, &store));
    }
    desired.oversized().iter().for_each(report_oversized);
    Ok(super::print(&text(&desired, rule_text))?)
}
