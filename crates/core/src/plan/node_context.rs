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
        NodeContext {
            options: options.clone(),
            node_name: node_name.to_owned(),
            node: store.last_known_node().cloned(),
            interface_addresses: store.interface_addresses().clone(),
            service_cidrs: IpNet::aggregate(&store.service_cidrs().copied().collect()),
        }
    }

    /// Returns true if the plan of every Service is the same as with `other`, apart from ejected
    /// endpoints. Other fields concern only chains and the addresses of NodePorts. Each new pod
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
    /// while a required Node is not known.
    #[must_use]
    pub fn node_port_addresses(&self, family: Family) -> Option<BTreeSet<IpAddr>> {
        let usable = |address: &&IpAddr| Family::of(**address) == family && !address.is_loopback();
        if self.options.requires_node && self.node.is_none() {
            return Some(BTreeSet::new());
        }
        let selected = &self.options.node_port_addresses;
        if selected.is_all(family) {
            return None;
        }
        let primary = self.node_address(family).filter(|_| selected.has_primary());
        // A loopback prefix selects no address here, so it changes nothing beside `primary`.
        let is_own = |net: &IpNet| Family::of_net(net) == family && !net.network().is_loopback();
        if selected.has_primary() && primary.is_none() && !selected.nets().iter().any(is_own) {
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
