//! The thread that commits: the only one that ever talks to nf_tables.

use std::collections::BTreeSet;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant, SystemTime};

use nfnetlink::nft::{Listener, Writer};
use shunt_core::model::{Change, Family};
use shunt_core::plan::{ChainName, Conflict, Flows, Options};

use super::queue::{Backlog, Orders, queue};
use super::{Dataplane, Error, Quarantined, SyncReport, Tally};

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
    /// A sync failed; it is tried again after the pause, whatever changes meanwhile.
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
    /// Unused chains, or stale entries of session affinity, were to be deleted behind the syncs.
    CleanedUp {
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
        chains_at: Instant::now() + CHAIN_PERIOD,
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
    chains_at: Instant,
    check_at: Option<Instant>,
    listener: Option<(Listener, Instant)>,
}

impl<R: FnMut(Event<'_>)> Worker<R> {
    fn run(mut self, orders: &Receiver<Order>) {
        self.schedule_check();
        loop {
            let received = match self.next_wake() {
                None => orders.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(at) => orders.recv_timeout(at.saturating_duration_since(Instant::now())),
            };
            match received {
                Ok(first) => {
                    self.take(first);
                    orders.try_iter().for_each(|order| self.take(order));
                    self.due = true;
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            if !self.dataplane.store().is_synced() {
                // These changes wait for the source, and not for us.
                self.backlog.finish();
                self.due = false;
                continue;
            }
            // Also while changes come without a pause.
            self.work_periodically();
            if self.commit_at().is_some_and(|at| at <= Instant::now()) {
                self.due = false;
                self.sync();
            }
            self.clean_up();
        }
    }

    /// When there is something to do, if no order comes before.
    fn next_wake(&self) -> Option<Instant> {
        if !self.dataplane.store().is_synced() {
            return None;
        }
        let sweep = self.dataplane.next_sweep(Instant::now());
        let trial = self.dataplane.next_trial().filter(|_| !self.due);
        let times = [self.commit_at(), Some(self.chains_at), self.check_at, trial, sweep];
        times.into_iter().flatten().min()
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

    /// When the next sync may be, if one is due: not before the pause after a failure is over, nor
    /// before the least time since the last commit.
    fn commit_at(&self) -> Option<Instant> {
        if !self.due {
            return None;
        }
        let paced = self.last_commit.and_then(|last| last.checked_add(self.pace.min_period));
        Some(self.retry_at.max(paced).unwrap_or_else(Instant::now))
    }

    /// Notes what is due without an order.
    fn work_periodically(&mut self) {
        let now = Instant::now();
        self.due |= self.dataplane.next_trial().is_some_and(|at| at <= now);
        if self.check_at.is_some_and(|at| at <= now) {
            // A kernel that does not answer will fail the next sync, which reports it.
            self.due |= self.dataplane.check(now).unwrap_or(true);
            self.schedule_check();
            self.listener.take_if(|(_, until)| *until <= now);
        }
    }

    /// Deletes what nobody needs any more, for a few milliseconds at the most.
    fn clean_up(&mut self) {
        let now = Instant::now();
        self.dataplane.sweep_affinity(now);
        if self.chains_at <= now {
            self.chains_at = now + CHAIN_PERIOD;
            self.dataplane.remove_unused_chains(now, |chain| match chain {
                ChainName::Balancer { .. } => KEEP_BALANCERS,
                _ => KEEP_CHAINS,
            });
        }
        let tally = self.dataplane.take_tally();
        if tally != Tally::default() {
            (self.report)(Event::CleanedUp { tally });
        }
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
                self.due = true;
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
