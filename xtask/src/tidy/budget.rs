//! `budget.toml`: how much code a room may have.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};

/// Signs of two or three characters that are one token.
const SIGNS: [&str; 13] =
    ["..=", "...", "::", "->", "=>", "==", "!=", "<=", ">=", "&&", "||", "..", "+="];

/// Returns the rooms that have more tokens than their budget, and those without one.
pub(super) fn check(budget: &str, rooms: &BTreeMap<String, usize>) -> Result<Vec<String>> {
    let budget: BTreeMap<String, usize> = toml::from_str(budget).context("see budget.toml")?;
    let over = rooms.iter().filter_map(|(room, has)| match budget.get(room) {
        Some(most) if has <= most => None,
        Some(most) => Some(format!(
            "{room} has {has} tokens, {most} are its budget: remove something, or raise it in \
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
pub(super) fn add(rooms: &mut BTreeMap<String, usize>, path: &str, text: &str) {
    let Some(room) = room(path) else { return };
    let (code, tests) = text.split_once("#[cfg(test)]\nmod tests {").unwrap_or((text, ""));
    for (room, text) in [(room, code), (if room == "tools" { room } else { "tests" }, tests)] {
        *rooms.entry(room.to_owned()).or_default() += tokens(text);
    }
}

/// Counts tokens of Rust: a comment is none, a string is one.
fn tokens(mut text: &str) -> usize {
    let mut count = 0;
    loop {
        text = text.trim_start();
        let Some(first) = text.chars().next() else { return count };
        let length = match first {
            '/' if text.starts_with("//") => {
                text = text.split_once('\n').map_or("", |(_, rest)| rest);
                continue;
            }
            '"' => string(text),
            'b' | 'c' if text[1..].starts_with('"') => 1 + string(&text[1..]),
            'r' if text[1..].trim_start_matches('#').starts_with('"') => raw(text),
            '\'' => character(text),
            'b' if text[1..].starts_with('\'') => 1 + character(&text[1..]),
            _ if is_word(first) => text.find(|it| !is_word(it)).unwrap_or(text.len()),
            _ => SIGNS
                .iter()
                .find(|it| text.starts_with(**it))
                .map_or(first.len_utf8(), |it| it.len()),
        };
        count += 1;
        text = text.get(length..).unwrap_or("");
    }
}

fn is_word(it: char) -> bool {
    it.is_alphanumeric() || it == '_'
}

/// The length of a string in quotes.
fn string(text: &str) -> usize {
    let mut is_escaped = true;
    for (at, it) in text.char_indices() {
        match it {
            '"' if !is_escaped => return at + 1,
            '\\' => is_escaped = !is_escaped,
            _ => is_escaped = false,
        }
    }
    text.len()
}

/// The length of a raw string.
fn raw(text: &str) -> usize {
    let hashes = text[1..].bytes().take_while(|it| *it == b'#').count();
    let end = format!("\"{}", "#".repeat(hashes));
    let begin = hashes + 2;
    text[begin..].find(&end).map_or(text.len(), |at| begin + at + end.len())
}

/// The length of a character in quotes, or of a lifetime.
fn character(text: &str) -> usize {
    let inside: Vec<char> = text.chars().skip(1).take(2).collect();
    match inside[..] {
        ['\\', it] => {
            let begin = 2 + it.len_utf8();
            text[begin..].find('\'').map_or(text.len(), |at| begin + at + 1)
        }
        [it, '\''] => it.len_utf8() + 2,
        _ => 1 + text[1..].find(|it| !is_word(it)).unwrap_or(text.len() - 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_are_no_tokens_and_strings_are_one() {
        for (text, count) in [
            ("fn f() -> u8 { 1 } // a comment", 8 + 1),
            (r##"let a = "b \" c"; r#"d "e" f"#"##, 6),
            (r"'\'' '\u{1f}' 'x' &'a str b'\n'", 7),
            ("a::b..=c", 5),
        ] {
            assert_eq!(tokens(text), count, "{text}");
        }
    }

    #[test]
    fn a_room_above_its_budget_is_named_and_unit_tests_are_tests() -> Result<()> {
        let mut rooms = BTreeMap::new();
        add(&mut rooms, "src/serve/a.rs", "fn a() {}\n\n#[cfg(test)]\nmod tests {\n}\n");
        add(&mut rooms, "crates/core/src/plan/tests.rs", "fn b() {}");
        add(&mut rooms, "crates/core/src/lib.rs", "mod c;");
        add(&mut rooms, "xtask/src/main.rs", "fn main() {}");
        assert_eq!(
            rooms,
            BTreeMap::from([
                ("crates/core".to_owned(), 3),
                ("src/serve".to_owned(), 6),
                ("tests".to_owned(), 7),
                ("tools".to_owned(), 6),
            ])
        );
        let budget = "\"crates/core\" = 3\n\"src/serve\" = 5\ntests = 9\n";
        let wrong = check(budget, &rooms)?;
        assert!(wrong[0].starts_with("src/serve has 6 tokens, 5 are"), "{wrong:?}");
        assert!(wrong[1].starts_with("tools has 6 tokens and no budget"), "{wrong:?}");
        assert_eq!(wrong.len(), 2);
        Ok(())
    }
}
