//! Which cells differ between the two sides, judged from samples.
//!
//! A cell's packets can have several outcomes, since a Service chooses among endpoints at random.
//! Each side is sampled until another equally likely outcome would have appeared. Every cell whose
//! sets of outcomes differ then gets new samples, in smaller groups and with longer timeouts. Last,
//! the shares of the endpoints are compared over all cells of a Service.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Display};
use std::time::Duration;

use anyhow::{Result, ensure};

use crate::exceptions;
use crate::targets::Target;

/// How cells are sampled.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Round {
    /// The samples of each cell and side.
    pub(crate) times: usize,
    /// The timeout of an answer.
    pub(crate) patience: Duration,
    /// The questions of one origin that are open at the same time.
    pub(crate) at_once: usize,
}

/// Clients with session affinity get their endpoint; these samples do not count.
const AFFINITY: Round = Round { times: 1, ..SAMPLE };
/// The samples that each cell gets, and the form of further ones.
const SAMPLE: Round =
    Round { times: samples_for(1), patience: Duration::from_millis(400), at_once: 500 };
/// New samples of cells that differ: chance and a busy machine also look like a difference. An
/// endpoint in a pool of ten is missing from 200 samples once in 10^9.
const AGAIN: [Round; 2] = [
    Round { times: 40, patience: Duration::from_secs(1), at_once: 200 },
    Round { times: 200, patience: Duration::from_secs(2), at_once: 50 },
];
/// The probability that a further outcome, as likely as those seen, is not among the samples.
const MISSED: f64 = 0.005;
/// How many standard deviations the shares of endpoints may differ: chance exceeds this once in 10^9.
const DEVIATIONS: f64 = 6.0;
/// Fewer expected samples than this say nothing about shares.
const EXPECTED: f64 = 8.0;

/// One origin and one target.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Cell {
    pub(crate) origin: &'static str,
    pub(crate) target: Target,
}

/// The different outcomes of the packets of a cell.
pub(crate) type Fates = BTreeSet<String>;

/// The outcomes of the packets of a cell, each with its number of samples.
pub(crate) type Tally = BTreeMap<String, usize>;

/// The outcomes of the packets of a cell on both sides.
#[derive(Clone, Debug)]
pub(crate) struct Compared {
    pub(crate) cell: Cell,
    pub(crate) reference: Fates,
    pub(crate) shunt: Fates,
    /// The samples behind these, the reference's first.
    tallies: [Tally; 2],
}

impl Compared {
    pub(crate) fn new(cell: Cell, tallies: [Tally; 2]) -> Self {
        let [reference, shunt] = tallies.each_ref().map(|tally| {
            let fates = tally.keys().cloned().collect();
            if cell.target.sticky { without_choice(&fates) } else { fates }
        });
        Self { cell, reference, shunt, tallies }
    }

    fn is_same(&self) -> bool {
        self.reference == self.shunt
    }

    fn is_unexpected(&self) -> bool {
        !self.is_same() && exceptions::reason(self).is_none()
    }

    /// Adds the samples of another round.
    fn add(&mut self, more: Self) {
        for (tally, more) in self.tallies.iter_mut().zip(more.tallies) {
            for (fate, times) in more {
                *tally.entry(fate).or_default() += times;
            }
        }
        *self = Self::new(self.cell.clone(), std::mem::take(&mut self.tallies));
    }

    /// The samples that each side still needs.
    fn missing_samples(&self) -> usize {
        let fates: BTreeSet<&String> = self.tallies.iter().flat_map(BTreeMap::keys).collect();
        samples_for(fates.len()).saturating_sub(self.samples())
    }

    /// The samples of the side that has fewer.
    fn samples(&self) -> usize {
        self.tallies.iter().map(|tally| tally.values().sum()).min().unwrap_or_default()
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

/// A lasting difference between the two sides.
#[derive(Debug)]
pub(crate) enum Difference {
    /// Different outcomes of a cell.
    Outcomes(Compared),
    /// The same endpoints of a Service with different shares.
    Shares { service: String, reference: Tally, shunt: Tally },
}

impl Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Outcomes(compared) => compared.fmt(f),
            Self::Shares { service, reference, shunt } => {
                write!(f, "{service} | all | shares | {reference:?} | {shunt:?}")
            }
        }
    }
}

/// Samples the cells by `ask` and returns what differs for other reasons than chance.
pub(crate) fn differences(
    cells: &[Cell],
    mut ask: impl FnMut(&[Cell], Round) -> Result<Vec<Compared>>,
) -> Result<Vec<Difference>> {
    // Without samples, two sides would be the same.
    let mut ask = |cells: &[Cell], round: Round| -> Result<Vec<Compared>> {
        let compared = ask(cells, round)?;
        let complete = |compared: &&Compared| compared.samples() >= round.times;
        let sampled = compared.iter().filter(complete).count();
        ensure!(sampled == cells.len(), "{sampled} of {} cells have samples", cells.len());
        Ok(compared)
    };
    let sticky: Vec<Cell> = cells.iter().filter(|cell| cell.target.sticky).cloned().collect();
    ask(&sticky, AFFINITY)?;
    let mut compared = ask(cells, SAMPLE)?;
    loop {
        // As many as most cells need, so that a few rounds do.
        let times = compared.iter().map(Compared::missing_samples).max().unwrap_or_default();
        if times == 0 {
            break;
        }
        let times = times.div_ceil(2);
        let open = |compared: &&mut Compared| compared.missing_samples() > 0;
        let mut open: Vec<&mut Compared> = compared.iter_mut().filter(open).collect();
        let cells: Vec<Cell> = open.iter().map(|compared| compared.cell.clone()).collect();
        let more = ask(&cells, Round { times, ..SAMPLE })?;
        open.iter_mut().zip(more).for_each(|(compared, more)| compared.add(more));
    }
    let mut found = different_shares(&compared);
    compared.retain(Compared::is_unexpected);
    for again in AGAIN {
        if compared.is_empty() {
            break;
        }
        let cells: Vec<Cell> = compared.into_iter().map(|compared| compared.cell).collect();
        compared = ask(&cells, again)?;
        compared.retain(Compared::is_unexpected);
    }
    found.extend(compared.into_iter().map(Difference::Outcomes));
    Ok(found)
}

/// Returns how many samples show `outcomes` equally likely outcomes and would show one more.
const fn samples_for(outcomes: usize) -> usize {
    let share = outcomes as f64 / (outcomes + 1) as f64;
    let (mut samples, mut missed) = (0, 1.0);
    while missed > MISSED {
        samples += 1;
        missed *= share;
    }
    samples
}

/// Returns the server of an outcome that is an answer.
fn server(fate: &str) -> Option<&str> {
    fate.split_once('←').map(|(server, _)| server)
}

/// With session affinity, the endpoint and with it the address that the client has there are chance;
/// that there is only one endpoint is not.
fn without_choice(fates: &Fates) -> Fates {
    let (reached, others): (Vec<&String>, Vec<&String>) =
        fates.iter().partition(|fate| server(fate).is_some());
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

/// Compares how often each endpoint was chosen, over all cells of a Service with the same endpoints.
fn different_shares(compared: &[Compared]) -> Vec<Difference> {
    let mut pools: BTreeMap<(&str, BTreeSet<&str>), [Tally; 2]> = BTreeMap::new();
    for compared in compared.iter().filter(|c| c.is_same() && !c.cell.target.sticky) {
        let servers: BTreeSet<&str> =
            compared.reference.iter().filter_map(|fate| server(fate)).collect();
        let pool = pools.entry((&compared.cell.target.service, servers)).or_default();
        for (pool, tally) in pool.iter_mut().zip(&compared.tallies) {
            for (fate, times) in tally {
                if let Some(server) = server(fate) {
                    *pool.entry(server.to_owned()).or_default() += times;
                }
            }
        }
    }
    let different = pools.into_iter().filter(|(_, tallies)| shares_differ(tallies));
    let difference = |((service, _), [reference, shunt]): ((&str, _), [Tally; 2])| {
        Difference::Shares { service: service.to_owned(), reference, shunt }
    };
    different.map(difference).collect()
}

/// Pearson's test of homogeneity, with Wilson and Hilferty's approximation of its distribution.
fn shares_differ(tallies: &[Tally; 2]) -> bool {
    let samples = tallies.each_ref().map(|tally| tally.values().sum::<usize>() as f64);
    let all = samples[0] + samples[1];
    let servers: BTreeSet<&String> = tallies.iter().flat_map(BTreeMap::keys).collect();
    let mut distance = 0.0;
    for server in &servers {
        let chosen = tallies.each_ref().map(|t| t.get(*server).copied().unwrap_or_default() as f64);
        for (chosen_here, samples) in chosen.iter().zip(samples) {
            let expected = (chosen[0] + chosen[1]) * samples / all;
            if expected < EXPECTED {
                return false;
            }
            distance += (chosen_here - expected).powi(2) / expected;
        }
    }
    let freedom = servers.len().saturating_sub(1) as f64;
    let spread = 2.0 / (9.0 * freedom);
    freedom > 0.0 && distance > freedom * (1.0 - spread + DEVIATIONS * spread.sqrt()).powi(3)
}
