//! `--netns`: the agent works in another network namespace than the one it was started in.

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use nix::sched::{CloneFlags, setns};

use crate::source::kubernetes::Dialer;

/// Returns the path of a network namespace by process ID, name of `ip netns`, or path. (iproute2 keeps
/// the names in `/run/netns`.)
fn path(namespace: &Path) -> PathBuf {
    match namespace.to_str() {
        Some(text) if text.parse::<u32>().is_ok() => PathBuf::from(format!("/proc/{text}/ns/net")),
        Some(text) if !text.contains('/') => Path::new("/run/netns").join(text),
        _ => namespace.to_owned(),
    }
}

/// Moves this thread into the namespace, and returns a dialer that connects from the one before.
pub(crate) fn enter_with_dialer(namespace: Option<&Path>) -> Result<Option<Dialer>> {
    let dialer = namespace.map(|_| Dialer::here()).transpose();
    let dialer = dialer.context("cannot start a thread for connections")?;
    enter(namespace)?;
    Ok(dialer)
}

/// Moves this thread, and all threads that it starts later, into the namespace.
pub(crate) fn enter(namespace: Option<&Path>) -> Result<()> {
    let Some(namespace) = namespace else { return Ok(()) };
    let path = path(namespace);
    let file = File::open(&path).with_context(|| {
        format!(
            "network namespace {} not found ({}); `ip netns list` shows the named ones",
            namespace.display(),
            path.display()
        )
    })?;
    setns(file, CloneFlags::CLONE_NEWNET).with_context(|| {
        format!(
            "cannot enter {}: not a network namespace, or CAP_SYS_ADMIN is missing",
            path.display()
        )
    })
}
