//! Writes the set of gone endpoints, and the chains that reset connections to them. Set and chains
//! exist only while there are gone endpoints.
//!
//! The elements have timeouts in the kernel: they end in time while no agent runs, and a restarted
//! agent reads the remaining time. The agent removes an element earlier if a slice lists the
//! endpoint again, and removes set and chains with the last element.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use nfnetlink::nft::{Age, Batch, DumpedElement, Elements, Error, Kernel, Refusal};
use shunt_core::model::{Backend, Change, Family, GONE_FOR, GoneEndpoints, Kind, Store};
use shunt_core::plan::{Chain, ChainName, GONE_ENDPOINTS, TABLE, on_demand_chain};

use super::codec::{decode_backend, encode_backend, gone_set_type, table_family};
use super::listing::list_again;
use super::record::{KernelRecord, Table};

/// The gone endpoints of the known slices, if connections to them are reset.
#[derive(Default)]
pub(super) struct Gone {
    /// `None`: connections are not reset.
    tracker: Option<GoneEndpoints>,
    /// The kernel may differ from the tracker.
    is_due: bool,
    /// The elements of an earlier agent were taken over.
    has_adopted: bool,
}

impl Gone {
    /// Makes the state of an empty store.
    pub(super) fn new(resets: bool) -> Gone {
        Gone { tracker: resets.then(GoneEndpoints::default), ..Gone::default() }
    }

    /// Begins or ends to reset connections.
    pub(super) fn configure(&mut self, resets: bool, store: &Store) {
        if self.tracker.is_some() != resets {
            self.tracker = resets.then(|| GoneEndpoints::new(store.all_slices()));
            self.is_due = true;
        }
    }

    /// Notes a change that the store does not have yet.
    pub(super) fn note(&mut self, store: &Store, change: &Change) {
        let Some(tracker) = &mut self.tracker else { return };
        match change {
            Change::Slice(new) => {
                let old = store.slice(&new.name);
                if old != Some(new) {
                    tracker.replace(old, Some(new));
                }
            }
            Change::Gone(Kind::EndpointSlice, name) => tracker.replace(store.slice(name), None),
            Change::Listed(Kind::EndpointSlice, names) => {
                for slice in store.all_slices().filter(|slice| !names.contains(&slice.name)) {
                    tracker.replace(Some(slice), None);
                }
            }
            _ => {}
        }
    }

    /// Advances to the present.
    pub(super) fn advance(&mut self, now: Instant, store: &Store) {
        if let Some(tracker) = &mut self.tracker {
            tracker.advance(now, |service| store.service(service).is_some());
            self.is_due |= tracker.take_changed();
        }
    }

    /// Returns the time of the next [`Gone::advance`].
    pub(super) fn next(&self) -> Option<Instant> {
        self.tracker.as_ref().and_then(GoneEndpoints::next)
    }

    /// Enters the listed elements in the record. Takes over those of an earlier agent.
    pub(super) fn read(&mut self, listed: [Listing; 2], record: &mut KernelRecord, now: Instant) {
        let is_first = !std::mem::replace(&mut self.has_adopted, true);
        for (family, listed) in Family::ALL.into_iter().zip(listed) {
            for (backend, left) in listed {
                if let (Some(tracker), Some(left), true) = (&mut self.tracker, left, is_first) {
                    tracker.adopt(backend, now + left);
                }
                let until = now + left.unwrap_or(GONE_FOR);
                record.gone_mut(family).insert(backend, until);
            }
        }
        self.is_due = true;
    }

    /// Returns the desired endpoints.
    pub(super) fn wanted(&self, now: Instant) -> Wanted<'_> {
        Wanted { tracker: self.tracker.as_ref(), is_due: self.is_due, now }
    }

    /// Notes that the kernel has the desired endpoints.
    pub(super) fn settled(&mut self) {
        self.is_due = false;
    }

    /// Ends to reset connections, because the kernel refuses set or chains. Returns false if they
    /// are not wanted.
    pub(super) fn give_up(&mut self) -> bool {
        self.is_due = true;
        self.tracker.take().is_some()
    }
}

/// The desired gone endpoints.
pub(super) struct Wanted<'a> {
    tracker: Option<&'a GoneEndpoints>,
    is_due: bool,
    now: Instant,
}

/// The difference between the desired gone endpoints of a family and the record.
#[derive(Default)]
pub(super) struct GoneDelta {
    /// The chains to write.
    pub(super) chains: Vec<Chain>,
    /// Whether set and chains must exist; `None` for no change.
    exist: Option<bool>,
    /// The numbers of added and deleted elements.
    pub(super) counts: (usize, usize),
    /// The endpoints of the record after the commit; `None` without a change.
    after: Option<BTreeMap<Backend, Instant>>,
}

impl GoneDelta {
    /// Compares the desired endpoints with the record of a table, and writes the set, to which the
    /// chains refer, and its elements. A transaction that creates the table writes them in any case.
    pub(super) fn write(
        next: &mut Cow<'_, Table>,
        old: &BTreeMap<Backend, Instant>,
        (family, is_new): (Family, bool),
        wanted: &Wanted<'_>,
        batch: &mut Batch,
    ) -> GoneDelta {
        let mut delta = GoneDelta::default();
        if !wanted.is_due && !is_new {
            return delta;
        }
        let (table, has_set) = (table_family(family), next.has_gone_set);
        let is_left = |until: Instant| left(until, wanted.now) > Duration::ZERO;
        let gone = wanted.tracker.into_iter().flat_map(GoneEndpoints::gone);
        let new: BTreeMap<Backend, Instant> = gone
            .filter(|(backend, until)| Family::of(backend.address) == family && is_left(*until))
            .collect();
        delta.exist = Some(!new.is_empty());
        if !new.is_empty() {
            let chains = ChainName::FOR_GONE_ENDPOINTS.into_iter().filter_map(on_demand_chain);
            delta.chains = chains.filter(|chain| !next.has(chain)).collect();
            let (mut added, mut deleted) = (Elements::new(), Elements::new());
            let known = |backend: &Backend| has_set && old.contains_key(backend);
            for (backend, until) in new.iter().filter(|(backend, _)| !known(backend)) {
                let age = Age { timeout: millis(GONE_FOR), left: millis(left(*until, wanted.now)) };
                let key = encode_backend(*backend);
                let key = key.as_slice();
                added.add(&DumpedElement { key, age: Some(age), ..DumpedElement::default() });
            }
            let stale = old.iter().filter(|(backend, _)| has_set && !new.contains_key(*backend));
            // The kernel removes the others itself.
            for (backend, _) in stale.filter(|(_, until)| is_left(**until)) {
                deleted.push(encode_backend(*backend).as_slice(), None, None);
            }
            if !has_set {
                batch.add_set(table, TABLE, GONE_ENDPOINTS, &gone_set_type(family));
                next.to_mut().has_gone_set = true;
            }
            // An element may expire at this moment, and the deletion of a missing element fails the
            // transaction. To add an element that exists has no effect.
            batch.add_elements(table, TABLE, GONE_ENDPOINTS, &deleted);
            batch.delete_elements(table, TABLE, GONE_ENDPOINTS, &deleted);
            batch.add_elements(table, TABLE, GONE_ENDPOINTS, &added);
            delta.counts = (added.len(), deleted.len());
        }
        delta.after = (*old != new).then_some(new);
        delta
    }

    /// Deletes chains and set if they must not exist. To be called after the message that takes over a
    /// table: the kernel refuses it after the deletion of a base chain (`nft_table_pending_update`).
    pub(super) fn end(&self, family: Family, next: &mut Cow<'_, Table>, batch: &mut Batch) {
        if self.exist != Some(false) {
            return;
        }
        let table = table_family(family);
        for name in ChainName::FOR_GONE_ENDPOINTS {
            if next.chains.contains_key(&name) {
                batch.delete_chain(table, TABLE, &name.to_string());
                next.to_mut().chains.remove(&name);
            }
        }
        if next.has_gone_set {
            batch.delete_set(table, TABLE, GONE_ENDPOINTS);
            next.to_mut().has_gone_set = false;
        }
    }

    /// Updates the record after the commit.
    pub(super) fn enter(self, record: &mut KernelRecord, family: Family) {
        if let Some(after) = self.after {
            *record.gone_mut(family) = after;
        }
    }
}

fn left(until: Instant, now: Instant) -> Duration {
    until.saturating_duration_since(now).min(GONE_FOR)
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX).max(1)
}

/// The elements of a set in the kernel, and their remaining times. Those without one are another
/// process's.
pub(super) type Listing = BTreeMap<Backend, Option<Duration>>;

/// Lists the gone endpoints of a table.
pub(super) fn listed(kernel: &mut dyn Kernel, family: Family) -> Result<Listing, Error> {
    let mut found = Listing::new();
    list_again(kernel, family, GONE_ENDPOINTS, &mut |element| {
        let left = element.age.map(|age| Duration::from_millis(age.left));
        found.extend(decode_backend(family, element.key).map(|backend| (backend, left)));
    })?;
    Ok(found)
}

/// Returns true if the kernel refused the set or the chains.
pub(super) fn is_about_gone(refusal: &Refusal) -> bool {
    let name = ChainName::parse(&refusal.object);
    refusal.object == GONE_ENDPOINTS || name.is_some_and(ChainName::is_for_gone_endpoints)
}
