//! What is in an image: the agent, the shared libraries that it needs, and the licences of all of it.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, bail, ensure};

use super::layer::Tree;
use super::licences;
use crate::command::{command, find, repository, run, stdout};

/// Folders that a container runtime puts something into, which it cannot make in a read-only image.
const MOUNT_POINTS: [&str; 7] = ["dev", "etc/shunt", "proc", "run", "sys", "tmp", "var/lib"];

/// Folders at the root that are links into /usr on all current distributions.
const MERGED: [&str; 4] = ["bin", "lib", "lib64", "sbin"];

/// What the agent needs from the system: taken from this one, because it was linked here.
pub(super) fn system(agent: &Path, tree: &mut Tree) -> Result<()> {
    for path in MOUNT_POINTS {
        tree.folder(path)?;
    }
    for name in MERGED {
        if let Ok(target) = fs::read_link(Path::new("/").join(name)) {
            let target = target.display().to_string();
            tree.folder(&target)?;
            tree.link(name, &target)?;
        }
    }
    // Without it libc asks the name servers before it looks into /etc/hosts.
    tree.file("etc/nsswitch.conf", "hosts: files dns\n")?;
    let libraries = libraries(&stdout(command("ldd").arg(agent))?)?;
    for library in &libraries {
        let library = Path::new(library);
        let content = fs::read(library)
            .with_context(|| format!("cannot read the library {}", library.display()))?;
        tree.program(&location(library)?, content)?;
    }
    licences::of_libraries(&libraries, tree)
}

/// The agent itself.
pub(super) fn agent(agent: &Path, revision: &str, tree: &mut Tree) -> Result<()> {
    tree.program("usr/bin/shunt", stripped(agent)?)?;
    licences::of_agent(revision, tree)
}

/// The binary without what only a debugger needs; the names of functions stay, for backtraces.
fn stripped(agent: &Path) -> Result<Vec<u8>> {
    ensure!(find("strip").is_some(), "there is no `strip` here; install binutils");
    let folder = tempfile::tempdir().context("cannot make a temporary folder")?;
    let output = folder.path().join("shunt");
    run(command("strip").arg("--strip-debug").arg("-o").arg(&output).arg(agent))?;
    fs::read(&output).context("cannot read what strip wrote")
}

/// The files that `ldd` names: libraries after an arrow, and the loader, which has none.
fn libraries(ldd: &str) -> Result<Vec<String>> {
    let mut files = Vec::new();
    for line in ldd.lines().map(str::trim) {
        let (name, file) = line.split_once(" => ").unwrap_or((line, line));
        if file.starts_with("not found") {
            bail!("{name}, which the agent needs, is not on this machine");
        }
        // The kernel's own library has a name only.
        if file.starts_with('/') {
            let file = file.rsplit_once(" (").map_or(file, |(file, _)| file);
            files.push(file.to_owned());
        }
    }
    ensure!(files.iter().any(|file| file.contains("libnftnl.so")), "ldd names no libnftnl:\n{ldd}");
    files.sort();
    Ok(files)
}

/// Where a library lies when links in the path of its folder are followed. Its own name stays: it is
/// the one that programs ask for.
fn location(library: &Path) -> Result<String> {
    let (folder, name) = library
        .parent()
        .zip(library.file_name())
        .with_context(|| format!("{} is no file", library.display()))?;
    let folder = fs::canonicalize(folder)
        .with_context(|| format!("cannot find the folder {}", folder.display()))?;
    Ok(folder.join(name).display().to_string())
}

/// A file of the repository.
pub(super) fn own(path: &str) -> Result<Vec<u8>> {
    fs::read(repository().join(path)).with_context(|| format!("cannot read {path}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_read_from_the_words_of_ldd() {
        let ldd = "\tlinux-vdso.so.1 (0x00007f7ef2694000)\n\
                   \tlibnftnl.so.11 => /lib/x86_64-linux-gnu/libnftnl.so.11 (0x00007f7ef2648000)\n\
                   \tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f7ef061e000)\n\
                   \t/lib64/ld-linux-x86-64.so.2 (0x00007f7ef2696000)\n";
        assert_eq!(
            libraries(ldd).unwrap(),
            [
                "/lib/x86_64-linux-gnu/libc.so.6",
                "/lib/x86_64-linux-gnu/libnftnl.so.11",
                "/lib64/ld-linux-x86-64.so.2"
            ]
        );
        assert!(libraries("\tstatically linked\n").is_err());
        let missing = libraries("\tlibmnl.so.0 => not found\n").unwrap_err();
        assert!(missing.to_string().contains("libmnl.so.0"), "{missing}");
    }
}
