//! Draws what pages show of real runs: the benchmarks' tables and plots, and pictures of commands.
//!
//! `cargo xtask bench --docs` and `cargo xtask pictures` run it in the root of the repository. All that
//! pages say of benchmarks is made from `docs/benchmarks.json`.
#![allow(clippy::print_stdout, reason = "a command-line tool: what it prints is what it is for")]

#[path = "../../../benches/figure.rs"]
mod figure;
mod page;
mod pictures;
mod plots;

use std::collections::BTreeMap;
use std::env;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};
use serde::{Deserialize, Serialize};

use self::figure::{DURATIONS, Row};
use self::plots::PLOTS;

const FIGURES: &str = "docs/benchmarks.json";
const PAGE: &str = "docs/benchmarks.md";
const README: &str = "README.md";

/// All that is known, each section from the last run that had it.
#[derive(Default, Serialize, Deserialize)]
struct Figures {
    runs: BTreeMap<String, Run>,
    rows: Vec<Row>,
}

/// Where and when a section was measured.
#[derive(Clone, Serialize, Deserialize)]
struct Run {
    machine: String,
    date: String,
}

impl Figures {
    /// Replaces the sections that `rows` have.
    fn replace(&mut self, rows: Vec<Row>, run: &Run) {
        let is_same = |old: &Row, new: &Row| {
            old.section == new.section && (old.section != DURATIONS || old.what == new.what)
        };
        self.rows.retain(|old| !rows.iter().any(|new| is_same(old, new)));
        for row in &rows {
            self.runs.insert(row.section.clone(), run.clone());
        }
        self.rows.extend(rows);
    }

    fn section<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Row> {
        self.rows.iter().filter(move |row| row.section == name)
    }

    /// JSON with a line for each row, so that a reader sees what a new run changes.
    fn json(&self) -> Result<String> {
        let rows: Result<Vec<String>, _> = self.rows.iter().map(serde_json::to_string).collect();
        let runs = serde_json::to_string(&self.runs)?;
        Ok(format!("{{\n\"runs\": {runs},\n\"rows\": [\n{}\n]\n}}\n", rows?.join(",\n")))
    }

    /// Everything that is made from them: paths, and contents.
    fn documents(&self, root: &Path) -> Result<Vec<(String, String)>> {
        let read = |path: &str| fs::read_to_string(root.join(path)).context(path.to_owned());
        let mut files = vec![
            (PAGE.to_owned(), page::fill(&read(PAGE)?, |name| page::section(self, name))?),
            (README.to_owned(), page::fill(&read(README)?, |_| page::summary(self))?),
        ];
        for plot in &PLOTS {
            // One that lacks a row would not show what its title says.
            if let Some(svg) = plot.draw(self)? {
                files.push((format!("docs/plots/{}.svg", plot.name), svg));
            }
        }
        Ok(files)
    }
}

fn main() -> Result<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["figures", file] => write(Path::new("."), Path::new(file)),
        ["pictures", agent] => pictures::draw(Path::new(agent)),
        _ => bail!("run this through `cargo xtask bench --docs` or `cargo xtask pictures`"),
    }
}

/// Writes the documents with the rows of a run, which are in this file. Sections that the run did not
/// have keep their figures. The file may also be the one that the repository keeps.
fn write(root: &Path, file: &Path) -> Result<()> {
    let text =
        fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    let figures = match serde_json::from_str(&text) {
        Ok(figures) => figures,
        Err(_) => {
            let rows: Vec<Row> =
                serde_json::from_str(&text).context("not a file that the benchmarks wrote")?;
            ensure!(!rows.is_empty(), "{}: no section was measured", file.display());
            let mut figures: Figures =
                serde_json::from_str(&fs::read_to_string(root.join(FIGURES))?)?;
            figures
                .replace(rows, &Run { machine: machine(), date: output("date", &["-u", "+%F"]) });
            figures
        }
    };
    for (path, content) in
        figures.documents(root)?.iter().chain([&(FIGURES.into(), figures.json()?)])
    {
        fs::write(root.join(path), content).with_context(|| format!("cannot write {path}"))?;
        println!("{path}");
    }
    Ok(())
}

/// The processors and versions that figures depend on.
fn machine() -> String {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let model = model.map_or("processors", |(_, model)| model);
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let release: Vec<&str> = release.split('.').take(2).collect();
    let mut text = format!("{cpus} x {model}, Linux {}", release.join("."));
    let kube_proxy = env::var("KUBEBUILDER_ASSETS").map(|folder| format!("{folder}/kube-proxy"));
    for program in kube_proxy.iter().map(String::as_str).chain(["iptables"]) {
        match output(program, &["--version"]) {
            version if version.is_empty() => {}
            // Writing to a String cannot fail.
            version => _ = write!(text, ", {}", version.replace(" v", " ")),
        }
    }
    text
}

/// The first line that a program prints, if the program is there.
fn output(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    text.unwrap_or_default().lines().next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn committed_documents_are_what_the_committed_figures_make() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let figures: Figures =
            serde_json::from_str(&fs::read_to_string(root.join(FIGURES)).unwrap()).unwrap();
        let documents = figures.documents(&root).unwrap();
        for (path, content) in &documents {
            let there = fs::read_to_string(root.join(path)).unwrap_or_default();
            let advice = "not what docs/benchmarks.json makes: \
                cargo xtask bench --docs --from docs/benchmarks.json";
            assert!(there == *content, "{path}: {advice}");
        }
        let page = &documents[0].1;
        for section in figures.rows.iter().map(|row| row.section.as_str()) {
            assert!(page.contains(&format!("<!-- figures: {section} -->\n")), "{section}");
        }
        for plot in &PLOTS {
            assert!(page.contains(&format!("](plots/{}.svg)", plot.name)), "{}", plot.name);
        }
    }

    #[test]
    fn a_run_of_some_sections_keeps_the_others() {
        let mut figures = Figures::default();
        let run = Run { machine: "one".to_owned(), date: "2026-01-01".to_owned() };
        let row = |section: &str, what: &str| Row {
            section: section.to_owned(),
            what: what.to_owned(),
            ..plots::tests::rows()[0].clone()
        };
        figures
            .replace(vec![row("beside", "a"), row("beside", "b"), row(DURATIONS, "beside")], &run);
        figures.replace(vec![row("path", "c"), row(DURATIONS, "path")], &run);
        figures.replace(vec![row("beside", "d"), row(DURATIONS, "beside")], &run);
        let whats: Vec<&str> = figures.rows.iter().map(|row| row.what.as_str()).collect();
        assert_eq!(whats, ["c", "path", "d", "beside"]);
    }
}
