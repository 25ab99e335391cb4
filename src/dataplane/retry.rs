//! What the dataplane learns from a refused transaction, for the next attempt of the sync.

use std::time::Instant;

use nfnetlink::nft::{self, Refusal, TableFamily};
use nix::errno::Errno;
use shunt_core::model::Family;
use shunt_core::plan::{ChainName, FrontendKey};

use super::Dataplane;
use super::gone::is_about_gone;
use super::ownership::{has_ipv6, is_about_flags, may_lack};
use super::refusal::{Blame, Error, blame, is_about_affinity};

/// The consequences of refusals within a sync.
#[derive(Default)]
pub(super) struct Lessons {
    /// The sync has read the kernel.
    pub(super) is_fresh: bool,
    /// Every element gets a message of its own.
    pub(super) isolated: bool,
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
    ) -> Result<bool, Error> {
        match error {
            nft::Error::Refused(refusals) if self.finds_no_ipv6(refusals)? => Ok(true),
            nft::Error::Refused(refusals)
                if self.policy.kernel_can.is_none() && refusals.iter().any(is_about_flags) =>
            {
                self.policy.kernel_can = Some(false);
                Ok(true)
            }
            nft::Error::Refused(refusals) => Ok(self.mend(refusals, lessons, now)),
            error if is_disconnected(error) && !lessons.reconnected => {
                // The tables of the old socket have no owner now.
                lessons.reconnected = true;
                self.state.lose();
                self.sweep.restart();
                self.kernel.reconnect()?;
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    /// Finds out whether the kernel refuses the table of IPv6 because it has no such tables. Then the
    /// plan has IPv4 only.
    fn finds_no_ipv6(&mut self, refusals: &[Refusal]) -> Result<bool, Error> {
        let current = self.state.current();
        let is_new = current.is_some_and(|known| known.record.owner(Family::V6).is_none());
        let may_lack = |family| refusals.iter().any(|refusal| may_lack(family, refusal));
        // Unknown flags and missing modules concern IPv4, too.
        let may_lack_ipv6 = is_new && may_lack(TableFamily::Ip6) && !may_lack(TableFamily::Ip);
        if !may_lack_ipv6 || has_ipv6(&mut *self.kernel)? {
            return Ok(false);
        }
        tracing::warn!(
            "the kernel has no nf_tables for IPv6 (CONFIG_NF_TABLES_IPV6); Services are reachable by \
             IPv4 only"
        );
        self.desired.set_ipv4_only();
        self.dirty.node_context = true;
        Ok(true)
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
        if !lessons.is_fresh && refusals.iter().any(surprised) {
            self.state.lose();
            self.stats.refused = self.stats.refused.saturating_sub(1);
            self.stats.overtaken += 1;
            return true;
        }
        // Services work without resets.
        if refusals.iter().any(is_about_gone) && self.gone.give_up() {
            let reasons: Vec<String> = refusals.iter().map(ToString::to_string).collect();
            tracing::error!(
                "connections to gone endpoints are not reset, the kernel refuses it: {}; turn \
                 shunt.resetGoneEndpoints off",
                reasons.join("; ")
            );
            return true;
        }
        match blame(refusals, |family, chain| self.users(family, chain)) {
            Blame::Everything => false,
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

    /// Returns the uncommitted frontends that need a chain.
    fn users(&self, family: Family, chain: ChainName) -> Vec<FrontendKey> {
        let Some(current) = self.state.current() else { return Vec::new() };
        let uses = |key: &FrontendKey| {
            let frontend = self.desired.frontend(*key).map(|it| current.record.next(*key, it));
            frontend.is_some_and(|it| it.frontend.chains(*key).any(|name| name == chain))
        };
        let compared = current.compared(&self.desired);
        let of_family = compared.frontends().iter().copied().filter(|key| key.family() == family);
        of_family.filter(uses).collect()
    }
}

/// Returns true if the error makes the socket unusable.
fn is_disconnected(error: &nft::Error) -> bool {
    let (nft::Error::Send { reason, .. } | nft::Error::Receive(reason)) = error else {
        return false;
    };
    let gone = [Errno::EBADF, Errno::ENOTSOCK, Errno::ENOTCONN, Errno::EPIPE, Errno::ECONNREFUSED];
    reason.raw_os_error().is_some_and(|code| gone.contains(&Errno::from_raw(code)))
}
