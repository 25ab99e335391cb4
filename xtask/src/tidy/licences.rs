//! Rules about dependencies: every licence is one that `deny.toml` allows, and every crate comes
//! from the registry or from this workspace.
//!
//! `cargo deny` checks the same and more, from the same file. It takes minutes to build, so CI
//! does not ask for it; these two rules need only cargo.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, bail};
use spdx::{Expression, LicenseReq, ParseMode};

use super::Violation;
use crate::command::{cargo, repository, stdout};

/// A crate that the workspace is built, tested or benchmarked with.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Dependency {
    name: String,
    /// Where it comes from, when that is not the registry: a path or a git address.
    origin: Option<String>,
    /// SPDX expression; empty when the crate names none.
    licence: String,
}

/// Every crate of the workspace's tree, and with that the proof that Cargo.lock is current.
pub(super) fn dependencies() -> Result<BTreeSet<Dependency>> {
    let tree = stdout(cargo().args([
        "tree",
        "--locked",
        "--workspace",
        "--edges=normal,build,dev",
        "--prefix=none",
        "--format={l}|{p}",
    ]))?;
    let dependencies: BTreeSet<_> = tree.lines().filter_map(parse_line).collect();
    if dependencies.is_empty() {
        bail!("`cargo tree` printed nothing that looks like a dependency");
    }
    Ok(dependencies)
}

/// Read `licence|name vX.Y.Z (origin) (*)`.
fn parse_line(line: &str) -> Option<Dependency> {
    let (licence, package) = line.split_once('|')?;
    let (name, rest) = package.split_once(' ')?;
    let origin = rest
        .split_once('(')
        .into_iter()
        .flat_map(|(_, notes)| notes.split('('))
        .map(|note| note.trim().trim_end_matches(')'))
        .find(|note| note.contains('/'));
    Some(Dependency {
        name: name.to_owned(),
        origin: origin.map(str::to_owned),
        licence: licence.to_owned(),
    })
}

/// Check `dependencies` against the `[licenses] allow` list of deny.toml.
pub(super) fn check(dependencies: &BTreeSet<Dependency>, deny: &str) -> Result<Vec<Violation>> {
    let workspace = repository().display().to_string();
    let allowed = allowed(deny)?;
    let mut violations = Vec::new();
    for Dependency { name, origin, licence } in dependencies {
        if !permits(licence, &allowed) {
            violations.push(Violation::of(
                "Cargo.lock",
                format!("{name} is under `{licence}`, which `allow` in deny.toml does not permit"),
            ));
        }
        if let Some(origin) = origin
            && !origin.starts_with(&workspace)
        {
            violations.push(Violation::of(
                "Cargo.lock",
                format!("{name} comes from {origin}; take it from the registry"),
            ));
        }
    }
    Ok(violations)
}

fn allowed(deny: &str) -> Result<BTreeSet<String>> {
    let deny: toml::Table = toml::from_str(deny).context("cannot read deny.toml")?;
    let list = deny
        .get("licenses")
        .and_then(|licenses| licenses.get("allow"))
        .and_then(toml::Value::as_array)
        .context("deny.toml has no list `allow` under [licenses]")?;
    Ok(list.iter().filter_map(toml::Value::as_str).map(str::to_owned).collect())
}

/// Whether the SPDX expression can be satisfied with allowed licences alone. An expression that
/// does not parse cannot.
fn permits(expression: &str, allowed: &BTreeSet<String>) -> bool {
    // As in `cargo deny`, `A WITH B` is not A.
    let is_allowed = |term: &LicenseReq| allowed.contains(&term.to_string());
    // Old crates write `MIT/Apache-2.0`.
    Expression::parse_mode(expression, ParseMode::LAX)
        .is_ok_and(|expression| expression.evaluate(is_allowed))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DENY: &str = r#"[licenses]
        allow = ["MIT", "Apache-2.0", "Apache-2.0 WITH LLVM-exception", "ISC"]"#;

    fn permitted(expression: &str) -> bool {
        permits(expression, &allowed(DENY).unwrap())
    }

    #[test]
    fn expressions_are_read_as_spdx_means_them() {
        assert!(permitted("MIT"));
        assert!(permitted("MIT/Apache-2.0"));
        assert!(permitted("GPL-3.0-only OR MIT"));
        assert!(permitted("(MIT OR GPL-3.0-only) AND ISC"));
        assert!(permitted("Apache-2.0 WITH LLVM-exception OR GPL-3.0-only"));
        assert!(!permitted("MIT WITH LLVM-exception"));
        assert!(!permitted("GPL-3.0-only"));
        assert!(!permitted("MIT AND GPL-3.0-only"));
        assert!(!permitted("GPL-3.0-only OR MIT AND MPL-2.0"));
    }

    #[test]
    fn what_does_not_parse_is_not_permitted() {
        for broken in ["", "MIT OR", "MIT ISC", "(MIT", "MIT)", "OR MIT"] {
            assert!(!permitted(broken), "{broken:?}");
        }
    }

    #[test]
    fn a_forbidden_licence_and_a_foreign_origin_are_refused() {
        let tree = "MIT|good v1.0.0\n\
                    GPL-3.0-only|viral v1.0.0 (proc-macro) (*)\n\
                    |nameless v0.1.0\n\
                    MIT|forked v2.0.0 (https://example.org/forked.git#0a1b2c3d)";
        let dependencies = tree.lines().filter_map(parse_line).collect();
        let messages: Vec<String> =
            check(&dependencies, DENY).unwrap().into_iter().map(|v| v.message).collect();
        assert_eq!(messages.len(), 3, "{messages:?}");
        for name in ["viral", "nameless", "forked"] {
            assert!(messages.iter().any(|message| message.starts_with(name)), "{name}");
        }
    }

    #[test]
    fn the_workspaces_own_crates_are_no_foreign_origin() {
        let line = format!("MIT|shunt v0.1.0 ({})", repository().display());
        let dependencies = parse_line(&line).into_iter().collect();
        assert_eq!(check(&dependencies, DENY).unwrap(), []);
    }
}
