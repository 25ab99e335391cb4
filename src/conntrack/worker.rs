//! The thread for sweeps, so that commits never wait for them.

use std::io;
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use nfnetlink::conntrack::Entry;
use nix::errno::Errno;
use shunt_core::model::Family;
use tracing::{info, warn};

use super::queue::{self, Queue, Sweeps};
use super::{Conntrack, Error, Report, Sweep};

/// The pause between a sweep and its repetition.
const SECOND_LOOK: Duration = Duration::from_millis(500);
/// The pause after a sweep, as a multiple of its duration: sweeps take a fifth of a core at most,
/// however often endpoints change. Sweeps that arrive during the pause are merged.
const REST: u32 = 4;
/// The longest pause before a sweep is repeated that failed or left flows. Pauses double up to it.
const MAX_PAUSE: Duration = Duration::from_secs(60);

/// Starts the thread.
///
/// Waiting sweeps are merged, so that a busy thread lags behind by one sweep only. A sweep with
/// additions alone searches nothing.
///
/// Each sweep runs twice: at once, and again after a pause. By then, packets that passed the old
/// rules during the commit have made their entries. It is repeated until it does not fail, and has
/// deleted all stale flows.
///
/// # Errors
/// If the system refuses to start a thread.
pub fn spawn(
    conntrack: Conntrack,
    report: impl FnMut(Report) + Send + 'static,
) -> io::Result<Sweeps> {
    let (sweeps, queue) = queue::channel();
    let mut worker = Worker { conntrack, report, pause: SECOND_LOOK, queue, has_failed: false };
    std::thread::Builder::new().name("conntrack".to_owned()).spawn(move || worker.run())?;
    Ok(sweeps)
}

/// The part of [`Conntrack`] that [`Worker`] uses, for tests without a kernel.
trait Sweeper {
    fn sweep(
        &mut self,
        family: Family,
        sweep: &Sweep,
        is_permitted: &mut dyn FnMut(&Entry) -> bool,
    ) -> Result<Report, Error>;
}

impl Sweeper for Conntrack {
    fn sweep(
        &mut self,
        family: Family,
        sweep: &Sweep,
        is_permitted: &mut dyn FnMut(&Entry) -> bool,
    ) -> Result<Report, Error> {
        Conntrack::sweep(self, family, sweep, is_permitted)
    }
}

struct Worker<S, R> {
    conntrack: S,
    report: R,
    /// The pause before a repetition.
    pause: Duration,
    queue: Queue,
    /// True while a failed sweep waits for its repetition.
    has_failed: bool,
}

/// How a sweep ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Outcome {
    /// The sweep searches nothing.
    Nothing,
    Complete,
    /// The kernel does not delete some flows, or cannot list them. A restart would not help.
    Refused,
    Failed,
}

/// The repetition of a sweep.
struct SecondLook {
    due: Instant,
    /// The pause before it.
    pause: Duration,
    /// The sweep, with the backends of later sweeps.
    sweep: Sweep,
    /// The sweeps since then, which get a repetition of their own.
    since: Option<Sweep>,
}

impl SecondLook {
    fn merge(&mut self, later: Sweep, searches: bool, pause: Duration) {
        self.sweep.merge(later.clone());
        match &mut self.since {
            Some(since) => since.merge(later),
            None => self.since = searches.then_some(later),
        }
        if searches {
            self.due = self.due.min(Instant::now() + pause);
        }
    }

    /// Returns the next attempt.
    fn again(self) -> SecondLook {
        let pause = (self.pause * 2).min(MAX_PAUSE);
        SecondLook { due: Instant::now() + pause, pause, since: None, ..self }
    }
}

impl<S: Sweeper, R: FnMut(Report)> Worker<S, R> {
    fn run(&mut self) {
        let mut second: Option<SecondLook> = None;
        loop {
            if let Some(look) = second.take_if(|second| second.due <= Instant::now()) {
                // The look includes what failed.
                self.has_failed = false;
                second = if self.sweep(&look.sweep) > Outcome::Complete {
                    Some(look.again())
                } else {
                    if self.queue.unswept.set_trouble(None).is_some() {
                        info!("all stale flows are deleted again");
                    }
                    look.since.map(|sweep| self.repetition(sweep))
                };
                continue;
            }
            let due = second.as_ref().map(|second| second.due);
            match self.queue.next(due) {
                Ok(sweep) => {
                    let searches = self.sweep(&sweep) > Outcome::Nothing;
                    match &mut second {
                        Some(second) => second.merge(sweep, searches, self.pause),
                        None => second = searches.then(|| self.repetition(sweep)),
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn repetition(&self, sweep: Sweep) -> SecondLook {
        SecondLook { due: Instant::now() + self.pause, pause: self.pause, sweep, since: None }
    }

    /// Runs a sweep, notes and logs what it could not do, then pauses.
    fn sweep(&mut self, sweep: &Sweep) -> Outcome {
        let mut outcome = Outcome::Nothing;
        let (mut took, mut troubles) = (Duration::ZERO, Vec::new());
        for family in Family::ALL.into_iter().filter(|family| sweep.searches(*family)) {
            let is_permitted = &mut |entry: &Entry| self.queue.permits(entry);
            outcome = outcome.max(match self.conntrack.sweep(family, sweep, is_permitted) {
                Ok(report) => {
                    took += report.took;
                    let trouble = report.trouble();
                    (self.report)(report);
                    let is_complete = trouble.is_none();
                    troubles.extend(trouble);
                    if is_complete { Outcome::Complete } else { Outcome::Refused }
                }
                Err(error) => {
                    troubles.push(format!("{family}: {error}"));
                    match error {
                        // Without `nf_conntrack_netlink`.
                        Error::Refused { errno: Errno::EINVAL, .. } => Outcome::Refused,
                        _ => Outcome::Failed,
                    }
                }
            });
        }
        self.has_failed |= outcome == Outcome::Failed;
        if self.has_failed {
            self.queue.unswept.fail();
        } else {
            self.queue.unswept.finish();
        }
        let trouble = troubles.join("; ");
        if !trouble.is_empty() && self.queue.unswept.set_trouble(Some(trouble.clone())).is_none() {
            warn!(
                "cannot delete stale flows: clients of a removed endpoint may continue to send to \
                 it; the agent retries: {trouble}"
            );
        }
        std::thread::sleep(took * REST);
        outcome
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::net::IpAddr;
    use std::sync::mpsc::{self, Receiver, Sender};

    use nfnetlink::conntrack::Tuple;

    use super::super::Unswept;
    use super::*;
    use shunt_core::model::{Backend, Protocol};
    use shunt_core::plan::{Flow, Flows, FrontendKey};

    /// Records its calls, and fails or leaves entries as often as the test wants.
    struct Recorder {
        asked: Sender<(Family, Sweep)>,
        failures: usize,
        errno: Errno,
        refusals: usize,
    }

    impl Sweeper for Recorder {
        fn sweep(
            &mut self,
            family: Family,
            sweep: &Sweep,
            _: &mut dyn FnMut(&Entry) -> bool,
        ) -> Result<Report, Error> {
            self.asked.send((family, sweep.clone())).expect("a test that listens");
            if self.failures > 0 {
                self.failures -= 1;
                return Err(Error::Refused { request: "list entries", errno: self.errno });
            }
            let refused = (self.refusals > 0).then_some((3, Errno::EBUSY));
            self.refusals = self.refusals.saturating_sub(1);
            Ok(Report { refused, ..report(family) })
        }
    }

    /// Announces a commit during a sweep, and asks whether a flow to its backend may stay.
    struct Overtaken {
        sweeps: Sweeps,
        permitted: Sender<bool>,
    }

    impl Sweeper for Overtaken {
        fn sweep(
            &mut self,
            family: Family,
            _: &Sweep,
            is_permitted: &mut dyn FnMut(&Entry) -> bool,
        ) -> Result<Report, Error> {
            let frontend = "10.96.0.1:53".parse().expect("address:port");
            let (client, backend) = (([192, 0, 2, 1], 40_000).into(), ([10, 96, 0, 1], 0).into());
            let entry = Entry {
                protocol: Protocol::Udp.number(),
                original: Tuple { source: client, destination: frontend },
                reply: Tuple { source: backend, destination: client },
                zoned: false,
                replied: false,
                half_open: false,
                id: [0, 0, 0, 1],
            };
            let before = is_permitted(&entry);
            self.sweeps.announce(|| sweep("10.96.0.1", 1));
            self.permitted.send(!before && is_permitted(&entry)).expect("a test that listens");
            Ok(report(family))
        }
    }

    fn report(family: Family) -> Report {
        let (listed, deleted, half_open, refused) = (2, 1, 0, None);
        Report { family, listed, deleted, half_open, refused, took: Duration::ZERO }
    }

    /// A sweep of one frontend with so many endpoints.
    fn sweep(address: &str, endpoints: u16) -> Sweep {
        sweep_of(Protocol::Udp, address, endpoints, true)
    }

    fn sweep_of(protocol: Protocol, address: &str, endpoints: u16, search: bool) -> Sweep {
        let address: IpAddr = address.parse().expect("an address");
        let serving = (0..endpoints).map(|port| Backend { address, port }).collect();
        let key = FrontendKey::Address(address, protocol, 53);
        Sweep::new(Flows::from_iter([(key, Flow { serving, search })]), BTreeSet::new())
    }

    fn merged(parts: &[Sweep]) -> Sweep {
        let mut whole = Sweep::default();
        parts.iter().for_each(|part| whole.merge(part.clone()));
        whole
    }

    /// A worker on a thread of its own: where to send sweeps, what it asked for, what it reports.
    struct Running {
        sweeps: Option<Sweeps>,
        unswept: Unswept,
        asked: Receiver<(Family, Sweep)>,
        reports: Receiver<Report>,
        thread: std::thread::JoinHandle<()>,
    }

    impl Running {
        /// Starts it when `waiting` lies in its queue already.
        fn start(waiting: &[Sweep], failures: usize, pause: Duration) -> Running {
            Running::start_with(waiting, pause, |it| it.failures = failures)
        }

        fn start_with(waiting: &[Sweep], pause: Duration, make: impl Fn(&mut Recorder)) -> Running {
            let (mut sweeps, queue) = queue::channel();
            waiting.iter().for_each(|sweep| sweeps.committed(sweep.clone()));
            let (asked, asked_for) = mpsc::channel();
            let (report, reports) = mpsc::channel();
            let mut conntrack = Recorder { asked, failures: 0, errno: Errno::EPERM, refusals: 0 };
            make(&mut conntrack);
            let unswept = sweeps.unswept();
            let mut worker = Worker {
                conntrack,
                report: move |made| report.send(made).expect("a test that listens"),
                pause,
                queue,
                has_failed: false,
            };
            let thread = std::thread::spawn(move || worker.run());
            Running { sweeps: Some(sweeps), unswept, asked: asked_for, reports, thread }
        }

        fn committed(&mut self, sweep: &Sweep) {
            self.sweeps.as_mut().expect("open").committed(sweep.clone());
        }

        /// What it asks for next.
        fn next(&self) -> (Family, Sweep) {
            self.asked.recv_timeout(Duration::from_secs(10)).expect("a sweep")
        }

        /// Ends it; how much it has asked for and reported beside what was taken already.
        fn end(mut self) -> (usize, usize) {
            self.sweeps = None;
            self.thread.join().expect("a thread that did not panic");
            (self.asked.iter().count(), self.reports.iter().count())
        }
    }

    const LONG: Duration = Duration::from_secs(60);
    const SHORT: Duration = Duration::from_millis(20);

    #[test]
    fn what_waits_is_one_sweep_for_each_family() {
        let parts = [sweep("10.96.0.1", 1), sweep("fd00::1", 2), sweep("10.96.0.1", 3)];
        let worker = Running::start(&parts, 0, LONG);
        let whole = merged(&parts);
        assert_eq!(worker.next(), (Family::V4, whole.clone()));
        assert_eq!(worker.next(), (Family::V6, whole));
        assert_eq!(worker.end(), (0, 2));
    }

    #[test]
    fn sweep_is_repeated_once() {
        let parts = [sweep("10.96.0.1", 1)];
        let worker = Running::start(&parts, 0, SHORT);
        assert_eq!(worker.next(), (Family::V4, parts[0].clone()));
        assert_eq!(worker.next(), (Family::V4, parts[0].clone()));
        std::thread::sleep(SHORT * 3);
        assert_eq!(worker.end(), (0, 2), "and not a third time");
    }

    #[test]
    fn later_sweeps_do_not_postpone_the_second_look() {
        let (first, later) = (sweep("10.96.0.1", 1), sweep("10.96.0.2", 1));
        let mut worker = Running::start(std::slice::from_ref(&first), 0, SHORT);
        assert_eq!(worker.next(), (Family::V4, first.clone()));
        // On a machine that sleeps here, it comes before the later sweeps.
        let looks = [merged(&[first.clone(), later.clone()]), first].map(|look| (Family::V4, look));
        let deadline = Instant::now() + Duration::from_secs(10);
        while !worker.asked.try_iter().any(|asked| looks.contains(&asked)) {
            assert!(Instant::now() < deadline, "no second look");
            worker.committed(&later);
            std::thread::sleep(SHORT / 10);
        }
        worker.end();
    }

    #[test]
    fn the_second_look_knows_what_came_after_the_first() {
        let before = sweep("10.96.0.1", 1);
        let after = merged(&[sweep("10.96.0.2", 1), sweep("10.96.0.1", 2)]);
        let mut worker = Running::start(std::slice::from_ref(&before), 0, SHORT * 5);
        assert_eq!(worker.next(), (Family::V4, before));
        worker.committed(&after);
        // On a machine that sleeps here, the second look at the first sweep comes before.
        while worker.next() != (Family::V4, after.clone()) {}
        assert_eq!(worker.next(), (Family::V4, after));
        assert!(worker.end().0 <= 1, "at the most the second look at what came later");
    }

    #[test]
    fn sweep_in_progress_keeps_flows_of_an_announced_commit() {
        let (mut sweeps, queue) = queue::channel();
        sweeps.committed(sweep("10.96.0.1", 0));
        let (permitted, told) = mpsc::channel();
        let conntrack = Overtaken { sweeps, permitted };
        let mut worker =
            Worker { conntrack, report: |_| {}, pause: LONG, queue, has_failed: false };
        let sweep = worker.queue.next(None).expect("a sweep");
        worker.sweep(&sweep);
        assert_eq!(told.try_recv(), Ok(true));
    }

    #[test]
    fn a_failed_sweep_is_tried_again_and_ends_nothing() {
        let mut worker = Running::start(&[sweep("10.96.0.1", 1)], 1, SHORT);
        assert_eq!(worker.next(), worker.next());
        let other = sweep("10.96.0.2", 1);
        worker.committed(&other);
        assert_eq!(worker.next(), (Family::V4, other));
        assert!(worker.end().1 >= 2);
    }

    /// Waits until the state is as wanted.
    fn wait_for(unswept: &Unswept, wanted: impl Fn(&Unswept) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(10);
        while !wanted(unswept) {
            assert!(Instant::now() < deadline, "{unswept:?}");
            std::thread::yield_now();
        }
    }

    #[test]
    fn failing_sweep_is_overdue_until_one_succeeds() {
        let waiting = [sweep("10.96.0.1", 1)];
        let worker = Running::start(&waiting, usize::MAX, SHORT);
        let since = worker.unswept.oldest();
        assert!(since.is_some());
        for _ in 0..4 {
            worker.next();
            assert_eq!(worker.unswept.oldest(), since);
        }
        worker.end();

        let worker = Running::start(&waiting, 3, SHORT);
        (0..4).for_each(|_| drop(worker.next()));
        wait_for(&worker.unswept, |it| it.oldest().is_none() && it.trouble().is_none());
        assert_eq!(worker.end(), (0, 1));
    }

    #[test]
    fn other_sweeps_do_not_hide_a_failure() {
        let mut worker = Running::start(&[sweep("10.96.0.1", 1)], 1, LONG);
        let since = worker.unswept.oldest();
        worker.next();
        worker.committed(&sweep("10.96.0.2", 1));
        worker.next();
        worker.reports.recv_timeout(LONG).expect("a sweep that succeeds");
        worker.committed(&sweep("10.96.0.3", 1));
        worker.next();
        assert_eq!(worker.unswept.oldest(), since);
        assert!(worker.unswept.trouble().expect("an error").contains("list entries"));
        worker.end();
    }

    #[test]
    fn flows_that_the_kernel_keeps_are_retried_and_nothing_is_overdue() {
        let waiting = [sweep("10.96.0.1", 1)];
        let worker = Running::start_with(&waiting, SHORT, |it| it.refusals = usize::MAX);
        let trouble = "the kernel refuses to delete 3 IPv4 flows: EBUSY";
        wait_for(&worker.unswept, |it| it.trouble().is_some_and(|it| it.starts_with(trouble)));
        assert_eq!(worker.unswept.oldest(), None);
        worker.end();

        let worker = Running::start_with(&waiting, SHORT, |it| it.refusals = 3);
        (0..4).for_each(|_| drop(worker.next()));
        wait_for(&worker.unswept, |it| it.trouble().is_none());
        assert_eq!(worker.end(), (0, 4));
    }

    #[test]
    fn kernel_without_ctnetlink_is_trouble_and_nothing_is_overdue() {
        let worker = Running::start_with(&[sweep("10.96.0.1", 1)], SHORT, |it| {
            (it.failures, it.errno) = (usize::MAX, Errno::EINVAL);
        });
        wait_for(&worker.unswept, |it| it.trouble().is_some());
        assert_eq!(worker.unswept.oldest(), None);
        worker.end();
    }

    #[test]
    fn endpoints_that_were_added_ask_for_nothing() {
        let grown = sweep_of(Protocol::Tcp, "10.96.0.1", 2, false);
        let worker = Running::start(&[grown.clone(), grown], 0, SHORT);
        std::thread::sleep(SHORT * 3);
        assert_eq!(worker.end(), (0, 0));
    }

    #[test]
    fn a_sweep_that_waits_knows_what_was_added() {
        let lost = sweep_of(Protocol::Tcp, "10.96.0.1", 1, true);
        let grown = sweep_of(Protocol::Tcp, "10.96.0.1", 2, false);
        let whole = merged(&[lost.clone(), grown.clone()]);
        let worker = Running::start(&[lost, grown], 0, LONG);
        assert_eq!(worker.next(), (Family::V4, whole));
        assert_eq!(worker.end(), (0, 1));
    }
}
