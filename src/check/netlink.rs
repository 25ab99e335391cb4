//! Interfaces, and base chains of the hook forward in all families of tables.

use nfnetlink::Error;
use nfnetlink::message::{Message, put_netfilter_header};
use nfnetlink::socket::{Protocol, Request, Socket};

/// The size of `struct ifinfomsg`.
const LINK_HEADER: usize = 16;
/// The number of attempts at a listing that changes interrupt.
const ATTEMPTS: usize = 20;
/// `NFTA_CHAIN_*` and `NFTA_HOOK_*` of `linux/netfilter/nf_tables.h`.
const CHAIN_TABLE: u16 = 1;
const CHAIN_NAME: u16 = 3;
const CHAIN_HOOK: u16 = 4;
const CHAIN_POLICY: u16 = 5;
const HOOK_NUMBER: u16 = 1;
/// `NF_INET_FORWARD`.
const FORWARD: u32 = 2;

/// An interface.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Link {
    pub(super) index: u32,
    pub(super) name: String,
    /// The type (`IFLA_INFO_KIND`), such as `bridge` or `veth`; empty for hardware.
    pub(super) kind: String,
    /// The index of the bridge or bond.
    pub(super) master: Option<u32>,
    /// The other end is in another network namespace.
    pub(super) peer_is_elsewhere: bool,
}

/// Lists the interfaces of this network namespace.
pub(super) fn links() -> Result<Vec<Link>, Error> {
    let list = Request {
        name: "list interfaces",
        kind: libc::RTM_GETLINK,
        flags: libc::NLM_F_DUMP as u16,
    };
    dump(Protocol::Route, list, |body| body.extend([0; LINK_HEADER]), parse_link)
}

fn parse_link(message: &Message<'_>) -> Option<Link> {
    let attrs = message.attrs_behind(LINK_HEADER);
    let number = |kind| -> Option<u32> {
        Some(u32::from_ne_bytes(attrs.find(kind)?.payload.try_into().ok()?))
    };
    let info = attrs.find(libc::IFLA_LINKINFO);
    let kind = info.and_then(|info| info.children().find(libc::IFLA_INFO_KIND));
    Some(Link {
        index: u32::from_ne_bytes(*message.payload.get(4..)?.first_chunk()?),
        name: attrs.find(libc::IFLA_IFNAME)?.text()?.to_owned(),
        kind: kind.and_then(|kind| kind.text()).unwrap_or_default().to_owned(),
        master: number(libc::IFLA_MASTER),
        peer_is_elsewhere: attrs.find(libc::IFLA_LINK_NETNSID).is_some(),
    })
}

/// A base chain at the hook forward.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ForwardChain {
    /// The family, table and name, as nft writes them.
    pub(super) name: String,
    /// The policy is drop.
    pub(super) drops: bool,
}

/// Lists the base chains that forwarded packets of IPv4 or IPv6 meet.
pub(super) fn forward_chains() -> Result<Vec<ForwardChain>, Error> {
    let kind = (libc::NFNL_SUBSYS_NFTABLES as u16) << 8 | libc::NFT_MSG_GETCHAIN as u16;
    let list = Request { name: "list chains", kind, flags: libc::NLM_F_DUMP as u16 };
    let all = |body: &mut Vec<u8>| put_netfilter_header(body, libc::NFPROTO_UNSPEC as u8, 0);
    dump(Protocol::Netfilter, list, all, parse_chain)
}

fn parse_chain(message: &Message<'_>) -> Option<ForwardChain> {
    let family = match i32::from(*message.payload.first()?) {
        libc::NFPROTO_IPV4 => "ip",
        libc::NFPROTO_IPV6 => "ip6",
        libc::NFPROTO_INET => "inet",
        _ => return None,
    };
    let attrs = message.attrs();
    let hook = attrs.find(CHAIN_HOOK)?.children().find(HOOK_NUMBER)?.be32()?;
    let text = |kind| attrs.find(kind).and_then(|a| a.text());
    let policy = attrs.find(CHAIN_POLICY).and_then(|a| a.be32());
    (hook == FORWARD).then_some(ForwardChain {
        name: format!("{family} {} {}", text(CHAIN_TABLE)?, text(CHAIN_NAME)?),
        drops: policy == Some(libc::NF_DROP as u32),
    })
}

/// Repeats a listing until no change interrupts it.
fn dump<T>(
    protocol: Protocol,
    request: Request,
    body: impl Fn(&mut Vec<u8>),
    parse: impl Fn(&Message<'_>) -> Option<T>,
) -> Result<Vec<T>, Error> {
    let once = || {
        let mut found = Vec::new();
        let mut socket = Socket::open(protocol)?;
        socket.request(request, &body, |message| found.extend(parse(&message)))?;
        Ok(found)
    };
    for _ in 1..ATTEMPTS {
        match once() {
            Err(Error::Interrupted) => {}
            result => return result,
        }
    }
    once()
}
