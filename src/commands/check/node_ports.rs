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

/// `has_node` is true if the Node is known, so that its primary addresses are, and `kube_proxy` is what
/// is on this node; `None` if its rules cannot be listed. `localhost_node_ports` is the field of that name
/// in the section `iptables`.
pub(super) fn judge(
    node_context: &NodeContext,
    has_node: bool,
    kube_proxy: Option<&Found>,
    localhost_node_ports: bool,
) -> Line {
    let options = &node_context.options;
    let is_primary = options.node_port_addresses.has_primary();
    if is_primary && !has_node && options.node_address.is_none() {
        let why = "nodePortAddresses is primary, and the primary addresses are those of the Node, \
                   which is not known here; set bindAddress, or give access to the API server";
        return Line::skip(NAME, why);
    }
    let text = format!("node ports answer on {}", NodePorts::of(node_context));
    let mode = kube_proxy.and_then(mode);
    let (mut lost, mut remedies) = (Vec::new(), Vec::new());
    if matches!(mode, Some(Mode::Iptables | Mode::Ipvs)) && is_primary {
        let addresses = not_primary(node_context);
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
    if mode == Some(Mode::Iptables) && localhost_node_ports && is_lost {
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
