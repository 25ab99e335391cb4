//! The base chains of all tables, whichever program they belong to.

use std::fmt;

use super::uapi::{
    NFTA_CHAIN_HOOK, NFTA_CHAIN_NAME, NFTA_CHAIN_POLICY, NFTA_CHAIN_TABLE, NFTA_CHAIN_TYPE,
    NFTA_CHAIN_USE, NFTA_HOOK_DEVS, NFTA_HOOK_HOOKNUM, NFTA_HOOK_PRIORITY, kind,
};
use super::{Error, Socket};
use crate::Family;
use crate::message::{Message, put_netfilter_header};
use crate::socket::Request;

/// A family of tables and hooks (`NFPROTO_*`). [`Family`] has the two that translate addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NfProto {
    /// IPv4 and IPv6 packets.
    Inet,
    /// IPv4 packets.
    Ip,
    /// ARP packets.
    Arp,
    /// Packets of one interface, before or after all other hooks.
    Netdev,
    /// Frames that a bridge handles.
    Bridge,
    /// IPv6 packets.
    Ip6,
    /// Another family, by its number.
    Other(u8),
}

impl NfProto {
    /// Returns the family's number in messages.
    #[must_use]
    pub fn number(self) -> u8 {
        (match self {
            NfProto::Inet => libc::NFPROTO_INET,
            NfProto::Ip => libc::NFPROTO_IPV4,
            NfProto::Arp => libc::NFPROTO_ARP,
            NfProto::Netdev => libc::NFPROTO_NETDEV,
            NfProto::Bridge => libc::NFPROTO_BRIDGE,
            NfProto::Ip6 => libc::NFPROTO_IPV6,
            NfProto::Other(number) => return number,
        }) as u8
    }

    /// Returns the family with this number.
    #[must_use]
    pub fn from_number(number: u8) -> NfProto {
        use NfProto::{Arp, Bridge, Inet, Ip, Ip6, Netdev};
        let known = [Inet, Ip, Arp, Netdev, Bridge, Ip6];
        known.into_iter().find(|it| it.number() == number).unwrap_or(NfProto::Other(number))
    }

    /// Returns true if chains of this family see IP packets of `family`.
    #[must_use]
    pub fn sees(self, family: Family) -> bool {
        match self {
            NfProto::Inet | NfProto::Netdev | NfProto::Bridge => true,
            other => other.number() == family.number(),
        }
    }

    /// Returns the word of nft for a hook of this family.
    #[must_use]
    pub fn hook_name(self, hook: u32) -> &'static str {
        let names: &[&str] = match self {
            NfProto::Arp => &["input", "output", "forward"],
            NfProto::Netdev => &["ingress", "egress"],
            _ => &["prerouting", "input", "forward", "output", "postrouting", "ingress"],
        };
        names.get(hook as usize).copied().unwrap_or("unknown hook")
    }
}

impl From<Family> for NfProto {
    fn from(family: Family) -> NfProto {
        NfProto::from_number(family.number())
    }
}

impl fmt::Display for NfProto {
    /// Writes the word of nft.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            NfProto::Inet => "inet",
            NfProto::Ip => "ip",
            NfProto::Arp => "arp",
            NfProto::Netdev => "netdev",
            NfProto::Bridge => "bridge",
            NfProto::Ip6 => "ip6",
            NfProto::Other(number) => return write!(f, "family {number}"),
        })
    }
}

/// A base chain of any table: a chain that sees packets at a hook.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttachedChain {
    /// The family of the table.
    pub family: NfProto,
    /// The name of the table.
    pub table: String,
    /// The name of the chain.
    pub chain: String,
    /// The type: `filter`, `nat` or `route`.
    pub kind: String,
    /// The number of the hook in its family.
    pub hook: u32,
    /// The priority among the chains of the hook; the kernel runs lower ones first.
    pub priority: i32,
    /// True if the policy is drop: a packet that no rule accepts is dropped.
    pub drops_by_default: bool,
    /// The interfaces, for hooks of single interfaces.
    pub devices: Vec<String>,
    /// The number of rules in the chain itself.
    pub rules: u32,
}

impl AttachedChain {
    /// Reads a chain; `None` if it has no hook.
    pub(crate) fn parse(message: &Message<'_>) -> Option<AttachedChain> {
        let attrs = message.attrs();
        let hook = attrs.find(NFTA_CHAIN_HOOK)?.children();
        let text = |kind| Some(attrs.text(kind)?.to_owned());
        let devices = hook.find(NFTA_HOOK_DEVS).map(|list| list.children());
        let devices = devices.into_iter().flatten().filter_map(|it| it.text()).map(str::to_owned);
        Some(AttachedChain {
            family: NfProto::from_number(*message.payload.first()?),
            table: text(NFTA_CHAIN_TABLE)?,
            chain: text(NFTA_CHAIN_NAME)?,
            kind: text(NFTA_CHAIN_TYPE)?,
            hook: hook.be32(NFTA_HOOK_HOOKNUM)?,
            priority: hook.be32(NFTA_HOOK_PRIORITY)? as i32,
            drops_by_default: attrs.be32(NFTA_CHAIN_POLICY) == Some(libc::NF_DROP as u32),
            devices: devices.collect(),
            rules: attrs.be32(NFTA_CHAIN_USE).unwrap_or(0),
        })
    }

    /// Returns the word of nft for the hook.
    #[must_use]
    pub fn hook_name(&self) -> &'static str {
        self.family.hook_name(self.hook)
    }
}

impl fmt::Display for AttachedChain {
    /// Writes family, table, chain and priority: `inet firewalld filter_FORWARD (priority 10)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let AttachedChain { family, table, chain, priority, .. } = self;
        write!(f, "{family} {table} {chain} (priority {priority})")
    }
}

impl Socket {
    /// Lists the base chains of all tables of all families, in the order in which the kernel runs
    /// those of one hook.
    ///
    /// # Errors
    /// [`Error::Interrupted`] if commits interrupt every attempt.
    pub fn base_chains(&mut self) -> Result<Vec<AttachedChain>, Error> {
        let list = Request::dump("list chains", kind(libc::NFT_MSG_GETCHAIN));
        let body = |body: &mut Vec<u8>| put_netfilter_header(body, libc::NFPROTO_UNSPEC as u8, 0);
        let parse = |message: Message<'_>| AttachedChain::parse(&message);
        let mut chains = self.dumps.list(list, body, parse)?;
        chains.sort_by_key(|chain| (chain.hook, chain.priority));
        Ok(chains)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_have_the_numbers_and_words_of_nft() {
        for number in 0..=20 {
            assert_eq!(NfProto::from_number(number).number(), number);
        }
        assert_eq!(NfProto::from(Family::Ip6).to_string(), "ip6");
        assert!(NfProto::Inet.sees(Family::Ip6) && !NfProto::Ip.sees(Family::Ip6));
        assert!(!NfProto::Arp.sees(Family::Ip));
    }
}
