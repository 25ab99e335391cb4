//! Where the agent means to differ from kube-proxy.

use crate::difference::{Compared, Fates};

/// A Service whose only slice has been given to another one.
pub(crate) const LEFT: &str = "left";

/// Why this difference is meant, if it is.
pub(crate) fn reason(compared: &Compared) -> Option<&'static str> {
    if hairpin(compared) {
        Some(
            "a pod that is an endpoint on this node by any slice may reach itself through every \
             Service: our set has addresses, kube-proxy's also ports, and leaves out what a slice \
             has without a node",
        )
    } else if compared.cell.target.service == LEFT && refused(&compared.shunt) {
        Some("kube-proxy keeps a slice whose label changes under both Services until it restarts")
    } else {
        None
    }
}

fn refused(fates: &Fates) -> bool {
    fates.iter().eq(["port-unreachable"])
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
