//! The limits of Events, so that a failing agent does not overload the API server.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use shunt_core::model::ObjectName;

use super::Notice;

/// The number of Events about Services at once, of which a node may have thousands.
const BURST: u32 = 25;
/// The time after which one more is sent.
const REFILL: Duration = Duration::from_secs(10);
/// The number of Events with one object and reason that are sent within [`INTERVAL`]. One more
/// stands for all others, as with client-go's `EventAggregator`.
const MAX_SIMILAR: usize = 10;
/// The time in which similar Events are counted, and in which the same notice is sent once.
const INTERVAL: Duration = Duration::from_secs(600);

/// The decision about a notice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Decision {
    /// Send it.
    Send,
    /// Send it for all similar ones.
    SendCombined,
    /// Do not send it.
    Drop,
}

/// The notices with one object and reason.
#[derive(Debug)]
struct Similar {
    since: Instant,
    notes: Vec<String>,
}

/// The limits with their counts.
#[derive(Debug)]
pub(super) struct Limit {
    /// The number of Events about Services that may be sent now.
    tokens: u32,
    refilled: Instant,
    similar: HashMap<(Option<ObjectName>, &'static str), Similar>,
}

impl Limit {
    pub(super) fn new(now: Instant) -> Limit {
        Limit { tokens: BURST, refilled: now, similar: HashMap::new() }
    }

    pub(super) fn decide(&mut self, notice: &Notice, now: Instant) -> Decision {
        self.similar.retain(|_, similar| now.saturating_duration_since(similar.since) < INTERVAL);
        while self.tokens < BURST && now.saturating_duration_since(self.refilled) >= REFILL {
            self.tokens += 1;
            self.refilled += REFILL;
        }
        if self.tokens == BURST {
            self.refilled = now;
        }
        let similar = self.similar.entry((notice.service.clone(), notice.reason));
        let similar = similar.or_insert_with(|| Similar { since: now, notes: Vec::new() });
        let (sent, is_known) = (similar.notes.len(), similar.notes.contains(&notice.note));
        let cost = u32::from(notice.service.is_some());
        if is_known || sent > MAX_SIMILAR || self.tokens < cost {
            return Decision::Drop;
        }
        self.tokens -= cost;
        similar.notes.push(notice.note.clone());
        if sent == MAX_SIMILAR { Decision::SendCombined } else { Decision::Send }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn notice(reason: &'static str, n: u32) -> Notice {
        Notice::of_node(reason, "Test", n.to_string())
    }

    fn sent(limit: &mut Limit, notices: impl IntoIterator<Item = Notice>, now: Instant) -> usize {
        let passes = |notice: &Notice| limit.decide(notice, now) != Decision::Drop;
        notices.into_iter().filter(passes).count()
    }

    #[test]
    fn many_services_together_are_limited() {
        let start = Instant::now();
        let mut limit = Limit::new(start);
        let of = |n: u32| Notice {
            service: Some(ObjectName::new("default", n.to_string())),
            ..notice("A", n)
        };
        assert_eq!(sent(&mut limit, (0..1000).map(of), start), 25);
        assert_eq!(sent(&mut limit, (0..1000).map(of), start + Duration::from_secs(35)), 3);
        // They do not keep the node from being heard.
        assert_eq!(sent(&mut limit, [notice("A", 0)], start + Duration::from_secs(35)), 1);
    }

    #[test]
    fn a_notice_is_not_repeated_at_once() {
        let start = Instant::now();
        let mut limit = Limit::new(start);
        assert_eq!(limit.decide(&notice("A", 1), start), Decision::Send);
        assert_eq!(limit.decide(&notice("A", 1), start + Duration::from_secs(599)), Decision::Drop);
        assert_eq!(limit.decide(&notice("A", 1), start + Duration::from_secs(600)), Decision::Send);
    }

    #[test]
    fn similar_notices_are_combined() {
        let start = Instant::now();
        let mut limit = Limit::new(start);
        let decisions: Vec<Decision> =
            (0..20).map(|n| limit.decide(&notice("A", n), start)).collect();
        assert_eq!(decisions[..10], [Decision::Send; 10]);
        assert_eq!(decisions[10], Decision::SendCombined);
        assert_eq!(decisions[11..], [Decision::Drop; 9]);
        assert_eq!(limit.decide(&notice("B", 0), start), Decision::Send);
    }
}
