//! What a released image and a tarball have in them.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};

use super::architecture::Architecture;
use super::crates::Crate;
use super::source::{Source, VERSION};
use super::sysroot::{RELEASE, Sysroot};
use crate::command::repository_file;
use crate::image::{contents, licences};
use crate::man;
use crate::tree::{Item, Tree};

/// Where scanners look for the bill of materials.
const SBOM: &str = "usr/share/doc/shunt/shunt.spdx.json";

/// The agent with its licences, man pages, completions and bill of materials, as in `/usr`.
pub(super) fn agent(
    architecture: Architecture,
    agent: &Path,
    source: &Source,
    crates: &[Crate],
    sysroot: &Sysroot,
    sbom: &str,
) -> Result<Tree> {
    let mut tree = Tree::default();
    let binary = fs::read(agent).with_context(|| format!("cannot read {}", agent.display()))?;
    tree.program("usr/bin/shunt", binary)?;
    man::install(&|| architecture.run(agent), &mut tree)?;
    licences::of_agent(source.commit(), crates, &mut tree)?;
    licences::of_linked(sysroot, &mut tree)?;
    tree.file(SBOM, sbom)?;
    Ok(tree)
}

/// The files of an image.
pub(super) fn image(agent: &Tree, sysroot: &Sysroot) -> Result<Tree> {
    let mut tree = copy(agent, str::to_owned)?;
    contents::folders(&mut tree)?;
    // By these, scanners find what is known of the C libraries in the binary.
    for package in sysroot.linked() {
        tree.file(&format!("var/lib/dpkg/status.d/{}", package.name), status(&package.control))?;
    }
    let (codename, number) = RELEASE;
    let system = format!(
        "PRETTY_NAME=\"shunt {VERSION}\"\nNAME=\"Debian GNU/Linux\"\nID=debian\n\
         VERSION_ID=\"{number}\"\nVERSION_CODENAME={codename}\n"
    );
    tree.file("etc/os-release", system)?;
    Ok(tree)
}

/// The fields of a package, as those of one that is installed.
fn status(control: &str) -> String {
    let mut text = String::new();
    for line in control.lines() {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{line}");
        if line.starts_with("Package: ") {
            text += "Status: install ok installed\n";
        }
    }
    text
}

/// The files of a tarball: below one folder, and ready for /usr/local.
pub(super) fn tarball(agent: &Tree, architecture: Architecture) -> Result<Tree> {
    let folder = name(architecture);
    let mut tree = copy(agent, |path| format!("{folder}/{}", path.trim_start_matches("usr/")))?;
    for name in ["CHANGELOG.md", "LICENSE-APACHE", "LICENSE-GPL"] {
        tree.file(&format!("{folder}/{name}"), repository_file(name)?)?;
    }
    for name in ["README.md", "config.yaml", "shunt.service"] {
        let content = repository_file(&format!("deploy/systemd/{name}"))?;
        tree.file(&format!("{folder}/systemd/{name}"), content)?;
    }
    tree.file(&format!("{folder}/README"), README.replace("VERSION", VERSION))?;
    Ok(tree)
}

/// The name of the folder in a tarball, and of the tarball.
pub(super) fn name(architecture: Architecture) -> String {
    format!("shunt-{VERSION}-linux-{}", architecture.name())
}

const README: &str = "\
shunt VERSION

bin/shunt is one statically linked program. It needs Linux 5.10 or later, and no other file.

Install the program, its man pages and its completions, as root:

    cp -r bin share /usr/local/

systemd/ has a unit and a configuration for a node without Kubernetes; systemd/README.md says how to
use them. `shunt check` says whether this machine suits shunt. `shunt --help` and `man shunt` have more.

share/doc/shunt has the licences, the list of crates, and the bill of materials (SPDX).
";

/// A copy of the files under other paths.
pub(super) fn copy(tree: &Tree, path_of: impl Fn(&str) -> String) -> Result<Tree> {
    let mut copy = Tree::default();
    for (path, item) in tree.items() {
        if let Item::File { content, mode } = item {
            let path = path_of(path);
            match mode & 0o100 {
                0 => copy.file(&path, content.clone())?,
                _ => copy.program(&path, content.clone())?,
            }
        }
    }
    Ok(copy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tarball_is_ready_for_usr_local() {
        let mut agent = Tree::default();
        agent.program("usr/bin/shunt", vec![1]).unwrap();
        agent.file("usr/share/man/man1/shunt.1.gz", "page").unwrap();
        let tree = tarball(&agent, Architecture::Arm64).unwrap();
        let folder = name(Architecture::Arm64);
        let find = |path: &str| {
            let path = format!("{folder}/{path}");
            tree.items().find(|(it, _)| *it == path).map(|(_, item)| item)
        };
        assert!(matches!(find("bin/shunt"), Some(Item::File { mode: 0o755, .. })));
        for path in ["share/man/man1/shunt.1.gz", "systemd/shunt.service", "README", "LICENSE-GPL"]
        {
            assert!(matches!(find(path), Some(Item::File { mode: 0o644, .. })), "{path}");
        }
        assert!(tree.items().all(|(path, _)| path.starts_with(&folder)));
    }

    #[test]
    fn a_linked_package_counts_as_installed() {
        assert_eq!(
            status("Package: libmnl-dev\nVersion: 1.0.5-3\n"),
            "Package: libmnl-dev\nStatus: install ok installed\nVersion: 1.0.5-3\n"
        );
    }
}
