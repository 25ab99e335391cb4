//! What the chains of other programs do with a packet, before and behind shunt's translation.

use nfnetlink::nft::{
    AttachedChain, Error, JudgedPacket, Mark, NfProto, Passing as Judged, Place, Socket, rule_text,
};
use nfnetlink::route::{Link, RouteAnswer, RouteQuery, route_to};
use nfnetlink::xtables::legacy_tables_in_effect;
use shunt_core::explain::{Code, Finding, Packet};
use shunt_core::model::Backend;
use shunt_core::plan::TABLE;

use crate::dataplane::table_family;

/// The priority of destination NAT (`NF_IP_PRI_NAT_DST`), shunt's own.
const NAT_DST: i32 = -100;
/// The priority of source NAT (`NF_IP_PRI_NAT_SRC`).
const NAT_SRC: i32 = 100;

/// What the chains of other programs do with the packet.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Passing {
    /// All let it pass.
    #[default]
    Passes,
    /// A chain drops it silently.
    Drops(String),
    /// A chain rejects it, and the client gets an error.
    Rejects(String),
    /// A chain may drop it.
    May(String),
    /// A chain may translate it, and then shunt's rules do not see it.
    MayTranslate(String),
    /// A chain excludes it from connection tracking, and then no rule translates it.
    Untracked(String),
}

impl Passing {
    /// Returns the finding that another program does that to `what`, unless all let it pass.
    pub(super) fn finding(&self, what: &str) -> Option<Finding> {
        let (does, by, code) = match self {
            Passing::Passes => return None,
            Passing::Drops(by) => ("drops", by, Code::ForeignDrop),
            Passing::Rejects(by) => ("rejects", by, Code::ForeignDrop),
            Passing::May(by) => ("may drop", by, Code::ForeignDropPossible),
            Passing::MayTranslate(by) => ("may translate", by, Code::ForeignTranslationPossible),
            Passing::Untracked(by) => ("does not track", by, Code::Untracked),
        };
        let mut text = format!("another program {does} {what}: {by}");
        if code == Code::Untracked {
            text += "; no rule translates an untracked packet, and it goes to the address itself";
        }
        Some(Finding::new(code, text))
    }
}

/// The base chains of other programs.
pub(super) struct Others {
    socket: Socket,
    chains: Vec<AttachedChain>,
    /// What cannot be judged at all.
    unjudged: Option<String>,
    /// The interface of the route that the node chose before the translation. The output hook shows
    /// it behind the translation, too (`nf_hook_state.out`).
    first_output: Option<String>,
}

/// A packet on its way past chains.
struct Passage<'a> {
    others: &'a mut Others,
    packet: JudgedPacket,
    /// The bits of the mark that are shunt's.
    own_mark: u32,
    /// The first chain that may drop or translate the packet, or the one that excludes it from
    /// connection tracking.
    doubt: Option<Passing>,
}

impl Others {
    /// Lists the chains in the network namespace of this thread.
    pub(super) fn list(packet: &Packet, links: &[Link]) -> Result<Others, Error> {
        let mut socket = Socket::open()?;
        let own = |chain: &AttachedChain| {
            chain.table == TABLE && matches!(chain.family, NfProto::Ip | NfProto::Ip6)
        };
        // An empty chain that accepts changes nothing.
        let matters = |chain: &AttachedChain| chain.rules > 0 || chain.drops_by_default;
        let mut chains = socket.base_chains()?;
        chains.retain(|chain| !own(chain) && matters(chain));
        // nf_tables does not list them.
        let unjudged = match legacy_tables_in_effect(table_family(packet.family())) {
            Ok(names) if names.is_empty() => None,
            Ok(names) => Some(format!(
                "the effect of legacy iptables' rules in the tables {}",
                names.join(", ")
            )),
            Err(error) => Some(format!("the rules of legacy iptables: {error}")),
        };
        let output = match route_to(RouteQuery::to(packet.destination)) {
            Ok(RouteAnswer::Route(route)) => route.output,
            _ => None,
        };
        let link = links.iter().find(|link| Some(link.index) == output);
        let first_output = link.map(|link| link.name.clone());
        Ok(Others { socket, chains, unjudged, first_output })
    }

    /// Judges the chains that the packet meets before shunt translates it.
    pub(super) fn before(&mut self, packet: &Packet) -> Result<Passing, Error> {
        let hook = if packet.from_node { "output" } else { "prerouting" };
        let mut passage = Passage::new(self, packet);
        if let Some(dropped) = passage.devices()? {
            return Ok(dropped);
        }
        if let Some(dropped) = passage.hook(hook, |priority| priority < NAT_DST)? {
            return Ok(dropped);
        }
        // The order of chains of one priority is not known.
        if let Some(Passing::Drops(by) | Passing::Rejects(by)) =
            passage.hook(hook, |priority| priority == NAT_DST)?
        {
            passage.doubt.get_or_insert(Passing::May(by));
        }
        Ok(passage.doubt.unwrap_or_default())
    }

    /// Judges the chains that the packet meets behind the translation to an endpoint: on the node itself, or
    /// on its way to an interface. `mark` are the bits that shunt adds to the mark.
    pub(super) fn behind(
        &mut self,
        packet: &Packet,
        backend: Backend,
        (is_local, output): (bool, Option<&str>),
        mark: u32,
    ) -> Result<Passing, Error> {
        let is_own = packet.from_node;
        let mut passage = Passage::new(self, packet);
        passage.packet.destination = backend.address;
        passage.packet.port = backend.port;
        passage.packet.translated = true;
        passage.packet.mark.value |= mark;
        passage.own_mark = mark;
        passage.packet.is_local = Some(is_local);
        let first = if is_own { "output" } else { "prerouting" };
        let mut dropped = passage.hook(first, |priority| priority > NAT_DST)?;
        passage.packet.output = output.map(str::to_owned);
        let rest: &[&str] = match (is_own, is_local) {
            // The loopback interface brings it back as a packet that arrives.
            (true, true) => &["postrouting", "prerouting", "input"],
            (true, false) => &["postrouting"],
            (false, true) => &["input"],
            (false, false) => &["forward", "postrouting"],
        };
        for hook in rest {
            if is_own && *hook == "prerouting" {
                passage.packet.input = Some("lo".to_owned());
                passage.packet.mark.value &= !mark;
                // A masquerade has changed the source to an address that is not known here.
                let mut chains = passage.others.chains.iter();
                if mark != 0 && chains.any(|it| ["prerouting", "input"].contains(&it.hook_name())) {
                    let text = "a chain at prerouting or input, which sees the masqueraded source"
                        .to_owned();
                    return Ok(dropped.unwrap_or(Passing::May(text)));
                }
            }
            if dropped.is_none() {
                dropped = passage.hook(hook, |_| true)?;
            }
        }
        Ok(dropped.or(passage.doubt).unwrap_or_default())
    }
}

impl<'a> Passage<'a> {
    fn new(others: &'a mut Others, packet: &Packet) -> Passage<'a> {
        let Packet { source, destination, protocol, port, .. } = *packet;
        let mut judged = JudgedPacket::new(protocol, source, destination, port);
        // Nothing but rules that are judged here sets a mark, except for traffic control.
        judged.mark = Mark::from(0);
        judged.input = packet.interface.as_deref().map(str::to_owned);
        judged.output.clone_from(&others.first_output);
        let doubt = others.unjudged.clone().map(Passing::May);
        Passage { others, packet: judged, own_mark: 0, doubt }
    }

    /// Passes the chains of a hook, in order. Returns the first that drops the packet.
    fn hook(&mut self, hook: &str, wanted: impl Fn(i32) -> bool) -> Result<Option<Passing>, Error> {
        let family = self.packet.family();
        self.pass(|chain| {
            matches!(chain.family, NfProto::Inet | NfProto::Ip | NfProto::Ip6)
                && chain.family.sees(family)
                && chain.hook_name() == hook
                && wanted(chain.priority)
        })
    }

    /// Passes the chains of the interface on which the packet arrives.
    fn devices(&mut self) -> Result<Option<Passing>, Error> {
        let Some(input) = self.packet.input.clone() else { return Ok(None) };
        self.pass(|chain| {
            chain.family == NfProto::Netdev
                && chain.hook_name() == "ingress"
                && chain.devices.contains(&input)
        })
    }

    fn pass(&mut self, wanted: impl Fn(&AttachedChain) -> bool) -> Result<Option<Passing>, Error> {
        let chains = self.others.chains.iter().filter(|chain| wanted(chain));
        for chain in chains.cloned().collect::<Vec<_>>() {
            if chain.hook_name() == "postrouting" && chain.priority >= NAT_SRC {
                // shunt's own chain clears its bit there.
                self.packet.mark.known &= !self.own_mark;
            }
            // Address translation works by connection tracking.
            if self.packet.untracked && chain.kind == "nat" {
                continue;
            }
            let judgement = self.others.socket.judge(&chain, &self.packet)?;
            self.packet.mark = judgement.mark;
            // Before shunt does.
            if let Some(place) = judgement.translation.filter(|_| !self.packet.translated) {
                let by = self.name(&chain, &place);
                if judgement.untracked {
                    self.packet.untracked = true;
                    self.doubt = Some(Passing::Untracked(by));
                } else {
                    self.doubt.get_or_insert(Passing::MayTranslate(by));
                }
            }
            match judgement.passing {
                Judged::Passes => {}
                Judged::Drops(place) => {
                    let by = self.name(&chain, &place);
                    return Ok(Some(match place.what.to_lowercase().contains("reject") {
                        true => Passing::Rejects(by),
                        false => Passing::Drops(by),
                    }));
                }
                Judged::May { place, why } => {
                    let text = format!("{}; {why}", self.name(&chain, &place));
                    self.doubt.get_or_insert(Passing::May(text));
                }
            }
        }
        Ok(None)
    }

    /// Describes a place, by the text of its rule.
    fn name(&mut self, chain: &AttachedChain, place: &Place) -> String {
        let AttachedChain { family, table, .. } = chain;
        let rule = place.rule.and_then(|handle| {
            let rule = self.others.socket.rule(*family, table, &place.chain, handle);
            Some(rule_text(self.packet.family(), &rule.ok()??.exprs))
        });
        let rule = rule.map(|rule| format!(" (`{rule}`)")).unwrap_or_default();
        format!("{place}{rule} of table {family} {table} at {}", chain.hook_name())
    }
}
