//! Watches manifests and reads them when they change.

use std::collections::HashSet;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use shunt_core::model::{Change, ChangeBatch, Listed};

use super::scan::{Scanner, is_manifest};
use super::{Error, Locations, Round};
use crate::source::file_watch::{Paths, Stop, Todo};

/// A watcher of manifests.
pub struct Watcher {
    scanner: Scanner,
    paths: Paths,
    roots: usize,
}

impl Watcher {
    /// Prepares a watcher for these files or directories, without a read. [`Watcher::run`] ends
    /// when [`Stop`] is dropped. The watcher keeps `locations` up to date.
    pub fn new(
        paths: &[PathBuf],
        node_name: &str,
        locations: &Locations,
    ) -> Result<(Watcher, Stop), Error> {
        let mut scanner = Scanner::new(paths, node_name, locations)?;
        scanner.log_problems();
        let roots = paths.len();
        let (paths, stop) = Paths::new(paths, is_manifest)?;
        Ok((Watcher { scanner, paths, roots }, stop))
    }

    /// Reads all manifests and calls `sink` with them, then with each change, until `sink` returns
    /// `Break`. The first batch deletes all other objects, which an earlier source may have left.
    /// Blocks: run it in a thread of its own, so that the read of a large file delays no other
    /// work.
    pub fn run(self, sink: impl Fn(ChangeBatch) -> ControlFlow<()>) -> Result<(), Error> {
        let mut is_first = true;
        self.run_rounds(|mut round| {
            if std::mem::take(&mut is_first) {
                forget_others(&mut round.changes);
            }
            sink(ChangeBatch::new(round.changes, Instant::now()))
        })
    }

    /// Runs like [`Watcher::run`], with the problems of each round.
    pub(super) fn run_rounds(
        mut self,
        mut sink: impl FnMut(Round) -> ControlFlow<()>,
    ) -> Result<(), Error> {
        for root in 0..self.roots {
            self.look_at(root);
        }
        let first = self.scanner.first_round();
        let mut problems = first.problems.clone();
        let mut flow = sink(first);
        while flow.is_continue() {
            let Some(todo) = self.paths.wait()? else { return Ok(()) };
            self.work(todo);
            let round = self.scanner.round();
            if !round.changes.is_empty() || !Arc::ptr_eq(&round.problems, &problems) {
                problems = round.problems.clone();
                flow = sink(round);
            }
        }
        Ok(())
    }

    fn work(&mut self, todo: Todo) {
        for &root in &todo.roots {
            self.look_at(root);
        }
        for ((root, name), complete) in todo.files {
            let seen = todo.roots.contains(&root);
            if !seen && (complete || !self.scanner.exists(root, &name)) {
                self.scanner.look_at(root, &name);
            }
        }
    }

    /// Reads a whole path. Sets the watches first, so that each later change causes an event.
    fn look_at(&mut self, root: usize) {
        self.paths.watch(root);
        if !self.scanner.scan(root) {
            self.paths.look_again(root);
        }
    }
}

/// Adds changes to a source's first batch that delete all other objects.
fn forget_others(changes: &mut Vec<Change>) {
    let (mut services, mut slices, mut cidrs) = (HashSet::new(), HashSet::new(), HashSet::new());
    let mut has_node = false;
    for change in &*changes {
        match change {
            Change::Service(service) => drop(services.insert(service.name.clone())),
            Change::Slice(slice) => drop(slices.insert(slice.name.clone())),
            Change::ServiceCidr(name, _) => drop(cidrs.insert(name.clone())),
            Change::Node(_) => has_node = true,
            _ => {}
        }
    }
    let listed = [
        Change::Listed(Listed::Services(services.into())),
        Change::Listed(Listed::Slices(slices.into())),
        Change::Listed(Listed::ServiceCidrs(cidrs.into())),
    ];
    let node_gone = (!has_node).then_some(Change::NodeGone);
    changes.splice(0..0, listed.into_iter().chain(node_gone));
}
