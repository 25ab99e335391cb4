//! The endpoints that were terminating and then vanished from every slice.
//!
//! Established connections to them have no server any more. The time is an argument.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use foldhash::HashMap;

use super::{Backend, EndpointSlice, ObjectName, Protocol};

/// How long an endpoint must be missing from every slice before it counts as gone. A controller
/// that moves endpoints between slices writes one slice after the other, and so does a list.
pub const SETTLE: Duration = Duration::from_secs(1);

/// How long an endpoint counts as gone.
///
/// Linux sends unanswered data again at least every 120 s (`TCP_RTO_MAX`), and most keep-alive
/// probes and idle timeouts of clients are shorter than ten minutes.
pub const GONE_FOR: Duration = Duration::from_secs(600);

/// The maximum number of gone endpoints. Further ones do not count as gone.
pub const MAX_GONE: usize = 16_384;

/// A tracker of gone TCP endpoints.
#[derive(Debug, Default)]
pub struct GoneEndpoints {
    listed: HashMap<Backend, Listed>,
    /// The endpoints that vanished after they were terminating.
    vanished: BTreeMap<Backend, Vanished>,
    /// The number of endpoints in `vanished` that count as gone.
    gone: usize,
    /// The earliest time in `vanished`, or a time before it.
    next: Option<Instant>,
    /// The endpoints that count as gone have changed.
    changed: bool,
}

/// An endpoint in slices.
#[derive(Debug, Default)]
struct Listed {
    /// The number of entries, in all slices of all Services.
    entries: u32,
    /// The condition `terminating` of the last entry that a slice added or kept.
    terminating: bool,
}

/// The state of an endpoint that vanished.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Vanished {
    /// Since the last [`GoneEndpoints::advance`], from a slice of this Service.
    Now(Option<ObjectName>),
    /// It counts as gone from this time on, unless a slice lists it before, or the Service no longer
    /// exists.
    Since(Instant, Option<ObjectName>),
    /// It counts as gone until this time.
    Until(Instant),
}

impl GoneEndpoints {
    /// Makes a tracker for a store with these slices. None of their endpoints is gone.
    pub fn new<'a>(slices: impl IntoIterator<Item = &'a EndpointSlice>) -> GoneEndpoints {
        let mut tracker = GoneEndpoints::default();
        for slice in slices {
            tracker.replace(None, Some(slice));
        }
        tracker
    }

    /// Notes that a slice is new, has changed, or is deleted. An endpoint that it lists is no longer
    /// gone. Of several slices with an endpoint, the last one that changed says whether it is
    /// terminating.
    pub fn replace(&mut self, old: Option<&EndpointSlice>, new: Option<&EndpointSlice>) {
        // First the new slice, so that an endpoint in both never vanishes.
        for (backend, terminating) in new.into_iter().flat_map(entries) {
            let listed = self.listed.entry(backend).or_default();
            listed.entries += 1;
            listed.terminating = terminating;
            if let Some(Vanished::Until(_)) = self.vanished.remove(&backend) {
                self.gone -= 1;
                self.changed = true;
            }
        }
        for (backend, _) in old.into_iter().flat_map(entries) {
            let Some(listed) = self.listed.get_mut(&backend) else { continue };
            listed.entries = listed.entries.saturating_sub(1);
            if listed.entries > 0 {
                continue;
            }
            if listed.terminating {
                self.vanished
                    .insert(backend, Vanished::Now(old.and_then(EndpointSlice::service_name)));
            }
            self.listed.remove(&backend);
        }
    }

    /// Takes over an endpoint that counted as gone in an earlier run of the agent, until that time.
    /// Has no effect on an endpoint that a slice lists, or that vanished in this run.
    pub fn adopt(&mut self, backend: Backend, until: Instant) {
        if !self.listed.contains_key(&backend) && !self.vanished.contains_key(&backend) {
            self.vanished.insert(backend, Vanished::Until(until));
            self.gone += 1;
            self.changed = true;
            self.next = Some(self.next.map_or(until, |next| next.min(until)));
        }
    }

    /// Advances to the present. Call it before [`GoneEndpoints::gone`].
    ///
    /// The slices of a deleted Service vanish, too, while its pods may still serve connections. So
    /// an endpoint never counts as gone if its Service does not exist.
    pub fn advance(&mut self, now: Instant, exists: impl Fn(&ObjectName) -> bool) {
        let (mut next, mut gone, mut changed) = (None, self.gone, self.changed);
        self.vanished.retain(|_, vanished| {
            if let Vanished::Now(service) = vanished {
                *vanished = Vanished::Since(now + SETTLE, service.take());
            }
            let at = match vanished {
                Vanished::Since(at, service) if *at <= now => {
                    let at = *at;
                    if gone == MAX_GONE || !service.as_ref().is_some_and(&exists) {
                        return false;
                    }
                    gone += 1;
                    changed = true;
                    *vanished = Vanished::Until(at + GONE_FOR);
                    at + GONE_FOR
                }
                Vanished::Since(at, _) | Vanished::Until(at) => *at,
                Vanished::Now(_) => now,
            };
            let is_over = matches!(vanished, Vanished::Until(until) if *until <= now);
            if is_over {
                gone -= 1;
                changed = true;
            } else {
                next = Some(next.map_or(at, |next: Instant| next.min(at)));
            }
            !is_over
        });
        (self.next, self.gone, self.changed) = (next, gone, changed);
    }

    /// Returns true if the endpoints that count as gone have changed since the last call.
    pub fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }

    /// Returns the time of the next [`GoneEndpoints::advance`] that changes something.
    #[must_use]
    pub fn next(&self) -> Option<Instant> {
        self.next
    }

    /// Returns the endpoints that count as gone, in order, and until when.
    pub fn gone(&self) -> impl Iterator<Item = (Backend, Instant)> {
        self.vanished.iter().filter_map(|(backend, vanished)| match vanished {
            Vanished::Until(until) => Some((*backend, *until)),
            Vanished::Now(_) | Vanished::Since(..) => None,
        })
    }
}

/// Returns the TCP endpoints of a slice, and whether they are terminating.
fn entries(slice: &EndpointSlice) -> impl Iterator<Item = (Backend, bool)> {
    let ports = slice.ports.iter().filter(|port| port.protocol == Protocol::Tcp);
    ports.flat_map(|port| {
        slice.endpoints.iter().map(|endpoint| {
            let backend = Backend { address: endpoint.address, port: port.port };
            (backend, endpoint.terminating)
        })
    })
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use proptest::prelude::*;

    use super::*;
    use crate::model::{Endpoint, EndpointPort, Family};

    /// A slice with these endpoints: the last octet, and `t` for a terminating one.
    fn slice(endpoints: &[&str]) -> EndpointSlice {
        slice_of(Protocol::Tcp, endpoints)
    }

    fn slice_of(protocol: Protocol, endpoints: &[&str]) -> EndpointSlice {
        let endpoint = |text: &&str| {
            let terminating = text.ends_with('t');
            Endpoint {
                address: address(text.trim_end_matches('t').parse().expect("an octet")),
                ready: !terminating,
                serving: true,
                terminating,
                node: None,
                hints: None,
            }
        };
        EndpointSlice {
            name: ObjectName::new("default", "slice"),
            service: Some("service".into()),
            family: Family::V4,
            weight: None,
            ports: vec![EndpointPort { name: "".into(), protocol, port: 80 }],
            endpoints: endpoints.iter().map(endpoint).collect(),
        }
    }

    #[expect(clippy::disallowed_methods, reason = "no other function makes an Instant")]
    fn beginning() -> Instant {
        Instant::now()
    }

    fn address(octet: u8) -> std::net::IpAddr {
        Ipv4Addr::new(10, 244, 0, octet).into()
    }

    fn backend(octet: u8) -> Backend {
        Backend { address: address(octet), port: 80 }
    }

    fn octets(tracker: &GoneEndpoints) -> Vec<u8> {
        let octet = |(backend, _): (Backend, Instant)| match backend.address {
            std::net::IpAddr::V4(v4) => v4.octets()[3],
            std::net::IpAddr::V6(_) => panic!("an IPv6 address"),
        };
        tracker.gone().map(octet).collect()
    }

    /// Returns the gone endpoints after these states of two slices, and enough time.
    fn gone_after(states: &[[Option<EndpointSlice>; 2]]) -> Vec<u8> {
        let start = beginning();
        let mut tracker = GoneEndpoints::default();
        let mut before: [Option<EndpointSlice>; 2] = [None, None];
        for state in states {
            for (old, new) in before.iter_mut().zip(state).filter(|(old, new)| old != new) {
                tracker.replace(old.as_ref(), new.as_ref());
                old.clone_from(new);
            }
            tracker.advance(start, |_| true);
        }
        tracker.advance(start + SETTLE, |_| true);
        octets(&tracker)
    }

    #[test]
    fn only_an_endpoint_that_was_terminating_and_left_every_slice_is_gone() {
        let list = |endpoints: &[&str]| Some(slice(endpoints));
        let udp = |endpoints: &[&str]| Some(slice_of(Protocol::Udp, endpoints));
        for (what, states, gone) in [
            ("terminated", vec![[list(&["1t", "2"]), None], [list(&["2"]), None]], vec![1]),
            ("the slice is deleted", vec![[list(&["1t", "2"]), None], [None, None]], vec![1]),
            ("a label change", vec![[list(&["1", "2"]), None], [list(&["2"]), None]], vec![]),
            ("still terminating", vec![[list(&["1"]), None], [list(&["1t"]), None]], vec![]),
            (
                "another slice has it",
                vec![[list(&["1t"]), list(&["1t"])], [None, list(&["1t"])]],
                vec![],
            ),
            (
                "the other slice is later",
                vec![[list(&["1t"]), list(&["1"])], [None, list(&["1t"])], [None, None]],
                vec![1],
            ),
            (
                "the condition of one slice is enough",
                vec![[None, list(&["1"])], [list(&["1t"]), list(&["1"])], [None, None]],
                vec![1],
            ),
            (
                "another pod got the address at once",
                vec![[list(&["1t"]), None], [list(&["1"]), None], [None, None]],
                vec![],
            ),
            (
                "moved to another slice",
                vec![[list(&["1t"]), None], [None, None], [None, list(&["1t"])]],
                vec![],
            ),
            ("UDP", vec![[udp(&["1t"]), None], [None, None]], vec![]),
        ] {
            assert_eq!(gone_after(&states), gone, "{what}");
        }
    }

    #[test]
    fn endpoint_is_gone_after_a_moment_and_for_a_limited_time() {
        let start = beginning();
        let mut tracker = GoneEndpoints::new([&slice(&["1t", "2t"])]);
        tracker.advance(start, |_| true);
        assert_eq!(tracker.next(), None);
        tracker.replace(Some(&slice(&["1t", "2t"])), Some(&slice(&["2t"])));
        tracker.advance(start, |_| true);
        assert_eq!((octets(&tracker), tracker.next()), (vec![], Some(start + SETTLE)));
        let until = start + SETTLE + GONE_FOR;
        tracker.advance(start + SETTLE, |_| true);
        assert_eq!(tracker.gone().collect::<Vec<_>>(), [(backend(1), until)]);
        assert_eq!(tracker.next(), Some(until));
        tracker.advance(until - Duration::from_millis(1), |_| true);
        assert_eq!(octets(&tracker), [1]);
        tracker.advance(until, |_| true);
        assert_eq!((octets(&tracker), tracker.next()), (vec![], None));
    }

    #[test]
    fn endpoint_of_a_deleted_service_may_still_serve() {
        let start = beginning();
        for (service_exists, gone) in [(true, vec![1]), (false, vec![])] {
            let mut tracker = GoneEndpoints::new([&slice(&["1t"])]);
            tracker.replace(Some(&slice(&["1t"])), None);
            tracker.advance(start, |_| true);
            let name = ObjectName::new("default", "service");
            tracker.advance(start + SETTLE, |service| *service == name && service_exists);
            assert_eq!(octets(&tracker), gone);
            tracker.advance(start + SETTLE * 2, |_| true);
            assert_eq!(octets(&tracker), gone, "the Service comes back");
        }
    }

    #[test]
    fn endpoint_of_an_earlier_run_keeps_its_time_unless_a_slice_lists_it() {
        let start = beginning();
        let mut tracker = GoneEndpoints::new([&slice(&["1"])]);
        tracker.adopt(backend(1), start + GONE_FOR);
        tracker.adopt(backend(2), start + SETTLE);
        tracker.adopt(backend(2), start + GONE_FOR);
        tracker.advance(start, |_| true);
        assert_eq!(tracker.gone().collect::<Vec<_>>(), [(backend(2), start + SETTLE)]);
        tracker.replace(None, Some(&slice(&["2"])));
        assert_eq!(octets(&tracker), []);
    }

    #[test]
    fn number_of_gone_endpoints_is_limited() {
        let start = beginning();
        let mut tracker = GoneEndpoints::new([&slice(&["1t"])]);
        for port in 0..MAX_GONE as u16 {
            tracker.adopt(Backend { port, ..backend(9) }, start + GONE_FOR);
        }
        tracker.replace(Some(&slice(&["1t"])), None);
        tracker.advance(start, |_| true);
        tracker.advance(start + SETTLE, |_| true);
        assert_eq!(tracker.gone().count(), MAX_GONE);
        assert!(tracker.gone().all(|(gone, _)| gone != backend(1)));
    }

    proptest! {
        /// A gone endpoint is in no slice, whatever happens, and the count is right.
        #[test]
        fn gone_endpoint_is_never_listed(
            steps in proptest::collection::vec(
                (0_usize..3, proptest::collection::vec((0_u8..4, any::<bool>()), 0..4), 0_u64..800),
                1..40,
            )
        ) {
            let mut now = beginning();
            let mut tracker = GoneEndpoints::default();
            let mut slices: [Option<EndpointSlice>; 3] = [None, None, None];
            for (place, endpoints, seconds) in steps {
                let texts: Vec<String> = endpoints
                    .iter()
                    .map(|(octet, dies)| format!("{octet}{}", if *dies { "t" } else { "" }))
                    .collect();
                let new = slice(&texts.iter().map(String::as_str).collect::<Vec<_>>());
                let new = (!endpoints.is_empty()).then_some(new);
                tracker.replace(slices[place].as_ref(), new.as_ref());
                slices[place] = new;
                now += Duration::from_secs(seconds);
                tracker.advance(now, |_| true);
                let listed: Vec<Backend> =
                    slices.iter().flatten().flat_map(entries).map(|(backend, _)| backend).collect();
                prop_assert!(tracker.gone().all(|(gone, _)| !listed.contains(&gone)));
                prop_assert!(tracker.gone().all(|(_, until)| until > now));
                prop_assert!(tracker.next().is_none_or(|next| next > now));
                prop_assert_eq!(tracker.gone().count(), tracker.gone);
                prop_assert_eq!(tracker.vanished.is_empty(), tracker.next().is_none());
                let mut counted: Vec<Backend> = tracker.listed.keys().copied().collect();
                let mut wanted = listed;
                counted.sort_unstable();
                wanted.sort_unstable();
                wanted.dedup();
                prop_assert_eq!(counted, wanted);
            }
        }
    }
}
