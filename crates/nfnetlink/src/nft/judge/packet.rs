//! The packet that is judged, and what a chain may change of it.

use std::net::IpAddr;

use super::registers::Bits;
use crate::Family;
use crate::nft::uapi::{
    IPS_ASSURED, IPS_CONFIRMED, IPS_DST_NAT, IPS_EXPECTED, IPS_SEEN_REPLY, IPS_SRC_NAT, RTN_LOCAL,
    RTN_UNICAST, STATE_INVALID, STATE_NEW, STATE_UNTRACKED,
};
use crate::nft::{AttachedChain, NfProto};

/// The hooks of IP (`NF_INET_*`).
const PREROUTING: u32 = libc::NF_INET_PRE_ROUTING as u32;
const INPUT: u32 = libc::NF_INET_LOCAL_IN as u32;
const FORWARD: u32 = libc::NF_INET_FORWARD as u32;
const OUTPUT: u32 = libc::NF_INET_LOCAL_OUT as u32;
const POSTROUTING: u32 = libc::NF_INET_POST_ROUTING as u32;

/// The priorities of connection tracking (`NF_IP_PRI_CONNTRACK`), of the assembly of fragments
/// (`NF_IP_PRI_CONNTRACK_DEFRAG`), and of the translation of sources (`NF_IP_PRI_NAT_SRC`).
const CONNTRACK: i32 = -200;
const DEFRAGMENTATION: i32 = -400;
const SOURCE_NAT: i32 = 100;

/// The first packet of a connection, as a chain sees it. Before it, no packet of the connection has
/// passed the chain. A packet of TCP is a SYN; one of IPv6 has no extension headers. The source port
/// is unknown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JudgedPacket {
    /// The source address.
    pub source: IpAddr,
    /// The destination address: the translated one if a chain before this one has translated it.
    pub destination: IpAddr,
    /// The protocol number in the IP header (`IPPROTO_*`).
    pub protocol: u8,
    /// The destination port, likewise translated.
    pub port: u16,
    /// The address that the client sent the packet to.
    pub original_destination: IpAddr,
    /// The port that the client sent the packet to.
    pub original_port: u16,
    /// True if destination NAT has changed the destination of the connection.
    pub translated: bool,
    /// The name of the interface that the packet came in by; `None` if it is unknown. Not used at the output
    /// hook, where packets have none, nor at the postrouting hook, where it depends on the kernel.
    pub input: Option<String>,
    /// The name of the interface that the packet leaves by; `None` if it is unknown. Not used at the prerouting
    /// and input hooks, where packets have none.
    pub output: Option<String>,
    /// The packet mark.
    pub mark: Mark,
    /// True if the destination is an address of this node, false if it is a unicast address
    /// elsewhere; `None` if it is unknown.
    pub is_local: Option<bool>,
    /// True if a chain before this one has excluded the packet from connection tracking.
    pub untracked: bool,
}

impl JudgedPacket {
    /// Makes a packet without translation, of which nothing else is known.
    #[must_use]
    pub fn new(protocol: u8, source: IpAddr, destination: IpAddr, port: u16) -> JudgedPacket {
        JudgedPacket {
            source,
            destination,
            protocol,
            port,
            original_destination: destination,
            original_port: port,
            translated: false,
            input: None,
            output: None,
            mark: Mark::UNKNOWN,
            is_local: None,
            untracked: false,
        }
    }

    /// Returns the family of the addresses.
    #[must_use]
    pub fn family(&self) -> Family {
        Family::of(self.destination)
    }
}

/// A packet mark, of which some bits may be unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    /// The mark; unknown bits are 0.
    pub value: u32,
    /// The known bits.
    pub known: u32,
}

impl Mark {
    /// A mark of which nothing is known.
    pub const UNKNOWN: Mark = Mark { value: 0, known: 0 };

    pub(super) fn of(bits: &Bits) -> Mark {
        bits.number().map_or(Mark::UNKNOWN, |(value, known)| Mark { value, known })
    }

    fn bits(self) -> Bits {
        Bits::partial(&self.value.to_ne_bytes(), &self.known.to_ne_bytes())
    }
}

impl From<u32> for Mark {
    fn from(value: u32) -> Mark {
        Mark { value, known: u32::MAX }
    }
}

/// Whether connection tracking has seen the packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tracking {
    Tracked,
    /// Not yet.
    Before,
    /// A rule has excluded the packet.
    Untracked,
    Unknown,
}

/// The parts of a packet that a chain may change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct State {
    pub(super) network: Bits,
    pub(super) transport: Bits,
    /// In host order.
    pub(super) mark: Bits,
    /// Why it is not certain whether a rule has changed the mark.
    pub(super) mark_doubt: Option<String>,
    pub(super) tracking: Tracking,
    /// Why it is not certain that the packet comes here.
    pub(super) doubt: Option<String>,
}

impl State {
    /// Returns what is certain in both states.
    pub(super) fn join(self, other: &State) -> State {
        let same = self.tracking == other.tracking;
        let mark = self.mark.join(&other.mark);
        let is_vaguer = mark != self.mark || mark != other.mark;
        let doubt = self.doubt.or_else(|| other.doubt.clone());
        let earlier = self.mark_doubt.or_else(|| other.mark_doubt.clone());
        State {
            network: self.network.join(&other.network),
            transport: self.transport.join(&other.transport),
            mark,
            mark_doubt: doubt.clone().filter(|_| is_vaguer).or(earlier),
            tracking: if same { self.tracking } else { Tracking::Unknown },
            doubt,
        }
    }
}

/// The packet at the hook of a chain: the parts that no rule changes.
#[derive(Debug)]
pub(super) struct View<'a> {
    pub(super) packet: &'a JudgedPacket,
    pub(super) chain: &'a AttachedChain,
}

impl<'a> View<'a> {
    /// Returns true if the hook is one of IP. Those of bridges and interfaces come earlier or later.
    fn is_ip(&self) -> bool {
        matches!(self.chain.family, NfProto::Ip | NfProto::Ip6 | NfProto::Inet)
            && (PREROUTING..=POSTROUTING).contains(&self.chain.hook)
    }

    /// Returns the name of the interface by which the packet comes in, if it is known; without an
    /// interface, the name is empty.
    pub(super) fn input(&self) -> Option<&'a str> {
        if self.is_ip() && self.chain.hook == OUTPUT {
            return Some("");
        }
        // Linux 5.7 and later show the interface of forwarded packets behind routing, others do not.
        let is_known = !(self.is_ip() && self.chain.hook == POSTROUTING);
        self.packet.input.as_deref().filter(|_| is_known)
    }

    /// Returns the name of the interface by which the packet leaves, likewise.
    pub(super) fn output(&self) -> Option<&'a str> {
        if self.is_ip() && [PREROUTING, INPUT].contains(&self.chain.hook) {
            return Some("");
        }
        self.packet.output.as_deref()
    }

    /// Returns true if the packet certainly comes in by another interface than the loopback one.
    fn is_from_elsewhere(&self) -> bool {
        self.packet.input.as_ref().is_some_and(|name| name != "lo")
    }

    /// Returns the source if it is certainly the one that the client used.
    pub(super) fn original_source(&self) -> Option<IpAddr> {
        let is_original = self.is_ip()
            && ([PREROUTING, FORWARD, OUTPUT].contains(&self.chain.hook)
                || self.chain.priority < SOURCE_NAT);
        is_original.then_some(self.packet.source)
    }

    /// Returns the status bits of the connection (`IPS_*`).
    pub(super) fn status(&self) -> Bits {
        let mut known = IPS_EXPECTED | IPS_SEEN_REPLY | IPS_ASSURED | IPS_CONFIRMED | IPS_DST_NAT;
        if self.original_source().is_some() {
            known |= IPS_SRC_NAT;
        }
        let value = if self.packet.translated { IPS_DST_NAT } else { 0 };
        Bits::partial(&value.to_ne_bytes(), &known.to_ne_bytes())
    }

    /// Returns the type of the route to the destination (`RTN_*`), if it is known.
    pub(super) fn destination_type(&self) -> Option<u32> {
        self.packet.is_local.map(|is_local| if is_local { RTN_LOCAL } else { RTN_UNICAST })
    }

    /// Returns the state of the packet before the first rule.
    pub(super) fn state(&self) -> State {
        let is_early =
            matches!(self.chain.hook, PREROUTING | OUTPUT) && self.chain.priority <= CONNTRACK;
        let tracking = match (self.is_ip(), is_early, self.chain.priority) {
            _ if self.packet.untracked => Tracking::Untracked,
            (false, ..) | (_, true, CONNTRACK) => Tracking::Unknown,
            // A packet that comes in by the loopback interface is tracked since it went out there.
            (_, true, _) if self.chain.hook == PREROUTING && !self.is_from_elsewhere() => {
                Tracking::Unknown
            }
            (_, true, _) => Tracking::Before,
            (_, false, _) => Tracking::Tracked,
        };
        // Locally generated packets and those of other hooks of IP are whole.
        let is_whole = self.is_ip()
            && (self.chain.hook != PREROUTING || self.chain.priority > DEFRAGMENTATION);
        State {
            network: network_header(self.packet, is_whole),
            transport: transport_header(self.packet),
            mark: self.packet.mark.bits(),
            mark_doubt: None,
            tracking,
            doubt: None,
        }
    }
}

impl Tracking {
    /// Returns the state bits that `ct state` compares.
    pub(super) fn state_bits(self) -> Bits {
        match self {
            Tracking::Tracked => Bits::known(STATE_NEW.to_ne_bytes()),
            Tracking::Before => Bits::known(STATE_INVALID.to_ne_bytes()),
            Tracking::Untracked => Bits::known(STATE_UNTRACKED.to_ne_bytes()),
            Tracking::Unknown => Bits::unknown(4),
        }
    }
}

/// Returns the bytes of an address.
pub(super) fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

/// Offset and length of the addresses in the network header.
pub(super) fn addresses(family: Family) -> (usize, usize) {
    match family {
        Family::Ip => (12, 8),
        Family::Ip6 => (8, 32),
    }
}

fn network_header(packet: &JudgedPacket, is_whole: bool) -> Bits {
    let family = packet.family();
    let (at, length) = addresses(family);
    let mut header = Bits::unknown(at + length);
    let (version, protocol_at) = match family {
        Family::Ip => (0x40, 9),
        Family::Ip6 => (0x60, 6),
    };
    header.write(0, &Bits::partial(&[version], &[0xf0]));
    header.write(protocol_at, &Bits::known([packet.protocol]));
    if family == Family::Ip && is_whole {
        // More fragments, and the offset of this one.
        header.write(6, &Bits::partial(&[0, 0], &[0x3f, 0xff]));
    }
    header.write(at, &Bits::known(octets(packet.source)));
    header.write(at + length / 2, &Bits::known(octets(packet.destination)));
    header
}

/// Returns true for a protocol whose header begins with source and destination port.
pub(super) fn has_ports(protocol: u8) -> bool {
    [
        libc::IPPROTO_TCP,
        libc::IPPROTO_UDP,
        libc::IPPROTO_UDPLITE,
        libc::IPPROTO_SCTP,
        libc::IPPROTO_DCCP,
    ]
    .contains(&i32::from(protocol))
}

fn transport_header(packet: &JudgedPacket) -> Bits {
    let mut header = Bits::unknown(20);
    if !has_ports(packet.protocol) {
        return header;
    }
    header.write(2, &Bits::known(packet.port.to_be_bytes()));
    if i32::from(packet.protocol) == libc::IPPROTO_TCP {
        // SYN without FIN, RST, ACK and URG. Congestion notification and data may set others.
        header.write(13, &Bits::partial(&[0x02], &[0x37]));
    }
    header
}
