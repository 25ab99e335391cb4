//! Rules about Rust source: the agent starts no program, and a few words that must not occur.
//!
//! The source is read as tokens, so comments and strings do not count, and `use` trees are spread
//! out into the paths they stand for.

mod paths;

use proc_macro2::TokenStream;

use self::paths::{Path, Word};
use super::Violation;

/// What the agent is made of.
const AGENT: [&str; 2] = ["src/", "crates/"];

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

/// What is wrong with this Rust file.
pub(super) fn check(file: &str, source: &str) -> Vec<Violation> {
    let tokens: TokenStream = match source.parse() {
        Ok(tokens) => tokens,
        Err(error) => return vec![Violation::of(file, format!("is not Rust: {error}"))],
    };
    let words = paths::words(tokens.clone());
    let paths = paths::paths(tokens);
    let mut violations = Vec::new();

    forgotten(file, &words, &mut violations);
    if AGENT.iter().any(|folder| file.starts_with(folder)) {
        spawning(file, &paths, &mut violations);
    }
    violations.sort_by_key(|violation| violation.line);
    violations
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

    /// The rule objects to `source` in `file`, once.
    #[track_caller]
    fn refused(file: &str, source: &str) {
        let found = check(file, source);
        assert_eq!(found.len(), 1, "{source}: {found:?}");
    }

    #[track_caller]
    fn accepted(file: &str, source: &str) {
        assert_eq!(check(file, source), [], "{source}");
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
            assert!(!check("src/cli.rs", source).is_empty(), "{source}");
        }
        accepted("src/cli.rs", "use std::process::ExitCode; use clap::Command;");
        refused("crates/nfnetlink/src/lib.rs", "use std::process::Command;");
        accepted("xtask/src/command.rs", "use std::process::Command;");
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
        let found = check("src/cli/mod.rs", "//! Docs.\n\nuse tokio::process;\n");
        assert_eq!(found[0].line, Some(3));
    }

    #[test]
    fn what_is_not_rust_is_refused() {
        refused("src/lib.rs", "fn f( {");
    }
}
