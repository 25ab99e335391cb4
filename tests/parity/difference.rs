//! The same packets on both sides, and what is different about their fates.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Display, Write};
use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};
use nix::errno::Errno;
use shunt_lab::{Fate, Question, patience, volley};

use crate::exceptions;
use crate::targets::{Target, targets};
use crate::world::{Side, World};

/// How cells are asked.
#[derive(Clone, Copy)]
struct Round {
    /// How often each.
    times: usize,
    /// How long an answer may take.
    patience: Duration,
    /// How many questions of one origin are open at the same time.
    at_once: usize,
}

/// Everything is asked once; then, where there is an answer, as often as it takes to meet most of
/// several endpoints.
const FIRST: Round = Round { times: 1, patience: Duration::from_millis(300), at_once: 500 };
const MORE: Round = Round { times: 5, patience: Duration::from_millis(400), at_once: 500 };
/// What is different then is asked more often, with more time and in smaller crowds: chance looks
/// like a difference, and so does what a busy machine loses.
const AGAIN: [Round; 2] = [
    Round { times: 40, patience: Duration::from_secs(1), at_once: 500 },
    Round { times: 100, patience: Duration::from_secs(2), at_once: 10 },
];
/// Of many differences so many are enough.
const TOLD: usize = 20;

/// One origin and one target.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Cell {
    pub(crate) origin: &'static str,
    pub(crate) target: Target,
}

/// What can become of the packets of a cell.
pub(crate) type Fates = BTreeSet<String>;

/// What became of the packets of a cell on both sides.
pub(crate) struct Compared {
    pub(crate) cell: Cell,
    pub(crate) reference: Fates,
    pub(crate) shunt: Fates,
}

impl Compared {
    fn is_same(&self) -> bool {
        self.reference == self.shunt
    }
}

impl Display for Compared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Cell { origin, target } = &self.cell;
        let join = |fates: &Fates| fates.iter().cloned().collect::<Vec<_>>().join(" ");
        write!(
            f,
            "{} | {origin} | {}/{} | {} | {}",
            target.service,
            target.to,
            target.protocol,
            join(&self.reference),
            join(&self.shunt)
        )
    }
}

impl World<'_> {
    /// Waits until both have done what was written; fails with a table if packets differ.
    pub(crate) fn compare(&self, scenario: &str) -> Result<usize> {
        self.settle()?;
        // Source ports come around, and what was tracked before would count as the same flow.
        for side in self.sides() {
            side.lab.node.output("conntrack", &["-F"])?;
        }
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

    fn cells(&self) -> Result<Vec<Cell>> {
        let targets = targets(self.kubernetes)?;
        let origins = self.shunt.origins().map(|(name, ..)| name);
        let cells = origins.into_iter().flat_map(|origin| {
            let reachable = targets.iter().filter(move |target| {
                // Nobody else has a way to the node's own loopback addresses.
                let own = !target.to.ip().is_loopback() || origin == "node";
                // Pods can be the endpoint that they happen to stay with, which shows.
                own && !(target.sticky && origin.starts_with("pod"))
            });
            reachable.map(move |target| Cell { origin, target: target.clone() })
        });
        Ok(cells.collect())
    }

    fn differences(&self, cells: &[Cell]) -> Result<Vec<Compared>> {
        // Who has to stay with an endpoint has one after this.
        let first = self.ask(cells, FIRST)?;
        let answered = |found: &Compared| {
            !(found.is_same() && found.shunt == Fates::from(["silence".to_owned()]))
        };
        let answered: Vec<Cell> =
            first.into_iter().filter(answered).map(|asked| asked.cell).collect();
        let is_unexpected =
            |asked: &Compared| !asked.is_same() && exceptions::reason(asked).is_none();
        let mut different = self.ask(&answered, MORE)?;
        different.retain(is_unexpected);
        for again in AGAIN {
            if different.is_empty() {
                break;
            }
            let cells: Vec<Cell> =
                different.into_iter().map(|found| found.cell).take(TOLD).collect();
            different = self.ask(&cells, again)?;
            different.retain(is_unexpected);
        }
        Ok(different)
    }

    /// Asks everything so many times on both sides.
    fn ask(&self, cells: &[Cell], round: Round) -> Result<Vec<Compared>> {
        let [reference, shunt] = thread::scope(|scope| {
            let asked = self.sides().map(|side| scope.spawn(move || fates(side, cells, round)));
            asked.map(|thread| thread.join().unwrap_or_else(|p| std::panic::resume_unwind(p)))
        });
        let (mut reference, mut shunt) = (reference?, shunt?);
        let differences = cells.iter().map(|cell| Compared {
            cell: cell.clone(),
            reference: reference.remove(cell).unwrap_or_default(),
            shunt: shunt.remove(cell).unwrap_or_default(),
        });
        Ok(differences.collect())
    }

    /// The rules of both, where somebody wants to see them.
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
fn fates(side: &Side, cells: &[Cell], round: Round) -> Result<BTreeMap<Cell, Fates>> {
    let asked: Vec<Result<Vec<(Cell, String)>>> = thread::scope(|scope| {
        let threads = side.origins().map(|(origin, host, second)| {
            scope.spawn(move || {
                let own = || cells.iter().filter(|cell| cell.origin == origin);
                let cells: Vec<&Cell> =
                    own().flat_map(|cell| std::iter::repeat_n(cell, round.times)).collect();
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
                    answers.extend(part.iter().map(|&cell| cell.clone()).zip(fates));
                }
                Ok(answers)
            })
        });
        let join = |thread: thread::ScopedJoinHandle<'_, _>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        threads.into_iter().map(join).collect()
    });
    let mut fates: BTreeMap<Cell, Fates> = BTreeMap::new();
    for answers in asked {
        for (cell, fate) in answers? {
            fates.entry(cell).or_default().insert(fate);
        }
    }
    for (cell, fates) in &mut fates {
        if cell.target.sticky {
            *fates = without_choice(fates);
        }
    }
    Ok(fates)
}

fn text(fate: &Fate) -> String {
    match fate {
        // From the gateway: no rule of the node has touched it.
        Fate::Icmp(Errno::EHOSTUNREACH | Errno::EACCES) => "unhandled".to_owned(),
        fate => fate.to_string(),
    }
}

/// Which of several endpoints a client stays with is chance, and by that the address that it has
/// there; that it stays with one is not.
fn without_choice(fates: &Fates) -> Fates {
    let (reached, others): (Vec<&String>, Vec<&String>) =
        fates.iter().partition(|fate| fate.contains('←'));
    let mut fates: Fates = others.into_iter().cloned().collect();
    match reached[..] {
        [] => {}
        [_] => drop(fates.insert("always the same".to_owned())),
        _ => {
            let several = reached.iter().map(|fate| fate.as_str()).collect::<Vec<_>>().join(",");
            fates.insert(format!("several:{several}"));
        }
    }
    fates
}
