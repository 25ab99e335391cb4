//! When each Service last changed.

use std::time::{Instant, SystemTime};

use foldhash::HashMap;
use serde::{Deserialize, Serialize};
use shunt_core::model::{Dirty, ObjectName, SharedMap, Store};

/// When a Service or one of its EndpointSlices last changed.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LastChange {
    /// When the source received the change.
    pub received: SystemTime,
    /// The time from then to the commit, in seconds.
    pub committed_after: f64,
}

/// The last changes as of a sync. A clone costs nothing.
#[derive(Debug, Clone, Default)]
pub struct LastChanges {
    /// The first sync, which is the last change of most Services. Its last batch counts.
    first: Option<LastChange>,
    /// The last changes of Services after the first sync.
    later: SharedMap<ObjectName, LastChange>,
}

/// The times of changes that no sync has committed yet.
#[derive(Debug, Default)]
pub(super) struct Uncommitted {
    services: HashMap<ObjectName, Instant>,
    last: Option<Instant>,
}

impl Uncommitted {
    /// Notes the Services that a batch changed.
    pub(super) fn note(&mut self, dirty: &Dirty, received: Instant) {
        self.services.extend(dirty.services.iter().map(|name| (name.clone(), received)));
        self.last = Some(received);
    }
}

impl LastChanges {
    /// Returns the last change of a Service.
    #[must_use]
    pub fn of(&self, service: &ObjectName) -> Option<LastChange> {
        self.later.get(service).copied().or(self.first)
    }

    /// Notes that a sync has committed these changes at `now`, which is `today`.
    pub(super) fn committed(
        &mut self,
        changes: Uncommitted,
        store: &Store,
        now: Instant,
        today: SystemTime,
    ) {
        let change = |received: Instant| {
            let took = now.saturating_duration_since(received);
            let received = today.checked_sub(took).unwrap_or(today);
            LastChange { received, committed_after: took.as_secs_f64() }
        };
        if self.first.is_none() {
            self.first = changes.last.map(change);
            return;
        }
        for (name, received) in changes.services {
            if store.service(&name).is_some() {
                self.later.insert_mut(name, change(received));
            } else {
                self.later.remove_mut(&name);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use shunt_core::model::Change;
    use shunt_fake_nftables::service;

    use super::*;

    #[test]
    fn the_first_sync_is_remembered_once_and_later_ones_by_service() {
        let (mut store, mut known) = (Store::new(), LastChanges::default());
        let (start, today) = (Instant::now(), SystemTime::UNIX_EPOCH);
        // Each sync commits its batches a second after the last of them.
        let mut sync = |batches: Vec<(u64, Change)>| {
            let mut uncommitted = Uncommitted::default();
            let last = batches.last().map_or(0, |(second, _)| *second);
            for (second, change) in batches {
                let mut dirty = Dirty::default();
                store.apply(change, &mut dirty);
                uncommitted.note(&dirty, start + Duration::from_secs(second));
            }
            let after = Duration::from_secs(last + 1);
            known.committed(uncommitted, &store, start + after, today + after);
            let of = |n| known.of(&service(n).name).map(|it| (it.received, it.committed_after));
            (of(1), of(2), known.later.size())
        };
        let at = |second, took| Some((today + Duration::from_secs(second), took));
        let added = |n| Change::service(service(n));
        assert_eq!(sync(vec![(1, added(1)), (2, added(2))]), (at(2, 1.0), at(2, 1.0), 0));
        let changed = |seconds| {
            let mut changed = service(2);
            changed.affinity_seconds = Some(seconds);
            Change::service(changed)
        };
        let other = vec![(5, changed(3)), (6, changed(5)), (9, Change::Synced)];
        assert_eq!(sync(other), (at(2, 1.0), at(6, 4.0), 1));
        let gone = Change::ServiceGone(service(2).name);
        assert_eq!(sync(vec![(12, gone)]), (at(2, 1.0), at(2, 1.0), 0));
    }
}
