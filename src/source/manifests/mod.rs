//! Manifests: objects in files, as they are written for `kubectl apply`.
//!
//! Owns: what counts as a manifest file, what the objects in it are ([`parse()`]), which of several
//! definitions of an object counts ([`collection`]), and reading files, again when they change
//! ([`Watcher`]).
//!
//! What a person can rely on:
//! - A file that is no YAML or JSON (half-written, say) keeps what it said before.
//! - An object that is wrong in itself is left out, whatever it was before.
//! - Of several definitions of an object the last one counts, by the order of the paths given, then
//!   by file name, then within the file: what `kubectl apply` would end up with.
//! - A path that goes away as a whole keeps what it said, as an API server that is away does; a file
//!   that goes away from a directory takes its objects with it.
//!
//! Must not know: what is made of the objects.

mod collection;
mod kinds;
mod locations;
mod parse;
mod scan;
mod watch;

#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::sync::Arc;

use shunt_core::model::Change;

use crate::spanned_yaml::Diagnostic;

pub use locations::{Location, Locations};
pub use parse::{Context, Manifest, Object, parse};
pub use watch::Watcher;

/// What a look at the files brought.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Round {
    /// What changed. The first round ends with [`Change::Synced`].
    pub changes: Vec<Change>,
    /// All problems that there are at this moment, also those of earlier rounds.
    pub problems: Arc<[Diagnostic]>,
}

/// The files cannot be read or watched at all.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A path that was given is not there or cannot be read.
    #[error("cannot read manifests from {path}: {reason}")]
    Path {
        /// The path, as it was given.
        path: PathBuf,
        /// Why.
        reason: std::io::Error,
    },
    /// They cannot be watched.
    #[error(transparent)]
    Watch(#[from] crate::file_watch::Error),
}

/// Reads all manifests once, and notes where Services are. Problems are returned, not logged.
pub fn load(paths: &[PathBuf], node_name: &str, locations: &Locations) -> Result<Round, Error> {
    let mut scanner = scan::Scanner::new(paths, node_name, locations)?;
    for root in 0..paths.len() {
        scanner.scan(root);
    }
    Ok(scanner.first_round())
}
