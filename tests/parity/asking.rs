//! The same packets on both sides.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::thread;

use anyhow::{Result, ensure};
use nix::errno::Errno;
use shunt_testbed::{Outcome, Question, patience, volley};

use crate::difference::{Cell, Compared, Difference, Round, Tally, differences};
use crate::targets::{Target, targets};
use crate::world::{Side, World};

impl World<'_> {
    /// Waits until both have done what was written; fails with a table if packets differ.
    pub(crate) fn compare(&self, scenario: &str) -> Result<usize> {
        let cells = self.cells()?;
        let mut table = String::new();
        for difference in self.differences(&cells)? {
            writeln!(table, "{scenario} | {difference}")?;
        }
        ensure!(
            table.is_empty(),
            "scenario | Service | from | to | kube-proxy | shunt\n{table}{}",
            self.rules()
        );
        Ok(cells.len())
    }

    /// Waits until both have done what was written; returns what differs.
    pub(crate) fn differences(&self, cells: &[Cell]) -> Result<Vec<Difference>> {
        self.settle()?;
        // Source ports come around, and what was tracked before would count as the same flow.
        for side in self.sides() {
            side.lab.node.output("conntrack", &["-F"])?;
        }
        differences(cells, |cells, round| self.ask(cells, round))
    }

    /// Every origin with every target of the Services that there are.
    pub(crate) fn cells(&self) -> Result<Vec<Cell>> {
        let targets = targets(self.kubernetes)?;
        let origins = self.shunt.origins().map(|(name, ..)| name);
        let cells = origins.into_iter().flat_map(|origin| {
            let reachable = targets.iter().filter(move |target| {
                // Only the node itself reaches its own loopback addresses.
                let own = !target.to.ip().is_loopback() || origin == "node";
                // A pod can be the endpoint that it happens to stay with, which shows; answers to
                // pod-3 need not pass the node, and some then seem to come from a stranger.
                let shows = origin == "pod-3" || target.pods.contains(origin);
                own && !(target.sticky && shows)
            });
            reachable.map(move |target| Cell { origin, target: target.clone() })
        });
        Ok(cells.collect())
    }

    /// Asks everything so many times on both sides.
    fn ask(&self, cells: &[Cell], round: Round) -> Result<Vec<Compared>> {
        let [reference, shunt] = thread::scope(|scope| {
            let asked = self.sides().map(|side| scope.spawn(move || tallies(side, cells, round)));
            asked.map(|thread| thread.join().unwrap_or_else(|p| std::panic::resume_unwind(p)))
        });
        let (mut reference, mut shunt) = (reference?, shunt?);
        let mut of =
            |cell| [&mut reference, &mut shunt].map(|s| s.remove(cell).unwrap_or_default());
        Ok(cells.iter().map(|cell| Compared::new(cell.clone(), of(cell))).collect())
    }

    /// Shows the rules of both, if a person asks for them.
    fn rules(&self) -> String {
        let Some(folder) = std::env::var_os("SHUNT_PARITY_RULES") else { return String::new() };
        for side in self.sides() {
            let rules = side.lab.node.output("nft", &["list", "ruleset"]);
            let file = std::path::Path::new(&folder).join(side.name);
            let _ = std::fs::write(file, rules.unwrap_or_else(|error| format!("{error:#}")));
        }
        format!("rules: {}\n", folder.display())
    }
}

/// What becomes of the packets of all cells on one side.
fn tallies(side: &Side, cells: &[Cell], round: Round) -> Result<BTreeMap<Cell, Tally>> {
    let asked: Vec<Result<Vec<(&Cell, String)>>> = thread::scope(|scope| {
        let threads = side.origins().map(|(origin, host, second)| {
            scope.spawn(move || {
                let own: Vec<&Cell> = cells.iter().filter(|cell| cell.origin == origin).collect();
                // Samples of a cell are apart from each other.
                let cells = own.repeat(round.times);
                let question = |cell: &&Cell| {
                    let Target { protocol, to, .. } = cell.target;
                    let like = |ip: &std::net::IpAddr| ip.is_ipv4() == to.is_ipv4();
                    let source = second.then(|| host.ips().filter(like).nth(1)).flatten();
                    Question { protocol, source, to }
                };
                let mut answers = Vec::new();
                for part in cells.chunks(round.at_once) {
                    let questions: Vec<Question> = part.iter().map(question).collect();
                    let fates = host.run(|| volley(&questions, patience(round.patience)))?;
                    let fates = fates.into_iter().map(|fate| text(&fate));
                    answers.extend(part.iter().copied().zip(fates));
                }
                Ok(answers)
            })
        });
        let join = |thread: thread::ScopedJoinHandle<'_, _>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        threads.into_iter().map(join).collect()
    });
    let mut tallies: BTreeMap<Cell, Tally> = BTreeMap::new();
    for answers in asked {
        for (cell, fate) in answers? {
            if !tallies.contains_key(cell) {
                tallies.insert(cell.clone(), Tally::new());
            }
            if let Some(tally) = tallies.get_mut(cell) {
                *tally.entry(fate).or_default() += 1;
            }
        }
    }
    Ok(tallies)
}

fn text(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Reached { server, source } => format!("{server}←{source}"),
        // From the gateway: no rule of the node has touched it.
        Outcome::Icmp(Errno::EHOSTUNREACH | Errno::EACCES) => "unhandled".to_owned(),
        Outcome::Icmp(Errno::ECONNREFUSED) => "port-unreachable".to_owned(),
        Outcome::Dropped => "silence".to_owned(),
        outcome => outcome.to_string(),
    }
}
