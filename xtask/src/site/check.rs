//! Whether links between pages lead somewhere, before and after they are a site.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};

use super::markdown::{Page, Target};
use super::{DECISIONS, SUMMARY, is_decision};

/// A link that leads nowhere, or a page that no link leads to: the file, the line and the message.
pub(crate) type Fault = (String, Option<usize>, String);

/// Checks the links of all pages, and that each page is in the table of contents. `files` are all
/// files of the repository, `pages` those with the extension `md` and their text.
pub(crate) fn pages(files: &BTreeSet<String>, pages: &BTreeMap<String, String>) -> Vec<Fault> {
    let parsed: BTreeMap<&String, Page> =
        pages.iter().map(|(path, text)| (path, Page::parse(path, text))).collect();
    let mut faults = Vec::new();
    for (path, page) in &parsed {
        for link in &page.links {
            let fault = match &link.target {
                Target::Elsewhere => None,
                Target::Outside(url) => Some(format!("the link {url} leaves the repository")),
                Target::Inside { path: to, anchor } => {
                    let folder = format!("{to}/");
                    let exists =
                        files.contains(to) || files.iter().any(|it| it.starts_with(&folder));
                    match (exists, anchor, parsed.get(to)) {
                        (false, ..) => Some(format!("the link to {to} leads nowhere")),
                        (_, Some(anchor), Some(page)) if !page.anchors.contains(anchor) => {
                            Some(format!("{to} has no heading #{anchor}"))
                        }
                        _ => None,
                    }
                }
            };
            faults.extend(fault.map(|fault| ((*path).clone(), Some(link.line), fault)));
        }
    }
    let linked = |from: &str| -> BTreeSet<&String> {
        let links = pages.get_key_value(from).and_then(|(path, _)| parsed.get(path));
        let targets = links.iter().flat_map(|page| &page.links).map(|link| &link.target);
        targets.filter_map(inside).collect()
    };
    let (contents, decisions) = (linked(SUMMARY), linked(DECISIONS));
    for path in pages.keys().filter(|path| *path != SUMMARY) {
        let (list, place) =
            if is_decision(path) { (&decisions, DECISIONS) } else { (&contents, SUMMARY) };
        if !list.contains(path) {
            faults.push((path.clone(), None, format!("the page is not in {place}; add it there")));
        }
    }
    faults
}

/// Returns the path of a target in the repository.
fn inside(target: &Target) -> Option<&String> {
    match target {
        Target::Inside { path, .. } => Some(path),
        Target::Elsewhere | Target::Outside(_) => None,
    }
}

/// Checks the links of a built site. Returns how many it has.
pub(super) fn site(root: &Path) -> Result<usize> {
    let mut files = Vec::new();
    list(root, &mut files)?;
    let mut texts = BTreeMap::new();
    for file in files.iter().filter(|file| file.extension().is_some_and(|it| it == "html")) {
        let text = fs::read_to_string(file).with_context(|| file.display().to_string())?;
        texts.insert(file.clone(), text);
    }
    // The page for errors has the addresses of the root.
    texts.remove(&root.join("404.html"));
    let known: BTreeSet<&PathBuf> = files.iter().collect();
    let (mut links, mut faults) = (0, Vec::new());
    for (file, text) in &texts {
        let folder = file.parent().context("a file without a folder")?;
        for url in attributes(text) {
            let is_elsewhere = url.contains("://") || url.contains(':');
            if is_elsewhere || url.is_empty() {
                continue;
            }
            links += 1;
            let (path, anchor) = url.split_once('#').unwrap_or((url, ""));
            let path = path.split('?').next().unwrap_or_default();
            let to = if path.is_empty() { file.clone() } else { normal(&folder.join(path)) };
            let has_anchor =
                |text: &String| anchor.is_empty() || text.contains(&format!("id=\"{anchor}\""));
            if !known.contains(&to) || !texts.get(&to).is_none_or(has_anchor) {
                let place = file.strip_prefix(root).unwrap_or(file).display();
                faults.push(format!("{place}: {url} leads nowhere"));
            }
        }
    }
    ensure!(faults.is_empty(), "broken links in the site:\n{}", faults.join("\n"));
    Ok(links)
}

/// Returns the values of the attributes `href` and `src`.
fn attributes(html: &str) -> impl Iterator<Item = &str> {
    [" href=\"", " src=\""].into_iter().flat_map(move |name| {
        html.split(name).skip(1).filter_map(|rest| Some(rest.split_once('"')?.0))
    })
}

/// Returns the path without `..`.
fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for part in path.components() {
        if part.as_os_str() == ".." {
            normal.pop();
        } else {
            normal.push(part);
        }
    }
    normal
}

fn list(folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        if path.is_dir() {
            list(&path, files)?;
        } else {
            files.push(path);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults_of(pages_of: &[(&str, &str)]) -> Vec<String> {
        let texts: BTreeMap<String, String> =
            pages_of.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect();
        let mut files: BTreeSet<String> = texts.keys().cloned().collect();
        files.insert("deploy/chart/values.yaml".to_owned());
        let faults = pages(&files, &texts).into_iter();
        faults.map(|(file, line, fault)| format!("{file}:{}: {fault}", line.unwrap_or(0))).collect()
    }

    #[test]
    fn links_to_files_folders_and_headings_are_fine() {
        let pages = [
            (SUMMARY, "[a](a.md)\n[decisions](decisions/README.md)\n"),
            ("docs/a.md", "# A\n[b](#a), [c](../deploy/chart), [d](../deploy/chart/values.yaml)\n"),
            (DECISIONS, "[1](0001-x.md)"),
            ("docs/decisions/0001-x.md", "# X\n[a](../a.md#a)"),
        ];
        assert_eq!(faults_of(&pages), <[&str; 0]>::default());
    }

    #[test]
    fn links_that_lead_nowhere_and_pages_without_a_link_are_named() {
        let pages = [
            (SUMMARY, "[a](a.md)\n"),
            ("docs/a.md", "# A\n\n[b](b.md) [c](#c) [d](../../d)\n"),
            ("docs/lost.md", "# Lost\n"),
            (DECISIONS, ""),
            ("docs/decisions/0001-x.md", "# X\n"),
        ];
        let expected = [
            "docs/a.md:3: the link to docs/b.md leads nowhere",
            "docs/a.md:3: docs/a.md has no heading #c",
            "docs/a.md:3: the link ../../d leaves the repository",
            "docs/decisions/0001-x.md:0: the page is not in docs/decisions/README.md; add it there",
            "docs/decisions/README.md:0: the page is not in docs/SUMMARY.md; add it there",
            "docs/lost.md:0: the page is not in docs/SUMMARY.md; add it there",
        ];
        assert_eq!(faults_of(&pages), expected);
    }

    #[test]
    fn site_with_a_broken_link_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let write = |text: &str| fs::write(root.path().join("a.html"), text).unwrap();
        write("<h1 id=\"x\"></h1><a class=\"y\" href=\"a.html#x\"></a><img src=\"https://z\">");
        assert_eq!(site(root.path()).unwrap(), 1);
        for broken in ["<a href=\"b.html\"></a>", "<a href=\"#z\"></a>", "<img src=\"c.svg\">"] {
            write(broken);
            assert!(site(root.path()).is_err(), "{broken}");
        }
    }
}
