//! Connections, and who answered them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use shunt_testbed::{Netns, Outcome, Protocol, probe};

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
pub(super) struct Tally {
    /// Connections by the backend that took them.
    pub(super) reached: BTreeMap<String, usize>,
    /// Connections that nobody took, by what happened to them.
    pub(super) failed: BTreeMap<String, usize>,
    /// The source addresses that backends saw.
    pub(super) sources: BTreeSet<IpAddr>,
    /// When the last connection that each backend took was opened.
    pub(super) last_opened: BTreeMap<String, Instant>,
}

impl Tally {
    /// All connections.
    pub(super) fn total(&self) -> usize {
        self.reached.values().sum::<usize>() + self.lost()
    }

    /// Those that nobody took.
    pub(super) fn lost(&self) -> usize {
        self.failed.values().sum()
    }

    /// How many `backend` took.
    pub(super) fn of(&self, backend: &str) -> usize {
        self.reached.get(backend).copied().unwrap_or(0)
    }

    /// Whether exactly these backends took connections, each about as many as the others.
    ///
    /// The agent promises each backend the same chance, so counts spread binomially. Six standard
    /// deviations let one honest run in hundreds of millions fail.
    pub(super) fn is_even_among(&self, backends: &[&str]) -> bool {
        let reached: Vec<&str> = self.reached.keys().map(String::as_str).collect();
        if reached != backends || self.lost() > 0 {
            return false;
        }
        let (total, chance) = (self.total() as f64, 1.0 / backends.len() as f64);
        let deviation = (total * chance * (1.0 - chance)).sqrt();
        self.reached.values().all(|count| (*count as f64 - total * chance).abs() <= 6.0 * deviation)
    }

    fn record(&mut self, outcome: Outcome, opened: Instant) {
        match outcome {
            Outcome::Reached { server, source } => {
                self.sources.insert(source);
                let last = self.last_opened.entry(server.clone()).or_insert(opened);
                *last = opened.max(*last);
                *self.reached.entry(server).or_default() += 1;
            }
            failure => *self.failed.entry(failure.to_string()).or_default() += 1,
        }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts: Vec<String> = self
            .reached
            .iter()
            .chain(&self.failed)
            .map(|(what, count)| format!("{what} {count}"))
            .collect();
        f.write_str(&parts.join(", "))
    }
}

/// Open `count` connections to `to` from inside `client`, several at a time.
pub(super) fn send(client: &Netns, to: SocketAddr, count: usize) -> Result<Tally> {
    let left = AtomicUsize::new(count);
    let take_one =
        || left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1)).is_ok();
    send_while(client, to, &take_one)
}

/// Open connections to `to` from inside `client` until `enough` is set.
pub(super) fn send_until(client: &Netns, to: SocketAddr, enough: &AtomicBool) -> Result<Tally> {
    let pause_unless_enough = || {
        thread::sleep(PAUSE);
        !enough.load(Ordering::Relaxed)
    };
    send_while(client, to, &pause_unless_enough)
}

fn send_while(client: &Netns, to: SocketAddr, more: &(dyn Fn() -> bool + Sync)) -> Result<Tally> {
    let tally = Mutex::new(Tally::default());
    let worker = || {
        client.run(|| {
            while more() {
                let opened = Instant::now();
                let outcome = probe(Protocol::Tcp, None, to, PATIENCE)?;
                // Poisoned only when another worker panicked, and that ends the demo.
                let mut tally = tally.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
                tally.record(outcome, opened);
                if tally.lost() >= LOST_LIMIT {
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
    Ok(tally.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(counts: &[(&str, usize)]) -> Tally {
        Tally {
            reached: counts.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect(),
            ..Tally::default()
        }
    }

    #[test]
    fn shares_may_differ_as_chance_has_it_and_no_more() {
        let backends = ["a", "b", "c"];
        assert!(tally(&[("a", 334), ("b", 350), ("c", 316)]).is_even_among(&backends));
        assert!(!tally(&[("a", 500), ("b", 250), ("c", 250)]).is_even_among(&backends));
    }

    #[test]
    fn a_backend_too_few_or_too_many_is_not_even() {
        assert!(!tally(&[("a", 500), ("b", 500)]).is_even_among(&["a", "b", "c"]));
        assert!(!tally(&[("a", 500), ("b", 499), ("c", 1)]).is_even_among(&["a", "b"]));
        assert!(!tally(&[]).is_even_among(&["a"]));
    }

    #[test]
    fn a_lost_connection_is_not_even() {
        let mut tally = tally(&[("a", 500), ("b", 500)]);
        tally.record(Outcome::Refused, Instant::now());
        assert!(!tally.is_even_among(&["a", "b"]));
        assert_eq!((tally.lost(), tally.total()), (1, 1001));
    }

    #[test]
    fn the_last_connection_of_a_backend_is_the_one_opened_last() {
        let mut tally = Tally::default();
        let early = Instant::now();
        let late = early + Duration::from_secs(1);
        for opened in [late, early] {
            let source = "192.0.2.1".parse().unwrap();
            tally.record(Outcome::Reached { server: "a".into(), source }, opened);
        }
        assert_eq!(tally.last_opened["a"], late);
        assert_eq!(tally.of("a"), 2);
    }
}
