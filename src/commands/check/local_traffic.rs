//! The detection of traffic of local pods (`detectLocalMode`).

use nfnetlink::route::Link;
use shunt_core::model::Family;
use shunt_core::plan::{DetectLocal, NodeContext};

use super::Line;

/// The name of the line.
pub(super) const NAME: &str = "local-traffic";

pub(super) fn judge(node_context: &NodeContext, has_node: bool, links: &[Link]) -> Line {
    match &node_context.options.detect_local {
        DetectLocal::Off => Line::warn(
            NAME,
            "not detected: no clusterCIDR; traffic from outside to a ClusterIP is not masqueraded, \
             and policy Local applies to local pods, too",
            "set clusterCIDR, or another detectLocalMode",
        ),
        DetectLocal::ClusterCidr(nets) => {
            let nets: Vec<String> = nets.iter().map(ToString::to_string).collect();
            Line::ok(NAME, format!("by source address in {} (clusterCIDR)", nets.join(", ")))
        }
        DetectLocal::NodeCidr if !has_node => Line::skip(
            NAME,
            "detectLocalMode is NodeCIDR, and the Node with its podCIDRs is not known here",
        ),
        DetectLocal::NodeCidr => {
            let nets = Family::ALL.into_iter().filter_map(|family| node_context.pod_cidr(family));
            let nets: Vec<String> = nets.map(|net| net.to_string()).collect();
            match nets.is_empty() {
                false => {
                    Line::ok(NAME, format!("by source address in {} (NodeCIDR)", nets.join(", ")))
                }
                true => Line::warn(
                    NAME,
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
            let is_there = links.iter().any(|link| link.name == *name);
            by_interface(is_there, &format!("the bridge {name}"), "detectLocal.bridgeInterface")
        }
        DetectLocal::InterfaceNamePrefix(prefix) => {
            let is_there = links.iter().any(|link| link.name.starts_with(prefix));
            let what = format!("interfaces {prefix}…");
            by_interface(is_there, &what, "detectLocal.interfaceNamePrefix")
        }
    }
}

fn by_interface(is_there: bool, what: &str, field: &str) -> Line {
    match is_there {
        true => Line::ok(NAME, format!("by incoming interface: {what}")),
        false => Line::warn(
            NAME,
            format!("by incoming interface: {what}, of which there is none now"),
            format!("check {field}, unless the network plugin makes it with the first pod"),
        ),
    }
}
