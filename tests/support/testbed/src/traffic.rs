//! Traffic that goes on while something happens, of which nothing may be lost.

use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::flow::{self, probe};
use crate::probe::{Outcome, Protocol};
use crate::topology::Host;

/// An answer that takes longer is none. Not less: a machine that has much to do lets programs wait.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long [`Traffic::more`] waits.
const STUCK: Duration = Duration::from_secs(120);
/// A SYN that is sent again takes a second, but for what is left of a tick of the kernel's clock.
const SENT_AGAIN: Duration = Duration::from_millis(900);
/// So many failures of a flow are kept in words.
const KEPT: usize = 20;

/// Flows that ask again and again until they are stopped, each in a thread of its own: a new
/// connection or datagram each time, and for TCP also a line on a connection that stays open all the
/// time.
pub struct Traffic {
    over: Arc<AtomicBool>,
    flows: Vec<(Arc<Flow>, Option<JoinHandle<()>>)>,
}

#[derive(Default)]
struct Failures {
    count: usize,
    texts: Vec<String>,
}

/// What became of all flows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Delivered {
    /// Questions on new connections, and datagrams.
    pub new: usize,
    /// Connections that stayed open all the time.
    pub kept: usize,
    /// What went wrong, of both sorts.
    pub failed: usize,
    /// The first failures of each flow, in words.
    pub failures: Vec<String>,
}

impl Traffic {
    /// Starts flows from hosts to addresses and ports where echo servers answer. Between two
    /// questions a flow pauses that long.
    pub fn start<'a>(
        flows: impl IntoIterator<Item = (&'a Host, Protocol, &'a str)>,
        pause: Duration,
    ) -> Result<Self> {
        let over = Arc::new(AtomicBool::new(false));
        let mut traffic = Self { over, flows: Vec::new() };
        for (host, protocol, to) in flows {
            let to = to.parse().with_context(|| format!("not an address: {to}"))?;
            let flow = Flow {
                host: host.clone(),
                protocol,
                to,
                pause,
                started: Instant::now(),
                over: Arc::clone(&traffic.over),
                sent: AtomicUsize::new(0),
                failures: Mutex::default(),
            };
            let flow = Arc::new(flow);
            let running = Arc::clone(&flow);
            let thread = thread::Builder::new().name("traffic".into());
            traffic.flows.push((flow, Some(thread.spawn(move || running.run())?)));
        }
        Ok(traffic)
    }

    /// Waits until each flow has asked that often once more.
    pub fn more(&self, times: usize) -> Result<()> {
        let sent = self.flows.iter().map(|(flow, _)| flow.sent.load(Ordering::Relaxed));
        let goals: Vec<usize> = sent.map(|sent| sent + times).collect();
        let started = Instant::now();
        for ((flow, _), goal) in self.flows.iter().zip(goals) {
            while flow.sent.load(Ordering::Relaxed) < goal {
                ensure!(started.elapsed() < STUCK, "the traffic is stuck: {:?}", self.delivered());
                thread::sleep(Duration::from_millis(1));
            }
        }
        Ok(())
    }

    /// What became of the flows so far.
    pub fn delivered(&self) -> Delivered {
        let mut delivered = Delivered::default();
        for (flow, _) in &self.flows {
            let failures = lock(&flow.failures);
            delivered.new += flow.sent.load(Ordering::Relaxed);
            delivered.kept += usize::from(flow.protocol == Protocol::Tcp);
            delivered.failed += failures.count;
            delivered.failures.extend(failures.texts.iter().cloned());
        }
        delivered
    }

    /// Stops the flows and tells what became of them.
    pub fn stop(mut self) -> Delivered {
        self.end();
        self.delivered()
    }

    fn end(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        for (_, thread) in &mut self.flows {
            let _ = thread.take().map(JoinHandle::join);
        }
    }
}

impl Drop for Traffic {
    fn drop(&mut self) {
        self.end();
    }
}

/// How a packet without destination NAT ends: refused by the node itself, or without a route.
const NOT_TRANSLATED: [&str; 5] = [
    ": reset",
    ": refused",
    "(ENOPROTOOPT: Protocol not available)",
    "(EHOSTUNREACH: No route to host)",
    "(EACCES: Permission denied)",
];

impl Delivered {
    /// Fails if an open connection ended. While tables are replaced, one new connection may fail: see
    /// docs/limits.md.
    pub fn all_but_one_untranslated(&self) -> Result<()> {
        match &self.failures[..] {
            [only] if self.failed == 1 && NOT_TRANSLATED.iter().any(|it| only.ends_with(it)) => {
                Ok(())
            }
            _ => self.all(),
        }
    }

    /// Fails unless everything was delivered.
    pub fn all(&self) -> Result<()> {
        ensure!(self.new > 0, "nothing was sent");
        ensure!(self.failed == 0, "{} failures of {}: {:#?}", self.failed, self.new, self.failures);
        Ok(())
    }
}

/// What asks, in its thread.
struct Flow {
    host: Host,
    protocol: Protocol,
    to: SocketAddr,
    pause: Duration,
    started: Instant,
    over: Arc<AtomicBool>,
    sent: AtomicUsize,
    failures: Mutex<Failures>,
}

impl Flow {
    fn run(&self) {
        let asked = self.host.run(|| {
            let mut open = self.open();
            let mut sent_again = syns_sent_again()?;
            while !self.over.load(Ordering::Relaxed) {
                let asked = Instant::now();
                match probe(self.protocol, None, self.to, PATIENCE)? {
                    Outcome::Reached { .. } => {}
                    other => self.fail(&other),
                }
                // TCP tries again after a second, which would hide what was lost. Others may have done
                // so, too: the kernel counts per namespace, and repeated SYN-ACKs of its servers as well.
                let took = asked.elapsed();
                let before = std::mem::replace(&mut sent_again, syns_sent_again()?);
                if self.protocol == Protocol::Tcp && took >= SENT_AGAIN && sent_again > before {
                    self.fail(&format_args!("{} SYNs had to be sent again", sent_again - before));
                }
                if let Some(connection) = &mut open
                    && let Err(error) = connection.server(PATIENCE)
                {
                    self.fail(&format_args!("the open connection: {error:#}"));
                    open = self.open();
                }
                self.sent.fetch_add(1, Ordering::Relaxed);
                thread::sleep(self.pause);
            }
            Ok(())
        });
        if let Err(error) = asked {
            self.fail(&format_args!("cannot ask any more: {error:#}"));
        }
    }

    fn open(&self) -> Option<flow::Flow> {
        if self.protocol != Protocol::Tcp {
            return None;
        }
        let opened = flow::Flow::connect(self.to, PATIENCE);
        opened.inspect_err(|error| self.fail(&format_args!("to stay open: {error:#}"))).ok()
    }

    fn fail(&self, what: &dyn fmt::Display) {
        let Self { host, protocol, to, .. } = self;
        let after = self.started.elapsed().as_secs_f64();
        let mut failures = lock(&self.failures);
        failures.count += 1;
        if failures.texts.len() < KEPT {
            failures.texts.push(format!("after {after:.3} s, {host} to {to}/{protocol}: {what}"));
        }
    }
}

/// How many SYNs have been sent again in the network namespace of this thread, whoever sent them.
fn syns_sent_again() -> Result<u64> {
    let statistics = std::fs::read_to_string("/proc/thread-self/net/netstat")?;
    // A line with names, then one with values.
    let mut lines = statistics.lines().filter(|line| line.starts_with("TcpExt:"));
    let (names, values) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
    let mut columns = names.split(' ').zip(values.split(' '));
    let found = columns.find(|(name, _)| *name == "TCPSynRetrans");
    found.and_then(|(_, value)| value.parse().ok()).context("no TCPSynRetrans in netstat")
}

fn lock(failures: &Mutex<Failures>) -> MutexGuard<'_, Failures> {
    failures.lock().unwrap_or_else(PoisonError::into_inner)
}
