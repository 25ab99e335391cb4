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

#[cfg(test)]
mod tests {
    use shunt_core::model::Node;
    use shunt_core::plan::Options;

    use super::super::Outcome::{Ok as Good, Skip, Warn};
    use super::super::link;
    use super::*;

    fn node(pod_cidrs: &[&str]) -> Node {
        Node {
            name: "node-1".into(),
            addresses: Vec::new(),
            pod_cidrs: pod_cidrs.iter().map(|net| net.parse().expect("a prefix")).collect(),
            zone: None,
            eligible: true,
        }
    }

    #[test]
    fn criterion_without_an_effect_is_a_warning() {
        let text = |text: &str| text.to_owned();
        let cidrs = vec!["10.244.0.0/16".parse().expect("a prefix")];
        let cni0 = link(1, "cni0", "bridge");
        for (detect_local, node, result) in [
            (DetectLocal::Off, None, Warn),
            (DetectLocal::ClusterCidr(cidrs), None, Good),
            (DetectLocal::NodeCidr, None, Skip),
            (DetectLocal::NodeCidr, Some(node(&[])), Warn),
            (DetectLocal::NodeCidr, Some(node(&["10.244.1.0/24"])), Good),
            (DetectLocal::BridgeInterface(text("cni0")), None, Good),
            (DetectLocal::BridgeInterface(text("cni1")), None, Warn),
            (DetectLocal::InterfaceNamePrefix(text("cni")), None, Good),
            (DetectLocal::InterfaceNamePrefix(text("veth")), None, Warn),
        ] {
            let has_node = node.is_some();
            let node_context = NodeContext {
                options: Options { detect_local, ..Options::default() },
                node_name: text("node-1"),
                node,
                interface_addresses: Default::default(),
                service_cidrs: Vec::new(),
            };
            let line = judge(&node_context, has_node, std::slice::from_ref(&cni0));
            assert_eq!(line.result, result, "{line:?}");
        }
    }
}
