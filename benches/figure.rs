//! A figure of the benchmarks. `xtask/draw` reads what the benchmarks write, with this file.

use serde::{Deserialize, Serialize};

/// The section whose rows say how long the other sections took: their names are in `what`.
pub(crate) const DURATIONS: &str = "durations";

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Unit {
    #[serde(rename = "s")]
    Seconds,
    #[serde(rename = "bytes")]
    Bytes,
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
        zero if zero < f64::EPSILON => "0".to_owned(),
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

/// Words for the number of measurements.
pub(crate) fn times(n: usize) -> String {
    if n == 1 { "once".to_owned() } else { grouped(n as f64) }
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
    pub(crate) fn text(&self) -> String {
        let than = if self.more_than { "> " } else { "" };
        format!("{than}{}", self.unit.text(self.value))
    }
}
