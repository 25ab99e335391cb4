//! The table of all results, printed as they come. `xtask/draw` makes pages of the rows.

use std::time::Duration;

use super::Size;
pub(crate) use super::figure::Unit;
use super::figure::{DURATIONS, Row, times};

/// The name of what is measured in most figures.
pub(crate) const SHUNT: &str = "shunt";

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
}

/// Rows that are printed as they come.
#[derive(Default)]
pub(crate) struct Table {
    section: String,
    rows: Vec<Row>,
}

impl Table {
    /// The rows that follow belong to this section.
    pub(crate) fn begin_section(&mut self, name: &str) {
        self.section = name.to_owned();
    }

    /// Records how long a section took.
    pub(crate) fn record_duration(&mut self, section: &str, took: Duration) {
        self.begin_section(DURATIONS);
        self.figures(section, (0, 0), &[Figure::new(SHUNT, Value::time(took), 1)]);
    }

    /// Deletes the figures of the present section, which failed.
    pub(crate) fn forget_section(&mut self) {
        self.rows.retain(|row| row.section != self.section);
    }

    /// Adds figures of the same thing, that of shunt first.
    pub(crate) fn figures(&mut self, what: &str, size: Size, figures: &[Figure]) {
        let row = |figure: &Figure| Row {
            section: self.section.clone(),
            what: what.trim_start().to_owned(),
            services: size.0,
            endpoints: size.1,
            subject: figure.subject.clone(),
            value: figure.value.number,
            unit: figure.value.unit,
            n: figure.n,
            more_than: figure.is_lower_bound,
        };
        let rows: Vec<Row> = figures.iter().map(row).collect();
        println!("{what}, {} x {}", size.0, size.1);
        for row in &rows {
            println!("  {:<40} {:>12} {:>8}", row.subject, row.text(), times(row.n));
        }
        self.rows.extend(rows);
    }

    /// Says why there is no figure.
    pub(crate) fn not_measured(&mut self, what: &str, size: Size, why: &str) {
        println!("{what}, {} x {}: {why}", size.0, size.1);
    }

    /// All figures, for programs.
    pub(crate) fn rows(&self) -> &[Row] {
        &self.rows
    }
}
