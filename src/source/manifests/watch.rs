//! Watches manifests and reads them when they change.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::Instant;

use shunt_core::model::{Change, ChangeBatch};
use tokio::task::spawn_blocking;

use super::Error;
use super::scan::{Scanner, is_manifest, is_stdin};
use crate::source::file_watch::{Paths, Todo};
use crate::source::objects::Kind;

/// A watcher of manifests.
pub struct Watcher {
    scanner: Scanner,
    paths: Paths,
}

impl Watcher {
    /// Prepares a watcher for these files or directories, without a read.
    pub fn new(paths: &[PathBuf], node_name: &str) -> Result<Watcher, Error> {
        if paths.iter().any(|path| is_stdin(path)) {
            return Err(Error::Stdin);
        }
        let scanner = Scanner::new(paths, node_name)?;
        Ok(Watcher { scanner, paths: Paths::new(paths, is_manifest)? })
    }

    /// Reads all manifests and calls `sink` with them, then with each change, until `sink` returns
    /// `Break`. The first batch deletes all other objects, which an earlier source may have left.
    /// Reads in a thread of tokio's, so that a large file delays no other work. A dropped future stops.
    pub async fn run(mut self, sink: impl Fn(ChangeBatch) -> ControlFlow<()>) -> Result<(), Error> {
        let mut is_first = true;
        loop {
            let work = spawn_blocking(move || -> std::io::Result<_> {
                match is_first {
                    true => (0..self.scanner.roots.len()).for_each(|root| self.look_at(root)),
                    false => self.work(self.paths.changes()?),
                }
                let changes = self.scanner.changes();
                Ok((self, changes))
            });
            // A panic has ended the process.
            let Ok(worked) = work.await else { return Ok(()) };
            let (watcher, mut changes) = worked?;
            self = watcher;
            if std::mem::take(&mut is_first) {
                self.scanner.log_not_used();
                let listed =
                    |kind| Change::Listed(kind, self.scanner.collection.names(kind).into());
                changes.splice(0..0, Kind::ALL.map(listed));
                changes.push(Change::Synced);
            }
            if !changes.is_empty() && sink(ChangeBatch::new(changes, Instant::now())).is_break() {
                return Ok(());
            }
            self.paths.wait().await?;
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
