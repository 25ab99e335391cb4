//! Times in JSON.

use std::fmt;
use std::time::{Duration, SystemTime};

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A time on the agent's clock; RFC 3339 in JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time(pub SystemTime);

impl Time {
    /// Returns the current time.
    #[must_use]
    pub fn now() -> Time {
        Time(SystemTime::now())
    }

    /// Returns the time that has passed until `now`; zero if this is later.
    #[must_use]
    pub fn before(self, now: Time) -> Duration {
        now.0.duration_since(self.0).unwrap_or_default()
    }
}

impl Default for Time {
    fn default() -> Time {
        Time(SystemTime::UNIX_EPOCH)
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Nanoseconds would only be noise.
        let time = jiff::Timestamp::try_from(self.0).unwrap_or_default();
        write!(f, "{time:.6}")
    }
}

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Time, D::Error> {
        let text = String::deserialize(deserializer)?;
        let time: jiff::Timestamp = text.parse().map_err(D::Error::custom)?;
        Ok(Time(time.into()))
    }
}
