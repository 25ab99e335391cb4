//! Durations as Go writes them: `30s`, `1h2m3s`, `0s`.

use std::fmt;
use std::time::Duration;

use jiff::SignedDuration;

/// A duration in a configuration. It may be negative until it is validated.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct GoDuration(SignedDuration);

impl GoDuration {
    /// Makes a duration of nanoseconds.
    pub(super) const fn from_nanos(nanoseconds: i64) -> GoDuration {
        GoDuration(SignedDuration::from_nanos(nanoseconds))
    }

    /// Returns true for zero, which Go writes for a duration that is not set.
    #[must_use]
    pub fn is_zero(self) -> bool {
        self.0.is_zero()
    }

    /// Returns the duration, or `None` if it is negative.
    #[must_use]
    pub fn get(self) -> Option<Duration> {
        Duration::try_from(self.0).ok()
    }

    /// Parses a duration as Go's `time.ParseDuration` does.
    pub fn parse(text: &str) -> Result<GoDuration, String> {
        let unit = |c: char| c.is_ascii_alphabetic() || c == 'µ' || c == 'μ';
        let go = text.chars().all(|c| unit(c) || c.is_ascii_digit() || "+-.".contains(c));
        let duration = match text.trim_start_matches(['+', '-']) {
            "0" => Some(SignedDuration::ZERO),
            // jiff accepts more than Go: "2 hours ago", "PT1H", "1d".
            _ if go && !text.contains(['P', 'T', 'd', 'w', 'y']) => text.parse().ok(),
            _ => None,
        };
        duration
            .filter(|duration| i64::try_from(duration.as_nanos()).is_ok())
            .map(GoDuration)
            .ok_or_else(|| "not a duration such as 30s or 1h2m3s".into())
    }
}

impl fmt::Display for GoDuration {
    /// Writes as Go's `Duration.String` does: `1m30s`, `24h0m0s`, `0s`, `100ms`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_negative() {
            f.write_str("-")?;
        }
        let duration = self.0.unsigned_abs();
        let (seconds, nanoseconds) = (duration.as_secs(), duration.subsec_nanos());
        if seconds == 0 && nanoseconds > 0 {
            let (unit, digits) = match nanoseconds {
                1_000_000.. => ("ms", 6),
                1_000.. => ("µs", 3),
                _ => ("ns", 0),
            };
            return write!(f, "{}{unit}", fraction(u64::from(nanoseconds), digits));
        }
        let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
        if hours > 0 {
            write!(f, "{hours}h")?;
        }
        if hours > 0 || minutes > 0 {
            write!(f, "{minutes}m")?;
        }
        let rest = seconds % 60 * 1_000_000_000 + u64::from(nanoseconds);
        write!(f, "{}s", fraction(rest, 9))
    }
}

/// Writes a number with that many decimal places, without trailing zeros.
fn fraction(number: u64, digits: u32) -> String {
    let unit = 10_u64.pow(digits);
    let behind = format!("{:0width$}", number % unit, width = digits as usize);
    match behind.trim_end_matches('0') {
        "" => (number / unit).to_string(),
        behind => format!("{}.{behind}", number / unit),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_written_as_go_writes_them() {
        for text in [
            "0s",
            "30s",
            "1m30s",
            "24h0m0s",
            "1h0m0.5s",
            "100ms",
            "1.5ms",
            "2µs",
            "7ns",
            "-5s",
            "1m0.000000001s",
        ] {
            let duration = GoDuration::parse(text).expect(text);
            assert_eq!(duration.to_string(), text);
        }
    }
}
