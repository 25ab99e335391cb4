//! One transaction: what is planned, compared with the record, as messages to the kernel.

use std::collections::BTreeSet;
use std::time::Instant;

use nfnetlink::nft::{self, Batch, FinishedBatch};
use shunt_core::model::Family;
use shunt_core::plan::{
    Chain, ChainName, LAYOUT_COMMENT, Set, TABLE, Touched, base_chains, on_demand_chain,
};

use super::adopt::adopt;
use super::affinity::{Found, Stale, delete, kept, ordered_with_affinity};
use super::codec::table_family;
use super::committed::{Committed, TableState};
use super::diff::Delta;
use super::ownership::{Hold, OWNED, Ownership, can_own, create_table};
use super::quarantine::Suspect;
use super::refusal::Error;
use super::sync::{Dataplane, Known, next_generation};
use super::translate::{base_chain, expressions};

/// What a sync wrote.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SyncReport {
    /// The generation that it made.
    pub generation: u32,
    /// Messages in the transaction.
    pub messages: u32,
    /// Its size in bytes.
    pub bytes: usize,
    /// Elements added.
    pub added: usize,
    /// Elements deleted.
    pub deleted: usize,
    /// Frontends, members and chains that somebody else had changed.
    pub repaired: usize,
}

/// A transaction with what the record will say once it is committed.
pub struct Prepared {
    batch: FinishedBatch,
    delta: Delta,
    chains: Vec<(Family, Chain)>,
    created: Vec<(Family, Hold)>,
    taken_over: Vec<Family>,
    repaired: usize,
    /// Where entries of session affinity may be stale.
    stale: Stale,
    /// Those of which this transaction deletes none.
    later: Stale,
}

impl Prepared {
    /// The transaction.
    #[must_use]
    pub fn batch(&self) -> &FinishedBatch {
        &self.batch
    }
}

impl Dataplane {
    /// Plans what is dirty and makes the transaction for it. `None` if there is nothing to write.
    ///
    /// # Errors
    /// If the kernel's state has to be read and cannot be.
    pub fn prepare(&mut self) -> Result<Option<Prepared>, Error> {
        if !self.store.is_synced() {
            return Ok(None);
        }
        self.desired.update(&self.store, &std::mem::take(&mut self.dirty));
        let touched = self.desired.take_touched();
        self.quarantine.release(&touched);
        self.pending.merge(touched);
        self.pending.merge(self.quarantine.try_again(Instant::now()));
        self.flows.merge(self.desired.take_flows());
        self.tally.full |= self.pending.chains || self.committed.is_none();
        // Our own part, should all have to be compared.
        let mut own = None;
        if self.committed.is_none() {
            if self.was_known {
                own = Some(self.pending.clone());
            }
            self.read()?;
        } else {
            self.note_generation()?;
        }
        let (Some(surroundings), Some(known)) = (self.desired.surroundings(), &self.committed)
        else {
            return Ok(None);
        };
        let committed = &known.holds;
        let mut batch = Batch::new(None);
        let (pending, quarantine) = (&self.pending, &self.quarantine);
        let delta = Delta::between(committed, &self.desired, pending, quarantine, self.isolated);
        let mut stale = self.stale.clone();
        stale.merge(&delta.stale);
        let mut later = Stale::default();
        let mut chains = Vec::new();
        let mut created = Vec::new();
        let mut taken_over = Vec::new();
        for family in Family::ALL {
            let table = table_family(family);
            match committed.hold(family) {
                None => {
                    if *committed.table(family) == TableState::Unusable {
                        batch.delete_table(table, TABLE);
                    }
                    let owned = self.ownership != Ownership::Share && self.can_own != Some(false);
                    create_table(family, if owned { OWNED } else { 0 }, &mut batch);
                    let entries = known.affinity.iter().filter(|(of, _)| *of == family);
                    for (_, entries) in entries {
                        batch.add_elements(table, TABLE, Set::Affinity.name(), entries);
                    }
                    created.push((family, if owned { Hold::Ours } else { Hold::Shared }));
                }
                Some(hold) => {
                    if hold == Hold::Orphan && self.ownership == Ownership::Own {
                        taken_over.push(family);
                    }
                    if stale.families.contains(&family) {
                        let (kernel, desired) = (&mut *self.kernel, &self.desired);
                        // What is in quarantine stays as it is.
                        let pools = |key| {
                            if quarantine.holds(Suspect::Frontend(key)) {
                                return committed.frontend(key)?.ordered_with_affinity();
                            }
                            desired.frontend(key).and_then(ordered_with_affinity)
                        };
                        match self.sweep.find(kernel, family, pools, &stale.narrowed)? {
                            Found::All(entries) => delete(family, &entries, &mut batch),
                            Found::Later => {
                                later.families.insert(family);
                                later.narrowed.clone_from(&stale.narrowed);
                            }
                        }
                    }
                }
            }
            let wanted =
                if self.pending.chains { base_chains(surroundings, family) } else { Vec::new() };
            let needed = delta.chains.iter().filter(|(of, _)| *of == family).map(|(_, name)| *name);
            // Those that somebody changed, also where no frontend that needs them did.
            let on_demand: BTreeSet<ChainName> =
                needed.chain(committed.doubtful_chains(family)).collect();
            let wanted: Vec<Chain> = wanted
                .into_iter()
                .chain(on_demand.into_iter().filter_map(on_demand_chain))
                .filter(|chain| committed.chain(family, chain.name) != Some(Some(chain)))
                .collect();
            write_chains(family, &wanted, committed, &mut batch);
            if taken_over.contains(&family) {
                // Behind it the kernel adds no base chain (`__NFT_TABLE_F_UPDATE`).
                batch.add_table(table, TABLE, OWNED, LAYOUT_COMMENT);
            }
            chains.extend(wanted.into_iter().map(|chain| (family, chain)));
            delta.write(family, &mut batch);
        }
        if batch.is_empty() {
            self.sweep.committed(&stale, later, Instant::now());
            self.settled();
            return Ok(None);
        }
        let repaired = own.map_or(0, |own| {
            let chains = if own.chains { 0 } else { chains.len() };
            delta.beside(&own) + committed.strays.len() + chains
        });
        let batch = batch.finish();
        Ok(Some(Prepared { batch, delta, chains, created, taken_over, repaired, stale, later }))
    }

    /// Commits a prepared transaction.
    ///
    /// # Errors
    /// Nothing was written then; what differs stays noted for the next sync.
    pub fn commit(&mut self, prepared: Prepared) -> Result<SyncReport, Error> {
        let Prepared { batch, delta, chains, created, taken_over, repaired, stale, later } =
            prepared;
        if let Err(source) = self.tally.commit(&mut *self.kernel, &batch) {
            return Err(Error::new(source, &self.desired));
        }
        let (added, deleted) = delta.counts();
        let Some(Known { generation, holds, affinity }) = &mut self.committed else {
            return Err(nft::Error::StaleGeneration.into());
        };
        *generation = next_generation(*generation);
        affinity.clear();
        for (family, hold) in created {
            if hold == Hold::Ours {
                self.can_own = Some(true);
            }
            holds.set_table(family, TableState::Ours { chains: Default::default(), hold });
        }
        for family in taken_over {
            holds.set_hold(family, Hold::Ours);
        }
        for (family, chain) in chains {
            holds.set_chain(family, chain.name, Some(chain));
        }
        delta.record(holds);
        let generation = *generation;
        self.sweep.committed(&stale, later, Instant::now());
        self.settled();
        Ok(SyncReport {
            generation,
            messages: batch.messages(),
            bytes: batch.bytes().len(),
            added,
            deleted,
            repaired,
        })
    }

    /// The kernel holds what is planned.
    fn settled(&mut self) {
        self.pending = Touched::default();
        self.stale = Stale::default();
        self.quarantine.committed();
        self.was_known = true;
    }

    /// Reads what the kernel holds, to be compared with all that is planned.
    fn read(&mut self) -> Result<(), Error> {
        let Some(surroundings) = self.desired.surroundings() else { return Ok(()) };
        let (generation, mut holds) = match self.found.take() {
            Some(found) => found,
            None => adopt(&mut *self.kernel, surroundings, &self.hashes, &[])?,
        };
        // Before the first commit all that is planned is pending.
        if self.was_known {
            self.pending.merge(self.desired.everything());
        }
        self.pending.merge(holds.everything());
        // Frontends that went while nobody looked: no flow may stay there.
        let gone = holds.frontend_keys().filter(|key| self.desired.frontend(*key).is_none());
        gone.for_each(|key| self.flows.end(key));
        self.stale.families.extend(Family::ALL);
        let families = |is: &dyn Fn(Family) -> bool| -> BTreeSet<Family> {
            Family::ALL.into_iter().filter(|family| is(*family)).collect()
        };
        let shared = families(&|family| holds.hold(family) == Some(Hold::Shared));
        let upgrade = self.ownership == Ownership::Own && !shared.is_empty();
        if self.can_own.is_none() && upgrade {
            self.can_own = Some(can_own(&mut *self.kernel)?);
        }
        let mut known = Known { generation, holds: Committed::default(), affinity: Vec::new() };
        let mut replaced = families(&|family| *holds.table(family) == TableState::Unusable);
        if upgrade && self.can_own == Some(true) {
            // Its flags cannot be set later, so it is replaced.
            replaced.extend(shared);
        }
        // What is in the table is written anew, and session affinity moves over.
        for family in replaced {
            let entries = kept(&mut *self.kernel, family, &self.desired)?;
            known.affinity.push((family, entries));
            holds.forget_table(family);
        }
        known.holds = holds;
        self.committed = Some(known);
        self.fresh = true;
        Ok(())
    }
}

/// Writes chains: all of them before the first rule, so that rules can refer to any; the rules of
/// a chain that exists are replaced.
fn write_chains(family: Family, wanted: &[Chain], committed: &Committed, batch: &mut Batch) {
    let table = table_family(family);
    for chain in wanted {
        let name = chain.name.to_string();
        if committed.chain(family, chain.name).is_some() {
            batch.flush_chain(table, TABLE, &name);
        } else {
            batch.add_chain(table, TABLE, &name, chain.base.map(base_chain));
        }
    }
    for chain in wanted {
        let name = chain.name.to_string();
        for rule in &chain.rules {
            let exprs = expressions(family, rule);
            batch.add_rule(table, TABLE, &name, &exprs, rule.comment);
        }
    }
}
