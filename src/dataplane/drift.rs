//! Detects modifications of shunt's tables by other processes.
//!
//! A commit by any process, to any table of the network namespace, makes a new generation. Most do
//! not concern shunt: CNI plugins, kubelet and iptables-nft commit all the time. So a new
//! generation causes a cheap comparison of tables, chains and rules. Comparisons of all elements
//! are rarer: in the long run, they take a thirtieth of a core. Repairs have another thirtieth. After
//! a difference, the dataplane reads its tables as at a start.
//!
//! No other process can modify owned tables: nothing is asked about them, but once if another process
//! has committed since they were read and before they were owned. A new socket owns none, so that the
//! dataplane reads them again.

use std::time::{Duration, Instant};

use nfnetlink::nft::{Error, Kernel};
use shunt_core::model::Family;
use shunt_core::plan::{NodeContext, Set};

use super::codec::decode;
use super::listing::list;
use super::reading::read_structure;
use super::record::KernelRecord;
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

/// The assumed processor time of a repair, in comparisons: the dataplane reads all elements again.
const REPAIR_PER_COST: u32 = 3;

/// The state of the detection of drift.
#[derive(Default)]
pub(super) struct Drift {
    /// Another process has committed since the last comparison of all elements.
    suspected: bool,
    /// The processor time of comparisons without a difference.
    vain: Debt,
    /// The processor time of comparisons with a difference.
    repairs: Debt,
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

impl Drift {
    /// Notes whether another process has committed since the last call, or commit, to tables that it
    /// can modify.
    pub(super) fn note_generation(
        &mut self,
        kernel: &mut dyn Kernel,
        current: &mut Current,
    ) -> Result<(), Error> {
        if current.record.is_owned() {
            return Ok(());
        }
        self.ask(kernel, current)
    }

    /// The same after a commit, which may be the one that owns the tables.
    pub(super) fn note_takeover(&mut self, kernel: &mut dyn Kernel, current: &mut Current) {
        // Without an answer, the tables are looked at.
        self.suspected |= self.ask(kernel, current).is_err();
    }

    /// Returns true if a comparison is due.
    pub(super) fn is_suspected(&self) -> bool {
        self.suspected
    }

    fn ask(&mut self, kernel: &mut dyn Kernel, current: &mut Current) -> Result<(), Error> {
        let generation = kernel.generation()?.id;
        self.suspected |= generation != current.generation;
        current.generation = generation;
        Ok(())
    }

    /// Returns true if another process has modified the tables of the record, as far as a comparison
    /// is due. To be called behind [`Drift::note_generation`].
    pub(super) fn finds_damage(
        &mut self,
        kernel: &mut dyn Kernel,
        stopwatch: &dyn Stopwatch,
        node_context: &NodeContext,
        record: &KernelRecord,
        now: Instant,
    ) -> Result<bool, Error> {
        if !self.suspected {
            return Ok(false);
        }
        for family in Family::ALL {
            if read_structure(kernel, node_context, family)? != *record.table(family) {
                self.suspected = false;
                return Ok(true);
            }
        }
        if self.vain.at(now) > ADVANCE || self.repairs.at(now) > REPAIR_ADVANCE {
            return Ok(false);
        }
        let started = stopwatch.processor_time();
        let is_damaged = !has_recorded_elements(kernel, record)?;
        let cost = stopwatch.processor_time().saturating_sub(started);
        self.suspected = false;
        if is_damaged {
            self.repairs.add(cost * REPAIR_PER_COST, now);
        } else {
            self.vain.add(cost, now);
        }
        Ok(is_damaged)
    }
}

/// Returns true if the kernel lists exactly the elements of the record, except elements that rules add.
fn has_recorded_elements(kernel: &mut dyn Kernel, record: &KernelRecord) -> Result<bool, Error> {
    for family in Family::ALL.into_iter().filter(|family| record.owner(*family).is_some()) {
        for set in Set::ALL.into_iter().filter(|set| !set.is_dynamic()) {
            let (mut count, mut is_recorded) = (0, true);
            list(kernel, family, set, &mut |element| {
                count += 1;
                let element = decode(family, set, &element);
                is_recorded = is_recorded && element.is_some_and(|it| record.has(&it));
            })?;
            if !is_recorded || count != record.counts(family).elements[set as usize] {
                return Ok(false);
            }
        }
    }
    Ok(true)
}
