//! One transaction: the difference between plan and record, as messages to the kernel.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::time::Instant;

use nfnetlink::nft::{self, Batch, Elements, FinishedBatch};
use shunt_core::model::Family;
use shunt_core::plan::{
    Chain, ChainName, LAYOUT_COMMENT, Set, TABLE, base_chains, on_demand_chain,
};

use super::Dataplane;
use super::affinity::{delete_stale, kept};
use super::capacity::{self, sizes_for};
use super::codec::table_family;
use super::counters;
use super::diff::{Delta, Stale};
use super::gone::GoneDelta;
use super::ownership::{OWNED, TableOwner, add_set, create_table};
use super::quarantine::Suspect;
use super::record::{Table, TableState};
use super::slots::pools_with_affinity;
use super::state::{Current, Difference};
use super::translate::{base_chain, expressions};

/// The size of a committed transaction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SyncReport {
    /// Number of messages.
    pub messages: u32,
    /// The size in bytes.
    pub bytes: usize,
    /// Number of added elements.
    pub added: usize,
    /// Number of deleted elements.
    pub deleted: usize,
    /// Number of frontends, members and chains that another process had modified.
    pub repaired: usize,
}

/// A transaction, with the new state of the record after its commit.
pub(super) struct Prepared {
    batch: FinishedBatch,
    delta: Delta,
    /// The changed tables as they are after the commit.
    tables: Vec<(Family, Table)>,
    /// The families whose table has a set that is too small for the plan.
    pub(super) too_small: Vec<Family>,
    gone: Vec<(Family, GoneDelta)>,
    repaired: usize,
    /// The affinity entries that may be stale.
    pub(super) stale: Stale,
    /// The families with stale entries, and the time of the listing.
    pub(super) forgotten: BTreeSet<Family>,
    pub(super) at: Instant,
}

impl Prepared {
    /// The transaction.
    #[must_use]
    pub(super) fn batch(&self) -> &FinishedBatch {
        &self.batch
    }

    /// Makes the transaction from the record to the plan, which may be empty. `None` without a record
    /// or a plan. With `isolated`, every element has a message of its own, so that a refusal names
    /// just one.
    pub(super) fn new(
        dataplane: &mut Dataplane,
        isolated: bool,
        now: Instant,
    ) -> Result<Option<Prepared>, nft::Error> {
        let Dataplane {
            kernel,
            desired,
            state,
            quarantine,
            policy,
            looks,
            gone: gone_endpoints,
            ..
        } = dataplane;
        let (Some(node_context), Some(current)) = (desired.node_context(), state.current()) else {
            return Ok(None);
        };
        let wanted_gone = gone_endpoints.wanted(now);
        let record = &current.record;
        let compared = current.compared(desired);
        let mut batch = Batch::new(None);
        let mut delta = Delta::between(record, desired, &compared, quarantine, isolated);
        let mut stale = current.stale.clone();
        stale.merge(&delta.stale);
        let is_known = matches!(current.difference, Difference::Planned(_));
        let mut forgotten = BTreeSet::new();
        let (mut tables, mut too_small, mut gone) = (Vec::new(), Vec::new(), Vec::new());
        let mut chains = 0;
        for family in Family::ALL.into_iter().filter(|it| node_context.options.has(*it)) {
            let table = table_family(family);
            let counts = delta.counts_after(record, family);
            let owned = policy.creates_owned_tables();
            // The table after the commit.
            let mut next = match record.ours(family) {
                Some(table) => Cow::Borrowed(table),
                None => {
                    let owner = if owned { TableOwner::Ours } else { TableOwner::Shared };
                    Cow::Owned(Table::new(owner, sizes_for(&counts)))
                }
            };
            if capacity::are_too_small(&next.sizes, &counts) {
                too_small.push(family);
            }
            if next.rebuild {
                let next = next.to_mut();
                (next.sizes, next.rebuild) = (sizes_for(&counts), false);
                make_sets_anew(family, next, &mut batch);
            }
            let is_new = record.ours(family).is_none();
            if is_new {
                let mut entries = Elements::new();
                if *record.table(family) == TableState::Unusable {
                    entries = kept(&mut **kernel, family, desired)?;
                    batch.delete_table(table, TABLE);
                }
                create_table(family, if owned { OWNED } else { 0 }, &next.sizes, &mut batch);
                batch.add_elements(table, TABLE, Set::Affinity.name(), &entries);
            } else if let Some(narrowed) = looks.due(family, &stale, is_known, now) {
                // Frontends in quarantine stay unchanged.
                let pools = |key| {
                    if quarantine.holds(Suspect::Frontend(key)) {
                        return record.frontend(key)?.pools_with_affinity();
                    }
                    desired.frontend(key).and_then(pools_with_affinity)
                };
                if delete_stale(&mut **kernel, family, pools, &narrowed, &mut batch)? {
                    forgotten.insert(family);
                }
            }
            let own = node_context.options.tcp_timeouts;
            if let Some(own) = own.filter(|own| !next.timeouts.contains(own)) {
                batch.add_tcp_timeouts(table, TABLE, &own.name(), own.seconds());
                next.to_mut().timeouts.insert(own);
            }
            let (recorded, of) = (record.gone(family), (family, is_new));
            let of_family = GoneDelta::write(&mut next, recorded, of, &wanted_gone, &mut batch);
            let base = if compared.chains { base_chains(node_context, family) } else { Vec::new() };
            let needed = delta.chains.iter().filter(|(of, _)| *of == family).map(|(_, name)| *name);
            // Also chains that another process modified, without changes of their frontends.
            let doubtful = next.chains.iter().filter(|(_, chain)| chain.is_none());
            let doubtful = doubtful.map(|(name, _)| *name).filter(|it| !it.is_for_gone_endpoints());
            let on_demand: BTreeSet<ChainName> = needed.chain(doubtful).collect();
            let wanted: Vec<Chain> = base
                .into_iter()
                .chain(on_demand.into_iter().filter_map(on_demand_chain))
                .chain(of_family.chains.iter().cloned())
                .filter(|chain| !next.has(chain))
                .collect();
            chains += wanted.len();
            write_chains(family, wanted, &mut next, &mut batch);
            if next.owner == TableOwner::Orphan && policy.takes_over() {
                // After this message, the kernel adds no base chain (`__NFT_TABLE_F_UPDATE`).
                batch.add_table(table, TABLE, OWNED, LAYOUT_COMMENT);
                next.to_mut().owner = TableOwner::Ours;
            }
            of_family.end(family, &mut next, &mut batch);
            gone.push((family, of_family));
            if let Cow::Owned(table) = next {
                tables.push((family, table));
            }
        }
        // Late, because connections between the reading and the commit are not counted.
        delta.continue_counters(|all| counters::read(&mut **kernel, all));
        for family in Family::ALL {
            delta.write(family, &mut batch);
        }
        let repaired = match &current.difference {
            Difference::Reread(planned) if !batch.is_empty() => {
                let chains = if planned.chains { 0 } else { chains };
                delta.beside(planned) + record.strays.len() + chains
            }
            _ => 0,
        };
        let batch = batch.finish();
        Ok(Some(Prepared {
            batch,
            delta,
            tables,
            too_small,
            gone,
            repaired,
            stale,
            forgotten,
            at: now,
        }))
    }

    /// Returns true if there is nothing to write.
    pub(super) fn is_empty(&self) -> bool {
        self.batch.messages() == 0
    }

    /// Updates the record after the commit.
    pub(super) fn enter(self, current: &mut Current) -> SyncReport {
        let (messages, bytes) = (self.batch.messages(), self.batch.bytes().len());
        // At a start, this is much memory, and the record needs some.
        drop(self.batch);
        current.advance();
        let record = &mut current.record;
        for (family, table) in self.tables {
            record.set_table(family, TableState::Ours(table));
        }
        let (mut added, mut deleted) = self.delta.counts();
        self.delta.enter(record);
        for (family, gone) in self.gone {
            let (more, fewer) = gone.counts;
            (added, deleted) = (added + more, deleted + fewer);
            gone.enter(record, family);
        }
        SyncReport { messages, bytes, added, deleted, repaired: self.repaired }
    }
}

/// Makes the sets of a table anew, without their elements, but for the entries of session affinity. The
/// rules that refer to them go first.
fn make_sets_anew(family: Family, next: &Table, batch: &mut Batch) {
    let table = table_family(family);
    for (chain, _) in next.chains.iter().filter(|(_, chain)| chain.is_none()) {
        batch.flush_chain(table, TABLE, &chain.to_string());
    }
    for set in Set::ALL.into_iter().filter(|set| !set.is_dynamic()) {
        batch.delete_set(table, TABLE, set.name());
        add_set(family, set, &next.sizes, batch);
    }
}

/// Writes all chains before the first rule, so that rules can refer to any chain. Replaces the
/// rules of existing chains.
fn write_chains(family: Family, wanted: Vec<Chain>, next: &mut Cow<'_, Table>, batch: &mut Batch) {
    let table = table_family(family);
    for chain in &wanted {
        let name = chain.name.to_string();
        if next.chains.contains_key(&chain.name) {
            batch.flush_chain(table, TABLE, &name);
        } else {
            batch.add_chain(table, TABLE, &name, chain.base.map(base_chain));
        }
    }
    for chain in wanted {
        let name = chain.name.to_string();
        for rule in &chain.rules {
            let exprs = expressions(family, rule);
            batch.add_rule(table, TABLE, &name, &exprs, rule.comment.as_deref());
        }
        next.to_mut().chains.insert(chain.name, Some(chain));
    }
}
