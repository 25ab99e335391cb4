//! Escapes what others can name: processes, objects, rules, interfaces, messages of servers.
//!
//! The escaped form is JSON's, so that JSON stays the same value.

use std::borrow::Cow;
use std::fmt::Write;

/// Escapes all control characters, so that the text is one line and stays in its place.
#[must_use]
pub fn line(text: &str) -> Cow<'_, str> {
    escaped(text, &[])
}

/// Escapes all control characters but the ends of lines and tabs.
#[must_use]
pub fn lines(text: &str) -> Cow<'_, str> {
    escaped(text, &['\n', '\t'])
}

fn escaped<'a>(text: &'a str, kept: &[char]) -> Cow<'a, str> {
    let is_harmful = |c: char| is_control(c) && !kept.contains(&c);
    if !text.contains(is_harmful) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match c {
            _ if !is_harmful(c) => escaped.push(c),
            '\n' => escaped.push_str("\\n"),
            '\t' => escaped.push_str("\\t"),
            // Writing to a String cannot fail.
            _ => _ = write!(escaped, "\\u{:04x}", u32::from(c)),
        }
    }
    escaped.into()
}

/// Returns true for characters that command a terminal (C0, DEL, C1), end a line, or turn the text
/// behind them around.
fn is_control(c: char) -> bool {
    c.is_control() || matches!(c, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped_and_other_text_stays() {
        let text = "Größe → 大\t\"a\\b\"\r\n\u{1b}[2J\u{7f}\u{9b}\u{2028}\u{202e}\u{2066}\u{2069}";
        let escaped = r"\u001b[2J\u007f\u009b\u2028\u202e\u2066\u2069";
        assert_eq!(line(text), format!("Größe → 大\\t\"a\\b\"\\u000d\\n{escaped}"));
        assert_eq!(lines(text), format!("Größe → 大\t\"a\\b\"\\u000d\n{escaped}"));
        assert!(matches!(line("web-1 ⚠ שלום"), Cow::Borrowed(_)));
    }

    #[test]
    fn json_stays_the_same_value() {
        let value = serde_json::json!({"name": "\u{1b}\u{7f}\u{9b}\n\u{2029}\u{202a}"});
        let json = format!("{value:#}\n");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&lines(&json)).ok(), Some(value));
    }
}
