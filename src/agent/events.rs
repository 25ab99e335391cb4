//! The texts of Events. Reasons and actions are names that programs may rely on.

use shunt_core::model::ObjectName;
use shunt_core::plan::{Conflict, OVERSIZED};

use crate::dataplane::Quarantined;
use crate::dataplane::kube_proxy::KubeProxyTraces;
use crate::serve::events::{EventScope, Notice};

/// The action of Events about Services.
const PROGRAM: &str = "ProgramService";

/// The remedy for a frontend that the kernel refuses.
pub(super) const WHAT_TO_DO: &str = "fix the Service; the agent retries when it changes, and \
     periodically";

/// Returns the Event for the start of the agent.
pub(super) fn starting() -> Notice {
    let note = format!("shunt {} programs Services on this node", env!("CARGO_PKG_VERSION"));
    Notice { is_warning: false, ..Notice::of_node("Starting", "StartShunt", note) }
}

/// Returns the Event for a Service that lost a conflict over a frontend.
pub(super) fn conflict(conflict: &Conflict) -> Notice {
    let Conflict { frontend, winner, loser, reason } = conflict;
    let note =
        format!("{frontend} belongs to Service {winner} until that Service releases it: {reason}");
    Notice::of_service(loser, EventScope::Cluster, "FrontendConflict", PROGRAM, note)
}

/// Returns the Event for a Service whose hash tables or weights would need too many elements.
pub(super) fn oversized(service: &ObjectName) -> Notice {
    let note = OVERSIZED.to_owned();
    Notice::of_service(service, EventScope::Cluster, "TooManyElements", PROGRAM, note)
}

/// Returns the Event for a frontend that the kernel refuses.
pub(super) fn refused(quarantined: &Quarantined, others: usize) -> Notice {
    let note = format!(
        "the kernel refuses {}{}; on this node its previous state stays in effect, everything else \
         is programmed; {WHAT_TO_DO}: {}",
        quarantined.what,
        more(others),
        quarantined.reason
    );
    Notice {
        service: quarantined.service.clone(),
        scope: EventScope::Cluster,
        ..Notice::of_node("FrontendRefused", PROGRAM, note)
    }
}

/// The rest of a sentence about a frontend that is true for others of its Service.
pub(super) fn more(others: usize) -> String {
    match others {
        0 => String::new(),
        others => format!(" and {others} others of its Service"),
    }
}

/// Returns the Event for a repair after another process modified shunt's tables.
pub(super) fn repaired(repaired: usize, writers: &str) -> Notice {
    let note = format!(
        "another process modified shunt's tables in {repaired} places, and the agent repaired \
         them; writers: {writers}"
    );
    Notice::of_node("DriftRepaired", "RepairTables", note)
}

/// Returns the Event for a kube-proxy, or leftovers of it, on this node.
pub(super) fn kube_proxy_found(found: &KubeProxyTraces, what_to_do: &str) -> Notice {
    let note = format!("kube-proxy or its leftovers found on this node: {found}; {what_to_do}");
    Notice::of_node("KubeProxyFound", "LookForKubeProxy", note)
}
