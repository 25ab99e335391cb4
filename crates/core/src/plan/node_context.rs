//! The common inputs of all plans: the configuration, the agent's Node, the addresses of the node.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;

use super::{DetectLocal, Options};
use crate::model::{Family, Locality, Node, Store};

/// The common inputs of the plans of all Services.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeContext {
    /// The configured options, the same for all Services.
    pub options: Options,
    /// The name of the agent's Node, which endpoints on this node refer to.
    pub node_name: String,
    /// The last known state of the agent's Node, even if it is deleted.
    pub node: Option<Node>,
    /// The addresses of the node's interfaces, loopback included.
    pub interface_addresses: BTreeSet<IpAddr>,
    /// The prefixes from which ClusterIPs are taken, without those inside others.
    pub service_cidrs: Vec<IpNet>,
}

impl NodeContext {
    /// Returns the current context from the store.
    #[must_use]
    pub fn of(store: &Store, options: &Options, node_name: &str) -> NodeContext {
        let node = store.last_known_node().cloned();
        // After a change of the name, the Node before stays in effect until the source sends the new
        // one: endpoints of one Node and addresses of the other would be a mixture.
        let known = node.as_ref().filter(|_| options.requires_node);
        NodeContext {
            options: options.clone(),
            node_name: known.map_or(node_name, |node| &*node.name).to_owned(),
            node,
            interface_addresses: store.interface_addresses().clone(),
            service_cidrs: IpNet::aggregate(&store.service_cidrs().copied().collect()),
        }
    }

    /// Returns true if the plan of every Service is the same as with `other`. Other fields concern only chains and the addresses of NodePorts. Each new pod
    /// changes them, as it adds an interface with an address.
    #[must_use]
    pub(super) fn plans_services_as(&self, other: &NodeContext) -> bool {
        let node_addresses = |s: &NodeContext| Family::ALL.map(|family| s.node_address(family));
        self.locality() == other.locality()
            && node_addresses(self) == node_addresses(other)
            && self.options.balancing == other.options.balancing
            && self.options.ignore_external_ips == other.options.ignore_external_ips
            && self.options.ipv4_only == other.options.ipv4_only
    }

    /// Returns false while a required Node is not known.
    #[must_use]
    pub fn knows_node(&self) -> bool {
        self.node.is_some() || !self.options.requires_node
    }

    /// Returns the name and zone of the node, for the selection of endpoints.
    #[must_use]
    pub fn locality(&self) -> Locality<'_> {
        Locality {
            node: &self.node_name,
            zone: self.node.as_ref().and_then(|node| node.zone.as_deref()),
        }
    }

    /// Returns the prefix whose addresses count as local pods; `None` without such a prefix.
    #[must_use]
    pub fn pod_cidr(&self, family: Family) -> Option<IpNet> {
        let nets: &[IpNet] = match (&self.options.detect_local, &self.node) {
            (DetectLocal::ClusterCidr(nets), _) => nets,
            (DetectLocal::NodeCidr, Some(node)) => &node.pod_cidrs,
            _ => &[],
        };
        nets.iter().find(|net| Family::of_net(net) == family).copied()
    }

    /// Returns the node's primary address of a family, if known. A loopback address counts as
    /// unknown, as in kube-proxy.
    #[must_use]
    pub fn node_address(&self, family: Family) -> Option<IpAddr> {
        let configured = self.options.node_address.filter(|own| Family::of(*own) == family);
        let address = configured.or_else(|| self.node.as_ref()?.primary_address(family));
        address.filter(|address| !address.is_loopback())
    }

    /// Returns the addresses of NodePorts of a family; `None` for all local addresses. There are none
    /// while a required Node is not known, or its addresses, where it matters.
    #[must_use]
    pub fn node_port_addresses(&self, family: Family) -> Option<BTreeSet<IpAddr>> {
        let usable = |address: &&IpAddr| Family::of(**address) == family && !address.is_loopback();
        let selected = &self.options.node_port_addresses;
        let lacks_addresses = self.node.as_ref().is_some_and(|node| {
            let is_given = self.options.node_address.is_some_and(|own| Family::of(own) == family);
            selected.primary && node.addresses.is_empty() && !is_given
        });
        if !self.knows_node() || (self.options.requires_node && lacks_addresses) {
            return Some(BTreeSet::new());
        }
        if selected.is_all(family) {
            return None;
        }
        let primary = self.node_address(family).filter(|_| selected.primary);
        // A loopback prefix selects no address here, so it changes nothing beside `primary`.
        let is_own = |net: &IpNet| Family::of_net(net) == family && !net.network().is_loopback();
        if selected.primary && primary.is_none() && !selected.nets.iter().any(is_own) {
            return None;
        }
        let own = self.interface_addresses.iter().filter(usable);
        let inside = own.filter(|address| selected.contains(**address)).copied();
        Some(inside.chain(primary).collect())
    }

    /// Returns the addresses with NodePorts that the node has now, of both families.
    #[must_use]
    pub fn own_node_port_addresses(&self) -> BTreeSet<IpAddr> {
        let of = |family| match self.node_port_addresses(family) {
            Some(addresses) => addresses,
            None => {
                let all = self.interface_addresses.iter().copied();
                all.filter(|a| Family::of(*a) == family && !a.is_loopback()).collect()
            }
        };
        Family::ALL.into_iter().flat_map(of).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Change, Dirty};
    use crate::plan::NodePortAddresses;

    fn context(node: Option<Node>, node_port_addresses: NodePortAddresses) -> NodeContext {
        let mut store = Store::new();
        if let Some(node) = node {
            store.apply(Change::node(node), &mut Dirty::default());
        }
        let options = Options { requires_node: true, node_port_addresses, ..Options::default() };
        NodeContext::of(&store, &options, "new-name")
    }

    fn node(addresses: &[IpAddr]) -> Node {
        Node {
            name: "old-name".into(),
            addresses: addresses.into(),
            pod_cidrs: Vec::new(),
            zone: None,
            eligible: true,
        }
    }

    #[test]
    fn node_ports_are_closed_until_a_required_node_has_an_address() {
        let closed = Some(BTreeSet::new());
        let all = || NodePortAddresses { primary: false, nets: Vec::new() };
        for addresses in [NodePortAddresses::default(), all()] {
            assert_eq!(context(None, addresses).node_port_addresses(Family::V4), closed);
        }
        let unaddressed = |addresses| context(Some(node(&[])), addresses);
        let primary = unaddressed(NodePortAddresses::default());
        assert_eq!(primary.node_port_addresses(Family::V4), closed);
        assert_eq!(unaddressed(all()).node_port_addresses(Family::V4), None);
        let mut bound = primary;
        bound.options.node_address = Some([192, 0, 2, 1].into());
        assert_eq!(bound.node_port_addresses(Family::V6), closed);
        let known = context(Some(node(&[[192, 0, 2, 1].into()])), NodePortAddresses::default());
        let own = Some(BTreeSet::from([[192, 0, 2, 1].into()]));
        assert_eq!(known.node_port_addresses(Family::V4), own);
        assert_eq!(known.node_port_addresses(Family::V6), None);
    }

    #[test]
    fn name_of_a_required_node_changes_with_the_node() {
        assert_eq!(context(Some(node(&[])), NodePortAddresses::default()).node_name, "old-name");
        assert_eq!(context(None, NodePortAddresses::default()).node_name, "new-name");
    }
}
