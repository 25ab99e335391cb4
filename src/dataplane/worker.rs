//! The thread that commits: the only one that ever talks to nf_tables.

use std::collections::BTreeSet;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use super::{Dataplane, Error, SyncReport};
use crate::model::Change;
use crate::plan::{Conflict, Flows};

/// How long after the last sync unused chains are deleted: endpoint counts that come and go in a
/// rollout should find their chains again.
const TIDY_AFTER: Duration = Duration::from_secs(1);
/// The pause after a failed sync: doubled with each further failure, up to the longest.
const FIRST_RETRY: Duration = Duration::from_millis(100);
const LONGEST_RETRY: Duration = Duration::from_secs(30);

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
) -> std::io::Result<mpsc::Sender<Vec<Change>>> {
    let (sender, changes) = mpsc::channel();
    std::thread::Builder::new()
        .name("dataplane".to_owned())
        .spawn(move || run(dataplane, &changes, min_period, report))?;
    Ok(sender)
}

fn run(
    mut dataplane: Dataplane,
    changes: &Receiver<Vec<Change>>,
    min_period: Duration,
    mut report: impl FnMut(Event<'_>),
) {
    let mut known_conflicts: BTreeSet<Conflict> = BTreeSet::new();
    let mut retry = FIRST_RETRY;
    let mut wake_after: Option<Duration> = None;
    let mut failed = false;
    loop {
        let received = match wake_after {
            None => changes.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(pause) => changes.recv_timeout(pause),
        };
        match received {
            Ok(first) => {
                first.into_iter().for_each(|change| dataplane.apply(change));
                for more in changes.try_iter() {
                    more.into_iter().for_each(|change| dataplane.apply(change));
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
                report(Event::Synced { wrote, took, flows, dataplane: &dataplane });
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
