//! The events of the dataplane's thread.

use std::time::Duration;

use nfnetlink::nft::{Error, Writer};
use shunt_core::model::{ChangeBatch, ChangeCounts, ObjectName};
use shunt_core::plan::{Flows, LoopbackChanges};

use super::{CommitStats, Quarantined, Snapshot, SpecConflict, SyncReport};

/// An event of the dataplane's thread.
pub enum Event<'a> {
    /// A sync succeeded: the kernel holds the plan. `wrote` is `None` without a difference.
    Synced {
        /// The result of the transaction.
        wrote: Option<SyncReport>,
        /// Frontends with a change of the backends to which flows may stay.
        flows: Flows,
        /// Changes of node ports on loopback addresses.
        loopback: LoopbackChanges,
        /// The batches since the previous sync, with the changes that make the objects as they were
        /// before, in the order of what they undo.
        batches: Vec<ChangeBatch>,
        /// Syncs failed for so long that these changes are dropped.
        has_lost_changes: bool,
        /// The number of changes in these batches.
        changes: ChangeCounts,
        /// The transactions since the last event.
        stats: CommitStats,
        /// The state after the sync.
        snapshot: std::sync::Arc<Snapshot>,
    },
    /// The source has listed everything but the Node. The first sync waits for it: the tables do not
    /// remember it.
    Held {
        /// The source has sent that there is no Node.
        node_is_read: bool,
    },
    /// A sync failed; the retry follows after the pause, whatever changes meanwhile.
    Failed {
        /// The reason.
        error: &'a Error,
        /// The pause before the retry.
        retry_in: Duration,
        /// What became of transactions since the last event.
        stats: CommitStats,
        /// Whether load balancers may send traffic to the agent's Node; `None` if it does not
        /// exist.
        node_is_eligible: Option<bool>,
    },
    /// The thread deleted unused chains, or tried to.
    CleanedUp {
        /// What became of transactions since the last event.
        stats: CommitStats,
    },
    /// Another process had modified shunt's tables; they are repaired.
    Repaired {
        /// The number of modified frontends, members and chains.
        repaired: usize,
        /// The processes that write to nf_tables. The kernel names them only to a listener, and the
        /// agent listens only for some seconds after the first repair.
        writers: &'a [Writer],
    },
    /// The kernel refuses a frontend, and that many others of its Service for the same reason; the
    /// agent commits all else without them.
    Quarantined(&'a Quarantined, usize),
    /// The kernel has accepted a refused frontend and that many others of its Service, or the plan no
    /// longer has them.
    Released(&'a Quarantined, usize),
    /// Two Services claim one frontend.
    Conflict(&'a SpecConflict),
    /// The hash tables or weights of a Service would need too many elements.
    Oversized(&'a ObjectName),
}
