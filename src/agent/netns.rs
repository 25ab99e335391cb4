//! `--netns`: the agent works in another network namespace than the one it was started in.

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use nix::sched::{CloneFlags, setns};

/// Moves this thread, and all threads that it starts later, into the namespace. A name without a
/// slash is a name of `ip netns` (iproute2 keeps them in `/run/netns`).
pub(crate) fn enter(namespace: Option<&Path>) -> Result<()> {
    let Some(namespace) = namespace else { return Ok(()) };
    let path = if namespace.components().count() == 1 {
        PathBuf::from("/run/netns").join(namespace)
    } else {
        namespace.to_owned()
    };
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
