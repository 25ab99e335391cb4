//! What is in an image: the agent, the shared libraries that it needs, and the licences of all of it.

use std::path::Path;

use anyhow::{Result, ensure};

use super::licences;
use crate::command::command;
use crate::release::crates;
use crate::tree::Tree;
use crate::{man, programs};

/// Folders that a container runtime puts something into, which it cannot make in a read-only image.
const MOUNT_POINTS: [&str; 7] = ["dev", "etc/shunt", "proc", "run", "sys", "tmp", "var/lib"];

/// What the agent needs from the system: taken from this one, because it was linked here.
pub(crate) fn system(agent: &Path, tree: &mut Tree) -> Result<()> {
    folders(tree)?;
    programs::links_at_the_root(tree)?;
    let libraries = programs::libraries(agent)?;
    ensure!(
        libraries.iter().any(|file| file.contains("libnftnl.so")),
        "the agent is not linked with libnftnl: {libraries:?}"
    );
    for library in &libraries {
        programs::library(library, tree)?;
    }
    licences::of_libraries(&libraries, tree)
}

/// Folders of the runtime, and the configuration of libc.
pub(crate) fn folders(tree: &mut Tree) -> Result<()> {
    for path in MOUNT_POINTS {
        tree.folder(path)?;
    }
    // Without it libc asks the name servers before it looks into /etc/hosts.
    tree.file("etc/nsswitch.conf", "hosts: files dns\n")
}

/// The agent itself, with its man pages and completions.
pub(crate) fn agent(agent: &Path, revision: &str, tree: &mut Tree) -> Result<()> {
    tree.program("usr/bin/shunt", programs::stripped(agent)?)?;
    man::install(&|| command(agent), tree)?;
    let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    licences::of_agent(revision, &crates::of(&target)?, tree)
}
