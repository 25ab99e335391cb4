//! What the kernel refuses: set aside, so that it costs nothing but itself.
//!
//! A frontend in quarantine keeps what the kernel has of it. It is tried again when its plan changes
//! and after a pause, which grows with each refusal.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use shunt_core::plan::{FrontendKey, PlanDelta, SetMember};

/// The pause before something refused is tried again: doubled with each refusal, up to the longest.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(300);

/// Something that is set aside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Suspect {
    /// A frontend with all of its elements.
    Frontend(FrontendKey),
    /// A member of a plain set.
    Member(SetMember),
}

#[derive(Debug)]
struct Entry {
    reason: Arc<str>,
    pause: Duration,
    until: Instant,
    /// It takes part again, to see whether the kernel still refuses it.
    on_trial: bool,
}

/// What is set aside, and why.
#[derive(Debug, Default)]
pub(super) struct Quarantine {
    entries: BTreeMap<Suspect, Entry>,
}

impl Quarantine {
    /// Sets something aside.
    pub(super) fn add(&mut self, suspect: Suspect, reason: &Arc<str>, now: Instant) {
        let pause = self
            .entries
            .get(&suspect)
            .map_or(FIRST_PAUSE, |entry| (entry.pause * 2).min(LONGEST_PAUSE));
        let reason = reason.clone();
        let entry = Entry { reason, pause, until: now + pause, on_trial: false };
        self.entries.insert(suspect, entry);
    }

    /// True if it must be left out of the transaction.
    pub(super) fn holds(&self, suspect: Suspect) -> bool {
        self.entries.get(&suspect).is_some_and(|entry| !entry.on_trial)
    }

    /// Lets go what is planned anew.
    pub(super) fn release(&mut self, changed: &PlanDelta) {
        if !self.entries.is_empty() {
            self.entries.retain(|suspect, _| match suspect {
                Suspect::Frontend(key) => !changed.has_frontend(*key),
                Suspect::Member(member) => !changed.has_member(*member),
            });
        }
    }

    /// Puts on trial what has waited long enough; it has to be compared again.
    pub(super) fn try_again(&mut self, now: Instant) -> PlanDelta {
        let (mut frontends, mut members) = (Vec::new(), Vec::new());
        for (suspect, entry) in self.entries.iter_mut().filter(|(_, entry)| entry.until <= now) {
            entry.on_trial = true;
            match suspect {
                Suspect::Frontend(key) => frontends.push(*key),
                Suspect::Member(member) => members.push(*member),
            }
        }
        PlanDelta::new(frontends, members, false)
    }

    /// The kernel took everything that took part.
    pub(super) fn committed(&mut self) {
        self.entries.retain(|_, entry| !entry.on_trial);
    }

    /// When something is to be tried again.
    pub(super) fn next_trial(&self) -> Option<Instant> {
        self.entries.values().filter(|entry| !entry.on_trial).map(|entry| entry.until).min()
    }

    /// Everything that is set aside, with the kernel's reason and when it is tried again.
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
            assert_eq!(quarantine.try_again(now).members().len(), 1);
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
        quarantine.release(&PlanDelta::new(Vec::new(), vec![member(1)], false));
        assert!(!quarantine.holds(suspect(1)) && quarantine.holds(suspect(2)));
    }
}
