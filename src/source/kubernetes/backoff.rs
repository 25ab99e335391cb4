//! Pauses between attempts.

use std::time::Duration;

use shunt_core::jitter;

const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// The limit for a server that should answer.
pub(super) const MAX_PAUSE: Duration = Duration::from_secs(30);

/// Pauses that double with each failure. Each is shortened by a random part, up to a half, so that
/// the nodes of a cluster do not reconnect all at once.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    failures: u32,
}

impl Backoff {
    /// Returns the pause before the next attempt. The pauses grow up to this limit.
    pub(super) fn next(&mut self, limit: Duration) -> Duration {
        let pause = FIRST_PAUSE.saturating_mul(1 << self.failures.min(16)).min(limit);
        self.failures = self.failures.saturating_add(1);
        pause.mul_f64(0.5 + 0.5 * jitter::fraction())
    }

    /// Returns the number of failures since the last success.
    pub(super) fn failures(&self) -> u32 {
        self.failures
    }

    /// Resets the pauses after a success.
    pub(super) fn reset(&mut self) {
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_limit_and_begin_anew_after_a_success() {
        let mut backoff = Backoff::default();
        let mut expected = FIRST_PAUSE;
        for _ in 0..50 {
            let pause = backoff.next(MAX_PAUSE);
            assert!(pause <= expected && pause >= expected / 2, "{pause:?} of {expected:?}");
            expected = (expected * 2).min(MAX_PAUSE);
        }
        backoff.reset();
        assert!(backoff.next(MAX_PAUSE) <= FIRST_PAUSE);
    }
}
