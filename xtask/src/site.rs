//! `cargo xtask site`: the pages of the repository as a site, built by mdBook, with a check of its links.
//!
//! Pages stay where a reader of the repository looks for them, and mdBook wants all files below one folder.
//! So it gets a copy of the repository.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context as _, Result, ensure};

use crate::command::{cargo, command, output, repository, run as run_command};
use crate::tidy::tracked_files;

/// The table of contents.
const SUMMARY: &str = "docs/SUMMARY.md";
/// The list of decisions. The site has them below it.
const DECISIONS: &str = "docs/decisions/";
const SOURCE: &str = "target/site/source";
const OUTPUT: &str = "target/site/html";
/// The folder for mdBook, and its version.
const TOOLS: &str = "target/mdbook";
const VERSION: &str = "0.5.4";

/// Builds the site, and checks its links.
pub(crate) fn run() -> Result<()> {
    let mdbook = mdbook()?;
    let (source, output) = (repository().join(SOURCE), repository().join(OUTPUT));
    for folder in [&source, &output] {
        let _ = fs::remove_dir_all(folder);
    }
    let mut pages = BTreeMap::new();
    for path in tracked_files()? {
        // A file that was deleted, but not committed so.
        let Ok(content) = fs::read(repository().join(&path)) else { continue };
        let to = source.join("src").join(&path);
        fs::create_dir_all(to.parent().context("no folder")?)?;
        fs::write(to, &content)?;
        // Forms for GitHub are no pages.
        if path.ends_with(".md") && path != SUMMARY && !path.starts_with(".github/") {
            pages.insert(path, String::from_utf8(content)?);
        }
    }
    for file in ["book.toml", "site.css"] {
        fs::copy(repository().join("docs").join(file), source.join(file))?;
    }
    let summary = contents(&fs::read_to_string(repository().join(SUMMARY))?, &pages);
    fs::write(source.join("src/SUMMARY.md"), summary)?;
    run_command(command(mdbook).arg("build").arg(&source).arg("--dest-dir").arg(&output))?;
    let mut faults = Vec::new();
    for path in pages.keys() {
        let html = output.join(path.replace("README.md", "index.html")).with_extension("html");
        if !html.is_file() {
            faults.push(format!("{path} is not in {SUMMARY}; add it there"));
        }
    }
    let links = check(&output, &mut faults)?;
    ensure!(faults.is_empty(), "{}", faults.join("\n"));
    println!("site: {OUTPUT}/index.html; {links} links, none broken");
    Ok(())
}

/// Returns the program mdBook, and installs it first if it is not there. It is built without the
/// server for authors and without optimization, which takes a third of the time.
fn mdbook() -> Result<PathBuf> {
    let program = repository().join(TOOLS).join("bin/mdbook");
    let version =
        program.is_file().then(|| output(command(&program).arg("--version"))).transpose()?;
    if version.is_none_or(|it| it.stdout.trim_ascii() != format!("mdbook v{VERSION}").as_bytes()) {
        let mut install = cargo();
        install.args(["install", "mdbook", "--version", VERSION, "--locked", "--debug"]);
        install.args(["--no-default-features", "--features=search", "--force", "--root", TOOLS]);
        run_command(install.env("CARGO_PROFILE_DEV_DEBUG", "false"))?;
    }
    Ok(program)
}

/// Returns the table of contents with paths from the root, and with all decisions.
fn contents(summary: &str, pages: &BTreeMap<String, String>) -> String {
    let mut text = summary.replace("](", "](docs/").replace("](docs/../", "](");
    if let Some(at) = text.find("](docs/decisions/README.md)\n") {
        let line = text[..at].rfind('\n').map_or(0, |newline| newline + 1);
        let indent = " ".repeat(text[line..at].find('-').unwrap_or(0) + 2);
        let decisions = pages.iter().filter(|(path, _)| path.starts_with(DECISIONS));
        let decisions = decisions.filter(|(path, _)| !path.ends_with("README.md"));
        let entry = |(path, page): (&String, &String)| {
            let title = page.lines().next().unwrap_or_default().trim_start_matches("# ");
            format!("{indent}- [{title}]({path})\n")
        };
        let entries: String = decisions.map(entry).collect();
        text.insert_str(at + "](docs/decisions/README.md)\n".len(), &entries);
    }
    text
}

/// Checks the links of a built site. Returns how many it has.
fn check(root: &Path, faults: &mut Vec<String>) -> Result<usize> {
    let mut texts = BTreeMap::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|it| it == "html") && !path.ends_with("404.html")
            {
                // mdBook makes index.html of README.md, and shows the table of contents on each page.
                let text = fs::read_to_string(&path)?.replace("README.html", "index.html");
                let text = text.replace("docs/SUMMARY.html", "index.html");
                fs::write(&path, &text)?;
                texts.insert(path, text);
            }
        }
    }
    let mut links = 0;
    for (file, text) in &texts {
        let parts = [" href=\"", " src=\""].into_iter().flat_map(|name| text.split(name).skip(1));
        for url in parts.filter_map(|rest| Some(rest.split_once('"')?.0)) {
            if url.contains(':') || url.is_empty() {
                continue;
            }
            links += 1;
            let (path, anchor) = url.split_once('#').unwrap_or((url, ""));
            let path = path.split('?').next().unwrap_or_default();
            let to =
                if path.is_empty() { file.clone() } else { normal(&file.with_file_name(path)) };
            let has_anchor =
                |text: &String| anchor.is_empty() || text.contains(&format!("id=\"{anchor}\""));
            if !to.is_file() || !texts.get(&to).is_none_or(has_anchor) {
                let place = file.strip_prefix(root).unwrap_or(file).display();
                faults.push(format!("{place}: broken link {url}"));
            }
        }
    }
    Ok(links)
}

/// Returns the path without `..`, which ends the name of a folder that need not exist.
fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for part in path.components() {
        if part == Component::ParentDir {
            normal.pop();
        } else {
            normal.push(part);
        }
    }
    normal
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_have_paths_from_the_root_and_the_decisions() {
        let page = |path: &str| (format!("{DECISIONS}{path}"), "# 1. X is so\n".to_owned());
        let pages = BTreeMap::from([page("README.md"), page("0001-x.md")]);
        let summary =
            "[Title](../README.md)\n\n- [A](a.md)\n  - [D](decisions/README.md)\n- [B](b.md)\n";
        let expected = "[Title](README.md)\n\n- [A](docs/a.md)\n  - [D](docs/decisions/README.md)\n    \
                        - [1. X is so](docs/decisions/0001-x.md)\n- [B](docs/b.md)\n";
        assert_eq!(contents(summary, &pages), expected);
    }

    #[test]
    fn site_with_a_broken_link_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let faults = |text: &str| {
            fs::write(root.path().join("a.html"), text).unwrap();
            let mut faults = Vec::new();
            (check(root.path(), &mut faults).unwrap(), faults.len())
        };
        let good = "<h1 id=\"x\"></h1><a class=\"y\" href=\"a.html#x\"></a><img src=\"https://z\">";
        assert_eq!(faults(good), (1, 0));
        for broken in ["<a href=\"b.html\"></a>", "<a href=\"#z\"></a>", "<img src=\"c.svg\">"] {
            assert_eq!(faults(broken), (1, 1), "{broken}");
        }
    }
}
