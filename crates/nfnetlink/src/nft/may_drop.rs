//! Whether the rules of a base chain may drop packets, judged by their statements alone.
//!
//! This does not evaluate matches: a rule that drops one port counts as much as one that drops
//! everything. So it can say that a chain is harmless, and otherwise which rule to look at.

use std::collections::{BTreeSet, VecDeque};

use super::uapi::{
    NFT_OBJECT_SYNPROXY, NFTA_DATA_VERDICT, NFTA_EXPR_DATA, NFTA_EXPR_NAME, NFTA_IMMEDIATE_DATA,
    NFTA_LOOKUP_DREG, NFTA_LOOKUP_SET, NFTA_OBJREF_IMM_TYPE, NFTA_RULE_CHAIN,
    NFTA_RULE_EXPRESSIONS, NFTA_RULE_HANDLE, NFTA_RULE_TABLE, NFTA_SET_ELEM_DATA,
    NFTA_SET_ELEM_LIST_ELEMENTS, NFTA_SET_ELEM_LIST_SET, NFTA_SET_ELEM_LIST_TABLE,
    NFTA_TARGET_NAME, NFTA_VERDICT_CHAIN, NFTA_VERDICT_CODE, kind,
};
use super::{AttachedChain, Error, NfProto, Socket};
use crate::attr::{Attr, Attrs, put_text};
use crate::message::put_netfilter_header;
use crate::socket::{Protocol, Request};

/// The judgement gives up after this many rules and map elements: the tables of another proxy can
/// have hundreds of thousands.
const MAX_READ: usize = 10_000;

/// Expressions of nf_tables that never end the way of a packet.
const HARMLESS_EXPRESSIONS: [&str; 32] = [
    "bitwise",
    "byteorder",
    "cmp",
    "connlimit",
    "counter",
    "ct",
    "dup",
    "dynset",
    "exthdr",
    "fib",
    "flow_offload",
    "hash",
    "inner",
    "last",
    "limit",
    "log",
    "masq",
    "match",
    "meta",
    "nat",
    "notrack",
    "numgen",
    "osf",
    "payload",
    "quota",
    "range",
    "redir",
    "rt",
    "socket",
    "tproxy",
    "tunnel",
    "xfrm",
];

/// Targets of iptables that never drop packets. An unknown target counts as one that does.
const HARMLESS_TARGETS: [&str; 31] = [
    "ACCEPT",
    "AUDIT",
    "CHECKSUM",
    "CLASSIFY",
    "CONNMARK",
    "CONNSECMARK",
    "CT",
    "DNAT",
    "DSCP",
    "ECN",
    "HL",
    "HMARK",
    "IDLETIMER",
    "LED",
    "LOG",
    "MARK",
    "MASQUERADE",
    "NETMAP",
    "NFLOG",
    "NOTRACK",
    "RATEEST",
    "REDIRECT",
    "RETURN",
    "SECMARK",
    "SET",
    "SNAT",
    "TCPMSS",
    "TCPOPTSTRIP",
    "TEE",
    "TOS",
    "TTL",
];

/// Whether a base chain may drop packets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MayDrop {
    /// No rule that packets can reach from the chain drops, rejects or queues.
    Never,
    /// The chain drops all packets that its rules do not accept.
    Policy,
    /// A rule may drop some packets. There may be more such rules.
    Rule {
        /// The chain of the rule.
        chain: String,
        /// The number of the rule, by which `nft --handle list chain` shows it.
        handle: u64,
        /// The statement: `drop`, `reject`, `queue`, or the name of a target of iptables.
        what: String,
    },
    /// No such rule was found, but not all of them could be judged, for this reason.
    Unknown(String),
}

/// The effects of the statements of a rule, or of the elements of a verdict map.
#[derive(Debug, Default, PartialEq, Eq)]
struct Effects {
    /// The statement that ends the way of the packet.
    drops: Option<String>,
    /// The chains of jump and goto.
    chains: Vec<String>,
    /// The verdict maps.
    maps: Vec<String>,
    /// The first unknown expression.
    unknown: Option<String>,
}

impl Effects {
    fn of_rule(expressions: &Attrs<'_>) -> Effects {
        let mut effects = Effects::default();
        for expression in expressions.clone() {
            let attrs = expression.children();
            let Some(name) = attrs.find(NFTA_EXPR_NAME).and_then(|name| name.text()) else {
                continue;
            };
            let data = attrs.find(NFTA_EXPR_DATA).map_or(Attrs::new(&[]), |data| data.children());
            effects.add(name, &data);
        }
        effects
    }

    fn add(&mut self, name: &str, data: &Attrs<'_>) {
        let text = |kind| data.find(kind).and_then(|it| it.text());
        match name {
            "immediate" => {
                if let Some(data) = data.find(NFTA_IMMEDIATE_DATA) {
                    self.add_verdict(&data);
                }
            }
            "reject" | "queue" | "synproxy" | "fwd" => self.drop_by(name),
            "lookup" => {
                let to = data.find(NFTA_LOOKUP_DREG).and_then(|it| it.be32());
                if to == Some(libc::NFT_REG_VERDICT as u32) {
                    self.maps.extend(text(NFTA_LOOKUP_SET).map(str::to_owned));
                }
            }
            "objref" => match data.find(NFTA_OBJREF_IMM_TYPE).and_then(|it| it.be32()) {
                Some(NFT_OBJECT_SYNPROXY) => self.drop_by("synproxy"),
                Some(_) => {}
                None => self.unknown_by("a map of objects"),
            },
            "target" => match text(NFTA_TARGET_NAME) {
                Some(name) if HARMLESS_TARGETS.contains(&name) => {}
                Some(name) => self.drop_by(name),
                None => self.unknown_by("a target without a name"),
            },
            name if HARMLESS_EXPRESSIONS.contains(&name) => {}
            name => self.unknown_by(&format!("the expression {name}")),
        }
    }

    /// Adds the verdict in the data of an expression or element, if it has one.
    fn add_verdict(&mut self, data: &Attr<'_>) {
        let Some(verdict) = data.children().find(NFTA_DATA_VERDICT) else { return };
        let code = verdict.children().find(NFTA_VERDICT_CODE).and_then(|code| code.be32());
        // The upper half of a queue verdict is the number of the queue.
        match code.map(|code| code as i32) {
            Some(libc::NF_DROP) => self.drop_by("drop"),
            Some(code) if code >= 0 && code & 0xff == libc::NF_QUEUE => self.drop_by("queue"),
            Some(libc::NFT_JUMP | libc::NFT_GOTO) => {
                let chain = verdict.children().find(NFTA_VERDICT_CHAIN);
                self.chains.extend(chain.and_then(|it| it.text()).map(str::to_owned));
            }
            _ => {}
        }
    }

    fn drop_by(&mut self, what: &str) {
        self.drops.get_or_insert_with(|| what.to_owned());
    }

    fn unknown_by(&mut self, what: &str) {
        self.unknown.get_or_insert_with(|| what.to_owned());
    }
}

impl Socket {
    /// Finds out whether a base chain may drop packets: reads its rules and those of the chains
    /// that it leads to, until the first rule that may. Rules that another process adds or deletes
    /// meanwhile may be missing.
    ///
    /// ```no_run
    /// use nfnetlink::nft::{MayDrop, Socket};
    ///
    /// let mut socket = Socket::open()?;
    /// for chain in socket.base_chains()?.iter().filter(|chain| chain.hook_name() == "forward") {
    ///     if let MayDrop::Rule { handle, what, .. } = socket.can_drop(chain)? {
    ///         println!("{chain}: rule {handle} may {what}");
    ///     }
    /// }
    /// # Ok::<(), nfnetlink::nft::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the kernel refuses a listing.
    pub fn can_drop(&self, chain: &AttachedChain) -> Result<MayDrop, Error> {
        if chain.drops_by_default {
            return Ok(MayDrop::Policy);
        }
        let mut listing = Listing { family: chain.family, table: &chain.table, left: MAX_READ };
        let mut seen: BTreeSet<String> = [chain.chain.clone()].into();
        let mut seen_maps = BTreeSet::new();
        let mut waiting = VecDeque::from([chain.chain.clone()]);
        let mut unknown = None;
        while let Some(chain) = waiting.pop_front() {
            for (handle, mut effects) in listing.rules(&chain)? {
                for map in std::mem::take(&mut effects.maps) {
                    if effects.drops.is_none() && seen_maps.insert(map.clone()) {
                        listing.add_map(&map, &mut effects)?;
                    }
                }
                if let Some(what) = effects.drops {
                    return Ok(MayDrop::Rule { chain, handle, what });
                }
                unknown = unknown.or(effects
                    .unknown
                    .map(|what| format!("rule {handle} of chain {chain} has {what}")));
                waiting.extend(effects.chains.into_iter().filter(|it| seen.insert(it.clone())));
            }
            if listing.left == 0 {
                let reason = format!("more than {MAX_READ} rules and map elements");
                return Ok(MayDrop::Unknown(reason));
            }
        }
        Ok(unknown.map_or(MayDrop::Never, MayDrop::Unknown))
    }
}

/// The listings of one judgement, which end when they have read enough.
struct Listing<'a> {
    family: NfProto,
    table: &'a str,
    /// The number of rules and elements that may still be read.
    left: usize,
}

impl Listing<'_> {
    /// Lists the rules of a chain, in their order.
    fn rules(&mut self, chain: &str) -> Result<Vec<(u64, Effects)>, Error> {
        let body = |body: &mut Vec<u8>, listing: &Listing<'_>| {
            put_netfilter_header(body, listing.family.number(), 0);
            put_text(body, NFTA_RULE_TABLE, listing.table);
            put_text(body, NFTA_RULE_CHAIN, chain);
        };
        self.read("list rules", libc::NFT_MSG_GETRULE, body, |attrs, rules| {
            // Kernels that ignore the name of the chain in the request list the whole table.
            if attrs.find(NFTA_RULE_CHAIN).and_then(|it| it.text()) == Some(chain) {
                let handle = attrs.find(NFTA_RULE_HANDLE).and_then(|it| it.be64()).unwrap_or(0);
                let expressions = attrs.find(NFTA_RULE_EXPRESSIONS);
                let expressions = expressions.map_or(Attrs::new(&[]), |it| it.children());
                rules.push((handle, Effects::of_rule(&expressions)));
            }
            1
        })
    }

    /// Adds the verdicts of a map.
    fn add_map(&mut self, map: &str, effects: &mut Effects) -> Result<(), Error> {
        let body = |body: &mut Vec<u8>, listing: &Listing<'_>| {
            put_netfilter_header(body, listing.family.number(), 0);
            put_text(body, NFTA_SET_ELEM_LIST_TABLE, listing.table);
            put_text(body, NFTA_SET_ELEM_LIST_SET, map);
        };
        let lists =
            self.read("list elements", libc::NFT_MSG_GETSETELEM, body, |attrs, lists| {
                let list = attrs.find(NFTA_SET_ELEM_LIST_ELEMENTS);
                let mut part = Effects::default();
                let mut count = 0;
                for element in list.into_iter().flat_map(|list| list.children()) {
                    count += 1;
                    if let Some(data) = element.children().find(NFTA_SET_ELEM_DATA) {
                        part.add_verdict(&data);
                    }
                }
                lists.push(part);
                count
            })?;
        for list in lists {
            effects.drops = effects.drops.take().or(list.drops);
            effects.chains.extend(list.chains);
        }
        Ok(())
    }

    /// Dumps objects over a socket of its own, which may be closed in the middle of the listing.
    /// `each` returns the number of objects in a message.
    fn read<T>(
        &mut self,
        name: &'static str,
        message: i32,
        body: impl Fn(&mut Vec<u8>, &Listing<'_>),
        each: impl Fn(&Attrs<'_>, &mut Vec<T>) -> usize,
    ) -> Result<Vec<T>, Error> {
        let list = Request { name, kind: kind(message), flags: libc::NLM_F_DUMP as u16 };
        let mut socket = crate::socket::Socket::open(Protocol::Netfilter)?;
        socket.start(list, |buffer| body(buffer, self))?;
        let (mut found, mut more) = (Vec::new(), true);
        while more && self.left > 0 {
            let mut count = 0;
            more = socket.next_part(|message| count += each(&message.attrs(), &mut found))?;
            self.left = self.left.saturating_sub(count);
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attr::{nest, put_be32};

    /// Returns the effects of a rule with one expression.
    fn effects(name: &str, data: impl FnOnce(&mut Vec<u8>)) -> Effects {
        let mut list = Vec::new();
        nest(&mut list, 1, |expression| {
            put_text(expression, NFTA_EXPR_NAME, name);
            nest(expression, NFTA_EXPR_DATA, data);
        });
        Effects::of_rule(&Attrs::new(&list))
    }

    fn verdict(code: i32) -> Effects {
        effects("immediate", |data| {
            nest(data, NFTA_IMMEDIATE_DATA, |value| {
                nest(value, NFTA_DATA_VERDICT, |verdict| {
                    put_be32(verdict, NFTA_VERDICT_CODE, code as u32);
                    put_text(verdict, NFTA_VERDICT_CHAIN, "next");
                });
            });
        })
    }

    #[test]
    fn verdicts_drop_queue_or_lead_elsewhere() {
        for (code, drops, chains) in [
            (libc::NF_DROP, Some("drop"), 0),
            (libc::NF_ACCEPT, None, 0),
            (libc::NF_QUEUE | 5 << 16, Some("queue"), 0),
            (libc::NFT_RETURN, None, 0),
            (libc::NFT_JUMP, None, 1),
            (libc::NFT_GOTO, None, 1),
        ] {
            let effects = verdict(code);
            assert_eq!((effects.drops.as_deref(), effects.chains.len()), (drops, chains), "{code}");
        }
    }

    #[test]
    fn targets_of_iptables_are_known_or_drop() {
        let target = |name: &str| effects("target", |data| put_text(data, NFTA_TARGET_NAME, name));
        for (name, drops) in [
            ("MARK", None),
            ("REJECT", Some("REJECT")),
            ("NFQUEUE", Some("NFQUEUE")),
            ("SYNPROXY", Some("SYNPROXY")),
            ("something new", Some("something new")),
        ] {
            assert_eq!(target(name).drops.as_deref(), drops);
        }
    }

    #[test]
    fn unknown_expressions_are_unknown() {
        assert_eq!(effects("counter", |_| {}), Effects::default());
        assert_eq!(effects("reject", |_| {}).drops.as_deref(), Some("reject"));
        let unknown = effects("something", |_| {}).unknown;
        assert_eq!(unknown.as_deref(), Some("the expression something"));
        let synproxy = |data: &mut Vec<u8>| put_be32(data, NFTA_OBJREF_IMM_TYPE, 10);
        assert_eq!(effects("objref", synproxy).drops.as_deref(), Some("synproxy"));
        assert!(effects("objref", |_| {}).unknown.is_some());
    }
}
