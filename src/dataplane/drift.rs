//! Detects modifications of shunt's tables by other processes.
//!
//! A commit by any process, to any table of the network namespace, makes a new generation. Most do
//! not concern shunt: CNI plugins, kubelet and iptables-nft commit all the time. So a new
//! generation causes a cheap comparison of tables, chains and rules. Comparisons of all elements
//! are rarer: in the long run, they take a thirtieth of a core. Repairs have another thirtieth.
//!
//! No other process can modify owned tables: nothing is asked about them. A new socket owns none, so
//! that the dataplane reads them again.

use std::time::{Duration, Instant};

use nfnetlink::nft::{Error, Kernel};
use shunt_core::model::Family;
use shunt_core::plan::NodeContext;

use super::fingerprint::Fingerprint;
use super::reading::{Reader, Reading, read_structure};
use super::state::Current;
use super::stopwatch::Stopwatch;

/// The time between comparisons of all elements, as a multiple of their duration: 0.2 s for 100 000
/// elements, nearly all of it in the kernel.
const PAUSE_PER_COST: u32 = 30;
/// The processor time that comparisons may take in advance, so that a repair comes without a pause
/// as long as other processes commit rarely.
const ADVANCE: Duration = Duration::from_millis(500);
/// The same for comparisons that found damage: some repairs come at once, but a process that undoes
/// each of them cannot keep a core busy.
const REPAIR_ADVANCE: Duration = Duration::from_secs(10);

/// The state of the detection of drift.
#[derive(Default)]
pub(super) struct Drift {
    /// Another process has committed since the last comparison of all elements.
    suspected: bool,
    /// A comparison that needs another listing.
    comparison: Option<Comparison>,
    /// The processor time of comparisons without a difference.
    vain: Debt,
    /// The processor time of comparisons with a difference.
    repairs: Debt,
}

/// A comparison whose listing differs from the record, which further listings must confirm.
struct Comparison {
    reader: Reader,
    /// The time of the next listing.
    at: Instant,
    /// The processor time so far.
    cost: Duration,
}

/// The processor time taken in advance, as of a moment.
#[derive(Debug, Default)]
struct Debt(Option<(Duration, Instant)>);

impl Debt {
    fn at(&self, now: Instant) -> Duration {
        let Some((debt, at)) = self.0 else { return Duration::ZERO };
        debt.saturating_sub(now.saturating_duration_since(at) / PAUSE_PER_COST)
    }

    fn add(&mut self, cost: Duration, now: Instant) {
        self.0 = Some((self.at(now) + cost, now));
    }
}

/// The result of a check.
pub(super) enum Found {
    /// No difference is known.
    Nothing,
    /// Tables, sets, chains or rules differ from the record.
    OtherStructure,
    /// Elements differ from the record: the listed ones.
    OtherElements(Box<Reading>),
}

/// The context of a check.
pub(super) struct Look<'a> {
    pub(super) kernel: &'a mut dyn Kernel,
    pub(super) stopwatch: &'a dyn Stopwatch,
    pub(super) node_context: &'a NodeContext,
    pub(super) current: &'a Current,
}

impl Drift {
    /// Notes whether another process has committed since the last call, or commit, to tables that it
    /// can modify.
    pub(super) fn note_generation(
        &mut self,
        kernel: &mut dyn Kernel,
        current: &mut Current,
    ) -> Result<(), Error> {
        if current.record.is_owned() {
            self.suspected = false;
            return Ok(());
        }
        let generation = kernel.generation()?.id;
        self.suspected |= generation != current.generation;
        current.generation = generation;
        Ok(())
    }

    /// Notes that the record changes: a comparison with it starts over.
    pub(super) fn record_changes(&mut self) {
        if let Some(begun) = self.comparison.take() {
            self.vain.add(begun.cost, begun.at);
        }
    }

    /// Returns the time of the next listing of a comparison.
    pub(super) fn next_look(&self) -> Option<Instant> {
        self.comparison.as_ref().map(|comparison| comparison.at)
    }

    /// Checks for modifications by other processes, as far as a check is due. To be called behind
    /// [`Drift::note_generation`].
    pub(super) fn look(&mut self, look: &mut Look<'_>, now: Instant) -> Result<Found, Error> {
        if !self.suspected {
            return Ok(Found::Nothing);
        }
        if !look.has_recorded_structure()? {
            return Ok(Found::OtherStructure);
        }
        let is_early = self.vain.at(now) > ADVANCE || self.repairs.at(now) > REPAIR_ADVANCE;
        if is_early || self.next_look().is_some_and(|at| at > now) {
            return Ok(Found::Nothing);
        }
        let before = self.comparison.as_ref().map_or(Duration::ZERO, |begun| begun.cost);
        let started = look.stopwatch.processor_time();
        let found = self.compare(look, now)?;
        let cost = before + look.stopwatch.processor_time().saturating_sub(started);
        if let Some(unfinished) = &mut self.comparison {
            unfinished.cost = cost;
            return Ok(Found::Nothing);
        }
        self.suspected = false;
        match found {
            Found::OtherElements(_) => self.repairs.add(cost, now),
            _ => self.vain.add(cost, now),
        }
        Ok(found)
    }

    /// Compares all elements with the record. A comparison that is not finished stays in `self`.
    fn compare(&mut self, look: &mut Look<'_>, now: Instant) -> Result<Found, Error> {
        let started = look.stopwatch.elapsed();
        let record = &look.current.record;
        let mut comparison = match self.comparison.take() {
            Some(comparison) => comparison,
            None => {
                let wanted = Fingerprint::recorded(record);
                let listed = Fingerprint::listed(look.kernel, record)?;
                if listed == wanted && record.strays.is_empty() {
                    return Ok(Found::Nothing);
                }
                let reader = Reader::having_seen([listed, wanted]);
                Comparison { reader, at: now, cost: Duration::ZERO }
            }
        };
        match comparison.reader.read(look.kernel, look.node_context)? {
            Ok(reading) if reading.record.holds_as(record) => Ok(Found::Nothing),
            Ok(reading) => Ok(Found::OtherElements(Box::new(reading))),
            Err(pause) => {
                comparison.at = now + look.stopwatch.elapsed().saturating_sub(started) + pause;
                self.comparison = Some(comparison);
                Ok(Found::Nothing)
            }
        }
    }
}

impl Look<'_> {
    fn has_recorded_structure(&mut self) -> Result<bool, Error> {
        for family in Family::ALL {
            let found = read_structure(self.kernel, self.node_context, family)?;
            if found != *self.current.record.table(family) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
