//! Reconciles the kernel with the plan of the known objects.

use std::time::{Duration, Instant};

use nfnetlink::nft::{self, Kernel, Socket};
use shunt_core::model::{Change, Dirty, Family, Store};
use shunt_core::plan::{
    ChainName, Desired, Flows, LoopbackChanges, Options, end_flow, merge_flows,
};

use super::abilities::Abilities;
use super::affinity::Looks;
use super::drift::Drift;
use super::gone::Gone;
use super::ownership::{Ownership, OwnershipPolicy, TableOwner};
use super::quarantine::{Quarantine, Suspect};
use super::reading::{Reading, remembered};
use super::record::TableState;
use super::retry::Lessons;
use super::snapshot::Snapshot;
use super::state::State;
use super::stats::CommitStats;
use super::stopwatch::{Stopwatch, SystemClocks};
use super::transaction::{Prepared, SyncReport};
use super::unused_chains::{UnusedChains, deletion};

/// The number of attempts of a sync that the kernel refuses.
const ATTEMPTS: usize = 50;

/// The dataplane of one network namespace. The time comes in as an argument: nothing in here waits.
pub struct Dataplane {
    pub(super) kernel: Box<dyn Kernel>,
    pub(super) stopwatch: Box<dyn Stopwatch>,
    pub(super) store: Store,
    pub(super) dirty: Dirty,
    pub(super) desired: Desired,
    pub(super) state: State,
    /// The first sync waits for the Node: shunt's tables do not remember it.
    waits_for_node: bool,
    /// The kernel was asked for its abilities.
    pub(super) knows_kernel: bool,
    pub(super) policy: OwnershipPolicy,
    pub(super) quarantine: Quarantine,
    drift: Drift,
    pub(super) looks: Looks,
    pub(super) gone: Gone,
    unused_chains: UnusedChains,
    /// Frontends whose flows need a sweep after the next successful sync.
    flows: Flows,
    pub(super) stats: CommitStats,
}

impl Dataplane {
    /// Opens nf_tables in the network namespace of this thread. Writes nothing.
    ///
    /// # Errors
    /// If the kernel has no nf_tables, or denies its use.
    pub fn open(
        options: Options,
        node_name: &str,
        ownership: Ownership,
    ) -> Result<Dataplane, nft::Error> {
        Dataplane::with_kernel(Box::new(Socket::open()?), options, node_name, ownership)
    }

    /// Opens a dataplane with another kernel, for tests.
    ///
    /// # Errors
    /// If it does not answer.
    pub fn with_kernel(
        mut kernel: Box<dyn Kernel>,
        options: Options,
        node_name: &str,
        ownership: Ownership,
    ) -> Result<Dataplane, nft::Error> {
        kernel.generation()?;
        let gone = Gone::new(options.reset_gone_endpoints);
        let mut dataplane = Dataplane {
            kernel,
            stopwatch: Box::new(SystemClocks::new()),
            store: Store::new(),
            dirty: Dirty::default(),
            desired: Desired::new(options, node_name),
            state: State::default(),
            waits_for_node: false,
            knows_kernel: false,
            policy: OwnershipPolicy { wanted: ownership, kernel_can: true },
            quarantine: Quarantine::default(),
            drift: Drift::default(),
            looks: Looks::default(),
            gone,
            unused_chains: UnusedChains::default(),
            flows: Flows::default(),
            stats: CommitStats::default(),
        };
        // At once, while the source lists its objects; otherwise the first sync asks.
        let _ = dataplane.know_kernel();
        Ok(dataplane)
    }

    /// Finds out what the kernel lacks, and leaves that out of the plan.
    fn know_kernel(&mut self) -> Result<(), nft::Error> {
        if self.knows_kernel {
            return Ok(());
        }
        let abilities = Abilities::ask(&mut *self.kernel)?;
        self.knows_kernel = true;
        self.dirty.node_context = true;
        self.policy.kernel_can = abilities.owned_tables;
        if !abilities.ipv6 && self.desired.set_ipv4_only() {
            tracing::warn!(
                "the kernel has no nf_tables for IPv6 (CONFIG_NF_TABLES_IPV6); Services are reachable \
                 by IPv4 only"
            );
        }
        if !abilities.timeouts && self.desired.set_without_timeouts() {
            tracing::warn!(
                "the kernel has no timeouts per connection (CONFIG_NF_CONNTRACK_TIMEOUT): a client \
                 whose endpoint does not answer may try the same endpoint for two minutes"
            );
        }
        Ok(())
    }

    /// Replaces the system's clocks that measure the cost of work, for tests.
    #[must_use]
    pub fn measured_with(mut self, stopwatch: Box<dyn Stopwatch>) -> Dataplane {
        self.stopwatch = stopwatch;
        self
    }

    /// Applies a change, which the next sync programs. Returns false if the store had it already.
    pub fn apply(&mut self, change: Change) -> bool {
        self.gone.note(&self.store, &change);
        self.waits_for_node &= !matches!(change, Change::Node(_));
        self.store.apply(change, &mut self.dirty)
    }

    /// Applies changes, which the next sync programs.
    pub fn apply_all(&mut self, changes: impl IntoIterator<Item = Change>) {
        for change in changes {
            self.apply(change);
        }
    }

    /// Applies changes, which the next sync programs. Replaces each with the change that undoes it,
    /// except for the first lists. Returns false if the store had them all already.
    pub(super) fn receive(&mut self, changes: &mut Vec<Change>) -> bool {
        let mut is_news = false;
        for change in std::mem::take(changes) {
            let before = match self.store.is_synced() {
                true => self.store.before(&change),
                false => Vec::new(),
            };
            if self.apply(change) {
                is_news = true;
                changes.extend(before);
            }
        }
        is_news
    }

    /// Changes the options or the name of the node. The next sync programs the difference in one
    /// transaction.
    pub fn configure(&mut self, options: Options, node_name: &str) {
        self.gone.configure(options.reset_gone_endpoints, &self.store);
        self.desired.configure(options, node_name);
        self.dirty.node_context = true;
    }

    /// Takes the frontends with changed backends for existing flows. Call it after a successful
    /// sync. Those in quarantine stay: the kernel still has their former backends.
    pub fn take_flows(&mut self) -> Flows {
        let is_held = |key| self.quarantine.holds(Suspect::Frontend(key));
        let held = self.flows.extract_if(.., |key, _| is_held(*key)).collect();
        std::mem::replace(&mut self.flows, held)
    }

    /// Takes the changes of node ports on loopback addresses. Call it after a successful sync.
    pub fn take_loopback(&mut self) -> LoopbackChanges {
        self.desired.take_loopback()
    }

    /// Returns the statistics of transactions since they were last taken.
    #[must_use]
    pub fn stats(&self) -> &CommitStats {
        &self.stats
    }

    /// Takes the statistics of transactions since the last call.
    pub fn take_stats(&mut self) -> CommitStats {
        std::mem::take(&mut self.stats)
    }

    /// Finds the Node and the ServiceCIDRs that an earlier agent knew, in shunt's tables. The caller
    /// applies the changes before all others. If there are tables that do not remember the Node, the
    /// first sync waits for it: no rule may change for want of the Node.
    ///
    /// # Errors
    /// If the kernel refuses the listing, or commits interrupt every attempt.
    pub fn recall(&mut self, node_name: &str) -> Result<Vec<Change>, nft::Error> {
        let remembered = remembered(&mut *self.kernel, node_name)?;
        self.waits_for_node = remembered.is_none();
        Ok(remembered.unwrap_or_default())
    }

    /// Returns true once the source has listed everything: before that, nothing is programmed.
    #[must_use]
    pub fn is_synced(&self) -> bool {
        self.store.is_synced() && !self.waits_for_node
    }

    /// Returns true if only the Node is missing for the first sync.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.store.is_synced() && self.waits_for_node
    }

    /// Returns true once the source has sent the agent's Node, or that there is none.
    #[must_use]
    pub fn is_node_read(&self) -> bool {
        self.store.is_node_read()
    }

    /// Returns whether load balancers may send traffic to the agent's Node; `None` if it does not
    /// exist.
    #[must_use]
    pub fn node_is_eligible(&self) -> Option<bool> {
        self.store.node().map(|node| node.eligible)
    }

    /// Returns the plan as of the last sync.
    #[must_use]
    pub fn desired(&self) -> &Desired {
        &self.desired
    }

    /// Returns a snapshot. Call it after a successful sync, before the application of other changes.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        Snapshot::of(&self.store, &self.desired, self.state.current(), &self.quarantine)
    }

    /// Returns the time of the next retry of a refused frontend.
    #[must_use]
    pub fn next_trial(&self) -> Option<Instant> {
        self.quarantine.next_trial()
    }

    /// Reconciles the kernel with the plan of the known objects. Returns `None` if there was nothing
    /// to write.
    ///
    /// # Errors
    /// Nothing was written then; the next sync handles the difference.
    pub fn reconcile(&mut self, now: Instant) -> Result<Option<SyncReport>, nft::Error> {
        let started = self.stopwatch.elapsed();
        let result = self.attempts(now);
        self.stats.took += self.stopwatch.elapsed().saturating_sub(started);
        result
    }

    /// Reconciles the kernel now, for `--once` and tests.
    ///
    /// # Errors
    /// As for [`Dataplane::reconcile`].
    pub fn sync(&mut self) -> Result<Option<SyncReport>, nft::Error> {
        self.reconcile(Instant::now())
    }

    fn attempts(&mut self, now: Instant) -> Result<Option<SyncReport>, nft::Error> {
        let mut lessons = Lessons::default();
        let mut attempts = 1;
        loop {
            let attempt = match self.next(&mut lessons, now) {
                Ok(prepared) => prepared.map(|prepared| self.commit(prepared)).transpose(),
                Err(error) => Err(error),
            };
            let error = match attempt {
                Err(error) => error,
                done => return done,
            };
            let is_last = attempts == ATTEMPTS;
            if is_last || !self.finds_a_way_around(&error, &mut lessons, now)? {
                self.state.lose();
                return Err(error);
            }
            attempts += 1;
        }
    }

    /// Updates the plan and makes the transaction for it, without a commit. Returns `None` if there
    /// is nothing to write.
    fn next(
        &mut self,
        lessons: &mut Lessons,
        now: Instant,
    ) -> Result<Option<Prepared>, nft::Error> {
        if !self.is_synced() {
            return Ok(None);
        }
        self.know_kernel()?;
        let dirty = std::mem::take(&mut self.dirty);
        self.plan(&dirty, now);
        if self.state.current().is_none() {
            lessons.readings += 1;
            self.read(now)?;
        }
        self.compare(lessons.isolated, now)
    }

    /// Commits a prepared transaction. Nothing is written if that fails.
    fn commit(&mut self, prepared: Prepared) -> Result<SyncReport, nft::Error> {
        let (kernel, stopwatch) = (&mut *self.kernel, &*self.stopwatch);
        self.stats.commit(kernel, stopwatch, prepared.batch())?;
        let Some(current) = self.state.current_mut() else {
            return Err(nft::Error::StaleGeneration);
        };
        self.looks.committed(&prepared.stale, &prepared.forgotten, prepared.at);
        let (replaced, was_owned) = (current.record.replaces_a_table(), current.record.is_owned());
        let report = prepared.enter(current);
        if !was_owned && current.record.is_owned() {
            self.drift.note_takeover(&mut *self.kernel, current);
        }
        if replaced || report.repaired > 0 {
            // Packets that met no rules made entries without address translation.
            merge_flows(&mut self.flows, self.desired.all_flows());
        }
        self.settled();
        Ok(report)
    }

    /// Updates the plan for dirty objects, and puts refused frontends on trial.
    pub(super) fn plan(&mut self, dirty: &Dirty, now: Instant) {
        self.desired.update(&self.store, dirty);
        let touched = self.desired.take_delta();
        self.stats.full |= touched.chains || self.state.current().is_none();
        self.quarantine.release(&touched);
        self.state.planned(touched);
        self.state.planned(self.quarantine.try_again(now));
        merge_flows(&mut self.flows, self.desired.take_flows());
        self.gone.advance(now, &self.store);
    }

    /// Reads the kernel's state for a comparison with the whole plan.
    fn read(&mut self, now: Instant) -> Result<(), nft::Error> {
        let Some(node_context) = self.desired.node_context() else { return Ok(()) };
        let mut reading = Reading::new(&mut *self.kernel, node_context)?;
        let record = &mut reading.record;
        self.gone.read(std::mem::take(&mut reading.gone), record, now);
        // Frontends that were removed while no agent ran: no flow may stay there.
        let gone = record.frontend_keys().filter(|key| self.desired.frontend(*key).is_none());
        gone.for_each(|key| end_flow(&mut self.flows, key));
        // The flags of a table cannot be set later, so it is replaced.
        let upgrades = self.policy.takes_over() && self.policy.kernel_can;
        for family in Family::ALL {
            let is_shared = record.owner(family) == Some(TableOwner::Shared);
            if *record.table(family) == TableState::Unusable || (upgrades && is_shared) {
                record.forget_table(family);
            }
        }
        self.state.read(reading);
        Ok(())
    }

    /// Makes the transaction from the record to the plan. Returns `None` if there is nothing to
    /// write.
    pub(super) fn compare(
        &mut self,
        isolated: bool,
        now: Instant,
    ) -> Result<Option<Prepared>, nft::Error> {
        if let Some(current) = self.state.current_mut() {
            self.drift.note_generation(&mut *self.kernel, current)?;
        }
        let prepared = loop {
            let Some(prepared) = Prepared::new(self, isolated, now)? else { return Ok(None) };
            if prepared.too_small.is_empty() {
                break prepared;
            }
            self.stats.full = true;
            for family in &prepared.too_small {
                tracing::info!(%family, "sets of the table are too small, replacing all of them");
                if let Some(current) = self.state.current_mut() {
                    current.rebuild_table(*family, &prepared.stale);
                }
            }
        };
        if !prepared.is_empty() {
            return Ok(Some(prepared));
        }
        self.looks.committed(&prepared.stale, &prepared.forgotten, prepared.at);
        self.settled();
        Ok(None)
    }

    /// Notes that the kernel holds the plan.
    fn settled(&mut self) {
        let is_synced = self.is_synced();
        if let Some(current) = self.state.current_mut() {
            current.settled(is_synced);
        }
        self.quarantine.committed();
        self.gone.settled();
    }

    /// Returns the time of the next sync for gone endpoints.
    #[must_use]
    pub fn next_gone(&self) -> Option<Instant> {
        self.gone.next()
    }

    /// Checks for modifications of shunt's tables by other processes; the next sync repairs them.
    /// Takes a microsecond as long as no other process commits, and asks nothing if the agent owns them.
    ///
    /// # Errors
    /// If the kernel does not answer.
    pub fn check(&mut self, now: Instant) -> Result<bool, nft::Error> {
        let (Some(current), Some(node_context)) =
            (self.state.current_mut(), self.desired.node_context())
        else {
            return Ok(true);
        };
        self.drift.note_generation(&mut *self.kernel, current)?;
        let (kernel, record) = (&mut *self.kernel, &current.record);
        let found = self.drift.finds_damage(kernel, &*self.stopwatch, node_context, record, now);
        // Without an answer, the next sync fails, too, and reports it.
        if !matches!(found, Ok(false)) {
            self.state.lose();
        }
        found
    }

    /// Returns the time of the next sync for stale entries of session affinity.
    #[must_use]
    pub fn next_look(&self) -> Option<Instant> {
        self.looks.next()
    }

    /// Deletes the chains that have been unused for the given time. The transaction is a separate
    /// one: before kernel 6.2, a chain counts as used for a moment after the deletion of its
    /// element. Call it periodically.
    pub fn remove_unused_chains(&mut self, now: Instant, keep: impl Fn(ChainName) -> Duration) {
        let Some(current) = self.state.current_mut() else { return };
        let due = self.unused_chains.due(&current.record, now, keep);
        if due.is_empty() {
            return;
        }
        let (kernel, stopwatch) = (&mut *self.kernel, &*self.stopwatch);
        match self.stats.commit(kernel, stopwatch, &deletion(&due)) {
            Ok(()) => {
                current.advance();
                self.unused_chains.deleted(due, &mut current.record);
            }
            // An unused chain does no harm; the next call retries its deletion.
            Err(nft::Error::Refused(_)) => {}
            // It is unknown whether the chains are deleted.
            Err(_) => self.state.lose(),
        }
    }

    /// Returns true if there are unused chains.
    #[must_use]
    pub fn has_unused_chains(&self) -> bool {
        self.state.current().is_some_and(|current| !current.record.unused_chains().is_empty())
    }

    /// Returns true if [`Dataplane::remove_unused_chains`] has something to note, delete or forget.
    pub(super) fn counts_unused_chains(&self) -> bool {
        self.has_unused_chains() || !self.unused_chains.is_empty()
    }

    /// Returns true if another process may have modified shunt's tables, or can do so.
    pub(super) fn is_checked(&self) -> bool {
        let is_owned = self.state.current().is_some_and(|current| current.record.is_owned());
        !is_owned || self.drift.is_suspected()
    }
}
