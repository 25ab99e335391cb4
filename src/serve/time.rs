//! Times on the agent's clock; RFC 3339 in JSON.

use std::time::Duration;

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
