//! Programs of this machine, and what they need from it, for where they are taken: an image, or a
//! virtual machine.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, bail, ensure};

use crate::command::{command, find, output, run};
use crate::tree::Tree;

/// Folders at the root that are links into /usr on all current distributions.
const MERGED: [&str; 4] = ["bin", "lib", "lib64", "sbin"];

/// Makes the root's links into /usr as they are here.
pub(crate) fn links_at_the_root(tree: &mut Tree) -> Result<()> {
    for name in MERGED {
        if let Ok(target) = fs::read_link(Path::new("/").join(name)) {
            let target = target.display().to_string();
            tree.folder(&target)?;
            tree.link(name, &target)?;
        }
    }
    Ok(())
}

/// The binary without what only a debugger needs; the names of functions stay, for backtraces.
pub(crate) fn stripped(program: &Path) -> Result<Vec<u8>> {
    ensure!(find("strip").is_some(), "there is no `strip` here; install binutils");
    let folder = tempfile::tempdir().context("cannot make a temporary folder")?;
    let output = folder.path().join("stripped");
    run(command("strip").arg("--strip-debug").arg("-o").arg(&output).arg(program))?;
    fs::read(&output).context("cannot read what strip wrote")
}

/// The shared libraries that a program needs, the loader among them; none for one that needs no other
/// file.
pub(crate) fn libraries(program: &Path) -> Result<Vec<String>> {
    let ldd = output(command("ldd").arg(program))?;
    let said = String::from_utf8_lossy(&ldd.stdout);
    // For these ldd fails, and so it does for what is not a program.
    if !ldd.status.success() && !said.contains("statically linked") {
        let said = String::from_utf8_lossy(&ldd.stderr);
        if !said.contains("not a dynamic executable") {
            bail!("cannot tell which libraries {} needs: {}", program.display(), said.trim());
        }
        return Ok(Vec::new());
    }
    named(&said).with_context(|| format!("the libraries of {}", program.display()))
}

/// Puts a library where the program finds it.
pub(crate) fn library(library: &str, tree: &mut Tree) -> Result<()> {
    let content =
        fs::read(library).with_context(|| format!("cannot read the library {library}"))?;
    tree.program(&location(Path::new(library))?, content)
}

/// The files that `ldd` names: libraries after an arrow, and the loader, which has none.
fn named(ldd: &str) -> Result<Vec<String>> {
    let mut files = Vec::new();
    for line in ldd.lines().map(str::trim) {
        let (name, file) = line.split_once(" => ").unwrap_or((line, line));
        if file.starts_with("not found") {
            bail!("{name} is not on this machine");
        }
        // The kernel's own library has a name only.
        if file.starts_with('/') {
            let file = file.rsplit_once(" (").map_or(file, |(file, _)| file);
            files.push(file.to_owned());
        }
    }
    files.sort();
    Ok(files)
}

/// Where a library lies when links in the path of its folder are followed. Its own name stays: it is
/// the one that programs ask for.
pub(crate) fn location(library: &Path) -> Result<String> {
    let (folder, name) = library
        .parent()
        .zip(library.file_name())
        .with_context(|| format!("{} is no file", library.display()))?;
    let folder = fs::canonicalize(folder)
        .with_context(|| format!("cannot find the folder {}", folder.display()))?;
    Ok(folder.join(name).display().to_string())
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
            named(ldd).unwrap(),
            [
                "/lib/x86_64-linux-gnu/libc.so.6",
                "/lib/x86_64-linux-gnu/libnftnl.so.11",
                "/lib64/ld-linux-x86-64.so.2"
            ]
        );
        assert!(named("\tstatically linked\n").unwrap().is_empty());
        let missing = named("\tlibmnl.so.0 => not found\n").unwrap_err();
        assert!(missing.to_string().contains("libmnl.so.0"), "{missing}");
    }
}
