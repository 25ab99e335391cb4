//! The addresses of node ports, compared with those of the kube-proxy on this node.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};

use shunt_core::model::Family;
use shunt_core::plan::NodeContext;

use super::{Line, some_of};
use crate::dataplane::kube_proxy::Found;
use crate::serve::status::NodePorts;

/// The name of the line.
pub(super) const NAME: &str = "node-ports";

/// The plan, and what is known of kube-proxy.
pub(super) struct Facts<'a> {
    pub(super) node_context: &'a NodeContext,
    /// The Node is known, so that its primary addresses are.
    pub(super) has_node: bool,
    /// kube-proxy on this node; `None` if its rules cannot be listed.
    pub(super) kube_proxy: Option<&'a Found>,
    /// `iptables.localhostNodePorts`.
    pub(super) localhost_node_ports: bool,
}

/// The mode of kube-proxy, as its rules show it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Iptables,
    Ipvs,
    Nftables,
}

fn mode(found: &Found) -> Option<Mode> {
    match found {
        // The IPVS mode has chains of iptables, too.
        Found { ipvs_interface: true, .. } => Some(Mode::Ipvs),
        Found { nftables_tables: 1.., .. } => Some(Mode::Nftables),
        Found { iptables_chains: 1.., .. } | Found { legacy_iptables_chains: 1.., .. } => {
            Some(Mode::Iptables)
        }
        _ => None,
    }
}

pub(super) fn judge(facts: &Facts<'_>) -> Line {
    let options = &facts.node_context.options;
    let is_primary = options.node_port_addresses.has_primary();
    if is_primary && !facts.has_node && options.node_address.is_none() {
        let why = "nodePortAddresses is primary, and the primary addresses are those of the Node, \
                   which is not known here; set bindAddress, or give access to the API server";
        return Line::skip(NAME, why);
    }
    let text = format!("node ports answer on {}", NodePorts::of(facts.node_context));
    let mode = facts.kube_proxy.and_then(mode);
    let (mut lost, mut remedies) = (Vec::new(), Vec::new());
    if matches!(mode, Some(Mode::Iptables | Mode::Ipvs)) && is_primary {
        let addresses = not_primary(facts.node_context);
        if !addresses.is_empty() {
            lost.push(format!(
                "no longer on {}, where kube-proxy answers without nodePortAddresses",
                some_of(addresses)
            ));
            remedies.push("set nodePortAddresses: [0.0.0.0/0, '::/0'] to keep them");
        }
    }
    let loopback = IpAddr::from(Ipv4Addr::LOCALHOST);
    let addresses = &options.node_port_addresses;
    let had_loopback = is_primary || addresses.is_all(Family::V4) || addresses.contains(loopback);
    let has_loopback = options.loopback_node_ports.has(Family::V4);
    let is_lost = had_loopback && !has_loopback;
    if mode == Some(Mode::Iptables) && facts.localhost_node_ports && is_lost {
        lost.push("no longer on 127.0.0.1, where kube-proxy's iptables mode answers".to_owned());
        remedies.push(
            "add localhost to nodePortAddresses to keep them there for TCP, such as for a container \
             runtime that pulls from localhost:30500",
        );
    }
    match lost.is_empty() {
        true => Line::ok(NAME, text),
        false => Line::warn(NAME, format!("{text}; {}", lost.join("; ")), remedies.join("; ")),
    }
}

/// Returns the addresses of interfaces that have no node ports in the plan.
fn not_primary(node_context: &NodeContext) -> BTreeSet<IpAddr> {
    let is_link_local =
        |address: &IpAddr| matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local());
    let has_node_ports = |address: &IpAddr| {
        let planned = node_context.node_port_addresses(Family::of(*address));
        planned.is_none_or(|planned| planned.contains(address))
    };
    let all = node_context.interface_addresses.iter();
    all.filter(|address| !address.is_loopback() && !is_link_local(address))
        .filter(|address| !has_node_ports(address))
        .copied()
        .collect()
}

#[cfg(test)]
mod tests {
    use shunt_core::plan::{LoopbackNodePorts, NodePortAddresses, Options};

    use super::super::Outcome::{self, Ok as Good, Skip, Warn};
    use super::*;

    fn node_context(addresses: NodePortAddresses) -> NodeContext {
        let ip = |text: &str| text.parse().expect("an address");
        NodeContext {
            options: Options {
                node_port_addresses: addresses,
                node_address: Some(ip("192.0.2.10")),
                ..Options::default()
            },
            node_name: "node-1".to_owned(),
            node: None,
            interface_addresses: ["127.0.0.1", "192.0.2.10", "192.0.2.11", "fe80::1"]
                .map(ip)
                .into(),
            service_cidrs: Vec::new(),
        }
    }

    fn judged(addresses: NodePortAddresses, found: Found, localhost: bool) -> (Outcome, String) {
        let line = judge(&Facts {
            node_context: &node_context(addresses),
            has_node: true,
            kube_proxy: Some(&found),
            localhost_node_ports: localhost,
        });
        (line.result, line.text)
    }

    #[test]
    fn lost_addresses_are_named() {
        let all = || NodePortAddresses::Cidrs(Vec::new());
        let one = || NodePortAddresses::Cidrs(vec!["192.0.2.0/24".parse().unwrap()]);
        let iptables = || Found { iptables_chains: 9, ..Found::default() };
        let ipvs = || Found { ipvs_interface: true, iptables_chains: 9, ..Found::default() };
        let nftables = || Found { nftables_tables: 2, ..Found::default() };
        let everywhere = "node ports answer on every local address except loopback";
        assert_eq!(judged(all(), Found::default(), true), (Good, everywhere.to_owned()));
        assert_eq!(judged(all(), ipvs(), true).0, Good);
        assert_eq!(judged(all(), nftables(), true).0, Good);
        assert_eq!(judged(all(), iptables(), false).0, Good);
        assert_eq!(judged(one(), iptables(), true).0, Good);
        let (result, text) = judged(all(), iptables(), true);
        assert_eq!(result, Warn);
        assert!(text.ends_with("no longer on 127.0.0.1, where kube-proxy's iptables mode answers"));
        let mut node_context = node_context(all());
        node_context.options.loopback_node_ports = LoopbackNodePorts { v4: true, v6: false };
        let line = judge(&Facts {
            node_context: &node_context,
            has_node: true,
            kube_proxy: Some(&iptables()),
            localhost_node_ports: true,
        });
        assert_eq!(
            (line.result, line.text),
            (Good, format!("{everywhere}; for TCP also on 127.0.0.1"))
        );
        let (result, text) = judged(NodePortAddresses::Primary, ipvs(), true);
        assert_eq!(result, Warn);
        assert!(text.contains("; no longer on 192.0.2.11, where"), "{text}");
        assert_eq!(judged(NodePortAddresses::Primary, nftables(), true).0, Good);
    }

    #[test]
    fn primary_addresses_need_the_node() {
        let mut node_context = node_context(NodePortAddresses::Primary);
        node_context.options.node_address = None;
        let facts = Facts {
            node_context: &node_context,
            has_node: false,
            kube_proxy: None,
            localhost_node_ports: true,
        };
        assert_eq!(judge(&facts).result, Skip);
    }
}
