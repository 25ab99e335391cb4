//! The quarantine of refused frontends and members, so that a refusal affects no others.
//!
//! A frontend in quarantine keeps its elements in the kernel. The agent retries it when its plan
//! changes and after a pause, which grows with each refusal.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use shunt_core::plan::{FrontendKey, PlanDelta, SetMember};

/// The pause before a retry, which doubles with each refusal, up to the longest.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(300);

/// A frontend or member that the kernel may refuse.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Suspect {
    /// A frontend with all of its elements.
    Frontend(FrontendKey),
    /// A member of a plain set.
    Member(SetMember),
}

#[derive(Debug)]
struct QuarantineEntry {
    reason: Arc<str>,
    pause: Duration,
    until: Instant,
    /// On trial: the next transaction includes it again.
    on_trial: bool,
}

/// The refused frontends and members, with the reasons.
#[derive(Debug, Default)]
pub(super) struct Quarantine {
    entries: BTreeMap<Suspect, QuarantineEntry>,
}

impl Quarantine {
    /// Puts a suspect in quarantine.
    pub(super) fn add(&mut self, suspect: Suspect, reason: &Arc<str>, now: Instant) {
        let pause = self
            .entries
            .get(&suspect)
            .map_or(FIRST_PAUSE, |entry| (entry.pause * 2).min(LONGEST_PAUSE));
        let reason = reason.clone();
        let entry = QuarantineEntry { reason, pause, until: now + pause, on_trial: false };
        self.entries.insert(suspect, entry);
    }

    /// Returns true if the transaction must leave the suspect out.
    pub(super) fn holds(&self, suspect: Suspect) -> bool {
        self.entries.get(&suspect).is_some_and(|entry| !entry.on_trial)
    }

    /// Releases suspects with a changed plan.
    pub(super) fn release(&mut self, changed: &PlanDelta) {
        if !self.entries.is_empty() {
            self.entries.retain(|suspect, _| match suspect {
                Suspect::Frontend(key) => !changed.frontends.contains(key),
                Suspect::Member(member) => !changed.members.contains(member),
            });
        }
    }

    /// Puts suspects on trial after their pause. They must be compared again.
    pub(super) fn try_again(&mut self, now: Instant) -> PlanDelta {
        let mut delta = PlanDelta::default();
        for (suspect, entry) in self.entries.iter_mut().filter(|(_, entry)| entry.until <= now) {
            entry.on_trial = true;
            match suspect {
                Suspect::Frontend(key) => delta.frontends.insert(*key),
                Suspect::Member(member) => delta.members.insert(*member),
            };
        }
        delta
    }

    /// Releases all suspects on trial after a commit.
    pub(super) fn committed(&mut self) {
        self.entries.retain(|_, entry| !entry.on_trial);
    }

    /// Returns the time of the next trial.
    pub(super) fn next_trial(&self) -> Option<Instant> {
        self.entries.values().filter(|entry| !entry.on_trial).map(|entry| entry.until).min()
    }

    /// Returns all suspects in quarantine, with the kernel's reason and the time of the retry.
    pub(super) fn entries(&self) -> impl Iterator<Item = (Suspect, &Arc<str>, Instant)> {
        self.entries.iter().map(|(suspect, entry)| (*suspect, &entry.reason, entry.until))
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use shunt_core::plan::Set;

    fn member(n: u8) -> SetMember {
        SetMember { set: Set::ClusterIps, address: Ipv4Addr::new(10, 96, 0, n).into() }
    }

    fn suspect(n: u8) -> Suspect {
        Suspect::Member(member(n))
    }

    #[test]
    fn the_pause_grows_until_the_kernel_agrees() {
        let mut quarantine = Quarantine::default();
        let reason: Arc<str> = "no".into();
        let mut now = Instant::now();
        for seconds in [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300] {
            quarantine.add(suspect(1), &reason, now);
            assert!(quarantine.holds(suspect(1)) && !quarantine.holds(suspect(2)));
            let pause = Duration::from_secs(seconds);
            assert_eq!(quarantine.next_trial(), Some(now + pause));
            assert!(quarantine.try_again(now + pause - Duration::from_millis(1)).is_empty());
            now += pause;
            assert_eq!(quarantine.try_again(now).members.len(), 1);
            assert!(!quarantine.holds(suspect(1)));
        }
        quarantine.committed();
        assert_eq!(quarantine.entries().count(), 0);
    }

    #[test]
    fn a_change_releases_what_it_changes() {
        let mut quarantine = Quarantine::default();
        let reason: Arc<str> = "no".into();
        quarantine.add(suspect(1), &reason, Instant::now());
        quarantine.add(suspect(2), &reason, Instant::now());
        quarantine.release(&PlanDelta { members: [member(1)].into(), ..PlanDelta::default() });
        assert!(!quarantine.holds(suspect(1)) && quarantine.holds(suspect(2)));
    }
}
