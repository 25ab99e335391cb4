//! The addresses of node ports, compared with those of the kube-proxy on this node, and processes that
//! listen on node ports, which packets to these ports will not reach.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};

use shunt_core::model::Family;
use shunt_core::plan::NodeContext;

use super::{Judgement, NodeFacts, ok, some_of, warn};
use crate::dataplane::kube_proxy::KubeProxyTraces;
use crate::serve::status;
use crate::taken_ports::{NodePorts, taken_now};

pub(super) fn addresses(facts: &NodeFacts<'_>) -> Judgement {
    let full = &facts.effective.as_ref()?.full;
    facts.addresses.as_ref()?;
    let node_context = &facts.node_context;
    let options = &node_context.options;
    let is_primary = options.node_port_addresses.primary;
    if is_primary && facts.store.last_known_node().is_none() && options.node_address.is_none() {
        Err("nodePortAddresses is primary, and this command does not know the Node's addresses; \
             set bindAddress, or give access to the API server")?;
    }
    let text = format!("node ports answer on {}", status::NodePortStatus::of(node_context));
    // The mode of kube-proxy, as its rules show it. The IPVS mode has chains of iptables, too.
    let (is_ipvs, is_iptables) = match &facts.kube_proxy {
        Ok(KubeProxyTraces { ipvs_interface: true, .. }) => (true, false),
        Ok(KubeProxyTraces { nftables_tables: 1.., .. }) | Err(_) => (false, false),
        Ok(found) => (false, found.iptables_chains + found.legacy_iptables_chains > 0),
    };
    let (mut lost, mut remedies) = (Vec::new(), Vec::new());
    if (is_iptables || is_ipvs) && is_primary {
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
    let has_loopback = addresses.has_loopback(Family::V4);
    let is_lost = had_loopback && !has_loopback;
    // kube-proxy answers on 127.0.0.1 by it.
    let is_on = full.is("iptables.localhostNodePorts", true);
    if is_iptables && is_on && is_lost {
        lost.push("no longer on 127.0.0.1, where kube-proxy's iptables mode answers".to_owned());
        remedies.push(
            "add localhost to nodePortAddresses to keep them there for TCP, for example for a \
             container runtime that pulls from localhost:30500",
        );
    }
    match lost.is_empty() {
        true => ok(text),
        false => warn(format!("{text}; {}", lost.join("; ")), remedies.join("; ")),
    }
}

/// Finds the processes that listen on node ports.
pub(super) fn listeners(facts: &NodeFacts<'_>) -> Judgement {
    facts.effective.as_ref()?;
    if !facts.store.is_synced() {
        Err("the node ports are unknown: give --manifests")?;
    }
    let addresses = facts.node_context.own_node_port_addresses();
    let taken = taken_now(&NodePorts::of(&facts.store), &addresses);
    let taken = taken.map_err(|error| error.to_string())?;
    if taken.is_empty() {
        return ok("no process listens on a node port");
    }
    let mut remedy =
        "move these processes to other ports, or give the Services other nodePorts; a \
                      process stays reachable on loopback"
            .to_owned();
    // Up to version 1.20 it listens on all node ports.
    if facts.kube_proxy.as_ref().is_ok_and(|found| !found.is_nothing()) {
        remedy
            .push_str("; nothing to do if it is kube-proxy: up to 1.20, it listens on node ports");
    }
    warn(some_of(taken), remedy)
}

/// Returns the addresses of interfaces that have no node ports in the plan.
fn not_primary(node_context: &NodeContext) -> BTreeSet<IpAddr> {
    let is_link_local =
        |address: &IpAddr| matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local());
    let mut others = &node_context.interface_addresses - &node_context.own_node_port_addresses();
    others.retain(|address| !address.is_loopback() && !is_link_local(address));
    others
}
