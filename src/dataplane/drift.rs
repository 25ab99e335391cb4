//! Finds out whether another process has changed our tables.
//!
//! A commit by any process, to any table of the network namespace, makes a new generation. Most are none
//! of our business: CNI plugins, kubelet and iptables-nft commit all the time. So a new generation
//! leads to a look at tables, chains and rules, which is cheap, and to a comparison of all elements
//! at most so often that, in the long run, it takes a thirtieth of a core; repairs have a thirtieth of
//! their own.

use std::time::{Duration, Instant};

use nfnetlink::nft::Error;
use nix::time::{ClockId, clock_gettime};
use shunt_core::model::Family;
use shunt_core::plan::TABLE;

use super::adopt::{adopt, read_structure};
use super::codec::table_family;
use super::fingerprint::Fingerprint;
use super::ownership::Hold;
use super::sync::Dataplane;

/// The time between comparisons of all elements, as a multiple of what they take: 0.2 s for 100 000
/// elements, nearly all of it the kernel's.
const PAUSE_PER_COST: u32 = 30;
/// How much processor time comparisons may take in advance, so that a repair does not wait for the
/// pause as long as others commit rarely.
const ADVANCE: Duration = Duration::from_millis(500);
/// The same for comparisons that found damage: some repairs come at once, but another process that undoes
/// each of them does not keep a core busy.
const REPAIR_ADVANCE: Duration = Duration::from_secs(10);

/// What is known of changes by other processes.
#[derive(Debug, Default)]
pub(super) struct Drift {
    /// Another process has committed since all elements were compared.
    suspected: bool,
    /// What comparisons took that found nothing.
    vain: Debt,
    /// What those took that found damage.
    repairs: Debt,
}

/// Processor time that was taken in advance, at that moment.
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

impl Dataplane {
    /// Looks whether another process may have changed our tables: if so, the next sync repairs them.
    /// Costs a microsecond as long as no other process commits.
    ///
    /// # Errors
    /// If the kernel does not answer.
    pub fn check(&mut self, now: Instant) -> Result<bool, Error> {
        if self.committed.is_none() {
            return Ok(true);
        }
        self.note_generation()?;
        if !self.drift.suspected {
            return Ok(false);
        }
        if self.is_owner() && self.is_still_owner()? {
            self.drift.suspected = false;
            return Ok(false);
        }
        let drifted = self
            .has_structure()
            .and_then(|same| if same { self.has_other_elements(now) } else { Ok(true) });
        // Tables that cannot be read, as those that another process owns, fail the next sync.
        if !matches!(drifted, Ok(false)) {
            self.committed = None;
        }
        drifted
    }

    /// Notes whether another process has committed since the last call, or commit.
    pub(super) fn note_generation(&mut self) -> Result<(), Error> {
        let generation = self.kernel.generation()?.id;
        if let Some(known) = self.committed.as_mut().filter(|k| k.generation != generation) {
            known.generation = generation;
            self.drift.suspected = true;
        }
        Ok(())
    }

    fn is_still_owner(&mut self) -> Result<bool, Error> {
        let port = self.kernel.port();
        for family in Family::ALL {
            let table = self.kernel.table(table_family(family), TABLE)?;
            let hold =
                table.map(|table| Hold::of(table_family(family), table.flags, table.owner, port));
            if !matches!(hold, Some(Ok(Some(Hold::Ours)))) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// True if tables, sets, chains and rules are as committed.
    fn has_structure(&mut self) -> Result<bool, Error> {
        let (Some(known), Some(surroundings)) = (&self.committed, self.desired.surroundings())
        else {
            return Ok(false);
        };
        for family in Family::ALL {
            let found = read_structure(&mut *self.kernel, surroundings, family)?;
            if found != *known.holds.table(family) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// True if elements are not as committed. False as long as it is too early to look again.
    fn has_other_elements(&mut self, now: Instant) -> Result<bool, Error> {
        let (Some(known), Some(surroundings)) = (&self.committed, self.desired.surroundings())
        else {
            return Ok(true);
        };
        if self.drift.vain.at(now) > ADVANCE || self.drift.repairs.at(now) > REPAIR_ADVANCE {
            return Ok(false);
        }
        let started = processor_time();
        let wanted = Fingerprint::recorded(&known.holds, &self.hashes);
        let listed = Fingerprint::listed(&mut *self.kernel, &known.holds, &self.hashes)?;
        if listed != wanted || !known.holds.strays.is_empty() {
            let found = adopt(&mut *self.kernel, surroundings, &self.hashes, &[listed, wanted])?;
            if !found.1.holds_as(&known.holds) {
                self.drift.suspected = false;
                self.drift.repairs.add(processor_time().saturating_sub(started), now);
                self.found = Some(found);
                return Ok(true);
            }
        }
        self.drift.suspected = false;
        self.drift.vain.add(processor_time().saturating_sub(started), now);
        Ok(false)
    }
}

/// The processor time of this thread: a busy machine makes a comparison longer, but not dearer.
fn processor_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map(Duration::from).unwrap_or_default()
}
