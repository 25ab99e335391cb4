//! What the dataplane's thread does when. The time comes in as an argument: nothing in here waits.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nfnetlink::nft::Listener;
use shunt_core::model::{ChangeBatch, ChangeCounts};
use shunt_core::plan::ChainName;

use super::command::{Backlog, Command, Configure};
use super::{Dataplane, Error, Event, Progress, Quarantined, Snapshot, SyncReport};
use crate::jitter;

/// How often unused chains are looked for.
const CHAIN_PERIOD: Duration = Duration::from_secs(10);
/// How long a balancer stays without a frontend that needs it: numbers of endpoints come back, and the
/// kernel walks all elements of a map for each chain that is bound to it.
const KEEP_BALANCERS: Duration = Duration::from_secs(3600);
/// How long the other chains stay.
const KEEP_CHAINS: Duration = Duration::from_secs(60);
/// The pause after a failed sync: doubled with each further failure, up to the longest.
const FIRST_RETRY: Duration = Duration::from_millis(100);
const LONGEST_RETRY: Duration = Duration::from_secs(10);
/// How long the agent listens to the kernel after another process changed our tables, to learn which one
/// does it again. Not for longer: while any process listens, all commits take ten times as long.
const LISTEN_FOR: Duration = Duration::from_secs(10);
/// The part of the period between two checks that is left out at random: not all agents of a cluster
/// look at the same moment, nor always in step with another program.
const CHECK_JITTER: f64 = 0.2;

/// When the thread works.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    /// Two commits are at least that far apart.
    pub min_period: Duration,
    /// How often it looks whether another process has written; zero: never.
    pub check_period: Duration,
}

/// Decides what to do next, and does it.
pub(super) struct Worker<R> {
    dataplane: Dataplane,
    backlog: Backlog,
    pace: Pace,
    report: R,
    /// What led to the next sync, without the changes themselves.
    batches: Vec<ChangeBatch>,
    changes: ChangeCounts,
    /// The last sync that went well.
    snapshot: Arc<Snapshot>,
    /// A sync is due, if only because another commit was too short ago.
    due: bool,
    last_commit: Option<Instant>,
    retry: Duration,
    /// No sync before that: the last one failed, or could not trust what it read.
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

    /// When there is something to do, if no command comes before.
    pub(super) fn next_wake(&self, now: Instant) -> Option<Instant> {
        if !self.dataplane.is_synced() {
            return None;
        }
        let trial = self.dataplane.next_trial().filter(|_| !self.due);
        let times = [
            self.commit_at(now),
            Some(self.chains_at),
            self.check_at,
            self.dataplane.next_check(),
            trial,
            self.dataplane.next_sweep(now),
        ];
        times.into_iter().flatten().min()
    }

    /// Takes in a command; [`Worker::work`] acts on it.
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
                let mut is_news = false;
                for change in std::mem::take(&mut batch.changes) {
                    is_news |= self.dataplane.apply(change);
                }
                if !is_news {
                    // What triggered them has been in the kernel for long.
                    batch.triggers.clear();
                }
                self.batches.push(batch);
            }
            Command::Configure(Configure { options, node_name, min_period }) => {
                tracing::trace!("received a changed configuration");
                self.dataplane.configure(options, &node_name);
                self.pace.min_period = min_period;
            }
        }
    }

    /// Does what is due.
    pub(super) fn work(&mut self, now: Instant) {
        if !self.dataplane.is_synced() {
            // These changes wait for the source, and not for us.
            self.backlog.finish();
            self.due = false;
            return;
        }
        // Also while changes come without a pause.
        self.work_periodically(now);
        if self.commit_at(now).is_some_and(|at| at <= now) {
            self.due = false;
            self.sync(now);
        }
    }

    /// Deletes what no frontend needs any more, for a few milliseconds at the most. To be called behind
    /// [`Worker::work`], with the time after it.
    pub(super) fn clean_up(&mut self, now: Instant) {
        self.dataplane.sweep_affinity(now);
        if self.chains_at <= now {
            self.chains_at = now + CHAIN_PERIOD;
            self.dataplane.remove_unused_chains(now, |chain| match chain {
                ChainName::Balancer { .. } => KEEP_BALANCERS,
                _ => KEEP_CHAINS,
            });
        }
        if self.dataplane.stats().has_transactions() {
            (self.report)(Event::CleanedUp { stats: self.dataplane.take_stats() });
        }
    }

    /// When the next sync may be, if one is due: not before the pause after a failure is over, nor
    /// before the least time since the last commit.
    fn commit_at(&self, now: Instant) -> Option<Instant> {
        let paced = self.last_commit.and_then(|last| last.checked_add(self.pace.min_period));
        self.due.then(|| self.pause_until.max(paced).unwrap_or(now))
    }

    /// Notes what is due without a command.
    fn work_periodically(&mut self, now: Instant) {
        let is_due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        self.due |= is_due(self.dataplane.next_trial());
        if is_due(self.check_at) || is_due(self.dataplane.next_check()) {
            // A kernel that does not answer will fail the next sync, which reports it.
            self.due |= self.dataplane.check(now).unwrap_or(true);
        }
        if is_due(self.check_at) {
            self.schedule_check(now);
            self.listener.take_if(|(_, until)| *until <= now);
        }
    }

    fn schedule_check(&mut self, now: Instant) {
        let period = self.pace.check_period;
        let jitter = period.mul_f64(CHECK_JITTER * jitter::fraction());
        self.check_at = (!period.is_zero()).then(|| now + period - jitter);
    }

    fn sync(&mut self, now: Instant) {
        match self.dataplane.reconcile(now) {
            Ok(Progress::ReadAgain(at)) => {
                self.due = true;
                self.pause_until = Some(at);
            }
            Ok(Progress::Unchanged) => self.synced(None, now),
            Ok(Progress::Wrote(report)) => {
                self.last_commit = Some(now);
                self.synced(Some(report), now);
            }
            Err(error) => self.failed(&error, now),
        }
    }

    fn synced(&mut self, wrote: Option<SyncReport>, now: Instant) {
        self.backlog.finish();
        self.retry = FIRST_RETRY;
        self.pause_until = None;
        let snapshot = Arc::new(self.dataplane.snapshot());
        let before = std::mem::replace(&mut self.snapshot, snapshot.clone());
        (self.report)(Event::Synced {
            wrote,
            flows: self.dataplane.take_flows(),
            batches: std::mem::take(&mut self.batches),
            changes: std::mem::take(&mut self.changes),
            stats: self.dataplane.take_stats(),
            snapshot: snapshot.clone(),
        });
        for conflict in snapshot.conflicts.difference(&before.conflicts) {
            (self.report)(Event::Conflict(conflict));
        }
        let suspects = |all: &[Quarantined]| -> BTreeSet<_> {
            all.iter().map(|quarantined| quarantined.suspect).collect()
        };
        let (old, new) = (suspects(&before.quarantined), suspects(&snapshot.quarantined));
        for one in snapshot.quarantined.iter().filter(|one| !old.contains(&one.suspect)) {
            (self.report)(Event::Quarantined(one));
        }
        for one in before.quarantined.iter().filter(|one| !new.contains(&one.suspect)) {
            (self.report)(Event::Released(one));
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
