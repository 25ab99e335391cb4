//! How long to wait on machines that are slower than those that people work on.

use std::fmt::Display;
use std::time::{Duration, Instant};
use std::{env, thread};

use anyhow::{Result, ensure};

/// How much slower, as a whole number; an emulated processor takes ten times as long.
const VARIABLE: &str = "SHUNT_LAB_SLOWNESS";

/// As long as `usual`, or longer where the environment says that the machine is slow.
pub fn patience(usual: Duration) -> Duration {
    let slowness = env::var(VARIABLE).ok().and_then(|value| value.parse().ok());
    usual * slowness.unwrap_or(1)
}

/// How long [`eventually`] waits: so long that what has not come never will.
const LONGEST: Duration = Duration::from_secs(60);

/// Repeats an attempt until it finds something.
pub fn eventually<T>(
    what: impl Display,
    mut attempt: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    let deadline = Instant::now() + patience(LONGEST);
    loop {
        if let Some(found) = attempt()? {
            return Ok(found);
        }
        ensure!(Instant::now() < deadline, "not in time: {what}");
        thread::sleep(Duration::from_millis(2));
    }
}
