//! Keeps the kernel equal to the plan: what was committed, what differs, one transaction for it.
//!
//! Owns: the translation of the plan's elements and rules into those of nf_tables (`codec`,
//! `translate`), the record of what the kernel holds (`committed`, `places`), the difference
//! between both, and the thread that commits ([`spawn`]).
//!
//! Must not know: Kubernetes, files, HTTP. It is handed [`Change`](shunt_core::model::Change)s and
//! reports what became of them.

mod adopt;
mod affinity;
mod codec;
mod committed;
mod diff;
mod drift;
mod fingerprint;
mod ownership;
mod places;
mod quarantine;
mod queue;
mod refusal;
mod remove;
mod sync;
mod tally;
#[cfg(test)]
mod tests;
mod transaction;
mod translate;
mod worker;

pub use ownership::Ownership;
pub use quarantine::Suspect;
pub use queue::{Backlog, Orders, Stopped};
pub use refusal::Error;
pub(crate) use remove::{IPTABLES, KUBE_PROXY, is_kube_proxys};
pub use remove::{Removed, Scope, remove};
pub use sync::{Dataplane, Quarantined};
pub use tally::{Commit, Tally};
pub use transaction::{Prepared, SyncReport};
pub use worker::{Cause, ChangeCounts, Configure, Event, Order, Pace, Update, spawn};
