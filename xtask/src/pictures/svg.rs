//! The screen of a terminal as SVG, with text that can be searched and copied.

use std::fmt::Write as _;

use anyhow::Result;
use vt100::{Cell, Color, Screen};

use crate::canvas::escape;

/// A picture of a command and what it shows.
pub(super) struct Picture<'a> {
    pub(super) title: &'a str,
    pub(super) command: &'a str,
    pub(super) screen: &'a Screen,
}

/// The size of a character, and the space around the text.
const WIDTH: f64 = 8.4;
const HEIGHT: usize = 17;
const MARGIN: usize = 16;
const FOREGROUND: &str = "#e6edf3";
const BACKGROUND: &str = "#0d1117";
/// The sixteen colours of a terminal.
const PALETTE: [&str; 16] = [
    "#484f58", "#ff7b72", "#3fb950", "#d29922", "#58a6ff", "#bc8cff", "#39c5cf", "#b1bac4",
    "#6e7681", "#ffa198", "#56d364", "#e3b341", "#79c0ff", "#d2a8ff", "#56d4dd", "#ffffff",
];

/// How characters look.
#[derive(Clone, PartialEq, Eq)]
struct Look {
    colour: String,
    behind: Option<String>,
    is_bold: bool,
    is_dim: bool,
}

impl Look {
    fn of(cell: &Cell) -> Self {
        let named = |colour: Color| match colour {
            Color::Default => None,
            Color::Idx(n @ 0..16) => Some(PALETTE[usize::from(n)].to_owned()),
            Color::Idx(n) => Some(indexed(n)),
            Color::Rgb(r, g, b) => Some(format!("#{r:02x}{g:02x}{b:02x}")),
        };
        let (mut colour, mut behind) = (named(cell.fgcolor()), named(cell.bgcolor()));
        if cell.inverse() {
            let front = behind.take().unwrap_or_else(|| BACKGROUND.to_owned());
            behind = Some(colour.take().unwrap_or_else(|| FOREGROUND.to_owned()));
            colour = Some(front);
        }
        Self {
            colour: colour.unwrap_or_else(|| FOREGROUND.to_owned()),
            behind,
            is_bold: cell.bold(),
            is_dim: cell.dim(),
        }
    }
}

/// Returns a colour of the cube or of the greys.
fn indexed(n: u8) -> String {
    if n >= 232 {
        let grey = 8 + 10 * (n - 232);
        return format!("#{grey:02x}{grey:02x}{grey:02x}");
    }
    let level = |n: u8| if n == 0 { 0 } else { 55 + 40 * n };
    let n = n.saturating_sub(16);
    format!("#{:02x}{:02x}{:02x}", level(n / 36), level(n / 6 % 6), level(n % 6))
}

impl Picture<'_> {
    /// Writes the picture.
    pub(super) fn svg(&self) -> Result<String> {
        let (rows, columns) = self.screen.size();
        let (rows, columns) = (rows.get(), columns.get());
        let used = self.screen.rows(0, columns).collect::<Vec<_>>();
        let last = used.iter().rposition(|row| !row.trim().is_empty()).map_or(0, |row| row + 1);
        let widest = used.iter().map(|row| row.trim_end().chars().count()).max().unwrap_or(0);
        let widest = widest.max(self.command.chars().count() + 2);
        let width = (f64::from(u32::try_from(widest)?) * WIDTH).ceil() as usize + 2 * MARGIN;
        let height = (last + 2) * HEIGHT + 2 * MARGIN;
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" role=\"img\" \
             aria-labelledby=\"title\" font-family=\"ui-monospace, SFMono-Regular, Menlo, Consolas, \
             'DejaVu Sans Mono', monospace\" font-size=\"14\">\n  <title id=\"title\">{}</title>\n  \
             <rect width=\"{width}\" height=\"{height}\" rx=\"8\" fill=\"{BACKGROUND}\"/>\n",
            escape(self.title),
        );
        let prompt = format!("# {}", self.command);
        let look =
            Look { colour: PALETTE[10].to_owned(), behind: None, is_bold: true, is_dim: false };
        run(&mut svg, 0, 0, &prompt, &look)?;
        for row in 0..rows.min(u16::try_from(last)?) {
            let mut column = 0;
            while column < columns {
                let Some(cell) = self.screen.cell(row, column) else { break };
                let (look, begin) = (Look::of(cell), column);
                let mut text = String::new();
                while let Some(cell) = self.screen.cell(row, column).filter(|_| column < columns) {
                    if Look::of(cell) != look {
                        break;
                    }
                    text.push_str(if cell.has_contents() { cell.contents() } else { " " });
                    column += 1;
                }
                run(&mut svg, usize::from(row) + 2, begin, &text, &look)?;
            }
        }
        svg.push_str("</svg>\n");
        Ok(svg)
    }
}

/// Writes characters of one look. Each run has its place, so that columns are straight in every font.
fn run(svg: &mut String, row: usize, column: u16, text: &str, look: &Look) -> Result<()> {
    let x = |column: usize| -> Result<f64> {
        Ok(f64::from(u32::try_from(column)?) * WIDTH + f64::from(u32::try_from(MARGIN)?))
    };
    let top = MARGIN + row * HEIGHT;
    let begin = usize::from(column);
    if let Some(behind) = &look.behind {
        let width = x(text.chars().count())? - x(0)?;
        writeln!(
            svg,
            "  <rect x=\"{:.1}\" y=\"{top}\" width=\"{width:.1}\" height=\"{HEIGHT}\" fill=\"{behind}\"/>",
            x(begin)?
        )?;
    }
    let trimmed = text.trim();
    if trimmed.is_empty() {
        return Ok(());
    }
    let spaces = text.chars().take_while(|c| c.is_whitespace()).count();
    let length = x(trimmed.chars().count())? - x(0)?;
    let weight = if look.is_bold { " font-weight=\"bold\"" } else { "" };
    let dim = if look.is_dim { " opacity=\"0.65\"" } else { "" };
    writeln!(
        svg,
        "  <text x=\"{:.1}\" y=\"{}\" textLength=\"{length:.1}\" lengthAdjust=\"spacingAndGlyphs\" \
         fill=\"{}\"{weight}{dim} xml:space=\"preserve\">{}</text>",
        x(begin + spaces)?,
        top + 13,
        look.colour,
        escape(trimmed)
    )?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_have_their_place_and_their_look() {
        let size = |n| std::num::NonZeroU16::new(n).unwrap();
        let mut parser = vt100::Parser::new(size(4), size(20), 0);
        parser.process(b"a < b\r\n  \x1b[1;31mred\x1b[0m \x1b[7mon\x1b[0m");
        let picture = Picture { title: "A & B", command: "shunt top", screen: parser.screen() };
        let svg = picture.svg().unwrap();
        let document = roxmltree::Document::parse(&svg).unwrap();
        let texts: Vec<(&str, &str, &str)> = document
            .descendants()
            .filter(|node| node.has_tag_name("text"))
            .map(|node| {
                let attribute = |name| node.attribute(name).unwrap();
                (node.text().unwrap(), attribute("x"), attribute("fill"))
            })
            .collect();
        let expected = [
            ("# shunt top", "16.0", PALETTE[10]),
            ("a < b", "16.0", FOREGROUND),
            ("red", "32.8", PALETTE[1]),
            ("on", "66.4", BACKGROUND),
        ];
        assert_eq!(texts, expected);
        assert!(svg.contains("<title id=\"title\">A &amp; B</title>"), "{svg}");
        assert!(svg.contains("font-weight=\"bold\""), "{svg}");
    }

    #[test]
    fn colours_of_the_cube_are_those_of_xterm() {
        assert_eq!(indexed(16), "#000000");
        assert_eq!(indexed(196), "#ff0000");
        assert_eq!(indexed(244), "#808080");
    }
}
