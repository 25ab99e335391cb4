//! Every licence is one that `deny.toml` allows.
//!
//! `cargo deny` checks the same and more, from the same file. It takes minutes to build, so CI
//! does not ask for it; this rule needs only cargo.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, ensure};
use spdx::{Expression, LicenseReq, ParseMode};

use crate::command::{cargo, stdout};

/// Every crate of the workspace's tree with its licence, and with that the proof that Cargo.lock is
/// current.
pub(super) fn dependencies() -> Result<BTreeSet<String>> {
    let mut tree = cargo();
    tree.args(["tree", "--locked", "--edges=normal,build,dev", "--prefix=none"]);
    let tree = stdout(tree.arg("--format={l}|{p}"))?;
    let lines = tree.lines().map(|line| line.trim_end_matches(" (*)").to_owned());
    let lines: BTreeSet<String> = lines.filter(|line| line.contains('|')).collect();
    ensure!(!lines.is_empty(), "`cargo tree` printed nothing that looks like a dependency");
    Ok(lines)
}

/// Checks crates, as `licence|crate`, against the `[licenses] allow` list of deny.toml.
pub(super) fn check(dependencies: &BTreeSet<String>, deny: &str) -> Result<Vec<String>> {
    let allowed = allowed(deny)?;
    let pairs = dependencies.iter().filter_map(|line| line.split_once('|'));
    let forbidden = pairs.filter(|(licence, _)| !permits(licence, &allowed));
    let violation = |(licence, name): (&str, &str)| {
        let message = "which `allow` in deny.toml does not permit";
        format!("Cargo.lock: {name} is under `{licence}`, {message}")
    };
    Ok(forbidden.map(violation).collect())
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
    fn a_forbidden_licence_is_refused() {
        let lines =
            ["MIT|good v1.0.0", "GPL-3.0-only|viral v1.0.0 (proc-macro)", "|nameless v0.1.0"];
        let violations = check(&lines.map(str::to_owned).into(), DENY).unwrap();
        assert_eq!(violations.len(), 2, "{violations:?}");
    }
}
