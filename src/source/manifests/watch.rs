//! Reads manifests whenever they change.

use std::collections::HashSet;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use shunt_core::model::{Change, ChangeBatch, Listed};

use super::scan::{Scanner, is_manifest};
use super::{Error, Locations, Round};
use crate::file_watch::{Paths, Stop, Todo};

/// Reads manifests and watches them.
pub struct Watcher {
    scanner: Scanner,
    paths: Paths,
    roots: usize,
}

impl Watcher {
    /// Prepares to read the manifests at these paths, files or directories. Nothing is read yet.
    /// [`Stop`] ends [`Watcher::run`] when it is dropped.
    /// Keeps `locations` up to date.
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

    /// Reads everything, hands it to `sink`, then goes on with each change until `sink` says
    /// `Break`. The first batch says that there is nothing else: another source may have been at work
    /// before. Blocks: it wants a thread of its own, so that reading a large file delays no other work.
    pub fn run(self, sink: impl Fn(ChangeBatch) -> ControlFlow<()>) -> Result<(), Error> {
        let mut is_first = true;
        self.run_rounds(|mut round| {
            if std::mem::take(&mut is_first) {
                forget_others(&mut round.changes);
            }
            sink(ChangeBatch::new(round.changes, Instant::now()))
        })
    }

    /// As [`Watcher::run`], with the problems of each round.
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

    /// Looks at a path as a whole. The watches come first: what changes after that makes an event.
    fn look_at(&mut self, root: usize) {
        self.paths.watch(root);
        if !self.scanner.scan(root) {
            self.paths.look_again(root);
        }
    }
}

/// Adds to the first changes of a source that there is nothing else.
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
        Change::Listed(Listed::Services(services)),
        Change::Listed(Listed::Slices(slices)),
        Change::Listed(Listed::ServiceCidrs(cidrs)),
    ];
    let node_gone = (!has_node).then_some(Change::NodeGone);
    changes.splice(0..0, listed.into_iter().chain(node_gone));
}
