//! One sync: plan what is dirty, compare with the record, commit the difference.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nfnetlink::nft::{self, Batch, Elements, Kernel, Refusal, Socket};
use nix::errno::Errno;
use shunt_core::model::{Change, Dirty, Family, Store};
use shunt_core::plan::{
    ChainName, Conflict, Desired, Flows, FrontendKey, Options, Set, TABLE, Touched,
};

use super::affinity::{Stale, Sweep};
use super::codec::table_family;
use super::committed::{Committed, Counts};
use super::drift::Drift;
use super::fingerprint::Hashes;
use super::ownership::{Ownership, is_about_flags};
use super::quarantine::{Quarantine, Suspect};
use super::refusal::{Error, Verdict, describe, judge};
use super::tally::Tally;
use super::transaction::SyncReport;

/// How often a sync starts over because the kernel refused it.
const ATTEMPTS: usize = 50;

/// The kernel's state as far as it is known.
pub(super) struct Known {
    /// The generation of that, as long as no other process has committed. Commits do not depend on it.
    pub(super) generation: u32,
    /// What the kernel holds.
    pub(super) holds: Committed,
    /// The entries of session affinity in tables that have to be replaced.
    pub(super) affinity: Vec<(Family, Elements)>,
}

/// The dataplane of one network namespace.
pub struct Dataplane {
    pub(super) kernel: Box<dyn Kernel>,
    pub(super) store: Store,
    pub(super) dirty: Dirty,
    pub(super) desired: Desired,
    pub(super) ownership: Ownership,
    /// Whether the kernel lets tables be owned; `None`: it has not been tried yet.
    pub(super) can_own: Option<bool>,
    /// `None`: to be read before the next commit.
    pub(super) committed: Option<Known>,
    /// It was read and right before.
    pub(super) was_known: bool,
    /// It was read since the sync began.
    pub(super) fresh: bool,
    /// What may differ from the record, from the plan's changes that are not committed yet.
    pub(super) pending: Touched,
    /// What the kernel refuses.
    pub(super) quarantine: Quarantine,
    /// To find out which element the kernel refuses.
    pub(super) isolated: bool,
    /// What was read by a check for drift, for the next sync.
    pub(super) found: Option<(u32, Committed)>,
    /// What is known of changes by other processes.
    pub(super) drift: Drift,
    pub(super) hashes: Hashes,
    /// Where entries of session affinity may be stale.
    pub(super) stale: Stale,
    pub(super) sweep: Sweep,
    /// Chains that no frontend needs, and since when.
    pub(super) unused: BTreeMap<(Family, ChainName), Instant>,
    /// Frontends whose flows have to be looked at once the kernel holds what is planned.
    pub(super) flows: Flows,
    pub(super) tally: Tally,
}

/// Something that the kernel refuses and that is therefore left out for the time being.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Quarantined {
    /// Which frontend or member it is.
    pub suspect: Suspect,
    /// The same in words, with the service port.
    pub what: String,
    /// The kernel's reason.
    pub reason: Arc<str>,
    /// When it is tried again.
    pub retry_at: Instant,
}

impl Dataplane {
    /// Opens nf_tables in the network namespace of this thread. Writes nothing.
    ///
    /// # Errors
    /// If the kernel has no nf_tables, or does not let us use it.
    pub fn open(
        options: Options,
        node_name: &str,
        ownership: Ownership,
    ) -> Result<Dataplane, nft::Error> {
        Dataplane::with_kernel(Box::new(Socket::open()?), options, node_name, ownership)
    }

    /// As [`Dataplane::open`], with another kernel.
    ///
    /// # Errors
    /// If it does not answer.
    pub fn with_kernel(
        mut kernel: Box<dyn Kernel>,
        options: Options,
        node_name: &str,
        ownership: Ownership,
    ) -> Result<Dataplane, nft::Error> {
        kernel.generation()?;
        Ok(Dataplane {
            kernel,
            store: Store::new(),
            dirty: Dirty::default(),
            desired: Desired::new(options, node_name),
            ownership,
            can_own: None,
            committed: None,
            was_known: false,
            fresh: false,
            pending: Touched::default(),
            quarantine: Quarantine::default(),
            isolated: false,
            found: None,
            drift: Drift::default(),
            hashes: Hashes::default(),
            stale: Stale::default(),
            sweep: Sweep::default(),
            unused: BTreeMap::new(),
            flows: Flows::default(),
            tally: Tally::default(),
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

    /// The frontends for which it changed where flows may stay; to be called after a sync that
    /// went well.
    pub fn take_flows(&mut self) -> Flows {
        std::mem::take(&mut self.flows)
    }

    /// What became of transactions since the last call.
    pub fn take_tally(&mut self) -> Tally {
        std::mem::take(&mut self.tally)
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
        self.committed.as_ref().map_or(0, |known| known.holds.frontend_count())
    }

    /// How many frontends of a family the kernel holds, and how many elements in each set, as of
    /// the last sync. Without [`Set::Affinity`], which the kernel fills by itself.
    #[must_use]
    pub fn counts(&self, family: Family) -> (usize, [usize; Set::ALL.len()]) {
        let counts = self.committed.as_ref().map(|known| *known.holds.counts(family));
        let Counts { frontends, elements } = counts.unwrap_or_default();
        (frontends, elements)
    }

    /// What the kernel refuses, as of the last sync, in order.
    pub fn quarantined(&self) -> impl Iterator<Item = Quarantined> {
        self.quarantine.entries().map(|(suspect, reason, retry_at)| Quarantined {
            suspect,
            what: describe(suspect, &self.desired),
            reason: reason.clone(),
            retry_at,
        })
    }

    /// When something in quarantine is to be tried again by a sync.
    #[must_use]
    pub fn next_trial(&self) -> Option<Instant> {
        self.quarantine.next_trial()
    }

    /// How many service ports are kept from the kernel, because it refuses a frontend of theirs; or,
    /// if there are none, how many addresses it refuses on their own.
    #[must_use]
    pub fn quarantined_service_ports(&self) -> usize {
        let label = |suspect: Suspect| match suspect {
            Suspect::Frontend(key) => self.desired.frontend(key).map(|frontend| &frontend.label),
            Suspect::Member(..) => None,
        };
        let suspects = || self.quarantine.entries().map(|(suspect, ..)| suspect);
        let ports: BTreeSet<_> = suspects().filter_map(label).collect();
        if ports.is_empty() { suspects().count() } else { ports.len() }
    }

    /// The generation of nf_tables that the record of what the kernel holds is about, if there is
    /// a record.
    #[must_use]
    pub fn generation(&self) -> Option<u32> {
        self.committed.as_ref().map(|known| known.generation)
    }

    /// True if nobody else can change our tables.
    #[must_use]
    pub fn is_owner(&self) -> bool {
        self.committed.as_ref().is_some_and(|known| known.holds.is_owned())
    }

    /// Brings the kernel up to the objects that are known. `None` if there was nothing to write.
    ///
    /// # Errors
    /// Nothing was written then; what differs stays noted for the next sync.
    pub fn sync(&mut self) -> Result<Option<SyncReport>, Error> {
        self.fresh = false;
        self.isolated = false;
        let mut reconnected = false;
        for _ in 1..ATTEMPTS {
            let error = match self.try_sync() {
                Ok(report) => return Ok(report),
                Err(error) => error,
            };
            match error.kernel() {
                nft::Error::Refused(refusals)
                    if self.can_own.is_none() && refusals.iter().any(is_about_flags) =>
                {
                    self.can_own = Some(false);
                }
                nft::Error::Refused(refusals) => {
                    if !self.mend(refusals) {
                        self.committed = None;
                        return Err(error);
                    }
                }
                kernel if is_disconnected(kernel) && !reconnected => {
                    // What the old socket owned is an orphan now.
                    reconnected = true;
                    self.committed = None;
                    self.sweep.restart();
                    self.kernel.reconnect()?;
                }
                _ => {
                    self.committed = None;
                    return Err(error);
                }
            }
        }
        self.try_sync()
    }

    /// Looks for a way around what the kernel refused. False if there is none.
    fn mend(&mut self, refusals: &[Refusal]) -> bool {
        // An entry expired and was stored anew while it was to be deleted.
        if refusals.iter().all(is_about_affinity) {
            return true;
        }
        // The kernel may hold something else than the record says.
        let surprised = |refusal: &Refusal| {
            matches!(refusal.errno, Errno::EEXIST | Errno::ENOENT | Errno::EBUSY)
        };
        if !self.fresh && refusals.iter().any(surprised) {
            self.committed = None;
            self.tally.refused = self.tally.refused.saturating_sub(1);
            self.tally.overtaken += 1;
            return true;
        }
        match judge(refusals, |family, chain| self.users(family, chain)) {
            Verdict::Everything => false,
            Verdict::SomeElement => !std::mem::replace(&mut self.isolated, true),
            Verdict::Suspects(suspects) => {
                self.set_aside(suspects);
                // Of the elements of one message the kernel names only the first.
                self.isolated = true;
                true
            }
        }
    }

    /// The planned frontends that wait to be committed and need a chain.
    fn users(&self, family: Family, chain: ChainName) -> Vec<FrontendKey> {
        let waiting = self.pending.frontends().iter().copied();
        let of_family = waiting.filter(|key| key.family() == family);
        let uses = |key: &FrontendKey| {
            let frontend = self.desired.frontend(*key);
            frontend.is_some_and(|frontend| frontend.chains(*key).any(|name| name == chain))
        };
        of_family.filter(uses).collect()
    }

    fn set_aside(&mut self, suspects: BTreeMap<Suspect, Arc<str>>) {
        let now = Instant::now();
        for (suspect, reason) in suspects {
            self.quarantine.add(suspect, &reason, now);
        }
    }

    fn try_sync(&mut self) -> Result<Option<SyncReport>, Error> {
        let Some(prepared) = self.prepare()? else { return Ok(None) };
        self.commit(prepared).map(Some)
    }

    /// Deletes the chains that no frontend has needed for so long: in a transaction of their own,
    /// since before kernel 6.2 a chain counts as referred to for a moment after the element was
    /// deleted. To be called now and then.
    pub fn remove_unused_chains(&mut self, now: Instant, keep: impl Fn(ChainName) -> Duration) {
        let Some(known) = &mut self.committed else { return };
        let unused = known.holds.unused_chains();
        self.unused.retain(|chain, _| unused.contains(chain));
        for chain in unused {
            self.unused.entry(chain).or_insert(now);
        }
        let is_due = |chain: ChainName, since: Instant| {
            now.checked_duration_since(since).is_some_and(|unused| unused >= keep(chain))
        };
        let due: Vec<(Family, ChainName)> = self
            .unused
            .iter()
            .filter(|((_, chain), since)| is_due(*chain, **since))
            .map(|(chain, _)| *chain)
            .collect();
        if due.is_empty() {
            return;
        }
        let mut batch = Batch::new(None);
        // Balancers with affinity come behind those without, which they refer to.
        for (family, name) in due.iter().rev() {
            batch.delete_chain(table_family(*family), TABLE, &name.to_string());
        }
        match self.tally.commit(&mut *self.kernel, &batch.finish()) {
            Ok(()) => {}
            // An unused chain does no harm, and is tried again.
            Err(nft::Error::Refused(_)) => return,
            Err(_) => {
                // Nobody knows whether they are gone.
                self.committed = None;
                return;
            }
        }
        known.generation = next_generation(known.generation);
        for (family, name) in due {
            known.holds.set_chain(family, name, None);
            self.unused.remove(&(family, name));
        }
    }

    /// True if there are chains that no frontend needs.
    #[must_use]
    pub fn has_unused_chains(&self) -> bool {
        self.committed.as_ref().is_some_and(|known| !known.holds.unused_chains().is_empty())
    }
}

/// True if the kernel refused an entry of session affinity.
pub(super) fn is_about_affinity(refusal: &Refusal) -> bool {
    // A chain, too, could have that name.
    !refusal.keys.is_empty() && refusal.object == Set::Affinity.name()
}

/// True if the socket is of no use any more.
fn is_disconnected(error: &nft::Error) -> bool {
    let (nft::Error::Send { reason, .. } | nft::Error::Receive(reason)) = error else {
        return false;
    };
    let gone = [Errno::EBADF, Errno::ENOTSOCK, Errno::ENOTCONN, Errno::EPIPE, Errno::ECONNREFUSED];
    reason.raw_os_error().is_some_and(|code| gone.contains(&Errno::from_raw(code)))
}

/// The kernel counts one up per commit and leaves out 0 (`nf_tables_commit`).
pub(super) fn next_generation(generation: u32) -> u32 {
    generation.wrapping_add(1).max(1)
}
