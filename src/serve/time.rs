//! Times on the agent's clock; RFC 3339 in JSON. Log lines that come seldom.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use jiff::Unit;

pub use jiff::Timestamp as Time;

/// Returns the current time. Nanoseconds would only be noise.
#[must_use]
pub fn now() -> Time {
    Time::now().round(Unit::Microsecond).unwrap_or_default()
}

/// Returns the time that has passed from one time to another; zero if that is earlier.
#[must_use]
pub fn passed(from: Time, to: Time) -> Duration {
    to.duration_since(from).try_into().unwrap_or_default()
}

/// Permits a log line a minute about what may happen often.
#[derive(Debug, Default)]
pub(super) struct Seldom(Mutex<Option<Instant>>);

impl Seldom {
    pub(super) const fn new() -> Seldom {
        Seldom(Mutex::new(None))
    }

    /// Returns true if it has not for a minute.
    pub(super) fn may(&self) -> bool {
        const PERIOD: Duration = Duration::from_secs(60);
        let mut last = super::lock(&self.0);
        let may = last.is_none_or(|last| last.elapsed() >= PERIOD);
        if may {
            *last = Some(Instant::now());
        }
        may
    }
}
