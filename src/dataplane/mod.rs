//! Keeps the kernel equal to the plan: the record, the difference, and one transaction for it.
//!
//! Owns: the translation of the plan's elements and rules into those of nf_tables (`codec`,
//! `translate`), the record of what the kernel holds (`record`, `slots`), the difference
//! between both, and the thread that commits ([`spawn`]).
//!
//! Must not know: Kubernetes, files, HTTP. It receives [`Change`](shunt_core::model::Change)s and
//! reports events.

mod abilities;
mod affinity;
mod capacity;
mod codec;
mod command;
mod comparison;
mod counters;
mod diff;
mod drift;
mod event;
mod gone;
pub mod kube_proxy;
mod listing;
mod lookups;
mod ownership;
mod probe;
mod quarantine;
mod reading;
mod reconcile;
mod record;
mod refusal;
mod remove;
mod retry;
mod slots;
mod snapshot;
mod state;
mod stats;
mod stopwatch;
#[cfg(test)]
mod tests;
mod thread;
pub(crate) mod trace_table;
mod transaction;
mod translate;
mod unused_chains;
mod verdicts;
mod worker;

pub use abilities::Abilities;
pub(crate) use codec::table_family;
pub use command::{Backlog, Command, Commands, Configure, Stopped};
pub use comparison::{Place, Side, compare};
pub use diff::bytes_between;
pub use event::Event;
pub use lookups::KernelTables;
pub use ownership::Ownership;
pub use probe::refused_rules;
pub use quarantine::Suspect;
pub use reconcile::Dataplane;
pub(crate) use remove::{IPTABLES, KUBE_PROXY, is_kube_proxys};
pub use remove::{Removed, Scope, remove};
pub use snapshot::{Quarantined, Snapshot, SpecConflict, by_service};
pub use stats::{Commit, CommitStats};
pub use stopwatch::Stopwatch;
pub use thread::spawn;
pub use transaction::SyncReport;
pub(crate) use translate::rule_text;
pub use verdicts::{FrontendVerdict, Installed, Verdicts, add_verdicts, verdicts};
pub use worker::Pace;
