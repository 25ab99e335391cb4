//! What the dataplane's thread reports.

use std::time::Duration;

use nfnetlink::nft::Writer;
use shunt_core::model::{ChangeBatch, ChangeCounts};
use shunt_core::plan::Flows;

use super::{CommitStats, Error, Quarantined, Snapshot, SpecConflict, SyncReport};

/// What the dataplane's thread reports.
pub enum Event<'a> {
    /// The kernel holds what is planned. `wrote` is `None` if there was nothing to write.
    Synced {
        /// What was written.
        wrote: Option<SyncReport>,
        /// Frontends for which it changed where flows may stay.
        flows: Flows,
        /// What led to it: the batches since the sync before, without their changes.
        batches: Vec<ChangeBatch>,
        /// How many changes these brought.
        changes: ChangeCounts,
        /// What became of transactions since the last event.
        stats: CommitStats,
        /// What there is now.
        snapshot: std::sync::Arc<Snapshot>,
    },
    /// A sync failed; it is tried again after the pause, whatever changes meanwhile.
    Failed {
        /// Why.
        error: &'a Error,
        /// The pause.
        retry_in: Duration,
        /// What became of transactions since the last event.
        stats: CommitStats,
        /// Whether load balancers may send traffic to our Node; `None` if there is no such Node.
        node_is_eligible: Option<bool>,
    },
    /// Unused chains, or stale entries of session affinity, were to be deleted behind the syncs.
    CleanedUp {
        /// What became of transactions since the last event.
        stats: CommitStats,
    },
    /// Another process had changed our tables; they are as planned again.
    Repaired {
        /// How many frontends, members and chains were not as committed.
        repaired: usize,
        /// Who writes to nf_tables, as far as the kernel tells: it names writers only while it is
        /// listened to, which it is for some seconds after the first repair.
        writers: &'a [Writer],
    },
    /// The kernel refuses a frontend; it is left out, the others are committed.
    Quarantined(&'a Quarantined),
    /// The kernel has taken it, or it is not wanted any more.
    Released(&'a Quarantined),
    /// Two Services want one frontend.
    Conflict(&'a SpecConflict),
}
