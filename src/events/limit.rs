//! How many Events are sent: an agent in trouble must not become trouble for the API server.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::{Notice, Regarding};

/// So many at once …
const BURST: u32 = 25;
/// … and one more after each such time. (client-go: 25, then one in 5 minutes for each object.)
const REFILL: Duration = Duration::from_secs(10);
/// The same notice is not sent again within this time.
const REPEAT: Duration = Duration::from_secs(600);

type Same = (Regarding, &'static str, String);

/// Decides about each notice.
#[derive(Debug)]
pub(super) struct Limit {
    tokens: u32,
    refilled: Instant,
    sent: HashMap<Same, Instant>,
}

impl Limit {
    pub(super) fn new(now: Instant) -> Limit {
        Limit { tokens: BURST, refilled: now, sent: HashMap::new() }
    }

    /// True if the notice is to be sent.
    pub(super) fn allows(&mut self, notice: &Notice, now: Instant) -> bool {
        self.sent.retain(|_, at| now.saturating_duration_since(*at) < REPEAT);
        while self.tokens < BURST && now.saturating_duration_since(self.refilled) >= REFILL {
            self.tokens += 1;
            self.refilled += REFILL;
        }
        if self.tokens == BURST {
            self.refilled = now;
        }
        let same = (notice.regarding.clone(), notice.reason, notice.note.clone());
        if self.tokens == 0 || self.sent.contains_key(&same) {
            return false;
        }
        self.tokens -= 1;
        self.sent.insert(same, now);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn notice(n: u32) -> Notice {
        Notice {
            regarding: Regarding::Node,
            is_warning: true,
            reason: "Test",
            action: "Test",
            note: n.to_string(),
        }
    }

    #[test]
    fn a_burst_passes_and_then_one_now_and_then() {
        let start = Instant::now();
        let mut limit = Limit::new(start);
        let passed = (0..100).filter(|n| limit.allows(&notice(*n), start)).count();
        assert_eq!(passed, 25);
        let later = start + Duration::from_secs(35);
        assert_eq!((100..200).filter(|n| limit.allows(&notice(*n), later)).count(), 3);
    }

    #[test]
    fn what_was_said_is_not_said_again_at_once() {
        let start = Instant::now();
        let mut limit = Limit::new(start);
        assert!(limit.allows(&notice(1), start));
        assert!(!limit.allows(&notice(1), start + Duration::from_secs(599)));
        assert!(limit.allows(&notice(1), start + Duration::from_secs(600)));
    }
}
