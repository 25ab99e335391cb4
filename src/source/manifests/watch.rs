//! Watches manifests and reads them when they change.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::Instant;

use shunt_core::model::{Change, ChangeBatch};

use super::scan::{Scanner, is_manifest};
use super::{Error, Locations};
use crate::source::file_watch::{Paths, Stop, Todo};
use crate::source::objects::Kind;

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
        let scanner = Scanner::new(paths, node_name, locations)?;
        let roots = paths.len();
        let (paths, stop) = Paths::new(paths, is_manifest)?;
        Ok((Watcher { scanner, paths, roots }, stop))
    }

    /// Reads all manifests and calls `sink` with them, then with each change, until `sink` returns
    /// `Break`. The first batch deletes all other objects, which an earlier source may have left.
    /// Blocks: run it in a thread of its own, so that the read of a large file delays no other
    /// work.
    pub fn run(mut self, sink: impl Fn(ChangeBatch) -> ControlFlow<()>) -> Result<(), Error> {
        for root in 0..self.roots {
            self.look_at(root);
        }
        self.scanner.log_not_used();
        let first = self.scanner.changes();
        let listed = |kind: Kind| kind.listed(self.scanner.collection.names(kind));
        let mut changes: Vec<Change> = Kind::ALL.into_iter().filter_map(listed).collect();
        changes.extend(first.into_iter().chain([Change::Synced]));
        loop {
            if !changes.is_empty() && sink(ChangeBatch::new(changes, Instant::now())).is_break() {
                return Ok(());
            }
            let Some(todo) = self.paths.wait()? else { return Ok(()) };
            self.work(todo);
            changes = self.scanner.changes();
        }
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
