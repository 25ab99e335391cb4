//! Finds out whether another process has changed our tables.
//!
//! A commit by anybody, to any table of the network namespace, makes a new generation. Most are none
//! of our business: CNI plugins, kubelet and iptables-nft commit all the time. So a new generation
//! leads to a look at tables, chains and rules, which is cheap, and to a comparison of all elements
//! at most so often that it takes a fortieth of a core.

use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_gettime};

use super::adopt::{adopt, read_structure};
use super::codec::table_family;
use super::ownership::Hold;
use super::sync::Dataplane;
use crate::model::Family;
use crate::nft::Error;
use crate::plan::TABLE;

/// The pause after a comparison of all elements, as a multiple of the processor time that it took:
/// 0.2 s for 100 000 elements.
const PAUSE_PER_COST: u32 = 40;

/// What is known of changes by other processes.
#[derive(Debug, Default)]
pub(super) struct Drift {
    /// Another process has committed since all elements were compared.
    suspected: bool,
    /// Not before this are all elements compared again.
    not_before: Option<Instant>,
}

impl Dataplane {
    /// Looks whether another process may have changed our tables: if so, the next sync repairs them.
    /// Costs a microsecond as long as nobody else commits.
    ///
    /// # Errors
    /// If the kernel does not answer.
    pub fn check(&mut self, now: Instant) -> Result<bool, Error> {
        let Some(known) = &mut self.committed else { return Ok(true) };
        let generation = self.kernel.generation()?.id;
        if generation != known.generation {
            known.generation = generation;
            self.drift.suspected = true;
        }
        if !self.drift.suspected {
            return Ok(false);
        }
        if known.holds.is_owned() && self.is_still_owner()? {
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
        if self.drift.not_before.is_some_and(|at| now < at) {
            return Ok(false);
        }
        let started = processor_time();
        let found = adopt(&mut *self.kernel, surroundings, Some(&known.holds))?;
        let cost = processor_time().saturating_sub(started);
        self.drift = Drift { suspected: false, not_before: now.checked_add(cost * PAUSE_PER_COST) };
        if found.1.holds_as(&known.holds) {
            return Ok(false);
        }
        self.found = Some(found);
        Ok(true)
    }
}

/// The processor time of this thread: a busy machine makes a comparison longer, but not dearer.
fn processor_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map(Duration::from).unwrap_or_default()
}
