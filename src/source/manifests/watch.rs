//! Watches manifests and reads them when they change.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::Instant;

use shunt_core::model::{Change, ChangeBatch};
use tokio::sync::oneshot;

use super::Error;
use super::scan::{Scanner, is_manifest};
use crate::source::file_watch::{self, Paths, Todo};
use crate::source::objects::Kind;

/// A watcher of manifests.
pub struct Watcher {
    scanner: Scanner,
    paths: Paths,
    stopped: oneshot::Receiver<()>,
}

/// A guard whose drop ends [`Watcher::run`].
#[derive(Debug)]
#[must_use = "it ends the watch when it is dropped"]
pub struct Stop {
    _held: oneshot::Sender<()>,
}

impl Watcher {
    /// Prepares a watcher for these files or directories, without a read. [`Watcher::run`] ends
    /// when [`Stop`] is dropped.
    pub fn new(paths: &[PathBuf], node_name: &str) -> Result<(Watcher, Stop), Error> {
        let scanner = Scanner::new(paths, node_name)?;
        let paths = Paths::new(paths, is_manifest)?;
        let (held, stopped) = oneshot::channel();
        Ok((Watcher { scanner, paths, stopped }, Stop { _held: held }))
    }

    /// Reads all manifests and calls `sink` with them, then with each change, until `sink` returns
    /// `Break`. The first batch deletes all other objects, which an earlier source may have left.
    /// Blocks: run it in a thread of its own, so that the read of a large file delays no other
    /// work.
    pub fn run(mut self, sink: impl Fn(ChangeBatch) -> ControlFlow<()>) -> Result<(), Error> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|reason| file_watch::Error::Open { reason })?;
        for root in 0..self.scanner.roots.len() {
            self.look_at(root);
        }
        self.scanner.log_not_used();
        let first = self.scanner.changes();
        let listed = |kind| Change::Listed(kind, self.scanner.collection.names(kind).into());
        let listed = Kind::ALL.into_iter().map(listed);
        let mut changes: Vec<Change> = listed.chain(first).chain([Change::Synced]).collect();
        loop {
            if !changes.is_empty() && sink(ChangeBatch::new(changes, Instant::now())).is_break() {
                return Ok(());
            }
            let todo = runtime.block_on(async {
                tokio::select! {
                    todo = self.paths.wait() => todo.map(Some),
                    _ = &mut self.stopped => Ok(None),
                }
            });
            let Some(todo) = todo? else { return Ok(()) };
            self.work(todo);
            changes = self.scanner.changes();
        }
    }

    fn work(&mut self, todo: Todo) {
        for &root in &todo.roots {
            self.look_at(root);
        }
        for ((root, name), complete) in todo.files {
            if !todo.roots.contains(&root) {
                self.scanner.look_at(root, &name, complete);
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
