//! The thread for sweeps, so that commits never wait for them.

use std::io;
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use nfnetlink::conntrack::Connection;
use nix::errno::Errno;
use shunt_core::model::Family;
use tracing::{info, warn};

use super::queue::{self, SweepQueue, Sweeps};
use super::{Conntrack, Error, Sweep, SweepReport};

/// The time from a commit to its sweep. By then, packets that passed the old rules during the commit
/// have made their entries.
const DELAY: Duration = Duration::from_millis(50);
/// The least time between two sweeps: each walks the whole hash table of connection tracking, 9 ms
/// for 262 144 buckets. The commits in between are swept together.
const PERIOD: Duration = Duration::from_millis(500);
/// The longest pause before a sweep is repeated that failed or left flows. Pauses double up to it.
const MAX_PAUSE: Duration = Duration::from_secs(60);

/// Starts the thread. It repeats a sweep that failed, or that left stale flows.
///
/// # Errors
/// If the system refuses to start a thread.
pub fn spawn(
    mut conntrack: Conntrack,
    report: impl FnMut(SweepReport) + Send + 'static,
) -> io::Result<Sweeps> {
    let (sweeps, queue) = queue::channel();
    let run = move |family, sweep: &Sweep, is_permitted: &mut dyn FnMut(&Connection) -> bool| {
        conntrack.sweep(family, sweep, is_permitted)
    };
    let mut worker = SweepWorker { run, report, queue };
    std::thread::Builder::new().name("conntrack".to_owned()).spawn(move || worker.run())?;
    Ok(sweeps)
}

/// The next sweep, and its time. The time now is an argument: nothing in here waits.
#[derive(Debug, Default)]
struct Schedule {
    next: Option<(Sweep, Instant)>,
    /// The end of the last sweep.
    last: Option<Instant>,
    /// The pause after a failure.
    pause: Option<Duration>,
}

impl Schedule {
    /// Adds the frontends of a commit. One with additions alone needs no sweep, but a sweep that waits
    /// must know them.
    fn committed(&mut self, sweep: Sweep, now: Instant) {
        let searches = Family::ALL.into_iter().any(|family| sweep.searches(family));
        let at = self.last.map_or(now, |last| last + PERIOD).max(now + DELAY);
        match &mut self.next {
            Some((waiting, due)) => {
                waiting.merge(sweep);
                if searches {
                    *due = at.min(*due);
                }
            }
            None => self.next = searches.then_some((sweep, at)),
        }
    }

    fn due(&self) -> Option<Instant> {
        self.next.as_ref().map(|(_, due)| *due)
    }

    fn take_due(&mut self, now: Instant) -> Option<Sweep> {
        self.next.take_if(|(_, due)| *due <= now).map(|(sweep, _)| sweep)
    }

    fn succeeded(&mut self, now: Instant) {
        (self.last, self.pause) = (Some(now), None);
    }

    fn failed(&mut self, sweep: Sweep, now: Instant) {
        let pause = self.pause.map_or(PERIOD, |pause| (pause * 2).min(MAX_PAUSE));
        (self.last, self.pause) = (Some(now), Some(pause));
        self.next = Some((sweep, now + pause));
    }
}

struct SweepWorker<S, R> {
    /// Runs a sweep of one family, as [`Conntrack::sweep`] does.
    run: S,
    report: R,
    queue: SweepQueue,
}

/// How a sweep ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum SweepEnd {
    Complete,
    /// The kernel does not delete some flows, or cannot list them. A restart would not help.
    Refused,
    Failed,
}

impl<S, R> SweepWorker<S, R>
where
    S: FnMut(Family, &Sweep, &mut dyn FnMut(&Connection) -> bool) -> Result<SweepReport, Error>,
    R: FnMut(SweepReport),
{
    fn run(&mut self) {
        let mut schedule = Schedule::default();
        loop {
            if let Some(sweep) = schedule.take_due(Instant::now()) {
                match self.sweep(&sweep) {
                    SweepEnd::Complete => schedule.succeeded(Instant::now()),
                    _ => schedule.failed(sweep, Instant::now()),
                }
            }
            match self.queue.next(schedule.due()) {
                Ok(sweep) => schedule.committed(sweep, Instant::now()),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            if schedule.next.is_none() {
                // It searches nothing.
                self.queue.unswept.finish();
            }
        }
    }

    /// Runs a sweep, notes and logs what it could not do.
    fn sweep(&mut self, sweep: &Sweep) -> SweepEnd {
        let mut outcome = SweepEnd::Complete;
        let mut troubles = Vec::new();
        for family in Family::ALL.into_iter().filter(|family| sweep.searches(*family)) {
            let is_permitted = &mut |entry: &Connection| self.queue.permits(entry);
            outcome = outcome.max(match (self.run)(family, sweep, is_permitted) {
                Ok(report) => {
                    let trouble = report.trouble();
                    (self.report)(report);
                    let is_complete = trouble.is_none();
                    troubles.extend(trouble);
                    if is_complete { SweepEnd::Complete } else { SweepEnd::Refused }
                }
                Err(error) => {
                    troubles.push(format!("{family}: {error}"));
                    match error {
                        // Without `nf_conntrack_netlink`.
                        Error::Request { errno: Errno::EINVAL, .. } => SweepEnd::Refused,
                        _ => SweepEnd::Failed,
                    }
                }
            });
        }
        let unswept = &self.queue.unswept;
        if outcome == SweepEnd::Failed {
            unswept.fail();
        } else {
            unswept.finish();
        }
        let trouble = (!troubles.is_empty()).then(|| troubles.join("; "));
        match (unswept.set_trouble(trouble.clone()), trouble) {
            (None, Some(trouble)) => warn!(
                "cannot delete stale flows: clients of a removed endpoint may continue to send to \
                 it; the agent retries: {trouble}"
            ),
            (Some(_), None) => info!("stale flows are deleted again"),
            _ => {}
        }
        outcome
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::net::IpAddr;

    use shunt_core::model::{Backend, Protocol};
    use shunt_core::plan::{Flow, Flows, FrontendKey};

    use super::*;

    /// A sweep of one frontend with this number of endpoints.
    fn sweep(address: &str, endpoints: u16, search: bool) -> Sweep {
        let address: IpAddr = address.parse().expect("an address");
        let serving = (0..endpoints).map(|port| Backend { address, port }).collect();
        let key = FrontendKey::Address(address, Protocol::Udp, 53);
        Sweep::new(Flows::from_iter([(key, Flow { serving, search })]), BTreeSet::new())
    }

    fn merged(parts: &[Sweep]) -> Sweep {
        let mut whole = Sweep::default();
        parts.iter().for_each(|part| whole.merge(part.clone()));
        whole
    }

    #[test]
    fn commits_are_swept_together_and_two_sweeps_have_half_a_second_between_them() {
        let start = Instant::now();
        let at = |milliseconds| start + Duration::from_millis(milliseconds);
        let parts = [sweep("10.96.0.1", 1, true), sweep("10.96.0.2", 1, true)];
        let grown = sweep("10.96.0.1", 2, false);
        let mut schedule = Schedule::default();
        schedule.committed(grown.clone(), at(0));
        assert_eq!(schedule.due(), None, "additions alone need no sweep");
        schedule.committed(parts[0].clone(), at(10));
        schedule.committed(parts[1].clone(), at(30));
        schedule.committed(grown.clone(), at(40));
        assert_eq!(schedule.take_due(at(59)), None);
        let whole = merged(&[parts[0].clone(), parts[1].clone(), grown]);
        assert_eq!(schedule.take_due(at(60)), Some(whole.clone()));
        schedule.succeeded(at(70));
        schedule.committed(parts[0].clone(), at(80));
        assert_eq!(schedule.due(), Some(at(570)));
        schedule.committed(parts[1].clone(), at(560));
        assert_eq!(schedule.due(), Some(at(570)));

        let mut failing = Schedule::default();
        for (now, due) in [(0, 500), (500, 1_500), (1_500, 3_500)] {
            failing.failed(whole.clone(), at(now));
            assert_eq!(failing.due(), Some(at(due)));
        }
        failing.committed(parts[0].clone(), at(1_600));
        assert_eq!(failing.due(), Some(at(2_000)), "a commit does not wait for a pause");
        let both = merged(&[whole, parts[0].clone()]);
        assert_eq!(failing.take_due(at(2_000)), Some(both), "what failed is swept again");
        failing.succeeded(at(2_000));
        failing.failed(parts[0].clone(), at(3_000));
        assert_eq!(failing.due(), Some(at(3_500)));
    }

    /// The first three sweeps fail or leave entries.
    #[test]
    fn trouble_is_known_until_a_sweep_succeeds() {
        let (sweeps, queue) = queue::channel();
        let waiting = sweep("10.96.0.1", 1, true);
        sweeps.committed(waiting.clone());
        let unswept = sweeps.unswept();
        let mut answers =
            vec![Err(Errno::EPERM), Err(Errno::EINVAL), Ok(Some((3, Errno::EBUSY))), Ok(None)];
        let run = |family, _: &Sweep, _: &mut dyn FnMut(&Connection) -> bool| {
            let request = "list entries";
            let refused = answers.remove(0);
            let refused = refused.map_err(|errno| Error::Request { request, errno })?;
            Ok(SweepReport { family, listed: 2, deleted: 1, refused, took: Duration::ZERO })
        };
        let mut worker = SweepWorker { run, report: |_| {}, queue };
        worker.queue.next(None).expect("a sweep");
        for (outcome, is_overdue, trouble) in [
            (SweepEnd::Failed, true, Some("IPv4: the kernel refused")),
            (SweepEnd::Refused, false, Some("IPv4: the kernel refused")),
            (SweepEnd::Refused, false, Some("the kernel refuses to delete 3 IPv4 flows: EBUSY")),
            (SweepEnd::Complete, false, None),
        ] {
            assert_eq!(worker.sweep(&waiting), outcome);
            assert_eq!(unswept.oldest().is_some(), is_overdue, "{outcome:?}");
            let found = unswept.trouble();
            assert_eq!(found.is_some(), trouble.is_some(), "{found:?}");
            let found = found.unwrap_or_default();
            assert!(found.starts_with(trouble.unwrap_or_default()), "{found}");
        }
    }
}
