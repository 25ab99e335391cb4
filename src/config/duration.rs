//! Durations as Go writes them: `30s`, `1h2m3s`, `0s`.

use std::time::Duration;

use jiff::SignedDuration;

/// A duration in a configuration. It may be negative until it is validated.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct GoDuration(SignedDuration);

impl GoDuration {
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
