//! Watches files and directories.
//!
//! Owns: inotify ([`Paths`]), and the interpretation of its events for files that are written,
//! replaced by rename, or mounted by Kubernetes.
//!
//! Invariant: a changed path is reported after its change, possibly late or more than once. The
//! caller reads the current content.
//!
//! Must not know: the content of the files.

mod watch;

pub use watch::{Error, Paths, Todo};
