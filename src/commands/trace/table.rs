//! The table that sets the trace bit.
//!
//! On Linux 5.12 and later, the kernel deletes it with the socket of the command, however that ends.
//! On older kernels the command deletes it, and otherwise the next start of the agent does.

use std::net::IpAddr;

use nfnetlink::Family;
use nfnetlink::nft::{
    BaseChain, Batch, ChainType, Error, Expr, Hook, Kernel, Refusal, Register, SetType, Socket,
    TABLE_OWNER, Wanted,
};
use nix::errno::Errno;
use shunt_core::model::Protocol;

use super::Target;
use crate::dataplane::trace_table::{TABLE, comment, orphan};

/// Before connection tracking, and before other chains of priority raw.
const RAW: i32 = -301;
/// After connection tracking, before NAT.
const TRACKED: i32 = -150;
/// Before and after all usual chains of a hook.
const FIRST: i32 = -400;
const LAST: i32 = 1_000;
/// The sets forget nothing while a command runs.
const REMEMBER_MILLISECONDS: u64 = 24 * 60 * 60 * 1_000;

/// The sets of clients whose first packet, and whose first reply, is traced.
const CLIENTS: &str = "clients";
const ANSWERED: &str = "answered";

/// A chain of the table, by what its events say about a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Marker {
    /// A packet arrives, or the node sends it. Its trace begins here.
    Start,
    /// A reply comes back.
    Reply,
    /// The packet has its destination, and will be routed.
    Translated,
    /// The packet will be forwarded.
    Forward,
    /// The packet leaves the node.
    Leaves,
    /// A process of the node receives the packet.
    Arrives,
}

/// The chains: name, hook, priority, meaning.
const CHAINS: [(&str, Hook, i32, Marker); 8] = [
    ("from-outside", Hook::PreRouting, RAW, Marker::Start),
    ("from-node", Hook::Out, RAW, Marker::Start),
    ("reply-from-outside", Hook::PreRouting, TRACKED, Marker::Reply),
    ("reply-from-node", Hook::Out, TRACKED, Marker::Reply),
    ("before-routing", Hook::PreRouting, LAST, Marker::Translated),
    ("forward", Hook::Forward, FIRST, Marker::Forward),
    ("leave", Hook::PostRouting, LAST, Marker::Leaves),
    ("arrive", Hook::In, LAST, Marker::Arrives),
];

impl Marker {
    /// Returns the meaning of a chain of the table.
    pub(super) fn of(chain: &str) -> Option<Marker> {
        CHAINS.iter().find(|(name, ..)| *name == chain).map(|(.., marker)| *marker)
    }
}

/// The table in the kernel. A drop of the value deletes it.
#[derive(Debug)]
pub(super) struct TraceTable {
    socket: Socket,
    family: Family,
}

impl TraceTable {
    /// Creates the table in the network namespace of this thread, for the first packets of at most
    /// `count` clients, and for the first reply to each.
    ///
    /// # Errors
    /// [`Error::Owned`] if another trace of this family runs; the kernel's error otherwise.
    pub(super) fn install(target: &Target) -> Result<TraceTable, Error> {
        let mut socket = Socket::open()?;
        create(&mut socket, target)?;
        Ok(TraceTable { socket, family: Family::of(target.to.ip()) })
    }
}

/// Creates the table in place of one of a killed command, owned if the kernel can.
fn create(kernel: &mut dyn Kernel, target: &Target) -> Result<(), Error> {
    let family = Family::of(target.to.ip());
    let orphan = orphan(kernel, family)?;
    let comment = comment(kernel.port());
    let batch = |flags| {
        let mut batch = Batch::new(None);
        if orphan {
            batch.delete_table(family, TABLE);
        }
        batch.add_table(family, TABLE, flags, &comment);
        for set in [CLIENTS, ANSWERED] {
            batch.add_set(family, TABLE, set, &clients(family, target.count));
        }
        for (name, hook, priority, marker) in CHAINS {
            let base = BaseChain { kind: ChainType::Filter, hook, priority };
            let rules = match marker {
                Marker::Start => vec![first_packets(family, target)],
                Marker::Reply => {
                    vec![first_replies(family, target), untracked_replies(family, target)]
                }
                // The kernel sends the headers of a packet with a rule that matches, not with a policy.
                _ => vec![is_of_protocol(target).to_vec()],
            };
            batch.add_chain(family, TABLE, name, Some(base));
            for rule in rules {
                batch.add_rule(family, TABLE, name, &rule, None);
            }
        }
        batch.finish()
    };
    match kernel.commit(&batch(TABLE_OWNER)) {
        // The kernel does not know the flag.
        Err(Error::Refused(refusals)) if refusals.iter().any(is_about_flags) => {
            kernel.commit(&batch(0))
        }
        result => result,
    }
}

impl Drop for TraceTable {
    fn drop(&mut self) {
        let mut batch = Batch::new(None);
        batch.delete_table(self.family, TABLE);
        let is_gone = |refusal: &Refusal| refusal.errno == Errno::ENOENT;
        match self.socket.commit(&batch.finish()) {
            Ok(()) => {}
            // Another process has flushed all tables.
            Err(Error::Refused(refusals)) if refusals.iter().all(is_gone) => {}
            Err(error) => tracing::warn!(
                %error,
                "cannot delete the table {} {TABLE}; `shunt cleanup` deletes it", self.family
            ),
        }
    }
}

fn is_about_flags(refusal: &Refusal) -> bool {
    let about_table = refusal.table == TABLE && refusal.object.is_empty();
    about_table && matches!(refusal.errno, Errno::EOPNOTSUPP | Errno::EINVAL)
}

const KEY: Register = Register(0);

/// Returns the definition of a set of source addresses and ports, `ipv4_addr . inet_service`.
fn clients(family: Family, count: u32) -> SetType {
    let (address, length) = if family == Family::Ip { (7, 4) } else { (8, 16) };
    SetType { learned: true, size: Some(count), ..SetType::of(address << 6 | 13, length + 4) }
}

/// Returns the register after an address.
fn after_address(family: Family) -> Register {
    Register(if family == Family::Ip { 1 } else { 4 })
}

/// Sets the trace bit of a client that is not in the set, and adds it. A full set ends the rule.
fn trace_once(set: &str) -> [Expr; 4] {
    let set = || set.to_owned();
    [
        Expr::Lookup { set: set(), key: KEY, wanted: Wanted::NoMember },
        Expr::Update {
            set: set(),
            key: KEY,
            data: None,
            timeout: REMEMBER_MILLISECONDS,
            renew: false,
        },
        Expr::Value { bytes: vec![1], to: KEY },
        Expr::SetMeta { key: libc::NFT_META_NFTRACE, from: KEY },
    ]
}

/// Compares what an expression reads with an address or another value.
fn is(read: Expr, with: impl Into<Vec<u8>>) -> [Expr; 2] {
    [read, Expr::equals(KEY, with.into())]
}

fn bytes(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

/// Compares the protocol of a packet with the target's.
fn is_of_protocol(target: &Target) -> [Expr; 2] {
    is(Expr::protocol(KEY), [target.protocol.number()])
}

/// Returns the offsets of source and destination in `struct iphdr` and `struct ipv6hdr`, and their
/// length.
fn addresses(family: Family) -> (u32, u32, u32) {
    match family {
        Family::Ip => (12, 16, 4),
        Family::Ip6 => (8, 24, 16),
    }
}

/// Returns the rule for the first packets of clients. It stands before connection tracking, so a
/// connection begins with a SYN or INIT; a datagram of any age counts as the first of its client.
fn first_packets(family: Family, target: &Target) -> Vec<Expr> {
    let (source, destination, length) = addresses(family);
    let transport = |offset, length| Expr::transport(offset, length, KEY);
    let network = |offset, ip| is(Expr::network(offset, length, KEY), bytes(ip));
    let mut rule = network(destination, target.to.ip()).to_vec();
    if let Some(from) = target.from {
        rule.extend(network(source, from.ip()));
    }
    rule.extend(is_of_protocol(target));
    if let Some(from) = target.from.filter(|from| from.port() != 0) {
        rule.extend(is(transport(0, 2), from.port().to_be_bytes()));
    }
    rule.extend(is(transport(2, 2), target.to.port().to_be_bytes()));
    match target.protocol {
        Protocol::Tcp => {
            // SYN of the flags FIN, SYN, RST and ACK.
            rule.push(transport(13, 1));
            rule.extend(is(Expr::mask(KEY, [0x17], [0]), [0x02]));
        }
        Protocol::Udp => {}
        // The type of the first chunk.
        Protocol::Sctp => rule.extend(is(transport(12, 1), [1])),
    }
    rule.push(Expr::network(source, length, KEY));
    rule.push(Expr::transport(0, 2, after_address(family)));
    rule.extend(trace_once(CLIENTS));
    rule
}

/// Returns the rule for the first reply to each traced client, an ICMP error included. (nft could
/// not print a match on the port of the connection, because an ICMP error has another protocol.)
fn first_replies(family: Family, target: &Target) -> Vec<Expr> {
    /// `IP_CT_DIR_REPLY`.
    const REPLY: u8 = 1;
    /// `IP_CT_DIR_ORIGINAL`.
    const ORIGINAL: Option<u8> = Some(0);
    let (source, destination) = match family {
        Family::Ip => (libc::NFT_CT_SRC_IP, libc::NFT_CT_DST_IP),
        Family::Ip6 => (libc::NFT_CT_SRC_IP6, libc::NFT_CT_DST_IP6),
    };
    let original = |key, to| Expr::Ct { key, direction: ORIGINAL, to };
    let direction = Expr::Ct { key: libc::NFT_CT_DIRECTION, direction: None, to: KEY };
    let mut rule = is(direction, [REPLY]).to_vec();
    rule.extend(is(original(destination, KEY), bytes(target.to.ip())));
    rule.push(original(source, KEY));
    rule.push(original(libc::NFT_CT_PROTO_SRC, after_address(family)));
    // Only of clients whose first packet was traced.
    rule.push(Expr::Lookup { set: CLIENTS.to_owned(), key: KEY, wanted: Wanted::Member });
    rule.extend(trace_once(ANSWERED));
    rule
}

/// Returns the rule for the first reply of the destination itself to each traced client: connection
/// tracking may not know the connection, and nothing has translated it then.
fn untracked_replies(family: Family, target: &Target) -> Vec<Expr> {
    let (source, destination, length) = addresses(family);
    let mut rule = is(Expr::network(source, length, KEY), bytes(target.to.ip())).to_vec();
    rule.extend(is_of_protocol(target));
    rule.extend(is(Expr::transport(0, 2, KEY), target.to.port().to_be_bytes()));
    rule.push(Expr::network(destination, length, KEY));
    rule.push(Expr::transport(2, 2, after_address(family)));
    rule.push(Expr::Lookup { set: CLIENTS.to_owned(), key: KEY, wanted: Wanted::Member });
    rule.extend(trace_once(ANSWERED));
    rule
}

#[cfg(test)]
mod tests {
    use shunt_fake_nftables::{Features, Namespace};

    use super::*;
    use nfnetlink::socket::Bus;

    use crate::dataplane::trace_table::remove_orphans;

    fn target(to: &str) -> Target {
        Target {
            to: to.parse().expect("address:port"),
            protocol: Protocol::Tcp,
            from: None,
            count: 1,
        }
    }

    /// Returns flags and owner of the table.
    fn table(namespace: &Namespace, family: Family) -> Option<(u32, Option<u32>)> {
        let found = namespace.open().table(family, TABLE).expect("a listing");
        found.map(|table| (table.flags, table.owner))
    }

    /// Before Linux 5.12, a table has no owner.
    #[test]
    fn plain_table_of_a_killed_command_is_replaced_and_removed() {
        let namespace = Namespace::new();
        namespace.limit(Features { table_flags: 0, ..Features::default() });
        let to = target("10.96.0.10:80");
        for _ in 0..2 {
            // No socket of this machine has the port of the fake one, so the command counts as dead.
            create(&mut namespace.open_at(u32::MAX - 7), &to).expect("a table");
            assert_eq!(table(&namespace, Family::Ip), Some((0, None)));
        }
        assert!(matches!(remove_orphans(&mut namespace.open()), Ok(1)));
        assert_eq!(table(&namespace, Family::Ip), None);
    }

    #[test]
    fn plain_table_of_a_running_command_stays() -> Result<(), Error> {
        let namespace = Namespace::new();
        namespace.limit(Features { table_flags: 0, ..Features::default() });
        let alive = nfnetlink::socket::NetlinkSocket::open(Bus::Netfilter)?;
        let to = target("10.96.0.10:80");
        create(&mut namespace.open_at(alive.port()), &to)?;
        let second = create(&mut namespace.open(), &to);
        assert!(matches!(second, Err(Error::Owned { .. })), "{second:?}");
        assert!(matches!(remove_orphans(&mut namespace.open()), Ok(0)));
        drop(alive);
        assert!(matches!(remove_orphans(&mut namespace.open()), Ok(1)));
        Ok(())
    }
}
