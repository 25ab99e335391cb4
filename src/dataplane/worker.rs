//! The schedule of the dataplane's thread. The time is an argument: no function in here waits.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nfnetlink::nft::{Error, Listener};
use shunt_core::jitter;
use shunt_core::model::{ChangeBatch, ChangeCounts};
use shunt_core::plan::ChainName;

use super::command::{Backlog, Command, Configure};
use super::{Dataplane, Event, Quarantined, Snapshot, SyncReport, by_service};

/// The interval of checks for unused chains.
const CHAIN_PERIOD: Duration = Duration::from_secs(10);
/// How long an unused balancer stays. Numbers of endpoints recur, and for each chain that is bound
/// to a map, the kernel walks all its elements.
const KEEP_BALANCERS: Duration = Duration::from_secs(3600);
/// How long other unused chains stay.
const KEEP_CHAINS: Duration = Duration::from_secs(60);
/// The pause after a failed sync, which doubles with each further failure, up to the longest.
const FIRST_RETRY: Duration = Duration::from_millis(100);
const LONGEST_RETRY: Duration = Duration::from_secs(10);
/// How long the agent listens to the kernel's events after a modification by another process, to
/// log the process if it repeats. Not for longer: while any process listens, all commits take ten
/// times as long.
const LISTEN_FOR: Duration = Duration::from_secs(10);
/// The random part of the period between two checks. It keeps the agents of a cluster from checks
/// at the same moment, and from checks in step with another program.
const CHECK_JITTER: f64 = 0.2;

/// The number of batches whose latencies count, and of those whose former objects are kept: syncs may
/// fail for hours.
const MAX_BATCHES: usize = 100_000;
const MAX_UNDONE: usize = 2_000;

/// The pace of the thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    /// The minimum time between two commits.
    pub min_period: Duration,
    /// The interval of checks for commits of other processes; zero for never.
    pub check_period: Duration,
}

/// The worker: decides the next step, and does it.
pub(super) struct Worker<R> {
    dataplane: Dataplane,
    backlog: Backlog,
    pace: Pace,
    report: R,
    /// The batches since the last sync, with the reverse of their changes, which are applied, and the
    /// number of these.
    batches: Vec<ChangeBatch>,
    changes: ChangeCounts,
    /// There were too many batches since the last sync to keep what they undo.
    has_lost_changes: bool,
    /// The time of the last successful sync.
    snapshot: Arc<Snapshot>,
    /// A sync is due, possibly after the minimum time between commits.
    due: bool,
    last_commit: Option<Instant>,
    retry: Duration,
    /// The earliest time of the next sync, after a failure.
    pause_until: Option<Instant>,
    chains_at: Instant,
    check_at: Option<Instant>,
    listener: Option<(Listener, Instant)>,
}

impl<R: FnMut(Event<'_>)> Worker<R> {
    pub(super) fn new(
        dataplane: Dataplane,
        backlog: Backlog,
        pace: Pace,
        report: R,
        now: Instant,
    ) -> Worker<R> {
        let mut worker = Worker {
            dataplane,
            backlog,
            pace,
            report,
            batches: Vec::new(),
            changes: ChangeCounts::default(),
            has_lost_changes: false,
            snapshot: Arc::default(),
            due: false,
            last_commit: None,
            retry: FIRST_RETRY,
            pause_until: None,
            chains_at: now + CHAIN_PERIOD,
            check_at: None,
            listener: None,
        };
        worker.schedule_check(now);
        worker
    }

    /// Returns the time of the next step without a command.
    pub(super) fn next_wake(&self, now: Instant) -> Option<Instant> {
        if !self.dataplane.is_synced() {
            return None;
        }
        let trial = self.dataplane.next_trial().filter(|_| !self.due);
        let times = [
            self.commit_at(now),
            Some(self.chains_at).filter(|_| self.dataplane.counts_unused_chains()),
            self.check_at.filter(|_| self.dataplane.is_checked()),
            self.listener.as_ref().map(|(_, until)| *until),
            trial,
            self.dataplane.next_gone().filter(|_| !self.due),
            self.dataplane.next_look().filter(|_| !self.due),
        ];
        times.into_iter().flatten().min()
    }

    /// Receives a command, on which [`Worker::work`] acts.
    pub(super) fn take(&mut self, command: Command) {
        self.backlog.take();
        self.due = true;
        match command {
            Command::Changes(mut batch) => {
                let counts = batch.counts();
                self.changes.services += counts.services;
                self.changes.slices += counts.slices;
                tracing::trace!(
                    services = counts.services,
                    endpoint_slices = counts.slices,
                    "received changes"
                );
                if !self.dataplane.receive(&mut batch.changes) {
                    // The kernel has had this state since earlier triggers.
                    batch.triggers.clear();
                }
                if self.batches.len() == MAX_UNDONE {
                    self.has_lost_changes = true;
                    self.batches.iter_mut().for_each(|batch| batch.changes = Vec::new());
                }
                if self.has_lost_changes {
                    batch.changes = Vec::new();
                }
                if self.batches.len() < MAX_BATCHES {
                    self.batches.push(batch);
                }
            }
            Command::Configure(Configure { options, node_name, min_period }) => {
                tracing::trace!("received a changed configuration");
                self.dataplane.configure(options, &node_name);
                self.pace.min_period = min_period;
            }
        }
    }

    /// Finds out what is due without a command: also while changes come without a pause.
    pub(super) fn look(&mut self, now: Instant) {
        if !self.dataplane.is_synced() {
            // These changes wait for the source, not for the dataplane.
            self.backlog.finish();
            self.due = false;
            if self.dataplane.is_held() {
                (self.report)(Event::Held { node_is_read: self.dataplane.is_node_read() });
            }
            return;
        }
        self.look_periodically(now);
    }

    /// Syncs if that is due. To be called behind [`Worker::look`], with the time after it.
    pub(super) fn work(&mut self, now: Instant) {
        if self.commit_at(now).is_some_and(|at| at <= now) {
            self.due = false;
            self.sync(now);
        }
    }

    /// Deletes unused chains. Call it after [`Worker::work`], with the time after that.
    pub(super) fn clean_up(&mut self, now: Instant) {
        if self.chains_at > now {
            return;
        }
        self.chains_at = now + CHAIN_PERIOD;
        // A sync that goes on later reports its transactions itself.
        let belong_to_a_sync = self.dataplane.stats().has_transactions();
        self.dataplane.remove_unused_chains(now, |chain| match chain {
            ChainName::Balancer { .. } => KEEP_BALANCERS,
            _ => KEEP_CHAINS,
        });
        if !belong_to_a_sync && self.dataplane.stats().has_transactions() {
            (self.report)(Event::CleanedUp { stats: self.dataplane.take_stats() });
        }
    }

    /// Returns the time of the next sync, if one is due: after the pause of a failure and the
    /// minimum time since the last commit.
    fn commit_at(&self, now: Instant) -> Option<Instant> {
        let paced = self.last_commit.and_then(|last| last.checked_add(self.pace.min_period));
        self.due.then(|| self.pause_until.max(paced).unwrap_or(now))
    }

    /// Notes the work that is due without a command.
    fn look_periodically(&mut self, now: Instant) {
        let is_due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        self.due |= is_due(self.dataplane.next_trial());
        self.due |= is_due(self.dataplane.next_gone());
        self.due |= is_due(self.dataplane.next_look());
        if is_due(self.check_at) {
            // If the kernel does not answer, the next sync fails and reports it.
            self.due |= self.dataplane.check(now).unwrap_or(true);
            self.schedule_check(now);
        }
        self.listener.take_if(|(_, until)| *until <= now);
    }

    fn schedule_check(&mut self, now: Instant) {
        let period = self.pace.check_period;
        let jitter = period.mul_f64(CHECK_JITTER * jitter::fraction());
        self.check_at = (!period.is_zero()).then(|| now + period - jitter);
    }

    fn sync(&mut self, now: Instant) {
        match self.dataplane.reconcile(now) {
            Ok(wrote) => {
                self.last_commit = wrote.map(|_| now).or(self.last_commit);
                self.synced(wrote, now);
            }
            Err(error) => self.failed(&error, now),
        }
    }

    fn synced(&mut self, wrote: Option<SyncReport>, now: Instant) {
        self.backlog.finish();
        self.retry = FIRST_RETRY;
        self.pause_until = None;
        let stats = self.dataplane.take_stats();
        let revision = self.snapshot.revision + u64::from(!self.batches.is_empty());
        let snapshot = Arc::new(Snapshot { revision, ..self.dataplane.snapshot() });
        let before = std::mem::replace(&mut self.snapshot, snapshot.clone());
        (self.report)(Event::Synced {
            wrote,
            flows: self.dataplane.take_flows(),
            loopback: self.dataplane.take_loopback(),
            batches: std::mem::take(&mut self.batches),
            has_lost_changes: std::mem::take(&mut self.has_lost_changes),
            changes: std::mem::take(&mut self.changes),
            stats,
            snapshot: snapshot.clone(),
        });
        for conflict in snapshot.conflicts.difference(&before.conflicts) {
            (self.report)(Event::Conflict(conflict));
        }
        for service in snapshot.oversized.difference(&before.oversized) {
            (self.report)(Event::Oversized(service));
        }
        let suspects = |all: &[Quarantined]| -> BTreeSet<_> {
            all.iter().map(|quarantined| quarantined.suspect).collect()
        };
        let (old, new) = (suspects(&before.quarantined), suspects(&snapshot.quarantined));
        let added = snapshot.quarantined.iter().filter(|one| !old.contains(&one.suspect));
        for (one, others) in by_service(added) {
            (self.report)(Event::Quarantined(one, others));
        }
        let removed = before.quarantined.iter().filter(|one| !new.contains(&one.suspect));
        for (one, others) in by_service(removed) {
            (self.report)(Event::Released(one, others));
        }
        if let Some(wrote) = wrote.filter(|wrote| wrote.repaired > 0) {
            self.report_repair(wrote.repaired, now);
        }
    }

    fn failed(&mut self, error: &Error, now: Instant) {
        self.backlog.fail(now);
        let stats = self.dataplane.take_stats();
        self.due = true;
        self.pause_until = Some(now + stats.took + self.retry);
        (self.report)(Event::Failed {
            error,
            retry_in: self.retry,
            stats,
            node_is_eligible: self.dataplane.node_is_eligible(),
        });
        self.retry = (self.retry * 2).min(LONGEST_RETRY);
    }

    fn report_repair(&mut self, repaired: usize, now: Instant) {
        let writers = match &mut self.listener {
            Some((listener, until)) => {
                *until = now + LISTEN_FOR;
                listener.writers()
            }
            None => {
                let listener = Listener::open().ok();
                self.listener = listener.map(|new| (new, now + LISTEN_FOR));
                Vec::new()
            }
        };
        (self.report)(Event::Repaired { repaired, writers: &writers });
    }
}
