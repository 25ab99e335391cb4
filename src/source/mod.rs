//! The sources of objects.
//!
//! Owns: the Kubernetes objects in their API form ([`objects`]), their validation and conversion
//! into the model's values, and the sources that deliver them as
//! [`Change`](shunt_core::model::Change)s: [`manifests`] on disk, and the [`kubernetes`] API
//! server.
//!
//! Must not know: planning, nf_tables, or the agent's configuration beyond its arguments.

pub mod file_watch;
pub mod interfaces;
pub mod kubernetes;
pub mod manifests;
pub mod objects;
pub mod spanned_yaml;

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use tokio::io::unix::AsyncFd;

/// Returns a duplicate of a descriptor by which the kernel tells events, for a task that waits for
/// them. Must be called within a tokio runtime.
///
/// # Errors
/// If the process may not open more files.
#[expect(deprecated, reason = "what replaces it is unsafe; an owned descriptor stays open")]
pub fn events(of: impl AsFd) -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::new(of.as_fd().try_clone_to_owned()?)
}
