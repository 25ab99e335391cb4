//! The thread: reads hints and flows, sends probes, and reports what the detector concludes.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use nfnetlink::conntrack::Conntrack;
use nfnetlink::nft::{self, Kernel, Socket};
use shunt_core::model::{Backend, Family, Placement};
use tracing::{info, warn};

use super::Mode;
use super::detector::{Change, Detector, Neighbours};
use super::flows::Flows;
use super::prober::Prober;
use super::report::{EndpointReport, EndpointState};
use super::table::{install, remove_tables, repeated_syns};
use crate::status::Time;

/// The interval of looks at the repeated SYNs.
const INTERVAL: Duration = Duration::from_millis(200);
/// The interval while there are suspects.
const BUSY_INTERVAL: Duration = Duration::from_millis(100);
/// The pause after a look, as a multiple of its duration: looks take a fifth of a core at most,
/// however many flows there are.
const REST: u32 = 4;
/// The interval of looks at the objects while the agent follows an endpoint.
const PLACE_INTERVAL: Duration = Duration::from_secs(1);
/// The pause after an attempt without a single look.
const RETRY: Duration = Duration::from_secs(10);

/// Returns the placements of those endpoints that are in a pool.
pub type PlacementsOf =
    Arc<dyn Fn(&BTreeSet<Backend>) -> BTreeMap<Backend, Placement> + Send + Sync>;

/// The inputs of the search.
#[derive(Clone)]
pub struct Inputs {
    /// The families in which endpoints have addresses.
    pub families: Vec<Family>,
    /// Looks endpoints up in the objects.
    pub placements: PlacementsOf,
    /// Receives all unresponsive endpoints after each change, the ones known for longest first.
    pub eject: Arc<dyn Fn(Vec<SocketAddr>) + Send + Sync>,
    /// Receives the state of all endpoints after each change, or why there is none.
    pub report: Arc<dyn Fn(Result<Vec<EndpointReport>, String>) + Send + Sync>,
}

/// The search for endpoints that do not answer: a thread, unless the mode is off.
pub struct Search {
    inputs: Inputs,
    running: Option<Running>,
    /// A thread that is about to end.
    ending: Option<JoinHandle<()>>,
}

struct Running {
    mode: Arc<SharedMode>,
    thread: JoinHandle<()>,
}

impl Search {
    /// Makes a search that is off.
    #[must_use]
    pub fn new(inputs: Inputs) -> Search {
        Search { inputs, running: None, ending: None }
    }

    /// Changes the mode. The thread starts in the network namespace of the caller.
    ///
    /// # Errors
    /// If the system refuses to start a thread.
    pub fn set(&mut self, mode: Mode) -> io::Result<()> {
        match (mode, self.running.take()) {
            (Mode::Off, None) => {}
            (Mode::Off, Some(Running { mode: shared, thread })) => {
                shared.set(mode);
                thread.thread().unpark();
                self.ending = Some(thread);
            }
            (_, Some(running)) => {
                running.mode.set(mode);
                self.running = Some(running);
            }
            (_, None) => {
                let shared = Arc::new(SharedMode::new(mode));
                let thread = start(self.inputs.clone(), shared.clone(), self.ending.take())?;
                self.running = Some(Running { mode: shared, thread });
            }
        }
        Ok(())
    }
}

/// The mode that the thread should have.
struct SharedMode(AtomicU8);

impl SharedMode {
    fn new(mode: Mode) -> SharedMode {
        SharedMode(AtomicU8::new(mode as u8))
    }

    fn set(&self, mode: Mode) {
        self.0.store(mode as u8, Ordering::Release);
    }

    fn get(&self) -> Mode {
        match self.0.load(Ordering::Acquire) {
            mode if mode == Mode::Off as u8 => Mode::Off,
            mode if mode == Mode::On as u8 => Mode::On,
            _ => Mode::Observe,
        }
    }
}

/// Starts the thread, which works once the one before it has ended.
fn start(
    inputs: Inputs,
    wanted: Arc<SharedMode>,
    before: Option<JoinHandle<()>>,
) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name("unresponsive".to_owned()).spawn(move || {
        if let Some(before) = before {
            // A panic has ended the process.
            let _ = before.join();
        }
        let mut worker = Worker {
            inputs,
            mode: wanted.get(),
            wanted,
            detector: Detector::default(),
            prober: Prober::default(),
            placed_at: None,
            has_looked: false,
            sent: Vec::new(),
            reported: Vec::new(),
        };
        while let Err(error) = worker.run() {
            warn!(
                %error,
                "cannot look for endpoints that do not answer; the agent retries; set \
                 shunt.ejectUnresponsive to off to do without"
            );
            // The next attempt, with new sockets and tables, begins with what is known.
            if !worker.has_looked {
                worker.forget(Err(error.to_string()));
                worker.rest(RETRY);
            }
        }
        worker.forget(Ok(Vec::new()));
    })
}

/// Why the thread cannot work.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("the tables for repeated SYNs cannot be created or read: {0}")]
    Table(#[from] nft::Error),
    #[error("connection tracking cannot be read: {0}")]
    Flows(#[from] nfnetlink::Error),
}

struct Worker {
    inputs: Inputs,
    mode: Mode,
    wanted: Arc<SharedMode>,
    detector: Detector,
    prober: Prober,
    placed_at: Option<Instant>,
    /// True after the first look of an attempt.
    has_looked: bool,
    /// The last list of unresponsive endpoints.
    sent: Vec<SocketAddr>,
    reported: Vec<EndpointReport>,
}

impl Worker {
    /// Works until a failure, or until the mode is off.
    fn run(&mut self) -> Result<(), Error> {
        self.has_looked = false;
        if self.turn() == Mode::Off {
            return Ok(());
        }
        let mut kernel = Socket::open()?;
        install(&mut kernel, &self.inputs.families)?;
        let mut conntrack = Conntrack::open()?;
        (self.inputs.report)(Ok(self.reported.clone()));
        loop {
            if self.turn() == Mode::Off {
                // Kernels before 5.12 do not delete them with the socket.
                remove_tables(&mut kernel)?;
                return Ok(());
            }
            let began = Instant::now();
            self.look(&mut kernel, &mut conntrack, began)?;
            self.has_looked = true;
            let now = Instant::now();
            let interval = if self.detector.has_suspects() { BUSY_INTERVAL } else { INTERVAL };
            let until = now + interval.max((now - began) * REST);
            self.detector.decide(now);
            self.publish(now);
            // Answers wake the thread before the time.
            loop {
                let now = Instant::now();
                if until <= now || self.wanted.get() != self.mode {
                    break;
                }
                self.detector.probes(now).into_iter().for_each(|to| self.prober.start(to));
                for (from, answer) in self.prober.wait(now, until.min(now + INTERVAL)) {
                    self.detector.heard(from, answer, Instant::now());
                }
            }
        }
    }

    /// Takes the mode that the configuration wants. Ejects the unresponsive endpoints, or restores
    /// them.
    fn turn(&mut self) -> Mode {
        let before = std::mem::replace(&mut self.mode, self.wanted.get());
        if !self.sent.is_empty() {
            match (before == Mode::On, self.mode == Mode::On) {
                (false, true) => (self.inputs.eject)(self.sent.clone()),
                (true, false) => (self.inputs.eject)(Vec::new()),
                _ => {}
            }
        }
        self.mode
    }

    /// Waits, unless the mode is off.
    fn rest(&self, time: Duration) {
        let until = Instant::now() + time;
        while self.wanted.get() != Mode::Off {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            std::thread::park_timeout(left);
        }
    }

    /// Reads the repeated SYNs and, for suspects, objects and flows.
    fn look(
        &mut self,
        kernel: &mut dyn Kernel,
        conntrack: &mut Conntrack,
        now: Instant,
    ) -> Result<(), Error> {
        for family in &self.inputs.families {
            let detector = &mut self.detector;
            match repeated_syns(kernel, *family, now, |syn| {
                detector.repeated_syn(syn.endpoint, syn.at, now);
            }) {
                // The next look comes soon.
                Ok(()) | Err(nft::Error::Interrupted) => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.place(now);
        if self.detector.has_suspects() {
            let wanted = self.detector.wanted_flows();
            let flows = Flows::list(conntrack, &self.inputs.families, &wanted)?;
            self.detector.saw_flows(flows, Instant::now());
        }
        Ok(())
    }

    /// Looks at the objects.
    fn place(&mut self, now: Instant) {
        let followed: BTreeSet<Backend> = self.detector.endpoints().map(backend).collect();
        let is_due = self.placed_at.is_none_or(|at| at + PLACE_INTERVAL <= now);
        if followed.is_empty() || !(is_due || self.detector.has_strangers()) {
            return;
        }
        self.placed_at = Some(now);
        let placements = (self.inputs.placements)(&followed);
        let neighbours = |placement: Placement| Neighbours {
            is_local: placement.is_local,
            siblings: placement
                .siblings
                .into_iter()
                .map(|(it, here)| (address(it), here))
                .collect(),
        };
        let all =
            placements.into_iter().map(|(it, placement)| (address(it), neighbours(placement)));
        self.detector.place(all.collect(), now);
    }

    /// Logs, sends and reports changes.
    fn publish(&mut self, now: Instant) {
        for (endpoint, change) in self.detector.take_changes() {
            match change {
                Change::Unresponsive(reason) => warn!(
                    %endpoint, %reason,
                    "endpoint does not answer: {}",
                    match self.mode {
                        Mode::On => "new connections go to other endpoints, as far as the limits allow",
                        _ => "new connections still go there, as shunt.ejectUnresponsive is not on",
                    }
                ),
                Change::Answers => info!(%endpoint, "endpoint answers again"),
                Change::Doubted => info!(
                    %endpoint,
                    "no other endpoint answers the agent either, so this one counts as responsive"
                ),
                Change::Trial => info!(
                    %endpoint,
                    "endpoint counts as responsive for a trial: the agent may be unable to reach it"
                ),
                Change::Forgotten => info!(%endpoint, "unresponsive endpoint has left its pools"),
            }
        }
        let unresponsive = self.detector.unresponsive();
        if unresponsive != self.sent {
            if self.mode == Mode::On {
                (self.inputs.eject)(unresponsive.clone());
            }
            self.sent = unresponsive;
        }
        let today = SystemTime::now();
        let time = |at: Instant| {
            Time(today.checked_sub(now.saturating_duration_since(at)).unwrap_or(today))
        };
        let mut reports: Vec<EndpointReport> = self
            .detector
            .found(now)
            .into_iter()
            .map(|found| EndpointReport {
                endpoint: found.endpoint,
                state: match found.is_unresponsive {
                    true => EndpointState::Unresponsive,
                    false => EndpointState::Suspected,
                },
                since: time(found.since),
                reason: found.reason,
                ejected_at: None,
                services: 0,
                recent: found.recent,
            })
            .collect();
        for report in &mut reports {
            // The times of two conversions differ by nanoseconds.
            let same = |old: &&EndpointReport| {
                old.endpoint == report.endpoint && old.state == report.state
            };
            if let Some(old) = self.reported.iter().find(same) {
                report.since = old.since;
            }
        }
        if reports != self.reported {
            self.reported.clone_from(&reports);
            (self.inputs.report)(Ok(reports));
        }
    }

    /// Forgets everything: nothing is known without observations.
    fn forget(&mut self, report: Result<Vec<EndpointReport>, String>) {
        self.detector = Detector::default();
        self.prober = Prober::default();
        self.placed_at = None;
        self.reported.clear();
        if !std::mem::take(&mut self.sent).is_empty() && self.mode == Mode::On {
            (self.inputs.eject)(Vec::new());
        }
        (self.inputs.report)(report);
    }
}

fn backend(endpoint: SocketAddr) -> Backend {
    Backend { address: endpoint.ip(), port: endpoint.port() }
}

fn address(backend: Backend) -> SocketAddr {
    SocketAddr::new(backend.address, backend.port)
}
