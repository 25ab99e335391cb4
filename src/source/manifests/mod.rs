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
mod parse;
mod scan;
mod watch;

#[cfg(test)]
mod tests;

use std::path::PathBuf;

use shunt_core::model::Change;

pub use parse::{Context, Manifest, Object, parse};
pub(crate) use scan::{manifests_at, read};
pub use watch::Watcher;

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
    /// Files have no content that can be read: their problems are logged.
    #[error("cannot use {0} of the files, see the errors above; their objects are unknown")]
    Unusable(usize),
    /// Stdin can be read, but not watched.
    #[error("`-` can be read only once; add --once, or give the path of a file or directory")]
    Stdin,
    /// The files cannot be watched.
    #[error(transparent)]
    Watch(#[from] std::io::Error),
}

/// Reads all manifests once and logs their problems. The path `-` is stdin. The changes end with
/// [`Change::Synced`].
///
/// # Errors
/// If a file or directory cannot be read, or a file is no YAML or JSON.
pub fn load(paths: &[PathBuf], node_name: &str) -> Result<Vec<Change>, Error> {
    let mut scanner = scan::Scanner::new(paths, node_name)?;
    for root in 0..paths.len() {
        scanner.scan(root);
    }
    if scanner.unusable > 0 {
        return Err(Error::Unusable(scanner.unusable));
    }
    let mut changes = scanner.changes();
    changes.push(Change::Synced);
    Ok(changes)
}
