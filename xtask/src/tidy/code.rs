//! Rules about Rust source: who may import what, and a few words that must not occur.
//!
//! The source is read as tokens, so comments and strings do not count, and `use` trees are spread
//! out into the paths they stand for.

mod paths;

use anyhow::{Context as _, Result};
use proc_macro2::TokenStream;

use self::paths::{Path, Word};
use super::Violation;

/// The modules that only compute: no I/O, no clock, no client types.
const PURE: [&str; 2] = ["model", "plan"];

/// The dependencies that only compute too. Any other that `Cargo.toml` names is out of bounds for
/// pure modules, so a new one is decided about here.
const PURE_DEPENDENCIES: [&str; 4] = ["foldhash", "indexmap", "ipnet", "thiserror"];

/// What the standard library has that does more than compute.
const IMPURE_STD: [&str; 12] = [
    "std::env",
    "std::fs",
    "std::io",
    "std::net::TcpListener",
    "std::net::TcpStream",
    "std::net::ToSocketAddrs",
    "std::net::UdpSocket",
    "std::os",
    "std::process",
    "std::thread",
    "std::time::Instant",
    "std::time::SystemTime",
];

/// The modules of our own that talk to the outside.
const OUTER: [&str; 8] =
    ["cli", "conntrack", "dataplane", "files", "metrics", "nft", "serve", "source"];

/// The modules that may hold `unsafe` code: those that speak to C and to the kernel.
const UNSAFE: [&str; 2] = ["conntrack", "nft"];

/// Functions that start a program, with the crates that have them.
const SPAWNERS: [&str; 13] = [
    "execl",
    "execlp",
    "execle",
    "execv",
    "execvp",
    "execve",
    "execvpe",
    "fexecve",
    "fork",
    "posix_spawn",
    "posix_spawnp",
    "system",
    "vfork",
];

/// What the rules need to know about the workspace.
pub(super) struct Borders {
    /// The dependencies that pure modules may not import, as Rust spells them.
    impure_dependencies: Vec<String>,
}

impl Borders {
    /// Read the dependencies from the agent's `Cargo.toml`.
    pub(super) fn from_manifest(manifest: &str) -> Result<Self> {
        let manifest: toml::Table = toml::from_str(manifest).context("cannot read Cargo.toml")?;
        let dependencies = manifest
            .get("dependencies")
            .and_then(toml::Value::as_table)
            .context("Cargo.toml has no [dependencies]")?;
        Ok(Self {
            impure_dependencies: dependencies
                .keys()
                .map(|name| name.replace('-', "_"))
                .filter(|name| !PURE_DEPENDENCIES.contains(&name.as_str()))
                .collect(),
        })
    }
}

/// What is wrong with this Rust file.
pub(super) fn check(file: &str, source: &str, borders: &Borders) -> Vec<Violation> {
    let tokens: TokenStream = match source.parse() {
        Ok(tokens) => tokens,
        Err(error) => return vec![Violation::of(file, format!("is not Rust: {error}"))],
    };
    let words = paths::words(tokens.clone());
    let paths = paths::paths(tokens);
    let mut violations = Vec::new();

    forgotten(file, &words, &mut violations);
    if let Some(module) = agent_module(file) {
        spawning(file, &paths, &mut violations);
        if !UNSAFE.contains(&module) {
            unsafety(file, &words, &mut violations);
        }
        if PURE.contains(&module) {
            purity(file, module, &paths, borders, &mut violations);
        }
    }
    violations.sort_by_key(|violation| violation.line);
    violations
}

/// The top-level module of the agent that `file` belongs to: `plan` for `src/plan/mod.rs` and
/// `src/plan.rs`. None outside the agent.
fn agent_module(file: &str) -> Option<&str> {
    let inside = file.strip_prefix("src/")?;
    let first = inside.split('/').next()?;
    Some(first.strip_suffix(".rs").unwrap_or(first))
}

fn purity(
    file: &str,
    module: &str,
    paths: &[Path],
    borders: &Borders,
    violations: &mut Vec<Violation>,
) {
    // Data flows from the model to the plan, never back.
    let later: &[&str] = if module == "model" { &["plan"] } else { &[] };
    let outer: Vec<String> =
        OUTER.iter().chain(later).map(|module| format!("crate::{module}")).collect();
    let forbidden = IMPURE_STD
        .into_iter()
        .chain(borders.impure_dependencies.iter().map(String::as_str))
        .chain(outer.iter().map(String::as_str));
    for item in forbidden {
        for path in paths.iter().filter(|path| path.reaches(item)) {
            violations.push(Violation::at(
                file,
                path.line,
                format!("`{path}`: `{module}` only computes, and may not reach `{item}`"),
            ));
        }
    }
}

fn spawning(file: &str, paths: &[Path], violations: &mut Vec<Violation>) {
    let spawns = |path: &Path| {
        path.reaches("std::process::Command")
            || path.reaches("tokio::process")
            || path.ends_with(&["process", "Command"])
            || ["libc", "nix"]
                .iter()
                .any(|root| path.root() == *root && SPAWNERS.contains(&path.last()))
            || path.ends_with_any("unistd", &SPAWNERS)
    };
    for path in paths.iter().filter(|path| spawns(path)) {
        violations.push(Violation::at(
            file,
            path.line,
            format!("`{path}`: the agent starts no program; ask the kernel by netlink"),
        ));
    }
}

fn unsafety(file: &str, words: &[Word], violations: &mut Vec<Violation>) {
    for word in words.iter().filter(|word| word.text == "unsafe") {
        violations.push(Violation::at(
            file,
            word.line,
            format!("`unsafe` is for src/{} only", UNSAFE.join(" and src/")),
        ));
    }
}

/// What was left for later: tests that do not run, code that is not there.
fn forgotten(file: &str, words: &[Word], violations: &mut Vec<Violation>) {
    for word in words {
        let message = if word.in_attribute && word.text == "ignore" {
            "an ignored test proves nothing; make it run or remove it"
        } else if word.is_macro && word.text == "todo" {
            "`todo!` is not code; write it or leave it out"
        } else {
            continue;
        };
        violations.push(Violation::at(file, word.line, message));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANIFEST: &str = "[dependencies]\n\
        ipnet = \"2\"\nthiserror = \"2\"\nnftnl = \"0.9\"\nk8s-openapi = \"0.29\"\ntokio = \"1\"\n";

    fn violations(file: &str, source: &str) -> Vec<Violation> {
        check(file, source, &Borders::from_manifest(MANIFEST).unwrap())
    }

    /// The rule objects to `source` in `file`, once.
    #[track_caller]
    fn refused(file: &str, source: &str) {
        let found = violations(file, source);
        assert_eq!(found.len(), 1, "{source}: {found:?}");
    }

    #[track_caller]
    fn accepted(file: &str, source: &str) {
        assert_eq!(violations(file, source), [], "{source}");
    }

    #[test]
    fn pure_modules_import_no_client_crate() {
        for module in ["src/model/store.rs", "src/plan/mod.rs", "src/plan.rs"] {
            refused(module, "use nftnl::Batch;");
            refused(module, "use k8s_openapi::api::core::v1::Service;");
            refused(module, "fn f() { let x = tokio::spawn(async {}); }");
        }
        accepted("src/plan/mod.rs", "use {ipnet::Ipv4Net, thiserror::Error};");
        accepted("src/nft/batch.rs", "use nftnl::Batch;");
    }

    #[test]
    fn pure_modules_have_no_input_output_or_clock() {
        for source in [
            "use std::fs;",
            "use std::{collections::BTreeMap, fs::File};",
            "use std::net::{IpAddr, UdpSocket};",
            "use std::time::{Duration, Instant as Now};",
            "fn f() { std::thread::sleep(d); }",
            "use std::process::{self, ExitCode as E};",
        ] {
            assert!(!violations("src/plan/pool.rs", source).is_empty(), "{source}");
        }
        accepted("src/plan/pool.rs", "use std::net::{IpAddr, Ipv4Addr}; use std::time::Duration;");
    }

    #[test]
    fn a_pure_module_cannot_hide_an_import() {
        for source in [
            "use std::time; fn f() { time::Instant::now(); }",
            "use std::net::*;",
            "use std::*;",
            "use std::net::{self};",
            "macro_rules! m { () => { ::std::fs::read(p) } }",
        ] {
            assert!(!violations("src/model/mod.rs", source).is_empty(), "{source}");
        }
    }

    #[test]
    fn pure_modules_do_not_know_the_outer_ones() {
        refused("src/plan/mod.rs", "use crate::nft::Set;");
        refused("src/plan/mod.rs", "use crate::{model::Store, dataplane::Committed};");
        refused("src/model/mod.rs", "use super::source::Change;");
        refused("src/model/select.rs", "use super::super::cli::Args;");
        accepted("src/plan/mod.rs", "use crate::model::Store; pub(crate) use self::pool::Pool;");
    }

    #[test]
    fn data_flows_from_model_to_plan() {
        refused("src/model/mod.rs", "use crate::plan::Plan;");
        accepted("src/plan/mod.rs", "use crate::model::Store;");
    }

    #[test]
    fn the_agent_starts_no_program() {
        for source in [
            "use std::process::Command;",
            "use std::process; fn f() { process::Command::new(x); }",
            "use tokio::process::Command;",
            "use nix::unistd::{close, fork};",
            "use nix::unistd; fn f() { unistd::execvp(a, b); }",
            "fn f() { libc::posix_spawn(a); }",
        ] {
            assert!(!violations("src/cli.rs", source).is_empty(), "{source}");
        }
        accepted("src/cli.rs", "use std::process::ExitCode; use clap::Command;");
        accepted("xtask/src/command.rs", "use std::process::Command;");
    }

    #[test]
    fn unsafe_stays_where_c_is_called() {
        refused("src/plan/mod.rs", "fn f() { unsafe { g() } }");
        refused("src/main.rs", "unsafe fn f() {}");
        accepted("src/nft/raw.rs", "fn f() { unsafe { g() } }");
        accepted("src/conntrack.rs", "unsafe fn f() {}");
        accepted("src/plan/mod.rs", "// unsafe\nconst S: &str = \"unsafe\";");
    }

    #[test]
    fn nothing_is_left_for_later() {
        refused("tests/packets.rs", "#[test]\n#[ignore]\nfn f() {}");
        refused("tests/packets.rs", "#[test]\n#[ignore = \"slow\"]\nfn f() {}");
        refused("src/lib.rs", "#[cfg_attr(not(linux), ignore)]\nfn f() {}");
        refused("src/lib.rs", "fn f() { todo!() }");
        accepted("src/lib.rs", "fn f() { ignore(todo) }");
    }

    #[test]
    fn a_violation_names_its_line() {
        let found = violations("src/plan/mod.rs", "//! Docs.\n\nuse std::fs;\n");
        assert_eq!(found[0].line, Some(3));
    }

    #[test]
    fn what_is_not_rust_is_refused() {
        refused("src/lib.rs", "fn f( {");
    }
}
