//! The thread that commits: the only one that ever talks to nf_tables.

use std::collections::BTreeSet;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant, SystemTime};

use super::queue::{Backlog, Orders, queue};
use super::{Dataplane, Error, Quarantined, SyncReport, Tally};
use crate::model::{Change, Family};
use crate::nft::{Listener, Writer};
use crate::plan::{Conflict, Flows, Options};

/// How long after the last sync unused chains are deleted: endpoint counts that come and go in a
/// rollout should find their chains again.
const TIDY_AFTER: Duration = Duration::from_secs(1);
/// The pause after a failed sync: doubled with each further failure, up to the longest.
const FIRST_RETRY: Duration = Duration::from_millis(100);
const LONGEST_RETRY: Duration = Duration::from_secs(30);
/// How long the kernel is listened to after somebody changed our tables, so that it tells who does
/// it again. Not for longer: while anybody listens, everybody's commits take ten times as long.
const LISTEN_FOR: Duration = Duration::from_secs(10);

/// When the thread works.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    /// Two commits are at least that far apart.
    pub min_period: Duration,
    /// How often it looks whether somebody else has written; zero: never.
    pub check_period: Duration,
}

/// What the thread is told.
#[derive(Debug)]
pub enum Order {
    /// Objects changed.
    Update(Update),
    /// The configuration changed.
    Configure(Configure),
}

/// What the dataplane is told of the configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Configure {
    /// How to plan.
    pub options: Options,
    /// The name of our node.
    pub node_name: String,
    /// The least time between two commits.
    pub min_period: Duration,
}

impl Order {
    /// How many changes come with it.
    pub(super) fn counts(&self) -> ChangeCounts {
        let mut counts = ChangeCounts::default();
        let Order::Update(update) = self else { return counts };
        for change in &update.changes {
            match change {
                Change::Service(_) | Change::ServiceGone(_) => counts.services += 1,
                Change::Slice(_) | Change::SliceGone(_) => counts.slices += 1,
                _ => {}
            }
        }
        counts
    }
}

/// Numbers of changes, whether they make a difference or not.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ChangeCounts {
    /// Of Services.
    pub services: usize,
    /// Of EndpointSlices.
    pub slices: usize,
}

/// Changes that belong together, and where they come from.
#[derive(Debug)]
pub struct Update {
    /// The changes.
    pub changes: Vec<Change>,
    /// Why they are there.
    pub cause: Cause,
}

impl Update {
    /// Changes that were noticed just now.
    #[must_use]
    pub fn now(changes: Vec<Change>) -> Update {
        Update { changes, cause: Cause { received: Instant::now(), triggers: Vec::new() } }
    }
}

/// What led to an update.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cause {
    /// When the source noticed it.
    pub received: Instant,
    /// When the Pods or the Service behind each changed EndpointSlice changed, as the annotation
    /// `endpoints.kubernetes.io/last-change-trigger-time` says.
    pub triggers: Vec<(Family, SystemTime)>,
}

/// What the thread reports.
pub enum Event<'a> {
    /// The kernel holds what is planned. `wrote` is `None` if there was nothing to write.
    Synced {
        /// What was written.
        wrote: Option<SyncReport>,
        /// How long planning, comparing and committing took.
        took: Duration,
        /// Frontends for which it changed where flows may stay.
        flows: Flows,
        /// What led to it: the updates since the sync before.
        causes: Vec<Cause>,
        /// How many changes these brought.
        changes: ChangeCounts,
        /// What became of transactions since the last event.
        tally: Tally,
        /// The dataplane, to look at.
        dataplane: &'a Dataplane,
    },
    /// A sync failed; it is tried again after the pause, or with the next change.
    Failed {
        /// Why.
        error: &'a Error,
        /// The pause.
        retry_in: Duration,
        /// How long it took to find out.
        took: Duration,
        /// What became of transactions since the last event.
        tally: Tally,
        /// The dataplane, to look at.
        dataplane: &'a Dataplane,
    },
    /// Chains that nothing goes to any more were to be deleted.
    Tidied {
        /// True if some are left, to be deleted later.
        left: bool,
        /// What became of transactions since the last event.
        tally: Tally,
    },
    /// Somebody else had changed our tables; they are as planned again.
    Repaired {
        /// How many frontends, members and chains were not as committed.
        repaired: usize,
        /// Who writes to nf_tables, as far as the kernel tells: it names writers only while it is
        /// listened to, which it is for some seconds after the first repair.
        writers: &'a [Writer],
    },
    /// The kernel refuses a frontend; it is left out, the others are committed.
    Quarantined {
        /// Which, and why.
        quarantined: &'a Quarantined,
        /// The dataplane, to look at.
        dataplane: &'a Dataplane,
    },
    /// The kernel has taken it, or it is not wanted any more.
    Released {
        /// Which.
        released: &'a Quarantined,
    },
    /// Two Services want one frontend.
    Conflict {
        /// Which.
        conflict: &'a Conflict,
        /// The dataplane, to look at.
        dataplane: &'a Dataplane,
    },
}

/// Starts the thread. `noticed` is told of each order when it is sent, in the thread that sends it;
/// `report` is told what became of them.
///
/// The thread syncs as soon as a change arrives; changes that arrive during a commit form the next
/// one. It ends once all senders are gone; a process that ends before leaves a whole commit or none,
/// for a commit is one system call.
///
/// # Errors
/// If the system gives us no thread.
pub fn spawn(
    dataplane: Dataplane,
    pace: Pace,
    noticed: impl Fn(ChangeCounts) + Send + Sync + 'static,
    report: impl FnMut(Event<'_>) + Send + 'static,
) -> std::io::Result<Orders> {
    let (sender, orders, backlog) = queue(Arc::new(noticed));
    let worker = Worker {
        dataplane,
        backlog,
        pace,
        report,
        causes: Vec::new(),
        changes: ChangeCounts::default(),
        conflicts: BTreeSet::new(),
        quarantined: BTreeSet::new(),
        due: false,
        last_commit: None,
        retry: FIRST_RETRY,
        retry_at: None,
        tidy_at: None,
        check_at: None,
        listener: None,
    };
    std::thread::Builder::new().name("dataplane".to_owned()).spawn(move || worker.run(&orders))?;
    Ok(sender)
}

struct Worker<R> {
    dataplane: Dataplane,
    backlog: Backlog,
    pace: Pace,
    report: R,
    /// Why the next sync is to be, and with how many changes.
    causes: Vec<Cause>,
    changes: ChangeCounts,
    conflicts: BTreeSet<Conflict>,
    quarantined: BTreeSet<Quarantined>,
    /// A sync is due, if only because another commit was too short ago.
    due: bool,
    last_commit: Option<Instant>,
    retry: Duration,
    retry_at: Option<Instant>,
    tidy_at: Option<Instant>,
    check_at: Option<Instant>,
    listener: Option<(Listener, Instant)>,
}

impl<R: FnMut(Event<'_>)> Worker<R> {
    fn run(mut self, orders: &Receiver<Order>) {
        self.schedule_check();
        loop {
            let trial = self.dataplane.next_trial();
            let next = [self.retry_at, self.tidy_at, self.check_at, trial, self.commit_at()];
            let received = match next.into_iter().flatten().min() {
                None => orders.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(at) => orders.recv_timeout(at.saturating_duration_since(Instant::now())),
            };
            let work = match received {
                Ok(first) => {
                    self.take(first);
                    orders.try_iter().for_each(|order| self.take(order));
                    true
                }
                Err(RecvTimeoutError::Timeout) => self.wake(),
                Err(RecvTimeoutError::Disconnected) => return,
            };
            if !self.dataplane.store().is_synced() {
                // What is there waits for the source, and not for us.
                self.backlog.finish();
                continue;
            }
            self.due |= work;
            if self.commit_at().is_some_and(|at| at <= Instant::now()) {
                self.due = false;
                self.sync();
            }
        }
    }

    fn take(&mut self, order: Order) {
        self.backlog.take();
        let counts = order.counts();
        self.changes.services += counts.services;
        self.changes.slices += counts.slices;
        tracing::trace!(
            services = counts.services,
            endpoint_slices = counts.slices,
            configuration = matches!(order, Order::Configure(_)),
            "took changes"
        );
        match order {
            Order::Update(Update { changes, mut cause }) => {
                if !changes.iter().any(|change| is_news(change, &self.dataplane)) {
                    cause.triggers.clear();
                }
                changes.into_iter().for_each(|change| self.dataplane.apply(change));
                self.causes.push(cause);
            }
            Order::Configure(Configure { options, node_name, min_period }) => {
                self.dataplane.configure(options, &node_name);
                self.pace.min_period = min_period;
            }
        }
    }

    /// When the next commit may be, if one is due.
    fn commit_at(&self) -> Option<Instant> {
        match self.last_commit {
            _ if !self.due => None,
            None => Some(Instant::now()),
            Some(last) => last.checked_add(self.pace.min_period),
        }
    }

    /// Does what is due. True if a sync is.
    fn wake(&mut self) -> bool {
        let now = Instant::now();
        let due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        if due(self.tidy_at) {
            let left = self.dataplane.tidy();
            self.tidy_at = left.then(|| now + TIDY_AFTER);
            let tally = self.dataplane.take_tally();
            (self.report)(Event::Tidied { left, tally });
        }
        let mut work = due(self.retry_at) || due(self.dataplane.next_trial());
        if due(self.check_at) {
            // What cannot be asked now will fail the next sync, which says so.
            work |= self.dataplane.check().unwrap_or(true);
            self.schedule_check();
            self.listener.take_if(|(_, until)| *until <= now);
        }
        work
    }

    /// Not all agents of a cluster at the same moment, nor always in step with another program.
    fn schedule_check(&mut self) {
        let period = self.pace.check_period;
        let jitter = period.mul_f64(0.2 * random_fraction());
        self.check_at = (!period.is_zero()).then(|| Instant::now() + period - jitter);
    }

    fn sync(&mut self) {
        let started = Instant::now();
        let result = self.dataplane.sync();
        let (took, tally) = (started.elapsed(), self.dataplane.take_tally());
        match result {
            Ok(wrote) => {
                self.backlog.finish();
                self.retry = FIRST_RETRY;
                self.retry_at = None;
                self.tidy_at = self.dataplane.is_untidy().then(|| Instant::now() + TIDY_AFTER);
                let flows = self.dataplane.take_flows();
                let causes = std::mem::take(&mut self.causes);
                let changes = std::mem::take(&mut self.changes);
                let dataplane = &self.dataplane;
                (self.report)(Event::Synced {
                    wrote,
                    took,
                    flows,
                    causes,
                    changes,
                    tally,
                    dataplane,
                });
                self.report_conflicts();
                self.report_quarantine();
                if let Some(wrote) = wrote.filter(|wrote| wrote.repaired > 0) {
                    self.report_repair(wrote.repaired);
                }
                if wrote.is_some() {
                    self.last_commit = Some(started);
                }
            }
            Err(error) => {
                self.backlog.fail();
                (self.report)(Event::Failed {
                    error: &error,
                    retry_in: self.retry,
                    took,
                    tally,
                    dataplane: &self.dataplane,
                });
                self.retry_at = Some(Instant::now() + self.retry);
                self.retry = (self.retry * 2).min(LONGEST_RETRY);
            }
        }
    }

    fn report_conflicts(&mut self) {
        let conflicts: BTreeSet<Conflict> = self.dataplane.conflicts().cloned().collect();
        for conflict in conflicts.difference(&self.conflicts) {
            (self.report)(Event::Conflict { conflict, dataplane: &self.dataplane });
        }
        self.conflicts = conflicts;
    }

    fn report_quarantine(&mut self) {
        let now: BTreeSet<Quarantined> = self.dataplane.quarantined().collect();
        let known = |all: &BTreeSet<Quarantined>, one: &Quarantined| {
            all.iter().any(|other| other.suspect == one.suspect)
        };
        for quarantined in now.iter().filter(|one| !known(&self.quarantined, one)) {
            (self.report)(Event::Quarantined { quarantined, dataplane: &self.dataplane });
        }
        for released in self.quarantined.iter().filter(|one| !known(&now, one)) {
            (self.report)(Event::Released { released });
        }
        self.quarantined = now;
    }

    fn report_repair(&mut self, repaired: usize) {
        let writers = match &mut self.listener {
            Some((listener, until)) => {
                *until = Instant::now() + LISTEN_FOR;
                listener.writers()
            }
            None => {
                let listener = Listener::open().ok();
                self.listener = listener.map(|new| (new, Instant::now() + LISTEN_FOR));
                Vec::new()
            }
        };
        (self.report)(Event::Repaired { repaired, writers: &writers });
    }
}

/// From 0 to 1, different in each process and each time; the standard library's hash keys are random.
fn random_fraction() -> f64 {
    f64::from(RandomState::new().build_hasher().finish() as u32) / f64::from(u32::MAX)
}

/// False for an EndpointSlice that was written again without a change for us: what triggered it is
/// in the kernel for long.
fn is_news(change: &Change, dataplane: &Dataplane) -> bool {
    match change {
        Change::Slice(slice) => dataplane.store().slice(&slice.name) != Some(slice),
        _ => true,
    }
}
