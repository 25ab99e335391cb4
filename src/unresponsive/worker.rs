//! The thread: reads hints and flows, sends probes, and reports what the detector concludes.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::SocketAddr;
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
use super::table::{install, repeated_syns};
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
/// The pause after a failure that comes this early after another.
const RETRY: Duration = Duration::from_secs(10);

/// Returns the placements of those endpoints that are in a pool.
pub type PlacementsOf = Box<dyn Fn(&BTreeSet<Backend>) -> BTreeMap<Backend, Placement> + Send>;

/// The inputs of the thread.
pub struct Inputs {
    /// What to do about endpoints that do not answer.
    pub mode: Mode,
    /// The families in which endpoints have addresses.
    pub families: Vec<Family>,
    /// Looks endpoints up in the objects.
    pub placements: PlacementsOf,
    /// Receives all unresponsive endpoints after each change, the ones known for longest first.
    pub eject: Box<dyn FnMut(Vec<SocketAddr>) + Send>,
    /// Receives the state of all endpoints after each change, or why there is none.
    pub report: Box<dyn FnMut(Result<Vec<EndpointReport>, String>) + Send>,
}

/// Starts the thread in the network namespace of this one. It never ends.
///
/// # Errors
/// If the system refuses to start a thread.
pub fn spawn(inputs: Inputs) -> io::Result<()> {
    std::thread::Builder::new().name("unresponsive".to_owned()).spawn(move || {
        let mut worker = Worker {
            inputs,
            detector: Detector::default(),
            prober: Prober::default(),
            placed_at: None,
            sent: Vec::new(),
            reported: Vec::new(),
        };
        loop {
            let began = Instant::now();
            let Err(error) = worker.run();
            warn!(
                %error,
                "cannot look for endpoints that do not answer; the agent retries; set \
                 --eject-unresponsive=off to do without"
            );
            worker.fail(&error);
            // Another process may have flushed all tables.
            if began.elapsed() < RETRY {
                std::thread::sleep(RETRY);
            }
        }
    })?;
    Ok(())
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
    detector: Detector,
    prober: Prober,
    placed_at: Option<Instant>,
    /// The last list of unresponsive endpoints.
    sent: Vec<SocketAddr>,
    reported: Vec<EndpointReport>,
}

impl Worker {
    /// Works until a failure.
    fn run(&mut self) -> Result<std::convert::Infallible, Error> {
        let mut kernel = Socket::open()?;
        install(&mut kernel, &self.inputs.families)?;
        let mut conntrack = Conntrack::open()?;
        (self.inputs.report)(Ok(Vec::new()));
        loop {
            let began = Instant::now();
            self.look(&mut kernel, &mut conntrack, began)?;
            let now = Instant::now();
            let interval = if self.detector.has_suspects() { BUSY_INTERVAL } else { INTERVAL };
            let until = now + interval.max((now - began) * REST);
            self.detector.decide(now);
            self.publish(now);
            // Answers wake the thread before the time.
            loop {
                let now = Instant::now();
                if until <= now {
                    break;
                }
                self.detector.probes(now).into_iter().for_each(|to| self.prober.start(to));
                for (from, answer) in self.prober.wait(now, until) {
                    self.detector.heard(from, answer, Instant::now());
                }
            }
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
                    match self.inputs.mode {
                        Mode::On => "new connections go to other endpoints, as far as the limits allow",
                        _ => "new connections still go there, as --eject-unresponsive is not on",
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
            if self.inputs.mode == Mode::On {
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
    fn fail(&mut self, error: &Error) {
        self.detector = Detector::default();
        self.prober = Prober::default();
        self.reported.clear();
        (self.inputs.report)(Err(error.to_string()));
        if !std::mem::take(&mut self.sent).is_empty() && self.inputs.mode == Mode::On {
            (self.inputs.eject)(Vec::new());
        }
    }
}

fn backend(endpoint: SocketAddr) -> Backend {
    Backend { address: endpoint.ip(), port: endpoint.port() }
}

fn address(backend: Backend) -> SocketAddr {
    SocketAddr::new(backend.address, backend.port)
}
