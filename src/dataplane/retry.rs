//! What the dataplane learns from a refused transaction, for the next attempt of the sync.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use nfnetlink::nft::{self, Refusal};
use nix::errno::Errno;
use shunt_core::model::{Backend, Family};
use shunt_core::plan::{ChainName, Frontend, FrontendKey};

use super::Dataplane;
use super::gone::is_about_gone;
use super::quarantine::Suspect;
use super::refusal::{Blame, blame, is_about_affinity};

/// A Service with fewer slots to write is not to blame for the size of a transaction. If there is no
/// other, the node lacks memory for the moment, or the transaction has many small Services.
const LARGE: usize = 1_000;

/// The number of times that a sync reads the kernel: another process may go on with what it does. After
/// that, what the kernel refuses is to blame.
const READINGS: u32 = 3;

/// The consequences of refusals within a sync.
#[derive(Default)]
pub(super) struct Lessons {
    /// The number of times that the sync has read the kernel.
    pub(super) readings: u32,
    /// Every element gets a message of its own.
    pub(super) isolated: bool,
    /// The kernel is asked again for what it lacks.
    pub(super) has_asked: bool,
    /// The socket was replaced.
    pub(super) reconnected: bool,
}

impl Dataplane {
    /// Handles a refusal. Returns false if another attempt would not help.
    pub(super) fn finds_a_way_around(
        &mut self,
        error: &nft::Error,
        lessons: &mut Lessons,
        now: Instant,
    ) -> Result<bool, nft::Error> {
        match error {
            error if is_about_size(error) => Ok(self.leaves_out_the_largest(error, now)),
            nft::Error::Refused(refusals) => Ok(self.mend(refusals, lessons, now)),
            error if is_disconnected(error) && !lessons.reconnected => {
                // The tables of the old socket have no owner now.
                lessons.reconnected = true;
                self.state.lose();
                self.kernel.reconnect()?;
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    fn mend(&mut self, refusals: &[Refusal], lessons: &mut Lessons, now: Instant) -> bool {
        // An entry expired and was stored anew while it was to be deleted.
        if refusals.iter().all(is_about_affinity) {
            return true;
        }
        // The kernel may differ from the record.
        let surprised = |refusal: &Refusal| {
            matches!(refusal.errno, Errno::EEXIST | Errno::ENOENT | Errno::EBUSY)
        };
        if lessons.readings < READINGS && refusals.iter().any(surprised) {
            self.state.lose();
            self.stats.refused = self.stats.refused.saturating_sub(1);
            self.stats.overtaken += 1;
            return true;
        }
        // Services work without resets.
        if refusals.iter().any(is_about_gone) && self.gone.give_up() {
            let reasons: Vec<String> = refusals.iter().map(ToString::to_string).collect();
            tracing::error!(
                "cannot reset connections to gone endpoints, the kernel refuses the rules: {}; \
                 turn shunt.resetGoneEndpoints off",
                reasons.join("; ")
            );
            return true;
        }
        match blame(refusals, |family, chain| self.users(family, chain)) {
            Blame::Everything => {
                // The kernel may lack what it seemed to have.
                self.knows_kernel = false;
                !std::mem::replace(&mut lessons.has_asked, true)
            }
            Blame::SomeElement => !std::mem::replace(&mut lessons.isolated, true),
            Blame::Suspects(suspects) => {
                for (suspect, reason) in suspects {
                    self.quarantine.add(suspect, &reason, now);
                }
                // Of the elements of one message the kernel names only the first.
                lessons.isolated = true;
                true
            }
        }
    }

    /// Puts the Service with the most slots to write into quarantine: without it, the transaction
    /// may be small enough. Returns false if no Service is large.
    fn leaves_out_the_largest(&mut self, error: &nft::Error, now: Instant) -> bool {
        let Some(current) = self.state.current() else { return false };
        let mut services: BTreeMap<String, (usize, Vec<FrontendKey>)> = BTreeMap::new();
        let compared = current.compared(&self.desired);
        let held = |key: &&FrontendKey| self.quarantine.holds(Suspect::Frontend(**key));
        for key in compared.frontends.iter().filter(|key| !held(key)) {
            let old = current.record.frontend(*key).map(|it| &it.frontend);
            let new = self.desired.frontend(*key).map(|new| current.record.next(*key, new));
            let new = new.as_ref().map(|it| &it.frontend);
            let Some(any) = new.or(old).filter(|_| old != new) else { continue };
            let service = any.label.split(':').next().unwrap_or_default().to_owned();
            let (slots, keys) = services.entry(service).or_default();
            *slots += changed_slots(old, new);
            keys.push(*key);
        }
        let largest = services.into_values().max_by_key(|(slots, _)| *slots);
        let Some((slots, keys)) = largest.filter(|(slots, _)| *slots >= LARGE) else {
            return false;
        };
        let reason: Arc<str> =
            format!("{error}; the Service has the most elements in this transaction, {slots}")
                .into();
        for key in keys {
            self.quarantine.add(Suspect::Frontend(key), &reason, now);
        }
        let rebuilds = |family| current.record.ours(family).is_some_and(|table| table.rebuild);
        if Family::ALL.into_iter().any(rebuilds) || current.record.replaces_a_table() {
            // The sets may be large enough without that Service.
            self.state.lose();
        }
        true
    }

    /// Returns the uncommitted frontends that need a chain.
    fn users(&self, family: Family, chain: ChainName) -> Vec<FrontendKey> {
        let Some(current) = self.state.current() else { return Vec::new() };
        let uses = |key: &FrontendKey| {
            let frontend = self.desired.frontend(*key).map(|it| current.record.next(*key, it));
            frontend.is_some_and(|it| it.frontend.chains(*key).any(|name| name == chain))
        };
        let compared = current.compared(&self.desired);
        let of_family = compared.frontends.iter().copied().filter(|key| key.family() == family);
        of_family.filter(uses).collect()
    }
}

/// Returns true if socket or kernel found the transaction too large, or had too little memory for it.
fn is_about_size(error: &nft::Error) -> bool {
    let want = [Errno::ENOMEM, Errno::ENOBUFS, Errno::EMSGSIZE];
    match error {
        nft::Error::TooLarge { .. } => true,
        nft::Error::Send { reason, .. } => {
            reason.raw_os_error().is_some_and(|code| want.contains(&Errno::from_raw(code)))
        }
        nft::Error::Refused(refusals) => refusals.iter().any(|it| it.errno == Errno::ENOMEM),
        _ => false,
    }
}

/// Returns the number of slots that differ.
fn changed_slots(old: Option<&Frontend>, new: Option<&Frontend>) -> usize {
    let old = old.map(Frontend::all_pools).unwrap_or_default();
    let new = new.map(Frontend::all_pools).unwrap_or_default();
    let changed = |(old, new): (&[Backend], &[Backend])| {
        let same = old.iter().zip(new).filter(|(old, new)| old == new).count();
        old.len().max(new.len()) - same
    };
    old.into_iter().zip(new).map(changed).sum()
}

/// Returns true if the error makes the socket unusable.
fn is_disconnected(error: &nft::Error) -> bool {
    let (nft::Error::Send { reason, .. } | nft::Error::Receive(reason)) = error else {
        return false;
    };
    let gone = [Errno::EBADF, Errno::ENOTSOCK, Errno::ENOTCONN, Errno::EPIPE, Errno::ECONNREFUSED];
    reason.raw_os_error().is_some_and(|code| gone.contains(&Errno::from_raw(code)))
}
