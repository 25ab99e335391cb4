//! The thread that commits: the only one that ever talks to nf_tables.

use std::collections::BTreeSet;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant, SystemTime};

use super::{Dataplane, Error, SyncReport};
use crate::model::{Change, Family};
use crate::plan::{Conflict, Flows};

/// How long after the last sync unused chains are deleted: endpoint counts that come and go in a
/// rollout should find their chains again.
const TIDY_AFTER: Duration = Duration::from_secs(1);
/// The pause after a failed sync: doubled with each further failure, up to the longest.
const FIRST_RETRY: Duration = Duration::from_millis(100);
const LONGEST_RETRY: Duration = Duration::from_secs(30);

/// What the thread is told.
#[derive(Debug)]
pub enum Order {
    /// Objects changed.
    Update(Update),
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
        /// UDP frontends for which it changed where flows may stay.
        flows: Flows,
        /// What led to it: the updates since the sync before.
        causes: Vec<Cause>,
        /// The dataplane, to look at.
        dataplane: &'a Dataplane,
    },
    /// A sync failed; it is tried again after the pause, or with the next change.
    Failed {
        /// Why.
        error: &'a Error,
        /// The pause.
        retry_in: Duration,
    },
    /// Two Services want one frontend.
    Conflict {
        /// Which.
        conflict: &'a Conflict,
        /// The dataplane, to look at.
        dataplane: &'a Dataplane,
    },
}

/// Starts the thread. It syncs as soon as a change arrives; changes that arrive during a commit form
/// the next one, and two commits are at least `min_period` apart. It ends once all senders are gone;
/// a process that ends before leaves a whole commit or none, for a commit is one system call.
///
/// # Errors
/// If the system gives us no thread.
pub fn spawn(
    dataplane: Dataplane,
    min_period: Duration,
    report: impl FnMut(Event<'_>) + Send + 'static,
) -> std::io::Result<mpsc::Sender<Order>> {
    let (sender, orders) = mpsc::channel();
    std::thread::Builder::new()
        .name("dataplane".to_owned())
        .spawn(move || run(dataplane, &orders, min_period, report))?;
    Ok(sender)
}

fn run(
    mut dataplane: Dataplane,
    orders: &Receiver<Order>,
    min_period: Duration,
    mut report: impl FnMut(Event<'_>),
) {
    let mut known_conflicts: BTreeSet<Conflict> = BTreeSet::new();
    let mut retry = FIRST_RETRY;
    let mut wake_after: Option<Duration> = None;
    let mut failed = false;
    let mut causes = Vec::new();
    loop {
        let received = match wake_after {
            None => orders.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(pause) => orders.recv_timeout(pause),
        };
        match received {
            Ok(first) => {
                for order in std::iter::once(first).chain(orders.try_iter()) {
                    let Order::Update(Update { changes, mut cause }) = order;
                    if !changes.iter().any(|change| is_news(change, &dataplane)) {
                        cause.triggers.clear();
                    }
                    changes.into_iter().for_each(|change| dataplane.apply(change));
                    causes.push(cause);
                }
            }
            Err(RecvTimeoutError::Timeout) if failed => {}
            Err(RecvTimeoutError::Timeout) => {
                wake_after = dataplane.tidy().then_some(TIDY_AFTER);
                continue;
            }
            Err(RecvTimeoutError::Disconnected) => return,
        }
        if !dataplane.store().is_synced() {
            continue;
        }
        let started = Instant::now();
        let result = dataplane.sync();
        failed = result.is_err();
        match result {
            Ok(wrote) => {
                retry = FIRST_RETRY;
                wake_after = dataplane.is_untidy().then_some(TIDY_AFTER);
                let took = started.elapsed();
                let flows = dataplane.take_flows();
                let causes = std::mem::take(&mut causes);
                report(Event::Synced { wrote, took, flows, causes, dataplane: &dataplane });
                let conflicts: BTreeSet<Conflict> = dataplane.conflicts().cloned().collect();
                for conflict in conflicts.difference(&known_conflicts) {
                    report(Event::Conflict { conflict, dataplane: &dataplane });
                }
                known_conflicts = conflicts;
                if wrote.is_some() && !min_period.is_zero() {
                    std::thread::sleep(min_period.saturating_sub(started.elapsed()));
                }
            }
            Err(error) => {
                report(Event::Failed { error: &error, retry_in: retry });
                wake_after = Some(retry);
                retry = (retry * 2).min(LONGEST_RETRY);
            }
        }
    }
}

/// False for an EndpointSlice that was written again without a change for us: what triggered it is
/// in the kernel for long.
fn is_news(change: &Change, dataplane: &Dataplane) -> bool {
    match change {
        Change::Slice(slice) => dataplane.store().slice(&slice.name) != Some(slice),
        _ => true,
    }
}
