//! `cargo xtask site`: the pages of the repository as a site, built by mdBook.
//!
//! Pages stay where a reader of the repository looks for them, and mdBook wants them below one
//! folder. So they are copied, in the same layout, with the files that they link.

pub(crate) mod check;
mod markdown;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};

use self::markdown::{Page, Target, join};
use crate::command::{cargo, command, output, repository, run as run_command};
use crate::tidy::tracked_files;

/// The table of contents.
pub(crate) const SUMMARY: &str = "docs/SUMMARY.md";
/// The list of decisions. The site has them below it.
pub(crate) const DECISIONS: &str = "docs/decisions/README.md";
/// The page of a folder, in the repository and in the site.
const README: &str = "README.md";
const INDEX: &str = "index.md";
const BOOK: &str = "docs/book.toml";
const STYLE: &str = "docs/site.css";
/// The folder for the copies, and the one for the site.
const SOURCE: &str = "target/site/source";
const OUTPUT: &str = "target/site/html";
/// The folder for mdBook, and its version.
const TOOLS: &str = "target/mdbook";
const VERSION: &str = "0.5.4";

/// Builds the site, and checks its links.
pub(crate) fn run() -> Result<()> {
    let mdbook = mdbook()?;
    let root = repository();
    let files: BTreeSet<String> = tracked_files()?.into_iter().collect();
    let source = root.join(SOURCE);
    for folder in [&source, &root.join(OUTPUT)] {
        if folder.exists() {
            fs::remove_dir_all(folder).with_context(|| folder.display().to_string())?;
        }
    }
    for (path, content) in copies(&root, &files)? {
        let path = source.join(path);
        let folder = path.parent().context("a file without a folder")?;
        fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
        fs::write(&path, content).with_context(|| path.display().to_string())?;
    }
    let mut build = command(mdbook);
    build.args(["build", SOURCE, "--dest-dir"]).arg(root.join(OUTPUT));
    run_command(&mut build)?;
    let links = check::site(&root.join(OUTPUT))?;
    println!("site: {OUTPUT}/index.html; all {links} links lead somewhere");
    Ok(())
}

/// Returns the program mdBook, and installs it first if it is not there. It is built without the
/// server for authors and without optimization, which takes a third of the time.
fn mdbook() -> Result<PathBuf> {
    let program = repository().join(TOOLS).join("bin/mdbook");
    let is_there = program.is_file()
        && String::from_utf8(output(command(&program).arg("--version"))?.stdout)?.trim()
            == format!("mdbook v{VERSION}");
    if !is_there {
        let mut install = cargo();
        install.args(["install", "mdbook", "--version", VERSION, "--locked", "--debug"]);
        install.args(["--no-default-features", "--features=search", "--force", "--root", TOOLS]);
        run_command(install.env("CARGO_PROFILE_DEV_DEBUG", "false"))?;
    }
    Ok(program)
}

/// Returns true for a page about one decision.
pub(crate) fn is_decision(path: &str) -> bool {
    path.starts_with("docs/decisions/") && path != DECISIONS
}

/// Returns the path of a page in the site. The page of a folder is its index.
fn place(path: &str) -> String {
    match path.strip_suffix(README) {
        Some(folder) => format!("{folder}{INDEX}"),
        None => path.to_owned(),
    }
}

/// Returns what mdBook reads: the path below its folder, and the content.
fn copies(root: &Path, files: &BTreeSet<String>) -> Result<BTreeMap<PathBuf, Vec<u8>>> {
    let read = |path: &str| {
        fs::read_to_string(root.join(path)).with_context(|| format!("cannot read {path}"))
    };
    let is_page = |path: &&String| path.ends_with(".md") && *path != SUMMARY;
    let mut pages = BTreeMap::new();
    for path in files.iter().filter(is_page) {
        pages.insert(path.as_str(), read(path)?);
    }
    let mut copies = BTreeMap::new();
    let below = Path::new("src");
    copies.insert(below.join("SUMMARY.md"), contents(&read(SUMMARY)?, &pages)?.into_bytes());
    copies.insert("book.toml".into(), read(BOOK)?.into_bytes());
    copies.insert("site.css".into(), read(STYLE)?.into_bytes());
    for (path, text) in &pages {
        let (text, linked) = with_links_of_the_site(path, text, &pages, files);
        copies.insert(below.join(place(path)), text.into_bytes());
        for file in linked {
            let content = fs::read(root.join(&file)).with_context(|| file.clone())?;
            copies.insert(below.join(file), content);
        }
    }
    Ok(copies)
}

/// Returns the table of contents with paths from the root, and with all decisions.
fn contents(summary: &str, pages: &BTreeMap<&str, String>) -> Result<String> {
    let mut text = String::new();
    let mut decisions = 0;
    for line in summary.lines() {
        let Some((title, rest)) = line.split_once("](") else {
            writeln!(text, "{line}")?;
            continue;
        };
        let path = rest.strip_suffix(')').with_context(|| format!("{SUMMARY}: {line:?}"))?;
        let path = join(SUMMARY, path).with_context(|| format!("{SUMMARY}: {line:?}"))?;
        writeln!(text, "{title}]({})", place(&path))?;
        if path == DECISIONS {
            let indent = title.len() - title.trim_start().len() + 2;
            for (path, page) in pages.iter().filter(|(path, _)| is_decision(path)) {
                let title = Page::parse(path, page).title;
                writeln!(text, "{:indent$}- [{title}]({path})", "")?;
                decisions += 1;
            }
        }
    }
    ensure!(decisions > 0, "{SUMMARY} does not list {DECISIONS}");
    Ok(text)
}

/// Returns a page whose links lead somewhere in the site, and the files that it links. A link to a
/// folder leads to its README.md; where there is none, only the text of the link stays.
fn with_links_of_the_site(
    path: &str,
    page: &str,
    pages: &BTreeMap<&str, String>,
    files: &BTreeSet<String>,
) -> (String, Vec<String>) {
    let mut text = page.to_owned();
    let mut linked = Vec::new();
    // From the end, so that places before stay valid.
    for link in Page::parse(path, page).links.into_iter().rev() {
        let Target::Inside { path: to, .. } = link.target else { continue };
        let is_page = pages.contains_key(to.as_str());
        if files.contains(&to) && !is_page && to != SUMMARY {
            linked.push(to);
            continue;
        }
        let Some((words, target)) = page[link.range.clone()].rsplit_once("](") else { continue };
        let replacement = if is_page {
            format!("{words}]({}", target.replace(README, INDEX))
        } else if pages.contains_key(format!("{to}/{README}").as_str()) {
            let folder = target.trim_end_matches(')').trim_end_matches('/');
            format!("{words}]({folder}/{INDEX})")
        } else {
            words.trim_start_matches('[').to_owned()
        };
        text.replace_range(link.range, &replacement);
    }
    (text, linked)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages() -> BTreeMap<&'static str, String> {
        let page = |path, title: &str| (path, format!("# {title}\n"));
        BTreeMap::from([
            page("README.md", "shunt"),
            page("deploy/systemd/README.md", "systemd"),
            page("docs/a.md", "A"),
            page("docs/decisions/README.md", "Decisions"),
            page("docs/decisions/0001-x.md", "1. X is so"),
        ])
    }

    #[test]
    fn contents_have_paths_from_the_root_and_the_decisions() {
        let summary =
            "# All\n\n[Title](../README.md)\n\n- [A](a.md)\n  - [D](decisions/README.md)\n";
        let expected = "# All\n\n[Title](index.md)\n\n- [A](docs/a.md)\n\
                        \x20 - [D](docs/decisions/index.md)\n    - [1. X is so](docs/decisions/0001-x.md)\n";
        assert_eq!(contents(summary, &pages()).unwrap(), expected);
        assert!(contents("- [A](a.md)\n", &pages()).is_err());
    }

    #[test]
    fn links_to_folders_lead_to_their_page_or_become_text() {
        let files = ["deploy/systemd/x.service", "deploy/chart/values.yaml", SUMMARY];
        let files = files.map(str::to_owned).into();
        let page = "[`s/`](../deploy/systemd/) [c](../deploy/chart) [v](../deploy/chart/values.yaml) \
                    [all](SUMMARY.md) [a](a.md) [top](../README.md#x)\n";
        let (text, linked) = with_links_of_the_site("docs/a.md", page, &pages(), &files);
        let expected = "[`s/`](../deploy/systemd/index.md) c [v](../deploy/chart/values.yaml) \
                        all [a](a.md) [top](../index.md#x)\n";
        assert_eq!(text, expected);
        assert_eq!(linked, ["deploy/chart/values.yaml"]);
    }
}
