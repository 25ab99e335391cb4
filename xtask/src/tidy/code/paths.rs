//! The words and paths of a Rust file.

use std::fmt;

use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// A path such as `std::net::IpAddr`, as written or as a `use` tree spells it out.
#[derive(Debug)]
pub(super) struct Path {
    segments: Vec<String>,
    /// Where its last segment stands.
    pub(super) line: usize,
}

impl Path {
    /// Whether `item` can be named through this path: it is the item, something inside it, or one
    /// of the modules that hold it, brought into scope whole.
    ///
    /// `super::x` counts as `crate::x`: a module that deep in the file tree would have to be
    /// called like the one at the top to be mistaken for it.
    pub(super) fn reaches(&self, item: &str) -> bool {
        let mut path: Vec<&str> = self.segments.iter().map(String::as_str).collect();
        let supers = path.iter().take_while(|segment| **segment == "super").count();
        if supers > 0 {
            path.splice(..supers, ["crate"]);
        }
        let whole = matches!(path.last(), Some(&("*" | "self")));
        if whole {
            path.pop();
        }
        let item: Vec<&str> = item.split("::").collect();
        if path.starts_with(&item) {
            return true;
        }
        // A single `std` or `crate` names nothing yet; `std::*` does.
        let holds = path.len() > 1 || whole && !path.is_empty();
        let visible_as_crate = supers == 0 || path.len() > 1;
        holds && visible_as_crate && item.starts_with(&path)
    }

    /// The first segment.
    pub(super) fn root(&self) -> &str {
        self.segments.first().map_or("", String::as_str)
    }

    /// The last segment.
    pub(super) fn last(&self) -> &str {
        self.segments.last().map_or("", String::as_str)
    }

    /// Whether the last segments are these.
    pub(super) fn ends_with(&self, end: &[&str]) -> bool {
        let start = self.segments.len().saturating_sub(end.len());
        self.segments[start..] == *end
    }

    /// Whether the path ends in one of `items` of `module`.
    pub(super) fn ends_with_any(&self, module: &str, items: &[&str]) -> bool {
        items.iter().any(|item| self.ends_with(&[module, item]))
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.segments.join("::"))
    }
}

/// Every path of the file.
pub(super) fn paths(tokens: TokenStream) -> Vec<Path> {
    let mut paths = Vec::new();
    collect_paths(tokens, &[], &mut paths);
    paths
}

/// Walk `tokens`; `prefix` is what stands before the braces of a `use` tree.
fn collect_paths(tokens: TokenStream, prefix: &[String], paths: &mut Vec<Path>) {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let mut at = 0;
    while let Some(token) = tokens.get(at) {
        at += 1;
        match token {
            TokenTree::Group(group) => collect_paths(group.stream(), &[], paths),
            // The new name of `x as y` is no path.
            TokenTree::Ident(ident) if *ident == "as" && !prefix.is_empty() => at += 1,
            TokenTree::Ident(ident) => {
                let mut segments = prefix.to_vec();
                segments.push(ident.to_string());
                at = finish_path(&tokens, at, segments, ident.span().start().line, paths);
            }
            TokenTree::Punct(punct) if punct.as_char() == '*' && !prefix.is_empty() => {
                let mut segments = prefix.to_vec();
                segments.push("*".into());
                paths.push(Path { segments, line: punct.span().start().line });
            }
            TokenTree::Punct(_) | TokenTree::Literal(_) => {}
        }
    }
}

/// Take the `::segment`s that follow, and return where to go on.
fn finish_path(
    tokens: &[TokenTree],
    mut at: usize,
    mut segments: Vec<String>,
    mut line: usize,
    paths: &mut Vec<Path>,
) -> usize {
    while is_colon(tokens.get(at)) && is_colon(tokens.get(at + 1)) {
        match tokens.get(at + 2) {
            Some(TokenTree::Ident(ident)) => {
                segments.push(ident.to_string());
                line = ident.span().start().line;
            }
            Some(TokenTree::Punct(punct)) if punct.as_char() == '*' => {
                segments.push("*".into());
            }
            Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Brace => {
                collect_paths(group.stream(), &segments, paths);
                return at + 3;
            }
            // `::<Type>`: the types are paths of their own.
            _ => break,
        }
        at += 3;
    }
    paths.push(Path { segments, line });
    at
}

fn is_colon(token: Option<&TokenTree>) -> bool {
    matches!(token, Some(TokenTree::Punct(punct)) if punct.as_char() == ':')
}

/// An identifier or keyword, and where it stands.
#[derive(Debug)]
pub(super) struct Word {
    pub(super) text: String,
    pub(super) line: usize,
    /// Inside `#[…]`.
    pub(super) in_attribute: bool,
    /// Followed by `!`.
    pub(super) is_macro: bool,
}

/// Every word of the file.
pub(super) fn words(tokens: TokenStream) -> Vec<Word> {
    let mut words = Vec::new();
    collect_words(tokens, false, &mut words);
    words
}

fn collect_words(tokens: TokenStream, in_attribute: bool, words: &mut Vec<Word>) {
    let mut after_hash = false;
    let mut tokens = tokens.into_iter().peekable();
    while let Some(token) = tokens.next() {
        match &token {
            TokenTree::Ident(ident) => words.push(Word {
                text: ident.to_string(),
                line: ident.span().start().line,
                in_attribute,
                is_macro: matches!(
                    tokens.peek(),
                    Some(TokenTree::Punct(punct)) if punct.as_char() == '!'
                ),
            }),
            TokenTree::Group(group) => {
                let attribute = after_hash && group.delimiter() == Delimiter::Bracket;
                collect_words(group.stream(), in_attribute || attribute, words);
            }
            TokenTree::Punct(_) | TokenTree::Literal(_) => {}
        }
        after_hash = matches!(&token, TokenTree::Punct(punct) if punct.as_char() == '#');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spelled(source: &str) -> Vec<String> {
        paths(source.parse().unwrap()).iter().map(Path::to_string).collect()
    }

    #[test]
    fn use_trees_are_spread_out() {
        let spelled = spelled("use a::{b, c::{d as x, *}, self};");
        for path in ["a::b", "a::c::d", "a::c::*", "a::self"] {
            assert!(spelled.iter().any(|found| found == path), "{path}: {spelled:?}");
        }
        assert!(!spelled.iter().any(|found| found.contains('x')), "{spelled:?}");
    }

    #[test]
    fn paths_in_expressions_types_and_macros_are_found() {
        let spelled = spelled("fn f(x: a::T) { m!(b::c(d::<e::F>::new())) }");
        for path in ["a::T", "b::c", "e::F"] {
            assert!(spelled.iter().any(|found| found == path), "{path}: {spelled:?}");
        }
    }

    #[test]
    fn a_path_reaches_what_it_names_and_what_it_brings_along() {
        let reaches = |source: &str, item: &str| {
            paths(source.parse().unwrap()).iter().any(|path| path.reaches(item))
        };
        assert!(reaches("std::fs::read", "std::fs"));
        assert!(reaches("use std::time;", "std::time::Instant"));
        assert!(reaches("use std::*;", "std::fs"));
        assert!(reaches("super::nft::Set", "crate::nft"));
        assert!(!reaches("std::time::Duration", "std::time::Instant"));
        assert!(!reaches("pub(crate) use super::*;", "crate::nft"));
        assert!(!reaches("my::std::fs", "std::fs"));
        assert!(!reaches("std::fsx", "std::fs"));
    }
}
