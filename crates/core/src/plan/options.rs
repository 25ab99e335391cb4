//! The options of the plan.

use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::{TcpTimeouts, loopback_address};
use crate::model::{Balancing, Family, Service};

/// The criterion for traffic of pods on this node (`detectLocalMode`).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum DetectLocal {
    /// Not at all.
    #[default]
    Off,
    /// By source address, in these prefixes: at most one per family counts, the first.
    ClusterCidr(Vec<IpNet>),
    /// By source address, in the pod CIDRs of the agent's Node.
    NodeCidr,
    /// By incoming interface: this bridge.
    BridgeInterface(String),
    /// By incoming interface: names with this prefix.
    InterfaceNamePrefix(String),
}

/// The addresses of the node with NodePorts (`nodePortAddresses`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodePortAddresses {
    /// The node's primary address of each family; of a family in which none is known, and which has no
    /// prefix, every address but loopback.
    pub primary: bool,
    /// The node's addresses in these prefixes. Without `primary`, a family without a prefix has all its
    /// addresses.
    pub nets: Vec<IpNet>,
}

impl Default for NodePortAddresses {
    fn default() -> NodePortAddresses {
        NodePortAddresses { primary: true, nets: Vec::new() }
    }
}

impl NodePortAddresses {
    /// Returns true if every local address of that family has NodePorts.
    #[must_use]
    pub fn is_all(&self, family: Family) -> bool {
        let mut own = self.nets.iter().filter(|net| Family::of_net(net) == family).peekable();
        (!self.primary && own.peek().is_none()) || own.any(|net| net.prefix_len() == 0)
    }

    /// Returns true if the agent's proxy offers node ports of TCP on the family's loopback address: one
    /// of the prefixes is a loopback prefix, and contains it. A prefix of length 0 is none.
    #[must_use]
    pub fn has_loopback(&self, family: Family) -> bool {
        let address = loopback_address(family);
        self.nets.iter().any(|net| net.network().is_loopback() && net.contains(&address))
    }

    /// Returns true if one of the prefixes contains the address.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        self.nets.iter().any(|net| net.contains(&address))
    }
}

/// The part of the configuration that the plan depends on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Options {
    /// The bit of the packet mark that asks for masquerading, 0 to 31 (`nftables.masqueradeBit`).
    pub masquerade_bit: u8,
    /// Masquerade everything that goes to a ClusterIP (`nftables.masqueradeAll`).
    pub masquerade_all: bool,
    /// The criterion for traffic of pods.
    pub detect_local: DetectLocal,
    /// Where NodePorts are offered.
    pub node_port_addresses: NodePortAddresses,
    /// The primary address of the node in its family, whatever the Node says (`bindAddress`).
    pub node_address: Option<IpAddr>,
    /// No Service has its `spec.externalIPs` (`featureGates`: `AllowServiceExternalIPs: false`).
    #[serde(default)]
    pub ignore_external_ips: bool,
    /// The balancing of Services without an annotation (`shunt.loadBalancing`).
    #[serde(default)]
    pub balancing: Balancing,
    /// Reset established connections to endpoints that were terminating and are gone
    /// (`shunt.resetGoneEndpoints`).
    #[serde(default)]
    pub reset_gone_endpoints: bool,
    /// The source has a Node for each agent, as an API server has. While that Node is not known,
    /// node ports have no address.
    #[serde(default)]
    pub requires_node: bool,
    /// The timeouts of TCP connections to Services; `None` if the kernel cannot give a connection
    /// timeouts of its own (`CONFIG_NF_CONNTRACK_TIMEOUT`).
    #[serde(default)]
    pub tcp_timeouts: Option<TcpTimeouts>,
    /// The kernel has no nf_tables for IPv6. Not configured either.
    #[serde(default)]
    pub ipv4_only: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            masquerade_bit: 14,
            masquerade_all: false,
            detect_local: DetectLocal::default(),
            node_port_addresses: NodePortAddresses::default(),
            node_address: None,
            ignore_external_ips: false,
            balancing: Balancing::default(),
            reset_gone_endpoints: false,
            requires_node: false,
            tcp_timeouts: Some(TcpTimeouts::default()),
            ipv4_only: false,
        }
    }
}

impl Options {
    /// Returns the mark bit as a mask.
    #[must_use]
    pub fn masquerade_mark(&self) -> u32 {
        1_u32.checked_shl(u32::from(self.masquerade_bit)).unwrap_or(1 << 14)
    }

    /// Returns true if the kernel can have a table of that family.
    #[must_use]
    pub fn has(&self, family: Family) -> bool {
        family == Family::V4 || !self.ipv4_only
    }

    /// Returns the `spec.externalIPs` that are in force.
    #[must_use]
    pub fn external_ips<'a>(&self, service: &'a Service) -> &'a [IpAddr] {
        if self.ignore_external_ips { &[] } else { &service.external_ips }
    }
}
