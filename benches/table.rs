//! The table of all results: for a reader, and typed for programs.

use std::fmt::{self, Write as _};
use std::time::Duration;

use serde::Serialize;

use super::Size;

/// The name of what is measured in most figures.
pub(crate) const SHUNT: &str = "shunt";

/// The section of rows that say how long the others took.
const DURATIONS: &str = "durations";

/// What a figure is in.
#[allow(dead_code, reason = "not every unit has a section that measures in it")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
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

/// A number with its unit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Value {
    pub(crate) number: f64,
    pub(crate) unit: Unit,
}

impl Value {
    pub(crate) fn time(time: Duration) -> Value {
        Value { number: time.as_secs_f64(), unit: Unit::Seconds }
    }

    pub(crate) fn bytes(bytes: u64) -> Value {
        Value { number: bytes as f64, unit: Unit::Bytes }
    }

    /// A share such as 0.5 as percent.
    pub(crate) fn percent(share: f64) -> Value {
        Value { number: share * 100.0, unit: Unit::Percent }
    }

    pub(crate) fn per_second(rate: f64) -> Value {
        Value { number: rate, unit: Unit::PerSecond }
    }

    pub(crate) fn count(count: u64) -> Value {
        Value { number: count as f64, unit: Unit::Count }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = self.number;
        match self.unit {
            Unit::Seconds => {
                let microseconds = number * 1e6;
                match microseconds {
                    _ if microseconds < 1e3 => write!(f, "{microseconds:.1} \u{b5}s"),
                    _ if microseconds < 1e6 => write!(f, "{:.2} ms", microseconds / 1e3),
                    _ => write!(f, "{number:.2} s"),
                }
            }
            Unit::Bytes if number < 1e4 => write!(f, "{number:.0} B"),
            Unit::Bytes if number < 1e6 => write!(f, "{:.1} kB", number / 1e3),
            Unit::Bytes => write!(f, "{:.1} MB", number / 1e6),
            Unit::Ratio => f.write_str(&ratio_text(number)),
            Unit::Percent => write!(f, "{number:.2} %"),
            Unit::PerSecond => write!(f, "{number:.0} /s"),
            Unit::GigabitsPerSecond => write!(f, "{number:.2} Gbit/s"),
            Unit::Count => write!(f, "{number}"),
        }
    }
}

/// What one of those that are compared achieves.
#[derive(Clone, Debug)]
pub(crate) struct Figure {
    /// [`SHUNT`], or another name.
    pub(crate) subject: String,
    pub(crate) value: Value,
    /// How often it was measured.
    pub(crate) n: usize,
    /// The limit that a measurement reached without an end.
    pub(crate) is_lower_bound: bool,
}

impl Figure {
    pub(crate) fn new(subject: &str, value: Value, n: usize) -> Figure {
        Figure { subject: subject.to_owned(), value, n, is_lower_bound: false }
    }

    /// A figure of a measurement that was given up at this value.
    pub(crate) fn more_than(subject: &str, value: Value, n: usize) -> Figure {
        Figure { is_lower_bound: true, ..Figure::new(subject, value, n) }
    }

    /// Returns the ratio to another figure, unless one of them has another unit or is a limit.
    fn ratio(&self, other: &Figure) -> Option<String> {
        let comparable = self.value.unit == other.value.unit && other.value.number > 0.0;
        let exact = !self.is_lower_bound && !other.is_lower_bound;
        (comparable && exact).then(|| ratio_text(self.value.number / other.value.number))
    }

    fn text(&self) -> String {
        let than = if self.is_lower_bound { "> " } else { "" };
        format!("{than}{}", self.value)
    }
}

/// A figure with all that it depends on.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) section: &'static str,
    pub(crate) what: String,
    pub(crate) services: u32,
    pub(crate) endpoints: u32,
    pub(crate) subject: String,
    pub(crate) value: f64,
    pub(crate) unit: Unit,
    pub(crate) n: usize,
    /// The measurement reached this limit without an end.
    pub(crate) more_than: bool,
}

/// Rows that are printed as they come.
pub(crate) struct Table {
    section: &'static str,
    lines: Vec<[String; 7]>,
    rows: Vec<Row>,
}

/// The widths of the columns; the first and the fourth are words.
const WIDTHS: [usize; 7] = [54, 13, 10, 38, 10, 8, 8];
const HEAD: [&str; 7] = ["", "Services x ep", "shunt", "beside", "its figure", "ratio", "n"];

impl Table {
    pub(crate) fn begin() -> Table {
        print(&HEAD.map(str::to_owned));
        Table { section: "", lines: Vec::new(), rows: Vec::new() }
    }

    /// The rows that follow belong to this section.
    pub(crate) fn begin_section(&mut self, name: &'static str) {
        self.section = name;
    }

    /// Records how long a section took. Only programs see it.
    pub(crate) fn record_duration(&mut self, section: &'static str, took: Duration) {
        let outer = std::mem::replace(&mut self.section, DURATIONS);
        self.record(section, (0, 0), &Figure::new(SHUNT, Value::time(took), 1));
        self.section = outer;
    }

    /// Deletes the figures of the present section, which failed.
    pub(crate) fn forget_section(&mut self) {
        self.rows.retain(|row| row.section != self.section);
    }

    /// Returns what adds rows whose figures were measured so often. A median, a percentile or the
    /// worst is of that many.
    pub(crate) fn of(&mut self, n: usize) -> Repeated<'_> {
        Repeated { table: self, n }
    }

    /// Adds figures of the same thing. If the first is that of shunt, there is a line for each of the
    /// others beside it; otherwise the others stand alone.
    pub(crate) fn figures(&mut self, what: &str, size: Size, figures: &[Figure]) {
        for figure in figures {
            self.record(what, size, figure);
        }
        let (ours, others) = match figures {
            [ours, others @ ..] if ours.subject == SHUNT => (Some(ours), others),
            others => (None, others),
        };
        let text = ours.map(Figure::text).unwrap_or_default();
        if let (Some(ours), []) = (ours, others) {
            self.line(what, size, &text, "", "", "", &times_text(ours.n));
        }
        for other in others {
            let ratio = ours.and_then(|ours| ours.ratio(other)).unwrap_or_default();
            let n = match (ours.map(|ours| times_text(ours.n)), times_text(other.n)) {
                (Some(ours), others) if ours != others => format!("{ours}; {others}"),
                (_, others) => others,
            };
            self.line(what, size, &text, &other.subject, &other.text(), &ratio, &n);
        }
    }

    /// Adds a line that says why there is no figure.
    pub(crate) fn not_measured(&mut self, what: &str, size: Size, why: &str) {
        self.line(what, size, "", why, "", "", "");
    }

    /// All figures, for programs.
    pub(crate) fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// All lines.
    pub(crate) fn markdown(&self) -> String {
        let mut text = String::from(
            "| | Services x endpoints | shunt | beside | its figure | ratio | n |\n\
             | --- | ---: | ---: | --- | ---: | ---: | ---: |\n",
        );
        for line in &self.lines {
            writeln!(text, "| {} |", line.join(" | ")).expect("a String");
        }
        text
    }

    /// All figures as a list in JSON.
    pub(crate) fn json(&self) -> String {
        serde_json::to_string_pretty(self.rows()).expect("plain data")
    }

    fn record(&mut self, what: &str, (services, endpoints): Size, figure: &Figure) {
        self.rows.push(Row {
            section: self.section,
            what: what.trim_start().to_owned(),
            services,
            endpoints,
            subject: figure.subject.clone(),
            value: figure.value.number,
            unit: figure.value.unit,
            n: figure.n,
            more_than: figure.is_lower_bound,
        });
    }

    #[expect(clippy::too_many_arguments, reason = "the columns")]
    fn line(
        &mut self,
        what: &str,
        (services, endpoints): Size,
        ours: &str,
        beside: &str,
        other: &str,
        ratio: &str,
        n: &str,
    ) {
        let size = format!("{services} x {endpoints}");
        let line = [what, &size, ours, beside, other, ratio, n].map(str::to_owned);
        print(&line);
        self.lines.push(line);
    }
}

/// Adds rows whose figures were measured equally often.
pub(crate) struct Repeated<'a> {
    table: &'a mut Table,
    n: usize,
}

impl Repeated<'_> {
    /// Adds our time beside another one.
    pub(crate) fn times(
        self,
        what: &str,
        size: Size,
        ours: Duration,
        beside: &str,
        other: Duration,
    ) {
        self.beside(what, size, Value::time(ours), beside, Value::time(other));
    }

    /// Adds our time, which there is nothing to compare with.
    pub(crate) fn time(self, what: &str, size: Size, ours: Duration) {
        self.value(what, size, Value::time(ours));
    }

    /// Adds our figure beside another one. There is a ratio if both have the same unit.
    pub(crate) fn beside(self, what: &str, size: Size, ours: Value, beside: &str, other: Value) {
        let figures = [Figure::new(SHUNT, ours, self.n), Figure::new(beside, other, self.n)];
        self.table.figures(what, size, &figures);
    }

    /// Adds our figure, which there is nothing to compare with.
    pub(crate) fn value(self, what: &str, size: Size, ours: Value) {
        self.table.figures(what, size, &[Figure::new(SHUNT, ours, self.n)]);
    }
}

fn print(line: &[String; 7]) {
    let mut text = String::new();
    for (column, (cell, width)) in line.iter().zip(WIDTHS).enumerate() {
        if column == 0 || column == 3 {
            write!(text, "{cell:<width$}  ").expect("a String");
        } else {
            write!(text, "{cell:>width$}  ").expect("a String");
        }
    }
    println!("{}", text.trim_end());
}

/// How often something was measured.
fn times_text(n: usize) -> String {
    if n == 1 { "once".to_owned() } else { n.to_string() }
}

/// A ratio, of which three digits say something.
fn ratio_text(ratio: f64) -> String {
    match ratio {
        _ if ratio < 0.1 => format!("{ratio:.4}"),
        _ if ratio < 10.0 => format!("{ratio:.2}"),
        _ => format!("{ratio:.0}"),
    }
}
