//! Manifests: objects in files, in the form for `kubectl apply`.
//!
//! Owns: the choice of manifest files, their objects ([`parse()`]), the precedence among several
//! definitions of an object ([`collection`]), and the reads of files, again when they change
//! ([`Watcher`]).
//!
//! Invariants:
//! - A file that is no YAML or JSON, for example half-written, keeps its previous content.
//! - An invalid object is left out, whatever it was before.
//! - Of several definitions of an object, the last one takes precedence: by the order of the paths on
//!   the command line, then by file name, then within the file. `kubectl apply` has the same result.
//! - A path that disappears as a whole keeps its content, like an unreachable API server does. A file
//!   that disappears from a directory removes its objects.
//!
//! Must not know: planning, nf_tables.

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

use crate::source::spanned_yaml::Diagnostic;

pub use locations::{Location, Locations};
pub use parse::{Context, Manifest, Object, parse};
pub use watch::Watcher;

/// The result of a read of the files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Round {
    /// The changes. The first round ends with [`Change::Synced`].
    pub changes: Vec<Change>,
    /// All current problems, also those of earlier rounds.
    pub problems: Arc<[Diagnostic]>,
}

/// The files cannot be read or watched at all.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A path does not exist or cannot be read.
    #[error("cannot read manifests from {path}: {reason}")]
    Path {
        /// The path on the command line.
        path: PathBuf,
        /// The error of the system.
        reason: std::io::Error,
    },
    /// The files cannot be watched.
    #[error(transparent)]
    Watch(#[from] crate::source::file_watch::Error),
}

/// Reads all manifests once, and notes the locations of Services. Returns problems without logging
/// them.
pub fn load(paths: &[PathBuf], node_name: &str, locations: &Locations) -> Result<Round, Error> {
    let mut scanner = scan::Scanner::new(paths, node_name, locations)?;
    for root in 0..paths.len() {
        scanner.scan(root);
    }
    Ok(scanner.first_round())
}
