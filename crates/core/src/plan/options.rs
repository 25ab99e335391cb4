//! What the configuration says about planning.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::model::Family;

/// How traffic of pods on this node is told from other traffic (`detectLocalMode`).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum DetectLocal {
    /// Not at all.
    #[default]
    Off,
    /// By source address, in these prefixes: at most one per family counts, the first.
    ClusterCidr(Vec<IpNet>),
    /// By source address, in the pod CIDRs of our Node.
    NodeCidr,
    /// By incoming interface: this bridge.
    BridgeInterface(String),
    /// By incoming interface: names with this prefix.
    InterfaceNamePrefix(String),
}

/// On which addresses of the node NodePorts are offered (`nodePortAddresses`).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum NodePortAddresses {
    /// On the node's primary address of each family; of a family in which none is known on every
    /// address but loopback.
    #[default]
    Primary,
    /// On the node's addresses in these prefixes; a family without a prefix has all its addresses.
    Cidrs(Vec<IpNet>),
}

impl NodePortAddresses {
    /// True if NodePorts of that family are offered on every local address.
    #[must_use]
    pub fn is_all(&self, family: Family) -> bool {
        match self {
            NodePortAddresses::Primary => false,
            NodePortAddresses::Cidrs(nets) => {
                let mut own = nets.iter().filter(|net| Family::of_net(net) == family).peekable();
                own.peek().is_none() || own.any(|net| net.prefix_len() == 0)
            }
        }
    }

    /// True if one of the prefixes holds the address.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        match self {
            NodePortAddresses::Primary => false,
            NodePortAddresses::Cidrs(nets) => nets.iter().any(|net| net.contains(&address)),
        }
    }
}

/// What the configuration says about planning.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// The bit of the packet mark that asks for masquerading, 0 to 31 (`nftables.masqueradeBit`).
    pub masquerade_bit: u8,
    /// Masquerade everything that goes to a ClusterIP (`nftables.masqueradeAll`).
    pub masquerade_all: bool,
    /// How traffic of pods is told from other traffic.
    pub detect_local: DetectLocal,
    /// Where NodePorts are offered.
    pub node_port_addresses: NodePortAddresses,
    /// The primary address of the node in its family, whatever the Node says (`bindAddress`).
    pub node_address: Option<IpAddr>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            masquerade_bit: 14,
            masquerade_all: false,
            detect_local: DetectLocal::default(),
            node_port_addresses: NodePortAddresses::default(),
            node_address: None,
        }
    }
}

impl Options {
    /// The mark bit as a mask.
    #[must_use]
    pub fn masquerade_mark(&self) -> u32 {
        1_u32.checked_shl(u32::from(self.masquerade_bit)).unwrap_or(1 << 14)
    }
}
