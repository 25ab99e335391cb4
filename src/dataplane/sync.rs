//! One sync: plan what is dirty, compare with the record, commit the difference.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use super::adopt::adopt;
use super::affinity::{Forget, forget_gone};
use super::codec::{decode_key, set_type, table_family};
use super::committed::{Committed, TableState};
use super::diff::Delta;
use super::translate::{base_chain, expressions};
use crate::model::{Change, Dirty, Family, Protocol, Store};
use crate::nft::{self, Batch, FinishedBatch, Kernel, Refusal, Socket, TableFamily};
use crate::plan::{
    Chain, ChainName, Conflict, Desired, Flows, Key, LAYOUT_COMMENT, Options, Set, TABLE, Touched,
    base_chains, on_demand_chain,
};

/// How often a sync starts over because others write to nf_tables at the same time.
const ATTEMPTS: usize = 50;

/// Why a sync failed. The kernel holds what it held before, and the next sync tries again.
#[derive(Debug)]
pub struct Error {
    source: nft::Error,
    /// The refused elements in the words of the cluster.
    refused: Vec<String>,
}

impl Error {
    /// True if somebody else, or the kernel itself, changed something meanwhile: another writer, or
    /// an affinity that timed out and was learned anew while it was to be deleted.
    fn is_transient(&self) -> bool {
        match &self.source {
            nft::Error::StaleGeneration => true,
            nft::Error::Refused(refusals) => {
                refusals.iter().all(|refusal| refusal.object == Set::Affinity.name())
            }
            _ => false,
        }
    }

    /// What nf_tables said.
    #[must_use]
    pub fn kernel(&self) -> &nft::Error {
        &self.source
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.source)?;
        if !self.refused.is_empty() {
            write!(f, "; concerned: {}", self.refused.join(", "))?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

impl From<nft::Error> for Error {
    fn from(source: nft::Error) -> Error {
        Error { source, refused: Vec::new() }
    }
}

/// What a sync wrote.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
}

/// A transaction with what the record will say once it is committed.
pub struct Prepared {
    batch: FinishedBatch,
    delta: Delta,
    chains: Vec<(Family, Chain)>,
    created: Vec<Family>,
    /// Where clients may have to forget backends.
    forget: Forget,
}

impl Prepared {
    /// The transaction.
    #[must_use]
    pub fn batch(&self) -> &FinishedBatch {
        &self.batch
    }
}

/// The dataplane of one network namespace.
pub struct Dataplane {
    kernel: Box<dyn Kernel>,
    store: Store,
    dirty: Dirty,
    desired: Desired,
    /// What the kernel holds, and the generation at which that was so. `None`: not known.
    committed: Option<(u32, Committed)>,
    /// What may differ from the record, from the plan's changes that are not committed yet.
    pending: Touched,
    /// Where affinity may name backends that are gone.
    forget: Forget,
    /// UDP frontends whose flows have to be looked at once the kernel holds what is planned.
    flows: Flows,
}

impl Dataplane {
    /// Opens nf_tables in the network namespace of this thread. Writes nothing.
    ///
    /// # Errors
    /// If the kernel has no nf_tables, or does not let us use it.
    pub fn open(options: Options, node_name: &str) -> Result<Dataplane, nft::Error> {
        Dataplane::with_kernel(Box::new(Socket::open()?), options, node_name)
    }

    /// As [`Dataplane::open`], with another kernel.
    ///
    /// # Errors
    /// If it does not answer.
    pub fn with_kernel(
        mut kernel: Box<dyn Kernel>,
        options: Options,
        node_name: &str,
    ) -> Result<Dataplane, nft::Error> {
        kernel.generation()?;
        Ok(Dataplane {
            kernel,
            store: Store::new(),
            dirty: Dirty::default(),
            desired: Desired::new(options, node_name),
            committed: None,
            pending: Touched::default(),
            forget: Forget::default(),
            flows: Flows::new(),
        })
    }

    /// Takes in a change; the next sync acts on it.
    pub fn apply(&mut self, change: Change) {
        self.store.apply(change, &mut self.dirty);
    }

    /// Plans with other options or for another node; the next sync acts on it, with one transaction
    /// of what differs.
    pub fn configure(&mut self, options: Options, node_name: &str) {
        self.desired.configure(options, node_name);
        self.dirty.surroundings = true;
    }

    /// The UDP frontends for which it changed where flows may stay; to be called after a sync that
    /// went well.
    pub fn take_flows(&mut self) -> Flows {
        std::mem::take(&mut self.flows)
    }

    /// The objects that are known.
    #[must_use]
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// The frontends that several Services want, as of the last sync.
    pub fn conflicts(&self) -> impl Iterator<Item = &Conflict> {
        self.desired.conflicts()
    }

    /// What is planned, as of the last sync.
    #[must_use]
    pub fn desired(&self) -> &Desired {
        &self.desired
    }

    /// How many frontends the kernel holds, as of the last sync.
    #[must_use]
    pub fn frontend_count(&self) -> usize {
        self.committed.as_ref().map_or(0, |(_, committed)| committed.frontend_count())
    }

    /// Brings the kernel up to the objects that are known. `None` if there was nothing to write.
    ///
    /// # Errors
    /// Nothing was written then; what differs stays noted for the next sync.
    pub fn sync(&mut self) -> Result<Option<SyncReport>, Error> {
        for _ in 1..ATTEMPTS {
            match self.try_sync() {
                Err(error) if error.is_transient() => {}
                other => return other,
            }
        }
        self.try_sync()
    }

    fn try_sync(&mut self) -> Result<Option<SyncReport>, Error> {
        let Some(prepared) = self.prepare()? else { return Ok(None) };
        let forget = prepared.forget.clone();
        let report = self.commit(prepared)?;
        // A packet on its way during the commit may have learned again what was just forgotten.
        self.sweep(&forget);
        Ok(Some(report))
    }

    /// Plans what is dirty and makes the transaction for it. `None` if there is nothing to write.
    ///
    /// # Errors
    /// If the kernel's state has to be read and cannot be.
    pub fn prepare(&mut self) -> Result<Option<Prepared>, Error> {
        if !self.store.is_synced() {
            return Ok(None);
        }
        self.desired.update(&self.store, &std::mem::take(&mut self.dirty));
        self.pending.merge(self.desired.take_touched());
        self.flows.extend(self.desired.take_flows());
        let Some(surroundings) = self.desired.surroundings() else {
            return Ok(None);
        };
        let (generation, committed) = match &self.committed {
            Some(known) => known,
            None => {
                let known = adopt(&mut *self.kernel, surroundings)?;
                self.pending.merge(self.desired.everything());
                self.pending.merge(known.1.everything());
                // Frontends that went while nobody looked: no flow may stay there.
                let udp = known.1.frontend_keys().filter(|key| key.protocol() == Protocol::Udp);
                let gone = udp.filter(|key| self.desired.frontend(*key).is_none());
                self.flows.extend(gone.map(|key| (key, Arc::default())));
                self.forget.families.extend(Family::ALL);
                self.committed.insert(known)
            }
        };
        let mut batch = Batch::new(Some(*generation));
        let delta = Delta::between(committed, &self.desired, &self.pending);
        let mut forget = self.forget.clone();
        forget.merge(&delta.forget);
        let mut chains = Vec::new();
        let mut created = Vec::new();
        for family in Family::ALL {
            if !matches!(committed.table(family), TableState::Ours { .. }) {
                create_table(family, committed.table(family), &mut batch);
                created.push(family);
            } else if forget.families.contains(&family) {
                let narrowed = &forget.narrowed;
                forget_gone(&mut *self.kernel, family, &self.desired, narrowed, &mut batch)?;
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
            chains.extend(wanted.into_iter().map(|chain| (family, chain)));
            delta.write(family, &mut batch);
        }
        if batch.is_empty() {
            self.pending = Touched::default();
            self.forget = Forget::default();
            return Ok(None);
        }
        Ok(Some(Prepared { batch: batch.finish(), delta, chains, created, forget }))
    }

    /// Commits a prepared transaction.
    ///
    /// # Errors
    /// Nothing was written then; what differs stays noted for the next sync.
    pub fn commit(&mut self, prepared: Prepared) -> Result<SyncReport, Error> {
        let Prepared { batch, delta, chains, created, .. } = prepared;
        if let Err(source) = self.kernel.commit(&batch) {
            return Err(self.failed(source));
        }
        let (added, deleted) = delta.counts();
        let Some((generation, committed)) = &mut self.committed else {
            return Err(nft::Error::StaleGeneration.into());
        };
        *generation = next_generation(*generation);
        for family in created {
            committed.set_table(family, TableState::Ours { chains: Default::default() });
        }
        for (family, chain) in chains {
            committed.set_chain(family, chain.name, Some(chain));
        }
        delta.record(committed);
        self.pending = Touched::default();
        self.forget = Forget::default();
        Ok(SyncReport {
            generation: *generation,
            messages: batch.messages(),
            bytes: batch.bytes().len(),
            added,
            deleted,
        })
    }

    /// Deletes what clients have learned of backends that are gone. What cannot be deleted now is
    /// tried again with the next sync.
    fn sweep(&mut self, forget: &Forget) {
        let Some((generation, _)) = &mut self.committed else { return };
        let mut batch = Batch::new(Some(*generation));
        let swept = forget.families.iter().try_for_each(|family| {
            forget_gone(&mut *self.kernel, *family, &self.desired, &forget.narrowed, &mut batch)
        });
        let swept = match swept {
            Ok(()) if batch.is_empty() => return,
            Ok(()) => self.kernel.commit(&batch.finish()),
            Err(error) => Err(error),
        };
        match swept {
            Ok(()) => *generation = next_generation(*generation),
            Err(_) => self.forget.merge(forget),
        }
    }

    /// Deletes chains that nothing goes to any more: in a transaction of its own, since before
    /// kernel 6.2 a chain counts as referred to for a moment after the element was deleted.
    /// Returns true if some are left for a later call.
    pub fn tidy(&mut self) -> bool {
        let Some((generation, committed)) = &mut self.committed else {
            return false;
        };
        let unused = committed.unused_chains();
        if unused.is_empty() {
            return false;
        }
        let mut batch = Batch::new(Some(*generation));
        for (family, name) in &unused {
            batch.delete_chain(table_family(*family), TABLE, &name.to_string());
        }
        if self.kernel.commit(&batch.finish()).is_err() {
            // Refused, or somebody else wrote: an unused chain does no harm, a later sync finds
            // out what is there.
            return true;
        }
        *generation = next_generation(*generation);
        for (family, name) in unused {
            committed.set_chain(family, name, None);
        }
        false
    }

    /// True if there are chains that [`Dataplane::tidy`] would delete.
    #[must_use]
    pub fn is_untidy(&self) -> bool {
        self.committed.as_ref().is_some_and(|(_, c)| !c.unused_chains().is_empty())
    }

    /// Names what was refused, and forgets the record where it can be wrong.
    fn failed(&mut self, source: nft::Error) -> Error {
        let refused = match &source {
            nft::Error::Refused(refusals) => self.name(refusals),
            _ => Vec::new(),
        };
        // The kernel's judgement may come from a difference between the record and the kernel.
        self.committed = None;
        Error { source, refused }
    }

    fn name(&self, refusals: &[Refusal]) -> Vec<String> {
        let frontends = refusals.iter().flat_map(|refusal| {
            let family = refusal.family.map(|family| match family {
                TableFamily::Ip => Family::V4,
                TableFamily::Ip6 => Family::V6,
            });
            let place = family.zip(Set::from_name(&refusal.object));
            refusal.keys.iter().filter_map(move |key| {
                let (family, set) = place?;
                match decode_key(family, set, key, None)? {
                    Key::Frontend(frontend) | Key::Pool(frontend, _) | Key::Source(frontend, _) => {
                        Some(frontend)
                    }
                    Key::Address(_) | Key::Hairpin(_) => None,
                }
            })
        });
        frontends
            .collect::<BTreeSet<_>>()
            .into_iter()
            .take(ATTEMPTS)
            .map(|key| match self.desired.frontend(key) {
                Some(frontend) => format!("{key} of {}", frontend.label),
                None => key.to_string(),
            })
            .collect()
    }
}

fn create_table(family: Family, state: &TableState, batch: &mut Batch) {
    let table = table_family(family);
    if *state == TableState::Unusable {
        batch.delete_table(table, TABLE);
    }
    batch.add_table(table, TABLE, LAYOUT_COMMENT);
    for set in Set::ALL {
        batch.add_set(table, TABLE, set.name(), &set_type(family, set));
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

/// The kernel counts one up per commit and leaves out 0 (`nf_tables_commit`).
fn next_generation(generation: u32) -> u32 {
    generation.wrapping_add(1).max(1)
}
