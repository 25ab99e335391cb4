//! The pages for those who come from other modes: commands, fields, metrics and links that they name
//! exist.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use clap::{CommandFactory as _, Parser as _};
use shunt::cli::args::{Arguments, normalized};

const PAGES: [&str; 3] =
    ["docs/from-ipvs.md", "docs/from-iptables.md", "deploy/guides/from-kube-proxy.md"];

fn repository(path: impl AsRef<Path>) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn read(path: impl AsRef<Path>) -> String {
    fs::read_to_string(repository(path)).unwrap()
}

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

/// Returns the code of all pages with its page.
fn all_code() -> Vec<(&'static str, String)> {
    PAGES
        .into_iter()
        .flat_map(|page| code(&read(page)).into_iter().map(move |it| (page, it)))
        .collect()
}

#[test]
fn commands_and_their_flags_exist() {
    let mut commands = 0;
    for (page, line) in all_code() {
        let Some(rest) = line.strip_prefix("shunt ") else { continue };
        // A comment is two spaces behind the command.
        let command = rest.split("  ").next().unwrap_or_default();
        let words = command.split_whitespace();
        // Some only name the command.
        let is_name = words.clone().count() == 1;
        let name = words.clone().next().unwrap_or_default();
        let known = Arguments::command().find_subcommand(name).is_some();
        assert!(known, "{page}: there is no command in `{line}`");
        let words = ["shunt"].into_iter().chain(words).map(Into::into);
        let parsed = Arguments::try_parse_from(normalized(words));
        assert!(is_name || parsed.is_ok(), "{page}: `{line}`: {:?}", parsed.err());
        commands += 1;
    }
    assert!(commands > 30, "{commands} commands");
}

#[test]
fn own_flags_exist() {
    let command = Arguments::command();
    let run = command.find_subcommand("run").unwrap();
    let flags: BTreeSet<&str> = run.get_arguments().filter_map(|it| it.get_long()).collect();
    for (page, line) in all_code() {
        // Other lines of a block with `--` continue a command.
        let Some(flag) = line.strip_prefix("--").filter(|it| !it.contains(' ')) else { continue };
        let name = flag.split('=').next().unwrap_or_default();
        assert!(flags.contains(name), "{page}: there is no flag in `{line}`");
    }
}

#[test]
fn fields_exist() {
    let reference = read("docs/configuration.md");
    let mut fields = 0;
    for (page, line) in all_code() {
        let Some((section, rest)) = line.split_once('.') else { continue };
        if !["ipvs", "iptables", "nftables", "conntrack", "shunt"].contains(&section)
            || rest.starts_with("dev/")
        {
            continue;
        }
        let field = line.split(':').next().unwrap_or_default();
        assert!(reference.contains(&format!("| `{field}` |")), "{page}: there is no field {field}");
        fields += 1;
    }
    assert!(fields > 10, "{fields} fields");
}

#[test]
fn metrics_exist() {
    let reference = read("docs/metrics.md");
    let mut metrics = 0;
    for (page, name) in all_code().into_iter().filter(|(_, line)| line.starts_with("shunt_")) {
        assert!(reference.contains(&format!("`{name}")), "{page}: there is no metric {name}");
        metrics += 1;
    }
    assert!(metrics > 1, "{metrics} metrics");
}

/// Returns the anchor of a heading, as GitHub makes it.
fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c));
    kept.collect::<String>().to_lowercase().replace(' ', "-")
}

#[test]
fn links_lead_somewhere() {
    let mut links = 0;
    for page in PAGES {
        let text = read(page);
        let targets = text.split("](").skip(1).filter_map(|part| Some(part.split_once(')')?.0));
        for target in targets.filter(|target| !target.contains("://")) {
            let (file, heading) = target.split_once('#').unwrap_or((target, ""));
            let file = match file {
                "" => repository(page),
                file => repository(page).parent().unwrap().join(file),
            };
            assert!(file.exists(), "{page}: {target} does not exist");
            if !heading.is_empty() {
                let headings = fs::read_to_string(&file).unwrap();
                let mut headings = headings.lines().filter_map(|line| line.strip_prefix('#'));
                let has = headings.any(|it| anchor(it.trim_start_matches('#').trim()) == heading);
                assert!(has, "{page}: {target} is no heading");
            }
            links += 1;
        }
    }
    assert!(links > 30, "{links} links");
}
