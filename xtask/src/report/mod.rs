//! The benchmarks' figures in the documents: `docs/benchmarks.json`, the tables in
//! `docs/benchmarks.md`, `docs/scale.md` and README.md, and the pictures in `docs/plots`. All are made
//! from the first.

mod figures;
mod page;
mod plots;
mod scale;
mod svg;

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};

use self::figures::{Figures, Row, Run, times};
use self::plots::PLOTS;
use crate::command::{command, repository};

const FIGURES: &str = "docs/benchmarks.json";
const PAGE: &str = "docs/benchmarks.md";
const SCALE: &str = "docs/scale.md";
const README: &str = "README.md";
const PLOT_FOLDER: &str = "docs/plots";

/// Everything that is made from figures: paths in the repository with their content, and pictures that
/// lack a row.
struct Documents {
    files: Vec<(PathBuf, String)>,
    /// Each with the reason.
    missing: Vec<(PathBuf, String)>,
}

impl Documents {
    fn of(figures: &Figures, page: &str, scale: &str, readme: &str) -> Result<Self> {
        let page = page::fill(page, |name| page::section(figures, name)).context(PAGE)?;
        let scale = page::fill(scale, |name| scale::part(figures, name)).context(SCALE)?;
        let readme = page::fill(readme, |_| page::summary(figures)).context(README)?;
        let mut documents = Self {
            files: vec![(PAGE.into(), page), (SCALE.into(), scale), (README.into(), readme)],
            missing: Vec::new(),
        };
        for plot in &PLOTS {
            let path = Path::new(PLOT_FOLDER).join(format!("{}.svg", plot.name));
            match plot.draw(figures) {
                Ok(svg) => documents.files.push((path, svg)),
                Err(reason) => documents.missing.push((path, reason)),
            }
        }
        Ok(documents)
    }
}

/// Writes the documents with the rows of a run, which are in this file. Sections that the run did not
/// have keep their figures. The file may also be the one that the repository keeps.
pub(crate) fn write(file: &Path) -> Result<()> {
    let text =
        fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    let root = repository();
    let figures = match Figures::parse(&text) {
        Ok(figures) => figures,
        Err(_) => {
            let rows: Vec<Row> = serde_json::from_str(&text).with_context(|| {
                format!("{}: not what bench --write-json writes", file.display())
            })?;
            ensure!(!rows.is_empty(), "{}: no row: no section was measured", file.display());
            let mut figures = known(&root)?;
            figures.replace(rows, &Run { machine: machine(), date: date()? });
            figures
        }
    };
    let (page, scale) = (read(&root, PAGE)?, read(&root, SCALE)?);
    let readme = read(&root, README)?;
    let documents = Documents::of(&figures, &page, &scale, &readme)?;
    fs::create_dir_all(root.join(PLOT_FOLDER)).context(PLOT_FOLDER)?;
    let json = (PathBuf::from(FIGURES), figures.json()?);
    for (path, content) in documents.files.iter().chain([&json]) {
        fs::write(root.join(path), content)
            .with_context(|| format!("cannot write {}", path.display()))?;
        println!("{}", path.display());
    }
    for (path, reason) in &documents.missing {
        println!("{reason}");
        // A picture of an earlier run would contradict the tables.
        match fs::remove_file(root.join(path)) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(error).context(format!("cannot delete {}", path.display()));
            }
            _ => {}
        }
    }
    let mut places = page::sections(&page);
    places.extend(page::sections(&scale));
    if let Some(row) = figures.rows.iter().find(|row| !places.contains(row.section.as_str())) {
        let section = &row.section;
        bail!("{PAGE} has no place for the figures of section {section}: add one, with a text");
    }
    Ok(())
}

/// The figures that the repository keeps.
fn known(root: &Path) -> Result<Figures> {
    match fs::read_to_string(root.join(FIGURES)) {
        Ok(text) => Figures::parse(&text).context(FIGURES),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Figures::default()),
        Err(error) => Err(error).context(format!("cannot read {FIGURES}")),
    }
}

fn read(root: &Path, path: &str) -> Result<String> {
    fs::read_to_string(root.join(path)).with_context(|| format!("cannot read {path}"))
}

/// The processors and versions that figures depend on.
fn machine() -> String {
    let mut parts = Vec::new();
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let model = model.map_or("processors", |(_, model)| model);
    parts.push(format!("{} x {model}", times_of(cpus)));
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release.split(['.', '-']);
    if let (Some(major), Some(minor)) = (numbers.next(), numbers.next()) {
        parts.push(format!("Linux {major}.{minor}"));
    }
    if let Some(assets) = std::env::var_os("KUBEBUILDER_ASSETS") {
        let version = version(command(Path::new(&assets).join("kube-proxy")));
        parts.extend(version.map(|version| version.replace(" v", " ")));
    }
    parts.extend(version(command("iptables")).map(|version| version.replace(" v", " ")));
    parts.join(", ")
}

fn times_of(cpus: usize) -> String {
    if cpus == 1 { "1".to_owned() } else { times(cpus) }
}

/// The first line that a program prints of its version, if the program is there.
fn version(mut program: Command) -> Option<String> {
    let output = program.arg("--version").output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    Some(text.lines().next()?.trim().to_owned()).filter(|text| !text.is_empty())
}

fn date() -> Result<String> {
    let output = command("date").args(["-u", "+%Y-%m-%d"]).output().context("cannot run date")?;
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::plots::tests::{figures, rows};
    use super::*;

    #[test]
    fn committed_documents_are_what_the_committed_figures_make() {
        let root = repository();
        let documents = || {
            let (page, scale) = (read(&root, PAGE)?, read(&root, SCALE)?);
            let readme = read(&root, README)?;
            Documents::of(&known(&root)?, &page, &scale, &readme)
        };
        let documents = documents().unwrap();
        for (path, content) in &documents.files {
            let there = fs::read_to_string(root.join(path)).unwrap_or_default();
            let advice = "not what docs/benchmarks.json makes: cargo xtask bench --docs";
            assert!(there == *content, "{}: {advice}", path.display());
        }
        for (path, reason) in &documents.missing {
            assert!(!root.join(path).exists(), "{}: {reason}", path.display());
        }
    }

    #[test]
    fn documents_have_a_place_for_all_that_is_drawn() {
        let root = repository();
        let page = read(&root, PAGE).unwrap();
        let places = page::sections(&page);
        for plot in &PLOTS {
            assert!(
                places.contains(plot.section),
                "{PAGE} has no place for section {}",
                plot.section
            );
        }
        let readme = read(&root, README).unwrap();
        assert_eq!(page::sections(&readme), BTreeSet::from(["summary"]));
        let scale = read(&root, SCALE).unwrap();
        let parts = BTreeSet::from(["fleet", "fleet extrapolated", "fleet rates"]);
        assert_eq!(page::sections(&scale), parts);
        let documents = Documents::of(&figures(rows()), &page, &scale, &readme).unwrap();
        assert!(documents.missing.is_empty());
        let content = |name: &str| {
            let file = documents.files.iter().find(|(path, _)| path == Path::new(name));
            &file.unwrap().1
        };
        for plot in &PLOTS {
            let image = format!("](plots/{}.svg)", plot.name);
            assert!(content(PAGE).contains(&image), "{PAGE}: {image}");
            assert!(content(&format!("{PLOT_FOLDER}/{}.svg", plot.name)).starts_with("<svg"));
        }
        assert!(content(README).contains("](docs/plots/"));
    }
}
