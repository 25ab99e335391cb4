//! The limits of Events, so that a failing agent does not overload the API server.
//!
//! They are those of client-go's filters (`EventSourceObjectSpamFilter`, `EventAggregator`).

use std::collections::HashMap;
use std::time::{Duration, Instant};

use shunt_core::model::ObjectName;

use super::Notice;

/// The number of Events about one object at once.
const BURST: u32 = 25;
/// The time after which one more Event about an object is sent.
const REFILL: Duration = Duration::from_secs(300);
/// The same for all Services together, of which a node may have thousands.
const SERVICES_REFILL: Duration = Duration::from_secs(10);
/// The number of Events with one object and reason that are sent within [`INTERVAL`]. One more
/// stands for all others.
const MAX_SIMILAR: u32 = 10;
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

#[derive(Debug)]
struct Bucket {
    tokens: u32,
    refilled: Instant,
    refill: Duration,
}

impl Bucket {
    fn new(refill: Duration, now: Instant) -> Bucket {
        Bucket { tokens: BURST, refilled: now, refill }
    }

    /// Adds the tokens of the time that has passed; returns true if the bucket is full.
    fn refill(&mut self, now: Instant) -> bool {
        while self.tokens < BURST && now.saturating_duration_since(self.refilled) >= self.refill {
            self.tokens += 1;
            self.refilled += self.refill;
        }
        if self.tokens == BURST {
            self.refilled = now;
        }
        self.tokens == BURST
    }
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
    services: Bucket,
    objects: HashMap<(Option<ObjectName>, bool), Bucket>,
    similar: HashMap<(Option<ObjectName>, &'static str), Similar>,
}

impl Limit {
    pub(super) fn new(now: Instant) -> Limit {
        let services = Bucket::new(SERVICES_REFILL, now);
        Limit { services, objects: HashMap::new(), similar: HashMap::new() }
    }

    pub(super) fn decide(&mut self, notice: &Notice, now: Instant) -> Decision {
        self.similar.retain(|_, similar| now.saturating_duration_since(similar.since) < INTERVAL);
        self.objects.retain(|_, bucket| !bucket.refill(now));
        self.services.refill(now);

        let kind = (notice.service.clone(), notice.reason);
        let similar = self.similar.get(&kind);
        let sent = similar.map_or(0, |similar| similar.notes.len());
        let known = similar.is_some_and(|similar| similar.notes.contains(&notice.note));
        if known || sent > MAX_SIMILAR as usize {
            return Decision::Drop;
        }
        let object = (notice.service.clone(), notice.is_warning);
        let bucket = self.objects.entry(object).or_insert_with(|| Bucket::new(REFILL, now));
        let is_service = notice.service.is_some();
        if bucket.tokens == 0 || is_service && self.services.tokens == 0 {
            return Decision::Drop;
        }
        bucket.tokens -= 1;
        self.services.tokens -= u32::from(is_service);
        let similar = self.similar.entry(kind);
        let similar = similar.or_insert_with(|| Similar { since: now, notes: Vec::new() });
        similar.notes.push(notice.note.clone());
        if sent == MAX_SIMILAR as usize { Decision::SendCombined } else { Decision::Send }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn notice(reason: &'static str, n: u32) -> Notice {
        Notice::of_node(reason, "Test", n.to_string())
    }

    const REASONS: [&str; 10] = ["A", "B", "C", "D", "E", "F", "G", "H", "I", "J"];

    fn sent(limit: &mut Limit, notices: impl IntoIterator<Item = Notice>, now: Instant) -> usize {
        let passes = |notice: &Notice| limit.decide(notice, now) != Decision::Drop;
        notices.into_iter().filter(passes).count()
    }

    #[test]
    fn each_object_has_a_burst_and_then_one_event_in_five_minutes() {
        let start = Instant::now();
        let mut limit = Limit::new(start);
        let ten_of_each = |from| {
            REASONS
                .into_iter()
                .flat_map(move |reason| (from..from + 10).map(move |n| notice(reason, n)))
        };
        assert_eq!(sent(&mut limit, ten_of_each(0), start), 25);
        assert_eq!(sent(&mut limit, ten_of_each(10), start + Duration::from_secs(299)), 0);
        assert_eq!(sent(&mut limit, ten_of_each(20), start + Duration::from_secs(901)), 3);
        // Another object has a burst of its own.
        let of = |n: u32| Notice {
            service: Some(ObjectName::new("default", "web")),
            ..notice(REASONS[n as usize / 10], n)
        };
        assert_eq!(sent(&mut limit, (0..100).map(of), start + Duration::from_secs(901)), 25);
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
