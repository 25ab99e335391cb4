//! Where the agent means to differ from kube-proxy.

use shunt_testbed::Protocol;

use crate::difference::{Compared, Fates};
use crate::flows::{Difference, Objects, Observed, State};

/// Why this difference is meant, if it is.
pub(crate) fn reason(compared: &Compared) -> Option<&'static str> {
    hairpin(compared).then_some(
        "a pod that is an endpoint on this node by any slice may reach itself through every \
             Service: our set has addresses, kube-proxy's also ports, and leaves out what a slice \
             has without a node",
    )
}

/// Why flows with equal pasts may differ, if they may.
pub(crate) fn reason_of_flow(found: &Difference, objects: &Objects) -> Option<&'static str> {
    let stay = found.reference.iter().all(|observed| observed.stays);
    let is = |protocol| found.shunt.iter().all(|observed| observed.protocol == protocol);
    let half_open = found.shunt.iter().all(|observed| observed.half_open);
    let serves = |observed: &Observed| {
        matches!(observed.state, Some(State::Ready | State::Terminating)) && objects.serves()
    };
    let leave = found.shunt.iter().all(|o| !o.stays && (o.state.is_none() || serves(o)));
    let has_none = |observed: &Observed| observed.state.is_none();
    let silent = |observed: &Observed| observed.muted && observed.reply == "silence";
    let answered = |observed: &Observed| {
        serves(observed) && (observed.reply == "answered" || silent(observed))
    };
    if !stay || !leave {
        None
    } else if is(Protocol::Udp) && !objects.serves() {
        Some(
            "kube-proxy leaves the connection tracking entries of Services that are deleted, or \
             have no endpoint any more: clients go on with an endpoint that is not theirs",
        )
    } else if is(Protocol::Udp)
        && found.reference.iter().all(has_none)
        && found.shunt.iter().all(answered)
    {
        Some(
            "kube-proxy leaves the entry of a flow that was sent to an external address or a node \
             port before the Service was there: the client never reaches it",
        )
    } else if is(Protocol::Tcp) && half_open && !found.reference.iter().any(serves) {
        Some(
            "kube-proxy leaves half-open connections at an endpoint that is gone until the client \
             gives up; shunt deletes their entries, so that the next SYN gets another endpoint",
        )
    } else {
        None
    }
}

/// The pod reaches itself with an address of the node, where kube-proxy lets the packet come back to
/// the pod from nowhere; nothing else differs.
fn hairpin(compared: &Compared) -> bool {
    let origin = compared.cell.origin;
    let more: Fates = compared.shunt.difference(&compared.reference).cloned().collect();
    let less: Fates = compared.reference.difference(&compared.shunt).cloned().collect();
    let to_itself = |fate: &String| {
        let reached =
            fate.split_once('←').map(|(server, source)| (server.split(':').next(), source));
        reached == Some((Some(origin), "192.0.2.10"))
            || reached == Some((Some(origin), "2001:db8:2::10"))
    };
    origin.starts_with("pod-")
        && !more.is_empty()
        && more.iter().all(to_itself)
        && less.iter().all(|fate| fate == "silence")
}
