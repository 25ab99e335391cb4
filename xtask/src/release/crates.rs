//! The crates that become part of the agent, from Cargo.lock.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde_json::Value;
use spdx::{Expression, ParseMode};

use crate::command::{cargo, repository_file, stdout};

/// What a crate contributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Code in the binary.
    Linked,
    /// A build script, a macro, or something that these use.
    Build,
}

/// A crate that is used to build the agent.
#[derive(Clone, Debug)]
pub(crate) struct Crate {
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) kind: Kind,
    /// An SPDX expression.
    pub(crate) licence: Option<String>,
    /// The digest of its archive, for a crate of the registry.
    pub(crate) sha256: Option<String>,
    /// The folder of its source.
    pub(crate) folder: PathBuf,
}

type Name = (String, String);

/// Returns the crates for this target of rustc, sorted; the agent's own ones are among them.
pub(crate) fn of(target: &str) -> Result<Vec<Crate>> {
    let linked = tree(target, "--edges=normal,no-proc-macro")?;
    let all = tree(target, "--edges=normal,build")?;
    let filter = format!("--filter-platform={target}");
    let metadata = stdout(cargo().args(["metadata", "--locked", "--format-version=1", &filter]))?;
    let metadata: Value = serde_json::from_str(&metadata).context("cargo metadata is no JSON")?;
    let packages = metadata["packages"].as_array().context("cargo metadata has no packages")?;
    let digests = digests(&String::from_utf8_lossy(&repository_file("Cargo.lock")?))?;
    let mut crates = Vec::new();
    for key in all.union(&linked) {
        let (name, version) = key;
        let package = packages
            .iter()
            .find(|package| package["name"] == **name && package["version"] == **version)
            .with_context(|| format!("cargo metadata does not know {name} {version}"))?;
        let manifest = package["manifest_path"].as_str().context("a crate without a manifest")?;
        let folder = Path::new(manifest).parent().context("a manifest without a folder")?;
        crates.push(Crate {
            name: name.clone(),
            version: version.clone(),
            kind: if linked.contains(key) { Kind::Linked } else { Kind::Build },
            licence: package["license"].as_str().map(expression),
            sha256: digests.get(key).cloned(),
            folder: folder.to_owned(),
        });
    }
    Ok(crates)
}

fn tree(target: &str, edges: &str) -> Result<BTreeSet<Name>> {
    let target = format!("--target={target}");
    let words = ["tree", "--locked", "--package=shunt", edges, "--prefix=none", "--format={p}"];
    let tree = stdout(cargo().args(words).arg(target))?;
    // `name vX.Y.Z`, and `(*)` where it was listed before.
    let names = tree.lines().filter_map(|line| {
        let mut words = line.split(' ');
        Some((words.next()?.to_owned(), words.next()?.strip_prefix('v')?.to_owned()))
    });
    Ok(names.collect())
}

/// Digests by name and version, from the text of Cargo.lock.
fn digests(lock: &str) -> Result<BTreeMap<Name, String>> {
    let lock: toml::Table = toml::from_str(lock).context("cannot read Cargo.lock")?;
    let packages = lock.get("package").and_then(toml::Value::as_array);
    let packages = packages.context("Cargo.lock has no packages")?;
    Ok(packages
        .iter()
        .filter_map(|package| {
            let field = |name| Some(package.get(name)?.as_str()?.to_owned());
            Some(((field("name")?, field("version")?), field("checksum")?))
        })
        .collect())
}

/// A licence as SPDX writes it now: `MIT OR Apache-2.0` where old crates have `MIT/Apache-2.0`.
fn expression(licence: &str) -> String {
    let known = Expression::canonicalize(licence).ok().flatten();
    let text = known.unwrap_or_else(|| licence.to_owned());
    match Expression::parse_mode(&text, ParseMode::STRICT) {
        Ok(expression) => expression.to_string(),
        Err(_) => "NOASSERTION".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::release::architecture::Architecture;

    #[test]
    fn every_crate_has_a_digest_or_is_ours() {
        for architecture in Architecture::ALL {
            let crates = of(architecture.target()).unwrap();
            for it in &crates {
                let ours = ["nfnetlink", "shunt", "shunt-core"].contains(&it.name.as_str());
                assert_eq!(it.sha256.is_none(), ours, "{}", it.name);
                assert!(it.licence.as_ref().is_some_and(|it| it != "NOASSERTION"), "{}", it.name);
            }
            let kind = |name: &str| crates.iter().find(|it| it.name == name).map(|it| it.kind);
            assert_eq!(kind("nftnl-sys"), Some(Kind::Linked));
            assert_eq!(kind("serde_derive"), Some(Kind::Build));
            assert_eq!(kind("windows-sys"), None);
        }
    }

    #[test]
    fn old_expressions_are_written_anew() {
        assert_eq!(expression("MIT/Apache-2.0"), "MIT OR Apache-2.0");
        assert_eq!(expression("Apache-2.0 WITH LLVM-exception"), "Apache-2.0 WITH LLVM-exception");
        assert_eq!(expression("my own"), "NOASSERTION");
    }
}
