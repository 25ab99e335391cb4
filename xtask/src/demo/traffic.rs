//! Connections, and who answered them.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use shunt_testbed::{Netns, Outcome, Protocol, Tally, probe};

/// Connections to one address under way at the same time.
const PARALLEL: usize = 2;

/// The pause between connections that go on for a while. There is no more to learn from
/// saturating the machine, which would also slow the agent down.
const PAUSE: Duration = Duration::from_micros(500);

/// After so many lost connections the verdict is clear, and waiting for the others a waste.
const LOST_LIMIT: usize = 10;

/// How long a connection may take. Nothing here is far away: one that takes longer is lost.
const PATIENCE: Duration = Duration::from_secs(2);

/// What became of a number of connections.
#[derive(Debug, Default)]
pub(super) struct Sent {
    pub(super) tally: Tally,
    /// When the last connection that each backend took was opened.
    pub(super) last_opened: BTreeMap<String, Instant>,
}

impl Sent {
    fn record(&mut self, outcome: Outcome, opened: Instant) {
        if let Outcome::Reached { server, .. } = &outcome {
            let last = self.last_opened.entry(server.clone()).or_insert(opened);
            *last = opened.max(*last);
        }
        self.tally.add(outcome);
    }
}

impl fmt::Display for Sent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let taken = self.tally.by_server().into_iter().map(|(name, n)| format!("{name} {n}"));
        let failed = self.tally.failures().map(|(outcome, n)| format!("{outcome} {n}"));
        f.write_str(&taken.chain(failed).collect::<Vec<_>>().join(", "))
    }
}

/// Open `count` connections to `to` from inside `client`, several at a time.
pub(super) fn send(client: &Netns, to: SocketAddr, count: usize) -> Result<Sent> {
    let left = AtomicUsize::new(count);
    let take_one =
        || left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1)).is_ok();
    send_while(client, to, &take_one)
}

/// Open connections to `to` from inside `client` until `enough` is set.
pub(super) fn send_until(client: &Netns, to: SocketAddr, enough: &AtomicBool) -> Result<Sent> {
    let pause_unless_enough = || {
        thread::sleep(PAUSE);
        !enough.load(Ordering::Relaxed)
    };
    send_while(client, to, &pause_unless_enough)
}

fn send_while(client: &Netns, to: SocketAddr, more: &(dyn Fn() -> bool + Sync)) -> Result<Sent> {
    let sent = Mutex::new(Sent::default());
    let worker = || {
        client.run(|| {
            while more() {
                let opened = Instant::now();
                let outcome = probe(Protocol::Tcp, None, to, PATIENCE)?;
                // Poisoned only when another worker panicked, and that ends the demo.
                let mut sent = sent.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
                sent.record(outcome, opened);
                if sent.tally.lost() >= LOST_LIMIT {
                    break;
                }
            }
            Ok(())
        })
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..PARALLEL).map(|_| scope.spawn(worker)).collect();
        workers.into_iter().try_for_each(|worker| {
            worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    })?;
    Ok(sent.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner()))
}
