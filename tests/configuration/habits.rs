//! All pages: their commands of the agent can be run. The page for those who come from kube-proxy: fields,
//! flags and metrics that it names exist.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use clap::{CommandFactory as _, Parser as _};
use shunt::agent::args::normalized;
use shunt::commands::args::Arguments;
use shunt_testbed::{read, repository};

/// Returns the code of a page: lines of blocks, and spans.
fn code(page: &str) -> Vec<String> {
    let mut code = Vec::new();
    for line in page.lines() {
        match line.strip_prefix("    ") {
            Some(block) => code.push(block.trim().to_owned()),
            None => code.extend(line.split('`').skip(1).step_by(2).map(str::to_owned)),
        }
    }
    code
}

/// Words that stand for a value, and such a value.
const PLACEHOLDERS: [(&str, &str); 6] = [
    ("ADDR:PORT", "10.96.0.10:80"),
    ("ADDRESS:PORT", "10.96.0.10:80"),
    ("[NAMESPACE/NAME]", "shop/web"),
    ("[/PROTO]", ""),
    ("CLIENT", "10.244.3.12"),
    ("SHELL", "bash"),
];

/// Adds the pages of a folder. Decisions are about the past, and so is the changelog.
fn pages_below(folder: &str, pages: &mut Vec<String>) {
    for entry in fs::read_dir(repository(folder)).unwrap() {
        let entry = entry.unwrap();
        let path = format!("{folder}/{}", entry.file_name().to_string_lossy());
        if entry.file_type().unwrap().is_dir() {
            if !path.ends_with("/decisions") {
                pages_below(&path, pages);
            }
        } else if path.ends_with(".md") {
            pages.push(path);
        }
    }
}

/// Returns the command of the agent in a line of code, without a comment behind it.
fn command_of_agent(line: &str) -> Option<&str> {
    let line = line.strip_prefix("$ ").unwrap_or(line);
    let rest = match line.strip_prefix("shunt ") {
        Some(rest) => rest,
        None => line.starts_with("kubectl ").then(|| line.split_once(" -- shunt "))??.1,
    };
    rest.split(" #").next().map(str::trim_end)
}

#[test]
fn commands_and_their_flags_exist() {
    let mut pages = ["README.md", "CONTRIBUTING.md", "SECURITY.md"].map(str::to_owned).to_vec();
    for folder in ["docs", "deploy", "examples"] {
        pages_below(folder, &mut pages);
    }
    let (mut commands, mut faults) = (0, Vec::new());
    for page in &pages {
        for line in code(&read(page).unwrap()) {
            let Some(command) = command_of_agent(&line) else { continue };
            let command = PLACEHOLDERS
                .iter()
                .fold(command.to_owned(), |command, (word, value)| command.replace(word, value));
            let words = command.split_whitespace();
            // Some only name the command.
            let is_name = words.clone().count() == 1;
            let name = words.clone().next().unwrap_or_default();
            let is_known = Arguments::command().find_subcommand(name).is_some();
            let words = ["shunt"].into_iter().chain(words).map(Into::into);
            let parsed = Arguments::try_parse_from(normalized(words));
            if !is_known || !is_name && parsed.is_err() {
                faults.push(format!("{page}: `{line}`: {:?}", parsed.err().map(|it| it.kind())));
            }
            commands += 1;
        }
    }
    assert!(faults.is_empty(), "commands that cannot be run:\n{}", faults.join("\n"));
    assert!(pages.len() > 35, "{pages:?}");
    assert!(commands > 100, "{commands} commands");
}

#[test]
fn flags_fields_and_metrics_for_those_who_come_from_kube_proxy_exist() {
    let command = Arguments::command();
    let run = command.find_subcommand("run").unwrap();
    let flags: BTreeSet<&str> = run.get_arguments().filter_map(|it| it.get_long()).collect();
    let (fields, metrics) =
        (read("docs/configuration.md").unwrap(), read("docs/metrics.md").unwrap());
    let mut found = BTreeMap::<&str, usize>::new();
    for line in code(&read("docs/from-kube-proxy.md").unwrap()) {
        let section = line.split('.').next().unwrap_or_default();
        let is_field = ["ipvs", "iptables", "nftables", "conntrack", "shunt"].contains(&section);
        let (what, exists) = if let Some(flag) = line.strip_prefix("--") {
            // Other lines of a block with `--` continue a command.
            let name = flag.split('=').next().unwrap_or_default();
            ("flag", flag.contains(' ') || flags.contains(name))
        } else if is_field && section != line && !line.starts_with("shunt.dev/") {
            let field = line.split(':').next().unwrap_or_default();
            ("field", fields.contains(&format!("`{field}`")))
        } else if line.starts_with("shunt_") {
            ("metric", metrics.contains(&format!("`{line}")))
        } else {
            continue;
        };
        assert!(exists, "there is no {what} {line}");
        *found.entry(what).or_default() += 1;
    }
    assert!(found["flag"] > 0 && found["field"] > 5 && found["metric"] > 1, "{found:?}");
}
