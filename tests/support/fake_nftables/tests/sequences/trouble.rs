//! What can go wrong between the dataplane and the kernel, one call after the other.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nfnetlink::nft::{Error, TableFamily};
use nix::errno::Errno;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use shunt_fake_nftables::{Call, Damage, Fault, Namespace, damage};

/// What becomes of one call.
#[derive(Debug, Clone)]
pub(crate) enum Trouble {
    Nothing,
    /// The kernel refuses one message of a transaction, whatever it says.
    Refused(Index, Errno),
    /// Somebody else was first.
    Stale,
    /// The transaction does not get to the kernel, or the answer of a listing not to us.
    Send(Errno),
    /// The transaction is applied, and the answer does not get to us.
    Lost,
    /// The rules change under a listing.
    Interrupted,
    /// The socket is of no use any more.
    Disconnected,
    /// Somebody else does something at this very moment.
    Foreign(TableFamily, Damage),
    /// The agent is killed, before the kernel does what it was asked for or after.
    Killed {
        done: bool,
    },
}

pub(crate) fn trouble() -> impl Strategy<Value = Trouble> {
    use Errno::{EBUSY, EEXIST, ENFILE, ENOBUFS, ENOENT, ENOMEM};
    prop_oneof![
        12 => Just(Trouble::Nothing),
        2 => (any::<Index>(), select(vec![ENOMEM, EBUSY, ENOENT, EEXIST, ENFILE]))
            .prop_map(|(message, errno)| Trouble::Refused(message, errno)),
        2 => Just(Trouble::Stale),
        2 => select(vec![ENOBUFS, ENOMEM]).prop_map(Trouble::Send),
        1 => Just(Trouble::Lost),
        2 => Just(Trouble::Interrupted),
        1 => Just(Trouble::Disconnected),
        1 => damage().prop_map(|(family, damage)| Trouble::Foreign(family, damage)),
        1 => any::<bool>().prop_map(|done| Trouble::Killed { done }),
    ]
}

/// The troubles to come; when they are used up, all goes well.
#[derive(Clone, Default)]
pub(crate) struct Troubles(Arc<Mutex<Script>>);

#[derive(Default)]
struct Script {
    coming: VecDeque<Trouble>,
    /// Somebody else did something since the last question.
    foreign: bool,
    /// The agent was killed since the last question.
    killed: bool,
}

impl Troubles {
    pub(crate) fn set(&self, troubles: &[Trouble]) {
        self.lock().coming = troubles.iter().cloned().collect();
    }

    /// True if there is more to come than there was to disturb.
    pub(crate) fn are_left(&self) -> bool {
        !self.lock().coming.is_empty()
    }

    pub(crate) fn note_foreign(&self) {
        self.lock().foreign = true;
    }

    pub(crate) fn take_foreign(&self) -> bool {
        std::mem::take(&mut self.lock().foreign)
    }

    pub(crate) fn take_killed(&self) -> bool {
        std::mem::take(&mut self.lock().killed)
    }

    /// What becomes of the next call.
    pub(crate) fn decide(&self, namespace: &Namespace, call: Call<'_>) -> Option<Fault> {
        let os = |errno: Errno| io::Error::from(errno);
        let gone = || Error::Receive(os(Errno::EBADF));
        let trouble = {
            let mut script = self.lock();
            if script.killed {
                return Some(Fault::Before(gone()));
            }
            let trouble = script.coming.pop_front()?;
            script.killed = matches!(trouble, Trouble::Killed { .. });
            trouble
        };
        Some(match (trouble, call) {
            (Trouble::Killed { done: false }, _) => Fault::Before(gone()),
            (Trouble::Killed { done: true }, _) => Fault::After(gone()),
            (Trouble::Foreign(family, damage), _) => {
                self.note_foreign();
                damage.inflict(family, &mut namespace.open()).err().map(Fault::Before)?
            }
            (Trouble::Refused(message, errno), Call::Commit(batch)) => {
                let message = 1 + message.index(batch.messages().max(1) as usize) as u32;
                Fault::Before(Error::Refused(vec![batch.refusal(message, errno, None)]))
            }
            (Trouble::Stale, Call::Commit(_)) => Fault::Before(Error::StaleGeneration),
            (Trouble::Send(errno), Call::Commit(batch)) => {
                Fault::Before(Error::Send { bytes: batch.bytes().len(), reason: os(errno) })
            }
            (Trouble::Disconnected, Call::Commit(batch)) => {
                let source = os(Errno::ENOTSOCK);
                Fault::Before(Error::Send { bytes: batch.bytes().len(), reason: source })
            }
            (Trouble::Send(errno), Call::Reconnect) => Fault::Before(Error::Open(os(errno))),
            (Trouble::Send(errno), _) => Fault::After(Error::Receive(os(errno))),
            (Trouble::Lost, _) => Fault::After(Error::Receive(os(Errno::ENOBUFS))),
            (Trouble::Interrupted, Call::List) => Fault::After(Error::Interrupted),
            _ => return None,
        })
    }

    fn lock(&self) -> MutexGuard<'_, Script> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
