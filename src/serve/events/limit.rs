//! The limits of Events, so that a failing agent does not overload the API server.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::Notice;

/// The number of Events at once, for Services and for the Node each: a node may have thousands of
/// Services.
const BURST: u64 = 25;
/// The seconds after which one more is sent.
const REFILL: u64 = 60;
/// The time in which the same notice is sent once.
const INTERVAL: Duration = Duration::from_secs(600);

/// The limits with their counts.
#[derive(Debug)]
pub(super) struct Limit {
    /// The numbers of Events about the Node and about Services that may be sent now, and the time of
    /// the last one that was added.
    tokens: [(u64, Instant); 2],
    sent: HashMap<Notice, Instant>,
}

impl Limit {
    pub(super) fn new(now: Instant) -> Limit {
        Limit { tokens: [(BURST, now); 2], sent: HashMap::new() }
    }

    /// Returns true if a notice is to be sent, and counts it.
    pub(super) fn permits(&mut self, notice: &Notice, now: Instant) -> bool {
        self.sent.retain(|_, at| now.saturating_duration_since(*at) < INTERVAL);
        let (tokens, refilled) = &mut self.tokens[usize::from(notice.service.is_some())];
        let new = now.saturating_duration_since(*refilled).as_secs() / REFILL;
        *refilled += Duration::from_secs(new * REFILL);
        *tokens = (*tokens + new).min(BURST);
        let permits = *tokens > 0 && !self.sent.contains_key(notice);
        if permits {
            *tokens -= 1;
            self.sent.insert(notice.clone(), now);
        }
        permits
    }
}

#[cfg(test)]
mod tests {
    use shunt_core::model::ObjectName;

    use super::*;

    fn notice(n: u32) -> Notice {
        Notice::of_node("A", "Test", n.to_string())
    }

    fn sent(limit: &mut Limit, notices: impl IntoIterator<Item = Notice>, now: Instant) -> usize {
        notices.into_iter().filter(|notice| limit.permits(notice, now)).count()
    }

    #[test]
    fn many_together_are_limited() {
        let start = Instant::now();
        let mut limit = Limit::new(start);
        let of_service = |n: u32| Notice {
            service: Some(ObjectName::new("default", n.to_string())),
            ..notice(n)
        };
        for of in [&of_service as &dyn Fn(u32) -> Notice, &notice] {
            // Neither kind keeps the other from being heard.
            assert_eq!(sent(&mut limit, (0..1000).map(of), start), 25);
            let later = start + Duration::from_secs(200);
            assert_eq!(sent(&mut limit, (0..1000).map(of), later), 3);
        }
    }

    #[test]
    fn a_notice_is_not_repeated_at_once() {
        let start = Instant::now();
        let mut limit = Limit::new(start);
        assert!(limit.permits(&notice(1), start));
        assert!(!limit.permits(&notice(1), start + Duration::from_secs(599)));
        assert!(limit.permits(&notice(1), start + Duration::from_secs(600)));
    }
}
