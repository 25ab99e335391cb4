//! Lines that a terminal is too narrow for, broken at words. Pipes and files get them whole.

use std::io;

/// Breaks the lines of a text for people where stdout is a terminal.
pub(super) fn for_terminal(text: String) -> String {
    match terminal_size::terminal_size_of(io::stdout()) {
        Some((width, _)) => wrapped(&text, usize::from(width.0)),
        None => text,
    }
}

/// Breaks lines at words. What follows begins where the last column of the line does.
fn wrapped(text: &str, width: usize) -> String {
    let mut lines = String::new();
    for line in text.lines() {
        let indent = indent(line, width * 2 / 3);
        let (mut column, mut is_broken) = (0, false);
        for word in line.split_inclusive(' ') {
            if column > indent && column + word.trim_end().chars().count() > width {
                lines.truncate(lines.trim_end_matches(' ').len());
                lines.push('\n');
                lines.push_str(&" ".repeat(indent));
                (column, is_broken) = (indent, true);
            }
            if !is_broken || word != " " {
                lines.push_str(word);
                column += word.chars().count();
                is_broken = false;
            }
        }
        lines.push('\n');
    }
    lines
}

/// Where the last column of a line begins, at most there. Columns are two spaces apart, or more.
fn indent(line: &str, most: usize) -> usize {
    let mut indent = 0;
    let mut spaces = 2;
    for (at, c) in line.chars().enumerate().take_while(|(at, _)| *at <= most) {
        if c != ' ' && spaces > 1 {
            indent = at;
        }
        spaces = if c == ' ' { spaces + 1 } else { 0 };
    }
    indent
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_break_at_words_below_their_last_column() {
        let text =
            "DROPPED  by a rule\n\n 1 source      10.244.0.10, arrives on veth-1       routes\n";
        let expected = "DROPPED  by a rule\n\n 1 source      10.244.0.10, arrives\n\
                        \x20              on veth-1\n               routes\n";
        assert_eq!(wrapped(text, 36), expected);
        assert_eq!(wrapped(text, 80), text);
        assert_eq!(wrapped("unbreakable-word next\n", 8), "unbreakable-word\nnext\n");
    }
}
