//! Links and headings of a page, as the parser of the site's generator reads them.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::{Component, Path, PathBuf};

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

/// A page.
pub(crate) struct Page {
    pub(crate) links: Vec<Link>,
    /// The anchors of all headings.
    pub(crate) anchors: BTreeSet<String>,
    /// The text of the first heading.
    pub(crate) title: String,
}

/// A link or a picture.
pub(crate) struct Link {
    pub(crate) target: Target,
    /// The place in the page.
    pub(crate) range: Range<usize>,
    pub(crate) line: usize,
}

/// The place that a link leads to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// Outside of the repository.
    Elsewhere,
    /// A file or folder of the repository, and perhaps a heading.
    Inside { path: String, anchor: Option<String> },
    /// A path that leaves the repository.
    Outside(String),
}

impl Page {
    /// Parses the page with this path.
    pub(crate) fn parse(path: &str, text: &str) -> Self {
        let options = Options::ENABLE_TABLES | Options::ENABLE_FOOTNOTES;
        let mut page = Self { links: Vec::new(), anchors: BTreeSet::new(), title: String::new() };
        let mut heading: Option<String> = None;
        let mut times: BTreeMap<String, usize> = BTreeMap::new();
        for (event, range) in Parser::new_ext(text, options).into_offset_iter() {
            match event {
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                    let line = text[..range.start].matches('\n').count() + 1;
                    page.links.push(Link { target: Target::of(path, &dest_url), range, line });
                }
                Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
                Event::Text(part) | Event::Code(part) => {
                    if let Some(heading) = &mut heading {
                        heading.push_str(&part);
                    }
                }
                Event::End(TagEnd::Heading(_)) => {
                    let heading = heading.take().unwrap_or_default();
                    let anchor = anchor(&heading);
                    let before = times.entry(anchor.clone()).or_default();
                    page.anchors.insert(match *before {
                        0 => anchor,
                        n => format!("{anchor}-{n}"),
                    });
                    *before += 1;
                    if page.title.is_empty() {
                        page.title = heading;
                    }
                }
                _ => {}
            }
        }
        page
    }
}

impl Target {
    fn of(page: &str, url: &str) -> Self {
        if url.contains("://") || url.starts_with("mailto:") {
            return Self::Elsewhere;
        }
        let (path, anchor) = match url.split_once('#') {
            Some((path, anchor)) => (path, Some(anchor.to_owned())),
            None => (url, None),
        };
        if path.is_empty() {
            return Self::Inside { path: page.to_owned(), anchor };
        }
        match join(page, path) {
            Some(path) => Self::Inside { path, anchor },
            None => Self::Outside(url.to_owned()),
        }
    }
}

/// Returns the path from the root of the repository for a path from the folder of a page. `None` if
/// it leaves the repository.
pub(crate) fn join(page: &str, path: &str) -> Option<String> {
    let mut joined = PathBuf::new();
    for part in Path::new(page).parent()?.join(path).components() {
        match part {
            Component::Normal(name) => joined.push(name),
            Component::CurDir => {}
            Component::ParentDir if joined.pop() => {}
            _ => return None,
        }
    }
    joined.to_str().map(str::to_owned)
}

/// Returns the anchor of a heading, as Git hosts and mdBook make it.
fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c));
    kept.collect::<String>().to_lowercase().replace(' ', "-")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inside(path: &str, anchor: Option<&str>) -> Target {
        Target::Inside { path: path.to_owned(), anchor: anchor.map(str::to_owned) }
    }

    #[test]
    fn links_have_targets_from_the_root() {
        let text = "# A page\n\n[one](two.md#three), [`co\nde`](../four/), ![x](y.svg)\n\n    [no](no.md)\n\n\
                    `[no](no.md)` [self](#a-page) [web](https://example.net) [out](../../x.md)\n";
        let page = Page::parse("docs/page.md", text);
        let targets: Vec<&Target> = page.links.iter().map(|link| &link.target).collect();
        let expected = [
            inside("docs/two.md", Some("three")),
            inside("four", None),
            inside("docs/y.svg", None),
            inside("docs/page.md", Some("a-page")),
            Target::Elsewhere,
            Target::Outside("../../x.md".to_owned()),
        ];
        assert_eq!(targets, expected.iter().collect::<Vec<_>>());
        assert_eq!(page.links.iter().map(|link| link.line).collect::<Vec<_>>(), [3, 3, 4, 8, 8, 8]);
    }

    #[test]
    fn headings_have_the_anchors_of_git_hosts() {
        let page = Page::parse("a.md", "# The `lb-N` way, and more!\n## Again\n### Again\n");
        assert_eq!(page.title, "The lb-N way, and more!");
        let anchors: Vec<&str> = page.anchors.iter().map(String::as_str).collect();
        assert_eq!(anchors, ["again", "again-1", "the-lb-n-way-and-more"]);
    }
}
