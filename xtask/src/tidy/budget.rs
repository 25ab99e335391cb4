//! `budget.toml`: how much code a room may have.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, anyhow};
use proc_macro2::{Spacing, TokenStream, TokenTree};

/// Returns the rooms that have more tokens than their budget, and those without one.
pub(super) fn check(budget: &str, rooms: &BTreeMap<String, usize>) -> Result<Vec<String>> {
    let budget: BTreeMap<String, usize> = toml::from_str(budget).context("see budget.toml")?;
    let over = rooms.iter().filter_map(|(room, has)| match budget.get(room) {
        Some(most) if has <= most => None,
        Some(most) => Some(format!(
            "{room} has {has} tokens, its budget is {most}: remove something, or raise it in \
             budget.toml with a decision that says what a user gets for it"
        )),
        None => Some(format!("{room} has {has} tokens and no budget: add it to budget.toml")),
    });
    Ok(over.collect())
}

/// Returns the room of a file of Rust.
pub(super) fn room(path: &str) -> Option<&str> {
    let name = path.rsplit('/').next()?;
    match path.split('/').next()? {
        _ if !path.ends_with(".rs") => None,
        "src" | "crates" if path.contains("/tests/") => Some("tests"),
        "src" | "crates" if ["tests.rs", "fuzz.rs"].contains(&name) => Some("tests"),
        "src" | "crates" => {
            Some(path.match_indices('/').nth(1).map_or("src", |(second, _)| &path[..second]))
        }
        "tests" | "fuzz" => Some("tests"),
        _ => Some("tools"),
    }
}

/// Adds the tokens of a file to its room; those of its unit tests to the tests.
pub(super) fn add(rooms: &mut BTreeMap<String, usize>, path: &str, text: &str) -> Result<()> {
    const UNIT_TESTS: [&str; 2] =
        ["#[cfg(test)]\nmod tests {", "#[cfg(test)]\npub(super) mod tests {"];
    let Some(room) = room(path) else { return Ok(()) };
    let tests = UNIT_TESTS.iter().find_map(|start| text.find(start));
    let (code, tests) = text.split_at(tests.unwrap_or(text.len()));
    let room_of_tests = if room == "tools" { room } else { "tests" };
    for (room, text) in [(room, code), (room_of_tests, tests)] {
        let tokens = tokens(text).with_context(|| format!("cannot read {path}"))?;
        *rooms.entry(room.to_owned()).or_default() += tokens;
    }
    Ok(())
}

/// Counts tokens of Rust: a comment is none, a string is one.
fn tokens(text: &str) -> Result<usize> {
    fn count(stream: TokenStream) -> usize {
        let one = |tree| match tree {
            TokenTree::Group(group) => 2 + count(group.stream()),
            // A part of `::` or of a lifetime.
            TokenTree::Punct(sign) if sign.spacing() == Spacing::Joint => 0,
            _ => 1,
        };
        stream.into_iter().map(one).sum()
    }
    let is_code = |line: &&str| !line.trim_start().starts_with("//");
    let code: Vec<&str> = text.lines().filter(is_code).collect();
    let stream: TokenStream = code.join("\n").parse().map_err(|error| anyhow!("{error}"))?;
    Ok(count(stream))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_are_no_tokens_and_strings_are_one() -> Result<()> {
        let text = r##"
            /// A comment.
            fn f<'a>() -> &'a str { r#"d "e" f"# } // another
        "##;
        assert_eq!(tokens(text)?, 12);
        Ok(())
    }

    #[test]
    fn a_room_above_its_budget_is_named_and_unit_tests_are_tests() -> Result<()> {
        let mut rooms = BTreeMap::new();
        add(&mut rooms, "src/serve/a.rs", "fn a() {}\n\n#[cfg(test)]\nmod tests {\n}\n")?;
        add(&mut rooms, "crates/core/src/plan/tests.rs", "fn b() {}")?;
        add(&mut rooms, "crates/core/src/lib.rs", "mod c;")?;
        add(&mut rooms, "xtask/src/main.rs", "fn main() {}")?;
        assert_eq!(
            rooms,
            BTreeMap::from([
                ("crates/core".to_owned(), 3),
                ("src/serve".to_owned(), 6),
                ("tests".to_owned(), 17),
                ("tools".to_owned(), 6),
            ])
        );
        let budget = "\"crates/core\" = 3\n\"src/serve\" = 5\ntests = 17\n";
        let wrong = check(budget, &rooms)?;
        assert!(wrong[0].starts_with("src/serve has 6 tokens, its budget is 5"), "{wrong:?}");
        assert!(wrong[1].starts_with("tools has 6 tokens and no budget"), "{wrong:?}");
        assert_eq!(wrong.len(), 2);
        Ok(())
    }
}
