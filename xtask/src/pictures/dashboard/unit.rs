//! Numbers with units, as Grafana writes them.

use serde::Deserialize;

use crate::canvas::linear_ticks;

/// A unit by Grafana's identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub(super) enum Unit {
    #[serde(rename = "short")]
    Short,
    #[serde(rename = "s")]
    Seconds,
    #[serde(rename = "bytes")]
    Bytes,
    #[serde(rename = "percentunit")]
    Share,
    #[serde(rename = "ops")]
    Operations,
    #[serde(rename = "cps")]
    Counts,
}

const SECONDS: &[(f64, &str)] =
    &[(1e-6, " µs"), (1e-3, " ms"), (1.0, " s"), (60.0, " min"), (3600.0, " hour")];
const BYTES: &[(f64, &str)] =
    &[(1.0, " B"), (1024.0, " KiB"), (1_048_576.0, " MiB"), (1_073_741_824.0, " GiB")];
const SHARE: &[(f64, &str)] = &[(0.01, "%")];
const SHORT: &[(f64, &str)] = &[(1.0, ""), (1e3, " K"), (1e6, " Mil")];
const OPERATIONS: &[(f64, &str)] = &[(1.0, " ops/s"), (1e3, " K ops/s"), (1e6, " Mil ops/s")];
const COUNTS: &[(f64, &str)] = &[(1.0, " c/s"), (1e3, " K c/s"), (1e6, " Mil c/s")];

impl Unit {
    fn scales(self) -> &'static [(f64, &'static str)] {
        match self {
            Self::Short => SHORT,
            Self::Seconds => SECONDS,
            Self::Bytes => BYTES,
            Self::Share => SHARE,
            Self::Operations => OPERATIONS,
            Self::Counts => COUNTS,
        }
    }

    /// The largest scale that leaves a number of at least one, or the smallest.
    fn scale(self, number: f64) -> (f64, &'static str) {
        let scales = self.scales();
        let fits = scales.iter().rev().find(|(factor, _)| number.abs() >= *factor);
        fits.or(scales.first()).copied().unwrap_or((1.0, ""))
    }

    /// Returns a value with this number of decimals, or with three digits that say something.
    pub(super) fn text(self, value: f64, decimals: Option<usize>) -> String {
        let (factor, suffix) = self.scale(value);
        let number = value / factor;
        let digits = match number.abs() {
            _ if decimals.is_some() => decimals.unwrap_or_default(),
            large if large >= 99.95 => 0,
            middle if middle >= 9.995 => 1,
            _ => 2,
        };
        let text = format!("{number:.digits$}");
        let text = if decimals.is_none() { without_zeros(&text) } else { &text };
        format!("{text}{suffix}")
    }

    /// Returns the places of the lines of an axis from zero to at least `most`, with their words.
    pub(super) fn ticks(self, most: f64) -> Vec<(f64, String)> {
        let (factor, _) = self.scale(most);
        let ticks: Vec<f64> = linear_ticks(most / factor, 4).iter().map(|it| it * factor).collect();
        // One scale for all lines of an axis.
        let (factor, suffix) = self.scale(ticks.last().copied().unwrap_or(1.0));
        let text =
            |tick: f64| format!("{}{suffix}", without_zeros(&format!("{:.3}", tick / factor)));
        ticks.into_iter().map(|tick| (tick, text(tick))).collect()
    }
}

fn without_zeros(text: &str) -> &str {
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_a_scale_that_suits_them() {
        let text = |unit: Unit, value| unit.text(value, None);
        assert_eq!(text(Unit::Short, 2.0), "2");
        assert_eq!(text(Unit::Short, 1.0083), "1.01");
        assert_eq!(Unit::Short.text(1.0083, Some(0)), "1");
        assert_eq!(text(Unit::Short, 0.0), "0");
        assert_eq!(text(Unit::Short, 100.0), "100");
        assert_eq!(text(Unit::Seconds, 0.000_42), "420 µs");
        assert_eq!(text(Unit::Seconds, 0.0125), "12.5 ms");
        assert_eq!(text(Unit::Bytes, 1536.0), "1.5 KiB");
        assert_eq!(text(Unit::Share, 0.034), "3.4%");
        assert_eq!(text(Unit::Counts, 1234.0), "1.23 K c/s");
        assert_eq!(text(Unit::Operations, 0.5), "0.5 ops/s");
    }

    #[test]
    fn axis_reaches_the_largest_value_in_one_scale() {
        let words = |unit: Unit, most| -> Vec<String> {
            unit.ticks(most).into_iter().map(|(_, text)| text).collect()
        };
        assert_eq!(words(Unit::Bytes, 11.0 * 1_048_576.0), ["0 MiB", "5 MiB", "10 MiB", "15 MiB"]);
        assert_eq!(words(Unit::Seconds, 0.0019), ["0 ms", "0.5 ms", "1 ms", "1.5 ms", "2 ms"]);
        assert_eq!(words(Unit::Share, 0.021), ["0%", "1%", "2%", "3%"]);
        assert_eq!(words(Unit::Short, 0.0), ["0", "1"]);
        for most in [1e-5, 0.3, 7.0, 999.0, 12_345.0] {
            assert!(Unit::Short.ticks(most).last().is_some_and(|(tick, _)| *tick >= most * 0.999));
        }
    }
}
