//! The detection of traffic of local pods (`detectLocalMode`).

use shunt_core::model::Family;
use shunt_core::plan::DetectLocal;

use super::{Judgement, NodeFacts, ok, some_of, warn};

pub(super) fn check(facts: &NodeFacts<'_>) -> Judgement {
    facts.effective.as_ref()?;
    let node_context = &facts.node_context;
    let mut links = facts.links.iter().flatten();
    match &node_context.options.detect_local {
        DetectLocal::Off => warn(
            "not detected: no clusterCIDR; traffic from outside to a ClusterIP is not masqueraded, \
             and policy Local applies to local pods, too",
            "set clusterCIDR, or another detectLocalMode",
        ),
        DetectLocal::ClusterCidr(nets) => {
            ok(format!("by source address in {} (clusterCIDR)", some_of(nets)))
        }
        DetectLocal::NodeCidr if facts.store.last_known_node().is_none() => {
            Err("detectLocalMode is NodeCIDR, and this command does not know the Node's podCIDRs")?
        }
        DetectLocal::NodeCidr => {
            let nets = Family::ALL.map(|family| node_context.pod_cidr(family));
            match nets == [None; 2] {
                false => {
                    let nets = some_of(nets.into_iter().flatten());
                    ok(format!("by source address in {nets} (NodeCIDR)"))
                }
                true => warn(
                    format!(
                        "not detected: detectLocalMode is NodeCIDR, and the Node {} has no podCIDRs",
                        node_context.node_name
                    ),
                    "set detectLocalMode: ClusterCIDR with clusterCIDR; some network plugins assign \
                     no podCIDRs",
                ),
            }
        }
        DetectLocal::BridgeInterface(name) => {
            let is_there = links.any(|link| link.name == *name);
            by_interface(is_there, &format!("the bridge {name}"), "detectLocal.bridgeInterface")
        }
        DetectLocal::InterfaceNamePrefix(prefix) => {
            let is_there = links.any(|link| link.name.starts_with(prefix));
            let what = format!("interfaces {prefix}…");
            by_interface(is_there, &what, "detectLocal.interfaceNamePrefix")
        }
    }
}

fn by_interface(is_there: bool, what: &str, field: &str) -> Judgement {
    match is_there {
        true => ok(format!("by incoming interface: {what}")),
        false => warn(
            format!("by incoming interface: {what} (none exists now)"),
            format!(
                "check {field}, unless the network plugin creates the interface with the first pod"
            ),
        ),
    }
}
