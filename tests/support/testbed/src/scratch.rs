//! Temporary directories that do not survive the process, not even a killed one.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result};

/// A directory below the system's temporary one, removed on drop.
///
/// A killed process drops nothing, so the removal is left to a child in a process group of its own (out of
/// reach of Ctrl-C): it waits for the end of its standard input, which comes when this process ends in any way.
pub struct Scratch {
    path: PathBuf,
    janitor: Child,
    leash: Option<ChildStdin>,
}

impl Scratch {
    /// Makes an empty directory.
    pub fn new() -> Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path =
            std::env::temp_dir().join(format!("shunt-testbed-{}-{count}", std::process::id()));
        std::fs::create_dir(&path).with_context(|| format!("cannot make {}", path.display()))?;
        let mut janitor = Command::new("sh")
            .args(["-c", "read -r _; rm -rf -- \"$1\"", "sh"])
            .arg(&path)
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("cannot start sh")?;
        let leash = janitor.stdin.take();
        Ok(Self { path, janitor, leash })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        drop(self.leash.take());
        let _ = self.janitor.wait();
    }
}
