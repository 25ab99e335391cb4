//! The thread: lists sockets at intervals, and after a change of a Service.

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use nfnetlink::Error;
use nfnetlink::sock_diag::{SockDiag, Transport, WaitingSocket};
use shunt_core::model::Protocol;
use tracing::{info, warn};

use super::conflict::{NodePorts, taken_sockets};
use super::report::{Report, TakenPort};
use super::tracker::{Change, Tracker};
use crate::jitter;
use crate::socket_owners::owners;
use crate::status::Time;

/// The interval of looks for changed Services.
const SERVICES_INTERVAL: Duration = Duration::from_secs(1);
/// The pause after a look, as a multiple of its duration: looks take a twentieth of a core at most,
/// however many sockets there are.
const REST: u32 = 20;
/// The pause after a failure, as a multiple of the interval: each attempt may make the kernel look for
/// a module.
const RETRY: u32 = 30;
/// The maximum number of log lines of one look. The status has all ports.
const MAX_LINES: usize = 10;
/// The maximum number of ports that wait for their Event.
const MAX_EVENTS: usize = 10;
/// The mean time between two Events in a cluster, if all its nodes have the same process.
const EVENT_SPACING: Duration = Duration::from_millis(100);
/// This directory exists if the kernel has SCTP, so that listing its sockets does not load it.
const SCTP: &str = "/proc/thread-self/net/sctp";

/// The inputs of the thread, and the receivers of its results.
pub struct Inputs {
    /// The interval of looks.
    pub period: Duration,
    /// Returns the node ports with a revision, if they may have changed since that revision.
    pub node_ports: Box<NodePortsSince>,
    /// Returns the addresses of node ports.
    pub addresses: Box<dyn Fn() -> BTreeSet<IpAddr> + Send>,
    /// Returns the number of nodes in the cluster, as far as it is known.
    pub nodes: Box<dyn Fn() -> usize + Send>,
    /// Receives the taken ports after each change.
    pub report: Box<dyn Fn(Report) + Send>,
    /// Receives a taken port that needs an Event.
    pub event: Box<dyn Fn(&TakenPort) + Send>,
}

/// A function that returns node ports newer than a revision.
pub type NodePortsSince = dyn Fn(Option<u64>) -> Option<(u64, NodePorts)> + Send;

impl Inputs {
    /// Starts the thread. It lists sockets of the caller's network namespace.
    ///
    /// # Errors
    /// If the system refuses to start a thread.
    pub fn start(self) -> io::Result<()> {
        let mut worker = Worker {
            inputs: self,
            revision: None,
            node_ports: NodePorts::default(),
            tracker: Tracker::default(),
            events: Pacer::default(),
            sent: Report::default(),
        };
        std::thread::Builder::new().name("taken ports".to_owned()).spawn(move || worker.run())?;
        Ok(())
    }
}

/// Lists the sockets of these protocols that wait for packets, in the network namespace of this
/// thread.
///
/// # Errors
/// If the kernel does not list them.
fn list_sockets(protocols: &BTreeSet<Protocol>) -> Result<Vec<(Protocol, WaitingSocket)>, Error> {
    let mut found = Vec::new();
    if protocols.is_empty() {
        return Ok(found);
    }
    let mut kernel = SockDiag::open()?;
    for protocol in protocols {
        let transport = match protocol {
            Protocol::Tcp => Transport::Tcp,
            Protocol::Udp => Transport::Udp,
            Protocol::Sctp if !Path::new(SCTP).exists() => continue,
            Protocol::Sctp => Transport::Sctp,
        };
        let sockets = kernel.waiting(transport)?;
        found.extend(sockets.into_iter().map(|socket| (*protocol, socket)));
    }
    Ok(found)
}

/// Returns the node ports on which processes listen now, in the network namespace of this thread.
///
/// # Errors
/// If the kernel does not list sockets.
pub fn taken_now(
    node_ports: &NodePorts,
    addresses: &BTreeSet<IpAddr>,
) -> Result<Vec<TakenPort>, Error> {
    let found = taken_sockets(list_sockets(node_ports.protocols())?, node_ports, addresses);
    let sockets = found.values().flat_map(|taken| &taken.sockets);
    let owners = owners(&sockets.map(|socket| socket.inode).collect());
    let owner = |inode| owners.get(&inode).cloned();
    let taken = found.into_iter();
    Ok(taken.map(|(key, taken)| TakenPort::new(key, taken, Time::now(), owner)).collect())
}

struct Worker {
    inputs: Inputs,
    /// The revision of the node ports.
    revision: Option<u64>,
    node_ports: NodePorts,
    tracker: Tracker,
    events: Pacer,
    /// The last report.
    sent: Report,
}

impl Worker {
    fn run(&mut self) {
        let tick = SERVICES_INTERVAL.min(self.inputs.period);
        let mut due = Instant::now();
        loop {
            let changed = self.update_node_ports();
            let began = Instant::now();
            let mut rest = tick;
            if changed || due <= began {
                let pause = if self.look(began) { 1 } else { RETRY };
                due = began + self.inputs.period * pause;
                rest = rest.max(began.elapsed() * REST);
            }
            if let Some(taken) = self.events.next(Instant::now(), || (self.inputs.nodes)()) {
                (self.inputs.event)(&taken);
            }
            std::thread::sleep(rest);
        }
    }

    /// Returns true if the node ports have changed.
    fn update_node_ports(&mut self) -> bool {
        let Some((revision, node_ports)) = (self.inputs.node_ports)(self.revision) else {
            return false;
        };
        self.revision = Some(revision);
        let before = std::mem::replace(&mut self.node_ports, node_ports);
        before != self.node_ports
    }

    /// Looks at the sockets. Returns false if the kernel does not list them.
    fn look(&mut self, now: Instant) -> bool {
        let trouble = match list_sockets(self.node_ports.protocols()) {
            Ok(sockets) => {
                self.compare(sockets, now);
                None
            }
            Err(error) => Some(error.to_string()),
        };
        if let Some(trouble) = trouble.as_ref().filter(|it| Some(*it) != self.sent.trouble.as_ref())
        {
            warn!(
                "cannot look for other processes on node ports: {trouble}; the kernel needs its modules \
                 tcp_diag and udp_diag; the agent retries; set --node-port-check-period=0 to do without"
            );
        }
        let report = Report { trouble, ports: self.tracker.taken().cloned().collect() };
        if report != self.sent {
            self.sent = report.clone();
            (self.inputs.report)(report);
        }
        self.sent.trouble.is_none()
    }

    fn compare(&mut self, sockets: Vec<(Protocol, WaitingSocket)>, now: Instant) {
        let addresses = (self.inputs.addresses)();
        let found = taken_sockets(sockets, &self.node_ports, &addresses);
        let times = (now, Time::now());
        // The next regular look counts them.
        let udp_delay = self.inputs.period / 2;
        let own = std::process::id();
        let changes = self.tracker.update(found, times, udp_delay, own, owners);
        log(&changes);
        for change in changes {
            match change {
                Change::Taken(taken) => self.events.add(taken),
                Change::Free(taken) => self.events.remove(&taken),
            }
        }
    }
}

fn log(changes: &[Change]) {
    for change in changes.iter().take(MAX_LINES) {
        match change {
            Change::Taken(taken) => warn!(
                object = %format_args!("Service {}", taken.service),
                "{taken}; {}",
                taken.remedy()
            ),
            Change::Free(TakenPort { protocol, port, service, .. }) => info!(
                object = %format_args!("Service {service}"),
                "no other process listens on {protocol} node port {port} any more"
            ),
        }
    }
    if let more @ 1.. = changes.len().saturating_sub(MAX_LINES) {
        warn!("… and {more} more node ports that other processes have, or had: see shunt status");
    }
}

/// The Events that wait.
///
/// A process on all nodes, as of a DaemonSet, would make each node send the same Event. No node knows
/// of the others, and one node alone must send it, too. So each node waits for a random time that
/// grows with the cluster, and sends one Event in that time.
#[derive(Debug, Default)]
struct Pacer {
    waiting: VecDeque<TakenPort>,
    /// When the next one is due, if one waits.
    due: Option<Instant>,
    /// The earliest time for the one after.
    free_at: Option<Instant>,
}

impl Pacer {
    fn add(&mut self, taken: TakenPort) {
        self.remove(&taken);
        if self.waiting.len() < MAX_EVENTS {
            self.waiting.push_back(taken);
        }
    }

    fn remove(&mut self, taken: &TakenPort) {
        let key = |it: &TakenPort| (it.protocol.clone(), it.port);
        self.waiting.retain(|it| key(it) != key(taken));
    }

    /// Returns a port whose Event is due.
    fn next(&mut self, now: Instant, nodes: impl FnOnce() -> usize) -> Option<TakenPort> {
        if self.waiting.is_empty() {
            self.due = None;
            return None;
        }
        let Some(due) = self.due else {
            let window = EVENT_SPACING * u32::try_from(nodes()).unwrap_or(u32::MAX);
            let earliest = self.free_at.map_or(now, |free_at| free_at.max(now));
            let due = earliest + window.mul_f64(jitter::fraction());
            self.due = Some(due);
            self.free_at = Some(earliest + window);
            return None;
        };
        if now < due {
            return None;
        }
        self.due = None;
        self.waiting.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(port: u16) -> TakenPort {
        TakenPort { protocol: "TCP".to_owned(), port, ..TakenPort::default() }
    }

    /// Returns the seconds after which the Events of a node are sent.
    fn sent(pacer: &mut Pacer, start: Instant, nodes: usize, seconds: u64) -> Vec<u64> {
        let at = |second| start + Duration::from_secs(second);
        (0..seconds).filter(|second| pacer.next(at(*second), || nodes).is_some()).collect()
    }

    #[test]
    fn events_of_5_000_nodes_are_spread() {
        let start = Instant::now();
        let mut per_second = vec![0_u32; 2_000];
        for _ in 0..5_000 {
            let mut pacer = Pacer::default();
            (30_000..30_100).for_each(|port| pacer.add(taken(port)));
            let times = sent(&mut pacer, start, 5_000, 2_000);
            assert!((3..=4).contains(&times.len()), "{times:?}");
            times.into_iter().for_each(|second| per_second[second as usize] += 1);
        }
        // Ten a second, and what chance adds.
        assert!(per_second.iter().all(|count| *count < 50), "{:?}", per_second.iter().max());
    }

    #[test]
    fn a_single_node_sends_its_event_soon() {
        let mut pacer = Pacer::default();
        pacer.add(taken(30_000));
        assert_eq!(sent(&mut pacer, Instant::now(), 1, 10).len(), 1);
        for nodes in [0, 3, 20] {
            let mut pacer = Pacer::default();
            (0..3).for_each(|port| pacer.add(taken(port)));
            assert_eq!(sent(&mut pacer, Instant::now(), nodes, 20).len(), 3, "{nodes}");
        }
    }

    #[test]
    fn few_events_wait_and_none_for_a_free_port() {
        let mut pacer = Pacer::default();
        (0..100).for_each(|port| pacer.add(taken(port)));
        assert_eq!(pacer.waiting.len(), MAX_EVENTS);
        (0..100).for_each(|port| pacer.remove(&taken(port)));
        assert_eq!(sent(&mut pacer, Instant::now(), 1, 10), [0; 0]);
    }
}
