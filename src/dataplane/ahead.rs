//! Writes Services ahead of the first sync.
//!
//! In a large cluster, the kernel needs about as long for all elements as the API server for its
//! lists. So a start on a kernel without tables of shunt writes the Services whose endpoints have
//! arrived, while the rest arrives. These tables have no base chain: no packet meets them. The
//! first sync adds the base chains and all that is missing in one transaction.
//!
//! Whatever goes wrong here ends the writing ahead, and the first sync begins with a reading.

use std::time::Instant;

use shunt_core::model::{Change, Dirty, Family, Listed};
use shunt_core::plan::TABLE;

use super::codec::table_family;
use super::reconcile::Dataplane;
use super::refusal::Error;
use super::state::State;
use super::transaction::SyncReport;

/// So many more EndpointSlices must arrive for another transaction. A smaller cluster is written by
/// the first sync alone.
const STEP: usize = 500;

/// What has arrived since the start.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    /// Plans need the Node and the ServiceCIDRs, and the sizes of sets the number of Services.
    node: bool,
    service_cidrs: bool,
    services: bool,
    /// The number of EndpointSlices that no transaction has considered yet.
    slices: usize,
    /// What was written, for the report of the first sync.
    written: SyncReport,
    /// The tables exist already, or an attempt failed.
    is_over: bool,
}

/// The part of the known Services that is planned, while the source still lists.
#[derive(Debug, Clone, Copy)]
pub(super) struct PlannedPart {
    pub(super) planned: usize,
    pub(super) known: usize,
}

impl PlannedPart {
    /// Returns the number of elements to expect for all Services if the planned ones have `count`.
    pub(super) fn extrapolate(self, count: usize) -> usize {
        count.saturating_mul(self.known.max(self.planned)) / self.planned.max(1)
    }
}

impl Ahead {
    /// Notes a change from the source.
    pub(super) fn note(&mut self, change: &Change) {
        match change {
            Change::Node(_) => self.node = true,
            Change::Listed(Listed::ServiceCidrs(_)) => self.service_cidrs = true,
            Change::Listed(Listed::Services(_)) => self.services = true,
            Change::Slice(_) => self.slices += 1,
            _ => {}
        }
    }

    /// Adds what was written so far to the report of a transaction, and keeps the sum until a report
    /// leaves the dataplane.
    pub(super) fn account(&mut self, report: &mut SyncReport) {
        report.add(&std::mem::take(&mut self.written));
    }

    fn is_due(&self) -> bool {
        let has_context = self.node && self.service_cidrs && self.services;
        has_context && self.slices >= STEP && !self.is_over
    }
}

impl Dataplane {
    /// Writes what has arrived so far, if that is much, before the first sync.
    pub(super) fn write_ahead(&mut self, now: Instant) {
        if self.is_synced() || !self.ahead.is_due() {
            return;
        }
        self.ahead.slices = 0;
        let started = self.stopwatch.elapsed();
        match self.try_ahead(now) {
            Ok(goes_on) => self.ahead.is_over = !goes_on,
            Err(error) => {
                tracing::debug!("Services are not written ahead of the first sync: {error}");
                self.ahead.is_over = true;
                // The first sync reads what is there. None of it is damage by another process.
                self.state = State::Unread;
            }
        }
        self.stats.took += self.stopwatch.elapsed().saturating_sub(started);
    }

    /// Returns false if the first sync must write everything.
    fn try_ahead(&mut self, now: Instant) -> Result<bool, Error> {
        if self.state.current().is_none() {
            for family in Family::ALL {
                if self.kernel.table(table_family(family), TABLE)?.is_some() {
                    return Ok(false);
                }
            }
        }
        let dirty = self.dirty_with_endpoints();
        self.plan(&dirty, now);
        if self.state.current().is_none() && self.read(now)?.is_some() {
            return Ok(false);
        }
        if let Some(prepared) = self.compare(false, now)? {
            let written = self.commit(prepared)?;
            let (services, elements) = (self.planned_part().planned, written.added);
            tracing::debug!(services, elements, "wrote Services ahead of the first sync");
            self.ahead.written = written;
        }
        Ok(true)
    }

    /// Returns the part of the known Services that is planned: those that are not dirty.
    pub(super) fn planned_part(&self) -> PlannedPart {
        let known = self.store.service_count();
        PlannedPart { planned: known.saturating_sub(self.dirty.services.len()), known }
    }

    /// Takes the dirty Services of which endpoints have arrived.
    fn dirty_with_endpoints(&mut self) -> Dirty {
        let all = std::mem::take(&mut self.dirty);
        let store = &self.store;
        let (ready, rest) = all
            .services
            .into_iter()
            .partition(|name| store.service(name).is_some() && store.slices(name).next().is_some());
        self.dirty.services = rest;
        Dirty { services: ready, node_context: all.node_context }
    }
}
