//! Figures of the benchmarks: the rows of one run, and the file that the repository keeps.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

/// The section whose rows say how long the other sections took: their names are in `what`.
pub(crate) const DURATIONS: &str = "durations";

/// The unit of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Unit {
    #[serde(rename = "s")]
    Seconds,
    #[serde(rename = "bytes")]
    Bytes,
    #[serde(rename = "ratio")]
    Ratio,
    #[serde(rename = "percent")]
    Percent,
    #[serde(rename = "1/s")]
    PerSecond,
    #[serde(rename = "Gbit/s")]
    GigabitsPerSecond,
    #[serde(rename = "count")]
    Count,
}

impl Unit {
    /// The number with a prefix that suits it.
    pub(crate) fn text(self, number: f64) -> String {
        match self {
            Self::Seconds => match number * 1e6 {
                small if small < 999.95 => format!("{} µs", digits(small)),
                middle if middle < 999_950.0 => format!("{} ms", digits(middle / 1e3)),
                _ => format!("{} s", digits(number)),
            },
            Self::Bytes if number < 1e4 => format!("{number:.0} B"),
            Self::Bytes if number < 1e6 => format!("{} kB", digits(number / 1e3)),
            Self::Bytes if number < 1e10 => format!("{} MB", digits(number / 1e6)),
            Self::Bytes => format!("{} GB", digits(number / 1e9)),
            Self::Ratio => digits(number),
            Self::Percent => format!("{} %", digits(number)),
            Self::PerSecond => format!("{} /s", grouped(number)),
            Self::GigabitsPerSecond => format!("{} Gbit/s", digits(number)),
            Self::Count => grouped(number),
        }
    }
}

/// Three digits that say something, or all before the point.
fn digits(number: f64) -> String {
    match number.abs() {
        small if small < 0.095 => format!("{number:.4}"),
        small if small < 9.995 => format!("{number:.2}"),
        middle if middle < 99.95 => format!("{number:.1}"),
        _ => grouped(number),
    }
}

/// A whole number, its digits in groups of three above 9999.
pub(crate) fn grouped(number: f64) -> String {
    let plain = format!("{number:.0}");
    if plain.len() <= 4 {
        return plain;
    }
    let mut text = String::new();
    for (at, digit) in plain.chars().enumerate() {
        if at > 0 && (plain.len() - at).is_multiple_of(3) && digit.is_ascii_digit() {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

/// A figure of one subject, with all that it depends on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) section: String,
    pub(crate) what: String,
    pub(crate) services: u32,
    pub(crate) endpoints: u32,
    pub(crate) subject: String,
    pub(crate) value: f64,
    pub(crate) unit: Unit,
    /// How often it was measured.
    pub(crate) n: usize,
    /// The measurement reached this limit without an end.
    #[serde(default)]
    pub(crate) more_than: bool,
}

impl Row {
    pub(crate) fn size(&self) -> (u32, u32) {
        (self.services, self.endpoints)
    }

    pub(crate) fn text(&self) -> String {
        let than = if self.more_than { "> " } else { "" };
        format!("{than}{}", self.unit.text(self.value))
    }
}

/// Words for the number of measurements.
pub(crate) fn times(n: usize) -> String {
    if n == 1 { "once".to_owned() } else { grouped(n as f64) }
}

/// All that is known, each section from the last run that had it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Figures {
    /// The machine and the day of each section.
    pub(crate) runs: BTreeMap<String, Run>,
    pub(crate) rows: Vec<Row>,
}

/// Where and when a section was measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Run {
    pub(crate) machine: String,
    pub(crate) date: String,
}

impl Figures {
    pub(crate) fn parse(text: &str) -> Result<Self> {
        serde_json::from_str(text).context("no figures of the benchmarks")
    }

    /// Replaces the sections that `rows` have.
    pub(crate) fn replace(&mut self, rows: Vec<Row>, run: &Run) {
        let is_same = |old: &Row, new: &Row| {
            old.section == new.section && (old.section != DURATIONS || old.what == new.what)
        };
        self.rows.retain(|old| !rows.iter().any(|new| is_same(old, new)));
        for row in &rows {
            self.runs.insert(row.section.clone(), run.clone());
        }
        self.rows.extend(rows);
    }

    pub(crate) fn section<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Row> {
        self.rows.iter().filter(move |row| row.section == name)
    }

    /// JSON with a line for each row, so that a reader sees what a new run changes.
    pub(crate) fn json(&self) -> Result<String> {
        let mut text =
            format!("{{\n\"runs\": {},\n\"rows\": [", serde_json::to_string(&self.runs)?);
        for (at, row) in self.rows.iter().enumerate() {
            let comma = if at == 0 { "" } else { "," };
            write!(text, "{comma}\n{}", serde_json::to_string(row)?)?;
        }
        text.push_str("\n]\n}\n");
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(section: &str, what: &str, value: f64) -> Row {
        Row {
            section: section.to_owned(),
            what: what.to_owned(),
            services: 100,
            endpoints: 2,
            subject: "shunt".to_owned(),
            value,
            unit: Unit::Seconds,
            n: 3,
            more_than: false,
        }
    }

    #[test]
    fn numbers_have_a_prefix_that_suits_them_and_three_digits() {
        let text = |unit: Unit, number| unit.text(number);
        assert_eq!(text(Unit::Seconds, 13.46e-6), "13.5 µs");
        assert_eq!(text(Unit::Seconds, 0.999_96e-3), "1.00 ms");
        assert_eq!(text(Unit::Seconds, 3.359), "3.36 s");
        assert_eq!(text(Unit::Seconds, 124.0), "124 s");
        assert_eq!(text(Unit::Bytes, 53.9e6), "53.9 MB");
        assert_eq!(text(Unit::Bytes, 504e6), "504 MB");
        assert_eq!(text(Unit::PerSecond, 54_116.3), "54 116 /s");
        assert_eq!(text(Unit::PerSecond, 1_234_567.0), "1 234 567 /s");
        assert_eq!(text(Unit::Percent, 0.0119), "0.0119 %");
        assert_eq!(grouped(5_006.0), "5006");
    }

    #[test]
    fn a_run_of_some_sections_keeps_the_others() {
        let run = |date: &str| Run { machine: "one".to_owned(), date: date.to_owned() };
        let mut figures = Figures::default();
        let durations = |value| row(DURATIONS, "cold", value);
        figures.replace(
            vec![row("cold", "start", 1.0), row("cold", "restart", 2.0), durations(9.0)],
            &run("2026-01-01"),
        );
        figures.replace(
            vec![row("path", "first", 3.0), row(DURATIONS, "path", 8.0)],
            &run("2026-01-02"),
        );
        assert_eq!(figures.section("cold").count(), 2);
        assert_eq!(figures.section(DURATIONS).count(), 2);
        figures.replace(vec![row("cold", "start", 4.0), durations(7.0)], &run("2026-01-03"));
        let cold: Vec<f64> = figures.section("cold").map(|row| row.value).collect();
        assert_eq!(cold, [4.0]);
        assert_eq!(figures.section("path").count(), 1);
        assert_eq!(figures.section(DURATIONS).count(), 2);
        assert_eq!(figures.runs["cold"].date, "2026-01-03");
        assert_eq!(figures.runs["path"].date, "2026-01-02");
    }

    #[test]
    fn what_is_written_is_read_again() {
        let mut figures = Figures::default();
        let run = Run { machine: "2 x \"fast\"".to_owned(), date: "2026-01-01".to_owned() };
        assert_eq!(Figures::parse(&figures.json().unwrap()).unwrap(), figures);
        figures.replace(vec![row("cold", "start", 0.1), row("cold", "restart", 2.0)], &run);
        assert_eq!(Figures::parse(&figures.json().unwrap()).unwrap(), figures);
    }
}
