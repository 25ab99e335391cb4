//! The licences of what is in an image. Who passes binaries on has to pass these on, too.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, bail};

use crate::command::{command, find, output, repository_file, stdout};
use crate::release::crates::{Crate, Kind};
use crate::release::sysroot::Sysroot;
use crate::tree::Tree;

/// Where Debian keeps the licences of packages, and the texts that these refer to.
const DOCUMENTS: &str = "/usr/share/doc";
const COMMON: &str = "/usr/share/common-licenses";

/// Beginnings of the names of files with licences.
const LICENCE_FILES: [&str; 5] = ["copying", "copyright", "licence", "license", "notice"];

/// The licences of shared libraries, from the Debian packages that they come from.
pub(crate) fn of_libraries(libraries: &[String], tree: &mut Tree) -> Result<()> {
    if find("dpkg-query").is_none() {
        bail!(
            "there is no dpkg-query here, so the licences of the libraries cannot be found; make the \
             image on Debian or Ubuntu, or with the Dockerfile"
        );
    }
    let packages: BTreeSet<String> =
        libraries.iter().map(|library| package(library)).collect::<Result<_>>()?;
    let mut sources = String::new();
    let mut common = BTreeSet::from(["GPL-3".to_owned()]);
    for package in &packages {
        let short = package.split(':').next().unwrap_or(package);
        let path = format!("{DOCUMENTS}/{short}/copyright");
        let text = fs::read_to_string(&path).with_context(|| {
            format!("cannot read {path}; was the machine told to leave out documents?")
        })?;
        common.extend(referred(&text));
        tree.file(&path, text)?;
        let format = "--showformat=${source:Package} ${source:Version}\n";
        sources += &stdout(command("dpkg-query").args(["--show", format, package]))?;
    }
    for name in common {
        let path = format!("{COMMON}/{name}");
        let text = fs::read(&path).with_context(|| format!("cannot read {path}"))?;
        tree.file(&path, text)?;
    }
    let text = format!(
        "The shared libraries in this image come from these source packages of Debian or Ubuntu, in\n\
         these versions:\n\n{sources}\n\
         Their licences are in {DOCUMENTS} and {COMMON}. Their sources are where the distribution\n\
         keeps those of its packages: `apt-get source NAME=VERSION`.\n"
    );
    tree.file(&format!("{DOCUMENTS}/shunt/libraries"), text)
}

/// The package that a file belongs to. Packages name their files with and without the /usr that both
/// are in now.
fn package(library: &str) -> Result<String> {
    let other = match library.strip_prefix("/usr") {
        Some(without) => without.to_owned(),
        None => format!("/usr{library}"),
    };
    for path in [library, &other] {
        let answer = output(command("dpkg-query").args(["--search", path]))?;
        let text = String::from_utf8_lossy(&answer.stdout);
        let owner = text.lines().find_map(|line| line.strip_suffix(path)?.strip_suffix(": "));
        if let Some(package) = owner {
            return Ok(package.to_owned());
        }
    }
    bail!("{library} belongs to no Debian package, so its licence is not known");
}

/// The common licences that a copyright file refers to.
fn referred(text: &str) -> BTreeSet<String> {
    let names = text.split(COMMON).skip(1).filter_map(|rest| rest.strip_prefix('/'));
    let names = names.map(|rest| {
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && !"-.".contains(c));
        rest[..end.unwrap_or(rest.len())].trim_end_matches('.').to_owned()
    });
    names.filter(|name| !name.is_empty() && Path::new(COMMON).join(name).is_file()).collect()
}

/// The licences of Debian's packages that were linked into the agent, from where they are unpacked.
pub(crate) fn of_linked(sysroot: &Sysroot, tree: &mut Tree) -> Result<()> {
    let mut sources = String::new();
    let mut common = BTreeSet::from(["GPL-3".to_owned()]);
    for package in sysroot.linked() {
        let path = format!("{DOCUMENTS}/{}/copyright", package.name);
        let text = fs::read_to_string(sysroot.folder.join(path.trim_start_matches('/')))
            .with_context(|| format!("the package {} has no {path}", package.name))?;
        common.extend(referred(&text));
        tree.file(&path, text)?;
        let (name, version) = &package.source;
        sources += &format!("{name} {version}\n");
    }
    for name in common {
        let path = format!("{COMMON}/{name}");
        let text = fs::read(sysroot.folder.join(path.trim_start_matches('/')))
            .with_context(|| format!("the sysroot has no {path}"))?;
        tree.file(&path, text)?;
    }
    let text = format!(
        "The C libraries that are linked into shunt come from these source packages of Debian, in\n\
         these versions:\n\n{sources}\n\
         Their licences are in {DOCUMENTS} and {COMMON}. Their sources are where Debian keeps those\n\
         of its packages: `apt-get source NAME=VERSION`, or snapshot.debian.org.\n"
    );
    tree.file(&format!("{DOCUMENTS}/shunt/libraries"), text)
}

/// Our own licences, and those of the crates that are linked into the agent.
pub(crate) fn of_agent(revision: &str, crates: &[Crate], tree: &mut Tree) -> Result<()> {
    let folder = format!("{DOCUMENTS}/shunt");
    for name in ["LICENSE-APACHE", "LICENSE-GPL"] {
        tree.file(&format!("{folder}/{name}"), repository_file(name)?)?;
    }
    let text = format!(
        "shunt, commit {revision}.\n\n\
         Its source may be used under the Apache License 2.0 or the GNU General Public License,\n\
         version 2 or any later. This program is linked with libnftnl, which is under the GPL, version\n\
         2 or later, and with crates under the Apache License 2.0: it may be passed on under the GPL,\n\
         version 3 or later ({COMMON}/GPL-3).\n\n\
         The crates that are linked into it are listed, with their licences, in {folder}/crates;\n\
         Cargo.lock of that commit has their versions.\n"
    );
    tree.file(&format!("{folder}/copyright"), text)?;
    tree.file(&format!("{folder}/crates"), texts(crates)?)
}

/// A list of the crates, and each text of a licence with the crates that it belongs to.
fn texts(crates: &[Crate]) -> Result<String> {
    let mut list = String::new();
    let mut texts: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for it in crates.iter().filter(|it| it.kind == Kind::Linked && it.name != "shunt") {
        let Crate { name, version, .. } = it;
        let licence = it.licence.as_deref().unwrap_or("see its text");
        // Writing to a String cannot fail.
        let _ = writeln!(list, "{name} {version}: {licence}");
        for text in licence_texts(&it.folder)? {
            texts.entry(text).or_default().push(format!("{name} {version}"));
        }
    }
    let mut text = list;
    for (licence, crates) in texts {
        let _ = write!(text, "\n{}\n{}\n\n{}\n", "=".repeat(78), crates.join(", "), licence.trim());
    }
    Ok(text)
}

/// The texts of the files with licences in the folder of a crate.
fn licence_texts(folder: &Path) -> Result<BTreeSet<String>> {
    let mut texts = BTreeSet::new();
    let unreadable = || format!("cannot list {}", folder.display());
    for entry in fs::read_dir(folder).with_context(unreadable)? {
        let entry = entry.with_context(unreadable)?;
        let name = entry.file_name().to_string_lossy().to_lowercase();
        if LICENCE_FILES.iter().any(|start| name.starts_with(start)) && entry.path().is_file() {
            let bytes = fs::read(entry.path())
                .with_context(|| format!("cannot read {}", entry.path().display()))?;
            texts.insert(String::from_utf8_lossy(&bytes).into_owned());
        }
    }
    Ok(texts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::release::architecture::Architecture;
    use crate::release::crates;

    #[test]
    fn common_licences_are_found_in_a_text() {
        let text = "see `/usr/share/common-licenses/GPL-3'.\n/usr/share/common-licenses/GPL-2.\n\
                    /usr/share/common-licenses/No-Such-Licence";
        let names: Vec<String> = referred(text).into_iter().collect();
        assert_eq!(names, ["GPL-2", "GPL-3"]);
    }

    #[test]
    fn every_crate_is_listed_and_many_texts_are_shared() {
        let crates = crates::of(Architecture::Amd64.target()).unwrap();
        let text = texts(&crates).unwrap();
        let (list, texts) = text.split_once("\n===").unwrap();
        assert!(list.lines().any(|line| line.starts_with("nftnl 0.")), "{list}");
        assert!(!list.lines().any(|line| line.starts_with("shunt ")), "{list}");
        assert!(texts.contains("Permission is hereby granted, free of charge"));
    }
}
