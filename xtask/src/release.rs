//! `cargo xtask release`: the files of a version, and what is in its image.
//!
//! It builds, starts what it built, and packs it. Bills of materials, attestations and signatures are made
//! by `.github/workflows/release.yml`, where nothing that was built here runs any more.

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use serde_json::Value;

use crate::agent;
use crate::command::{cargo, command, repository, repository_file, run as run_command, stdout};
use crate::packages::Installer;

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The files of the agent as they lie below `/`: the image has all of them, the tarball `usr/bin` and
/// `usr/share`.
const TREE: &str = "target/release-tree";

/// The folder of the artifacts.
const OUTPUT: &str = "target/release-artifacts";

/// Libraries that a slim image of Debian lacks, and their packages.
const LIBRARIES: [(&str, &str); 2] = [("libmnl.so.0", "libmnl0"), ("libnftnl.so.11", "libnftnl11")];

/// The repository's address, and its account until there is a public one.
const REPOSITORY: &str = env!("CARGO_PKG_REPOSITORY");
const NO_OWNER: &str = "/OWNER/";

/// Where each shell looks for completions.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "bash-completion/completions/shunt"),
    ("zsh", "zsh/site-functions/_shunt"),
    ("fish", "fish/vendor_completions.d/shunt.fish"),
];

/// Arguments of `cargo xtask release`.
#[derive(Args)]
pub(crate) struct Arguments {
    /// The tag that is released: fail unless the source is ready for it
    #[arg(long)]
    tag: Option<String>,
}

/// Packs the agent and its source, and writes their digests.
pub(crate) fn run(installer: &Installer, arguments: &Arguments) -> Result<()> {
    let commit = agent::commit()?;
    if let Some(tag) = &arguments.tag {
        let text = |path: &str| anyhow::Ok(String::from_utf8(repository_file(path)?)?);
        let (changelog, chart) = (text("CHANGELOG.md")?, text("deploy/chart/Chart.yaml")?);
        let mut problems = problems(commit.as_deref(), tag, &changelog, &chart);
        if REPOSITORY.contains(NO_OWNER) {
            problems.push(format!(
                "set `repository` in Cargo.toml, now {REPOSITORY}: see docs/release.md"
            ));
        }
        ensure!(problems.is_empty(), "not ready for a release:\n  {}", problems.join("\n  "));
    }
    let tree = tree(&agent::build(installer)?)?;
    let output = repository().join(OUTPUT);
    empty(&output)?;
    let name = format!("shunt-{VERSION}-linux-{}", env::consts::ARCH);
    let mut tar = command("tar");
    tar.args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--gzip", "--create"]);
    if let Ok(time) = stdout(&mut agent::git(&["log", "-1", "--format=--mtime=@%ct"])) {
        tar.arg(time.trim());
    }
    tar.arg(format!("--transform=s,^,{name}/,")).arg("--file");
    tar.arg(output.join(format!("{name}.tar.gz"))).arg("-C").arg(tree.join("usr"));
    run_command(tar.args(["bin", "share"]).arg("-C").arg(repository()).arg("deploy/systemd"))?;
    if agent::in_git() {
        let name = format!("shunt-{VERSION}");
        let mut archive = agent::git(&["archive", "--prefix"]);
        archive.arg(format!("{name}/")).arg("--output");
        run_command(archive.arg(output.join(format!("{name}-source.tar.gz"))).arg("HEAD"))?;
    }
    let sums = "sha256sum *.tar.gz > SHA256SUMS && cat SHA256SUMS";
    run_command(command("sh").args(["-c", sums]).current_dir(&output))
}

/// Lays out the files of an agent.
pub(crate) fn tree(built: &Path) -> Result<PathBuf> {
    let tree = repository().join(TREE);
    empty(&tree)?;
    let usr = tree.join("usr");
    let (share, doc) = (usr.join("share"), usr.join("share/doc/shunt"));
    for folder in [&usr.join("bin"), &share.join("man/man1"), &doc] {
        fs::create_dir_all(folder)?;
    }
    let agent = usr.join("bin/shunt");
    // The names of functions stay, for backtraces.
    run_command(command("strip").arg("--strip-debug").arg("-o").arg(&agent).arg(built))?;
    let rules = stdout(command(&agent).args(["render", "--manifests", "examples/demo"]))?;
    ensure!(rules.contains("table ip shunt"), "the agent plans no rules:\n{rules}");
    // As `cargo xtask test` builds it: other features or another profile would make another build.
    let words = ["build", "--locked", "--example=man"];
    run_command(cargo().args(words))?;
    run_command(command(agent::built("debug/examples/man")?).arg(share.join("man/man1")))?;
    run_command(command("gzip").args(["-9nr"]).arg(share.join("man")))?;
    for (shell, path) in COMPLETIONS {
        let path = share.join(path);
        fs::create_dir_all(path.parent().context("no folder")?)?;
        fs::write(path, stdout(command(&agent).args(["completion", shell]))?)?;
    }
    for licence in ["LICENSE-APACHE", "LICENSE-GPL", "CHANGELOG.md"] {
        fs::write(doc.join(licence), repository_file(licence)?)?;
    }
    licences(&doc)?;
    libraries(&agent, &tree)?;
    Ok(tree)
}

/// Puts the libraries that the agent needs where the image has them, with the records by which scanners
/// find packages in images without dpkg.
fn libraries(agent: &Path, tree: &Path) -> Result<()> {
    let needed = stdout(command("ldd").arg(agent))?;
    let records = tree.join("var/lib/dpkg/status.d");
    fs::create_dir_all(&records)?;
    for (library, package) in LIBRARIES {
        let line = needed.lines().find(|line| line.trim_start().starts_with(library));
        let path = line.and_then(|line| line.split(' ').find(|word| word.starts_with('/')));
        let path = path.with_context(|| format!("the agent does not need {library}:\n{needed}"))?;
        let path = fs::canonicalize(Path::new(path).parent().context("no folder")?)?.join(library);
        let folder = tree.join(path.parent().context("no folder")?.strip_prefix("/")?);
        fs::create_dir_all(&folder)?;
        fs::copy(&path, folder.join(library))?;
        fs::write(records.join(package), stdout(command("dpkg").args(["--status", package]))?)?;
        let documents = Path::new("usr/share/doc").join(package);
        fs::create_dir_all(tree.join(&documents))?;
        let copyright = documents.join("copyright");
        fs::copy(Path::new("/").join(&copyright), tree.join(&copyright)).with_context(|| {
            format!("{package} is installed without its licence: does dpkg exclude documents?")
        })?;
    }
    Ok(())
}

/// Writes the list of linked crates, and the texts of their licences.
fn licences(folder: &Path) -> Result<()> {
    let mut tree = cargo();
    tree.args(["tree", "--locked", "--package=shunt", "--edges=normal,no-proc-macro"]);
    let tree = stdout(tree.args(["--prefix=none", "--format={p} {l}"]))?;
    let linked: BTreeSet<&str> = tree.lines().map(|line| line.trim_end_matches(" (*)")).collect();
    fs::write(
        folder.join("crates"),
        linked.iter().map(|it| format!("{it}\n")).collect::<String>(),
    )?;
    let metadata = stdout(cargo().args(["metadata", "--locked", "--format-version=1"]))?;
    let metadata: Value = serde_json::from_str(&metadata)?;
    for package in metadata["packages"].as_array().context("cargo metadata has no packages")? {
        let field = |name: &str| package[name].as_str().unwrap_or_default();
        let name = format!("{} v{} ", field("name"), field("version"));
        if !linked.iter().any(|line| line.starts_with(&name)) {
            continue;
        }
        let source = Path::new(field("manifest_path")).parent().context("no folder")?;
        for file in fs::read_dir(source)? {
            let file = file?;
            let title = file.file_name().to_string_lossy().to_lowercase();
            let is_text = ["copying", "licen", "notice"].iter().any(|it| title.starts_with(it));
            if is_text && file.file_type()?.is_file() {
                let folder = folder.join("licences").join(name.trim_end().replace(" v", "-"));
                fs::create_dir_all(&folder)?;
                fs::copy(file.path(), folder.join(file.file_name()))?;
            }
        }
    }
    Ok(())
}

/// Makes a folder anew.
fn empty(folder: &Path) -> Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder)
            .with_context(|| format!("cannot remove {}", folder.display()))?;
    }
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))
}

/// What is missing for a release.
fn problems(commit: Option<&str>, tag: &str, changelog: &str, chart: &str) -> Vec<String> {
    let mut problems = Vec::new();
    if tag.strip_prefix('v') != Some(VERSION) {
        problems.push(format!("the version in Cargo.toml is {VERSION}: tag the commit v{VERSION}"));
    }
    if !changelog.lines().any(|line| line.split(' ').take(2).eq(["##", VERSION])) {
        problems.push(format!("CHANGELOG.md has no section \"## {VERSION}\""));
    }
    let versions = ["version: ", "appVersion: "].map(|field| format!("{field}{VERSION}"));
    if !versions.iter().all(|field| chart.lines().any(|line| line == field)) {
        problems.push(format!("version or appVersion in Chart.yaml is not {VERSION}"));
    }
    if commit.is_none_or(|commit| commit.ends_with("-dirty")) {
        problems.push("files differ from the commit: commit them, or undo the changes".to_owned());
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_problem_of_a_release_is_named() {
        let (tag, section) = (format!("v{VERSION}"), format!("## {VERSION} - 2026-11-24\n"));
        let chart = format!("version: {VERSION}\nappVersion: {VERSION}\n");
        assert_eq!(problems(Some("1f2e"), &tag, &section, &chart), [""; 0]);
        let all = problems(Some("1f2e-dirty"), "v9.9.9", "## Unreleased\n## 0.1.00\n", "");
        assert_eq!(all.len(), 4, "{all:?}");
        assert_eq!(problems(None, VERSION, &section, &chart).len(), 2);
    }
}
