//! Pauses between attempts.

use std::time::Duration;

use shunt_core::jitter;

const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// The limit for a server that should answer.
pub(super) const MAX_PAUSE: Duration = Duration::from_secs(30);

/// Returns the pause after so many earlier failures, and counts this one. Pauses double up to a limit.
/// Each is shortened by a random part, up to a half, so that the nodes of a cluster do not reconnect all
/// at once.
pub(super) fn pause(failures: &mut u32, limit: Duration) -> Duration {
    let pause = FIRST_PAUSE.saturating_mul(1 << (*failures).min(16)).min(limit);
    *failures = failures.saturating_add(1);
    pause.mul_f64(0.5 + 0.5 * jitter::fraction())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_limit() {
        let (mut failures, mut expected) = (0, FIRST_PAUSE);
        for count in 1..50 {
            let pause = pause(&mut failures, MAX_PAUSE);
            assert!(pause <= expected && pause >= expected / 2, "{pause:?} of {expected:?}");
            assert_eq!(failures, count);
            expected = (expected * 2).min(MAX_PAUSE);
        }
    }
}
