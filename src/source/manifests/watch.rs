//! Reading manifests whenever they change.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;

use super::scan::{Scanner, is_manifest};
use super::{Error, Locations, Round};
use crate::files::{Paths, Stop, Todo};

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
    /// `Break`. Blocks: it wants a thread of its own, so that reading a large file delays nobody.
    pub fn run(mut self, mut sink: impl FnMut(Round) -> ControlFlow<()>) -> Result<(), Error> {
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
