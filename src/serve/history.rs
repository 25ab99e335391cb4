//! What changed: each object as it was before, and what the agent noticed.
//!
//! In memory, and bounded: the oldest entries go first. The objects of now and these entries together
//! are the objects of any moment since.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use serde::{Deserialize, Serialize};
use shunt_core::model::{Change, ChangeBatch, Kind, ObjectName, Service, Store};

use super::lock;
use super::time::{Time, now};
use crate::dataplane::Snapshot;

/// The memory of all entries, in bytes, as far as it can be estimated.
const LIMIT: usize = 8 << 20;
/// The memory of an entry, and of one endpoint of an EndpointSlice.
const ENTRY: usize = 256;
const ENDPOINT: usize = 96;

/// Something that changed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HistoryEntry {
    /// When the agent learned of it.
    pub at: Time,
    /// The Service that it concerns.
    pub service: Option<ObjectName>,
    /// What it is.
    pub what: What,
}

/// A change of an object, or something else.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum What {
    /// An object changed: the change that makes it as it was before, and the seconds until the
    /// kernel had the new one.
    Changed(Change, f64),
    /// The agent noticed something.
    Noticed(String),
}

/// What changed since the start of the agent. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct ChangeHistory(Arc<Mutex<Entries>>);

#[derive(Debug, Default)]
struct Entries {
    entries: VecDeque<Arc<HistoryEntry>>,
    size: usize,
    /// Earlier changes are not known; `None` before the first sync.
    since: Option<Time>,
}

impl ChangeHistory {
    /// Notes that the agent noticed something.
    pub fn notice(&self, service: Option<ObjectName>, text: String) {
        lock(&self.0).push(HistoryEntry { at: now(), service, what: What::Noticed(text) });
    }

    /// Notes the changes of a sync, of which the kernel has all now, and the objects after it. If some
    /// are lost, earlier objects cannot be known.
    pub fn synced(&self, batches: &[ChangeBatch], are_lost: bool, snapshot: &Snapshot) {
        let (started, today) = (Instant::now(), now());
        let mut entries = lock(&self.0);
        if are_lost {
            *entries = Entries { since: Some(today), ..Entries::default() };
        }
        for batch in batches {
            let took = started.saturating_duration_since(batch.received);
            let (at, seconds) = (today.checked_sub(took).unwrap_or(today), took.as_secs_f64());
            for before in &batch.changes {
                let service = concerned(before, &snapshot.store);
                let what = What::Changed(before.clone(), seconds);
                entries.push(HistoryEntry { at, service, what });
            }
        }
        entries.since.get_or_insert(today);
    }

    /// Returns how far back the history reaches, and the entries about the Services that `wanted`
    /// selects by their names and, if they exist, contents, the oldest first; with those about no
    /// Service if `others`.
    #[must_use]
    pub fn of(
        &self,
        store: &Store,
        others: bool,
        wanted: impl Fn(&ObjectName, Option<&Service>) -> bool,
    ) -> (Time, Vec<Arc<HistoryEntry>>) {
        let entries = lock(&self.0);
        let is_wanted = |entry: &&Arc<HistoryEntry>| match (&entry.service, &entry.what) {
            (Some(name), What::Changed(Change::Service(before), _)) => wanted(name, Some(before)),
            (Some(name), _) => wanted(name, store.service(name)),
            (None, _) => others,
        };
        let selected = entries.entries.iter().filter(is_wanted).cloned();
        (entries.since.unwrap_or_default(), selected.collect())
    }
}

impl Entries {
    fn push(&mut self, entry: HistoryEntry) {
        self.size += entry.size();
        self.entries.push_back(Arc::new(entry));
        while self.size > LIMIT
            && let Some(oldest) = self.entries.pop_front()
        {
            self.size -= oldest.size();
            self.since = self.since.max(Some(oldest.at));
        }
    }
}

impl HistoryEntry {
    fn size(&self) -> usize {
        ENTRY
            + match &self.what {
                What::Changed(Change::Slice(slice), _) => slice.endpoints.len() * ENDPOINT,
                What::Changed(..) => ENTRY,
                What::Noticed(text) => text.len(),
            }
    }
}

/// Returns the Service that a change concerns: its former one for an EndpointSlice that another
/// Service has now.
fn concerned(before: &Change, now: &Store) -> Option<ObjectName> {
    match before {
        Change::Service(service) => Some(service.name.clone()),
        Change::ServiceIgnored(name, _) | Change::Gone(Kind::Service, name) => Some(name.clone()),
        Change::Slice(slice) => slice.service_name(),
        Change::Gone(Kind::EndpointSlice, name) => now.slice(name)?.service_name(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use shunt_fake_nftables::service;

    use super::*;

    fn all(history: &ChangeHistory) -> (Time, Vec<Arc<HistoryEntry>>) {
        history.of(&Store::new(), true, |_, _| true)
    }

    #[test]
    fn memory_is_bounded_and_what_is_lost_is_said() {
        let (history, snapshot) = (ChangeHistory::default(), Snapshot::default());
        let start = Instant::now();
        let batch = |seconds| {
            let before = Change::service(service(1));
            ChangeBatch::new(vec![before], start.checked_sub(Duration::from_secs(seconds)).unwrap())
        };
        history.synced(&[batch(100)], false, &snapshot);
        let (since, first) = all(&history);
        assert_eq!(first.len(), 1);
        for _ in 0..LIMIT / ENTRY {
            history.synced(&[batch(50)], false, &snapshot);
        }
        let (later, entries) = all(&history);
        assert!(later >= since && entries.len() * 2 * ENTRY <= LIMIT, "{}", entries.len());
        history.synced(&[], true, &snapshot);
        assert!(all(&history).0 >= later && all(&history).1.is_empty());
    }
}
