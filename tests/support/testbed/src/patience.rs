//! How long to wait on machines that are slower than those that people work on.

use std::env;
use std::time::Duration;

/// How much slower, as a whole number; an emulated processor takes ten times as long.
const VARIABLE: &str = "SHUNT_LAB_SLOWNESS";

/// As long as `usual`, or longer where the environment says that the machine is slow.
pub fn patience(usual: Duration) -> Duration {
    let slowness = env::var(VARIABLE).ok().and_then(|value| value.parse().ok());
    usual * slowness.unwrap_or(1)
}
