//! Noticing that files and directories change.
//!
//! Owns: inotify ([`Paths`]), and what its events say about files that are written, replaced by
//! rename, or mounted by Kubernetes.
//!
//! What one can rely on: a path that changes is named after it changed, be it a moment late or once
//! too often. What counts is what is there then.
//!
//! Must not know: what is in the files.

mod watch;

pub use watch::{Error, Paths, Stop, Todo};
