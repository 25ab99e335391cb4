//! The expressions of nf_tables, evaluated for one packet.

use std::fmt;
use std::net::IpAddr;

use super::packet::{State, Tracking, View, addresses, has_ports, octets};
use super::registers::{Bits, Registers};
use super::step::{Step, untrack};
use super::truth::Truth;
use super::xt;
use crate::Family;
use crate::nft::expr::{FIB_ADDRESS_TYPE, FIB_DESTINATION};
use crate::nft::uapi::{
    NFT_OBJECT_COUNTER, NFT_OBJECT_CT_EXPECT, NFT_OBJECT_CT_HELPER, NFT_OBJECT_CT_TIMEOUT,
    NFT_OBJECT_SECMARK, NFT_OBJECT_SYNPROXY, NFT_OBJECT_TUNNEL,
};
use crate::nft::{Bitwise, Comparison, Expr, Register};

/// The size of an interface's name in a register (`IFNAMSIZ`).
const NAME: usize = libc::IFNAMSIZ;

/// The state of a packet within a rule.
#[derive(Debug, Clone)]
pub(super) struct Evaluation<'a> {
    pub(super) registers: Registers,
    /// Why the last value or match is not known, if it is not.
    unknown: Option<String>,
    chain: &'a str,
    /// The handle of the rule.
    rule: u64,
}

impl<'a> Evaluation<'a> {
    pub(super) fn new(chain: &'a str, rule: u64) -> Evaluation<'a> {
        Evaluation { registers: Registers::new(), unknown: None, chain, rule }
    }

    /// Evaluates an expression, which may change registers and state.
    pub(super) fn step(&mut self, expression: &Expr, view: &View<'_>, state: &mut State) -> Step {
        match expression {
            Expr::Value { to, bytes } => {
                self.registers.store(*to, &Bits::known(bytes.clone()));
                Step::NEXT
            }
            Expr::Verdict(verdict) => Step::Verdict(verdict.clone()),
            Expr::Payload { base, offset, length, to } => {
                self.payload(*to, *base, *offset as usize, *length as usize, state)
            }
            Expr::SetPayload { base, offset, length, from } => {
                let bits = self.registers.load(*from, *length as usize);
                set_payload(*base, *offset as usize, &bits, view, state)
            }
            Expr::Meta { key, to } => self.meta(*to, *key, view, state),
            Expr::SetMeta { key, from } => {
                if *key == libc::NFT_META_MARK {
                    state.mark = self.registers.load(*from, 4);
                    state.mark_doubt = None;
                }
                Step::NEXT
            }
            Expr::Ct { key, direction, to } => self.ct(*to, *key, *direction, view, state),
            Expr::Compare { from, comparison, with } => {
                let bits = self.registers.load(*from, with.len());
                let truth = match comparison {
                    Comparison::Equal => bits.equals(with),
                    Comparison::NotEqual => !bits.equals(with),
                    Comparison::Less => bits.is_less(with),
                    Comparison::LessOrEqual => !bits.is_greater(with),
                    Comparison::Greater => bits.is_greater(with),
                    Comparison::GreaterOrEqual => !bits.is_less(with),
                };
                Step::Match(truth)
            }
            Expr::Range { from, negate, first, last } => {
                let bits = self.registers.load(*from, first.len());
                Step::Match(bits.is_between(first, last).inverted(*negate))
            }
            Expr::Bitwise { from, to, length, operation } => {
                let bits = self.registers.load(*from, *length as usize);
                match operation {
                    Bitwise::Mask { mask, xor } => {
                        self.registers.store(*to, &bits.masked(mask, xor));
                        Step::NEXT
                    }
                    // The kernel writes whole registers.
                    Bitwise::Other => {
                        let length = bits.len().next_multiple_of(4);
                        self.store_unknown(*to, length, "an operation on bits")
                    }
                }
            }
            Expr::ByteOrder { from, to, length, size } => {
                let bits = self.registers.load(*from, *length as usize);
                let is_little = cfg!(target_endian = "little");
                let bits = if is_little { bits.swapped(*size as usize) } else { bits };
                self.registers.store(*to, &bits);
                Step::NEXT
            }
            Expr::Lookup { .. } => Step::Lookup,
            Expr::Fib { result, flags, to } => self.fib(*to, *result, *flags, view),
            Expr::Number { to, .. } | Expr::Hash { to, .. } => {
                self.store_unknown(*to, 4, "a number that varies")
            }
            Expr::Match(extension) => {
                let name = &extension.name;
                let truth = xt::matches(extension, view, state);
                if truth == Truth::Unknown {
                    self.doubt(format_args!(
                        "whether the iptables match {name} applies is not known"
                    ));
                    self.earlier(state.mark_doubt.as_ref().filter(|_| name == "mark"));
                }
                Step::Match(truth)
            }
            Expr::Target(extension) => xt::target(extension, state),
            Expr::Counter | Expr::SetCt { .. } => Step::NEXT,
            Expr::Update { .. } => self.sometimes(expression.name()),
            Expr::Object { kind, .. } => match *kind {
                NFT_OBJECT_COUNTER
                | NFT_OBJECT_CT_HELPER
                | NFT_OBJECT_TUNNEL
                | NFT_OBJECT_CT_TIMEOUT
                | NFT_OBJECT_SECMARK
                | NFT_OBJECT_CT_EXPECT => Step::NEXT,
                NFT_OBJECT_SYNPROXY => Step::hands_over("synproxy"),
                // Quotas and limits.
                _ => self.sometimes("an object"),
            },
            Expr::Reject { .. } => Step::Drop("reject".to_owned()),
            Expr::Nat { destination: false, .. } => Step::Translate("snat".to_owned()),
            Expr::Nat { destination: true, .. } => Step::Translate("dnat".to_owned()),
            Expr::Masquerade { .. } => Step::Translate("masquerade".to_owned()),
            Expr::Other(name) => self.other(name, state),
        }
    }

    /// Evaluates an expression that is not decoded.
    fn other(&mut self, name: &str, state: &mut State) -> Step {
        match name {
            "dup" | "last" | "log" => Step::NEXT,
            "connlimit" | "dynset" | "exthdr" | "flow_offload" | "hash" | "inner" | "limit"
            | "osf" | "quota" | "rt" | "socket" | "tunnel" | "xfrm" => self.sometimes(name),
            // A map of objects, among which may be quotas and limits.
            "objref" => self.sometimes("an object"),
            "queue" | "synproxy" | "fwd" => Step::hands_over(name),
            "notrack" => untrack(state),
            "redir" => Step::Translate("redirect".to_owned()),
            // Without a socket, the next rule follows.
            "tproxy" => {
                self.doubt("whether tproxy finds a socket is not known");
                Step::Divert("tproxy".to_owned(), Truth::Unknown)
            }
            name => Step::Anything {
                what: format!("the expression {name}"),
                why: "its effect is not known",
            },
        }
    }

    /// Matches some packets, which ones depends on a state that is not known.
    fn sometimes(&mut self, name: &str) -> Step {
        // It may have written to a register.
        self.registers = Registers::new();
        self.unsure(format!("whether {name} matches is not known"))
    }

    /// Returns why a match is undecided.
    pub(super) fn reason(&mut self) -> String {
        if self.unknown.is_none() {
            self.forget("a compared value");
        }
        self.unknown.clone().unwrap_or_default()
    }

    /// Notes why something is not known.
    pub(super) fn doubt(&mut self, why: impl fmt::Display) {
        self.unknown = Some(format!("{why} (handle {} of chain {})", self.rule, self.chain));
    }

    /// Notes why an earlier rule may have changed the value.
    fn earlier(&mut self, doubt: Option<&String>) {
        self.unknown = doubt.cloned().or(self.unknown.take());
    }

    /// Matches or not, for this reason.
    pub(super) fn unsure(&mut self, why: impl fmt::Display) -> Step {
        self.doubt(why);
        Step::Match(Truth::Unknown)
    }

    /// Notes that this value is not known.
    fn forget(&mut self, what: &str) {
        self.doubt(format_args!("{what} is not known"));
    }

    /// Notes that all values are unknown, because of this one.
    pub(super) fn forget_all(&mut self, what: &str) {
        self.registers = Registers::new();
        self.forget(what);
    }

    /// Stores a value, and its name if it is not known.
    fn store(&mut self, to: Register, bits: &Bits, what: &'static str) -> Step {
        self.registers.store(to, bits);
        if bits.exact().is_none() {
            self.forget(what);
        }
        Step::NEXT
    }

    /// Stores an unknown value.
    fn store_unknown(&mut self, to: Register, length: usize, what: &'static str) -> Step {
        self.store(to, &Bits::unknown(length), what)
    }

    fn payload(
        &mut self,
        to: Register,
        base: i32,
        offset: usize,
        length: usize,
        state: &State,
    ) -> Step {
        let length = length.min(64);
        let end = offset.saturating_add(length);
        let (bits, what, is_complete) = match base {
            libc::NFT_PAYLOAD_NETWORK_HEADER => {
                let bits = state.network.slice(offset, length);
                (bits, "a field of the IP header", end <= state.network.len())
            }
            libc::NFT_PAYLOAD_TRANSPORT_HEADER => {
                let what =
                    if offset < 2 { "the source port" } else { "a field of the transport header" };
                (state.transport.slice(offset, length), what, end <= 4)
            }
            _ => (Bits::unknown(length), "a part of the packet", false),
        };
        self.store(to, &bits, what);
        if is_complete || !bits.is_unknown() {
            Step::NEXT
        } else {
            // The packet may be too short.
            Step::Match(Truth::Unknown)
        }
    }

    fn meta(&mut self, to: Register, key: i32, view: &View<'_>, state: &State) -> Step {
        let packet = view.packet;
        let (bits, what) = match key {
            libc::NFT_META_MARK => {
                self.store(to, &state.mark, "the mark");
                self.earlier(state.mark_doubt.as_ref());
                return Step::NEXT;
            }
            libc::NFT_META_PROTOCOL => {
                let number = match packet.family() {
                    Family::Ip => libc::ETH_P_IP,
                    Family::Ip6 => libc::ETH_P_IPV6,
                };
                (Bits::known((number as u16).to_be_bytes()), "")
            }
            libc::NFT_META_NFPROTO => {
                let family = match view.chain.family {
                    crate::nft::NfProto::Inet => packet.family().number(),
                    other => other.number(),
                };
                (Bits::known([family]), "")
            }
            libc::NFT_META_L4PROTO => (Bits::known([packet.protocol]), ""),
            libc::NFT_META_IIFNAME => (name(view.input()), "the input interface"),
            libc::NFT_META_OIFNAME => (name(view.output()), "the output interface"),
            libc::NFT_META_IIF => (index(view.input()), "the index of the input interface"),
            libc::NFT_META_OIF => (index(view.output()), "the index of the output interface"),
            libc::NFT_META_LEN => (Bits::unknown(4), "the length of the packet"),
            libc::NFT_META_PKTTYPE => (Bits::unknown(4), "the type of the packet"),
            _ => {
                // A packet may lack the property.
                self.store_unknown(to, NAME, "a property of the packet");
                return self.unsure(format_args!("the property {key} of meta is not known"));
            }
        };
        self.store(to, &bits, what)
    }

    fn ct(
        &mut self,
        to: Register,
        key: i32,
        direction: Option<u8>,
        view: &View<'_>,
        state: &State,
    ) -> Step {
        if key == libc::NFT_CT_STATE {
            return self.store(to, &state.tracking.state_bits(), "the state of the connection");
        }
        match state.tracking {
            Tracking::Tracked => {}
            Tracking::Before | Tracking::Untracked => return Step::Match(Truth::No),
            Tracking::Unknown => {
                self.store_unknown(to, 16, "the connection");
                return self.unsure("whether the packet is tracked is not known");
            }
        }
        let packet = view.packet;
        let family = packet.family();
        let is_reply = direction == Some(1);
        let address = |address: Option<IpAddr>| match address.filter(|_| !is_reply) {
            Some(address) => Bits::known(octets(address)),
            None => Bits::unknown(octets(packet.source).len()),
        };
        let (bits, what) = match key {
            libc::NFT_CT_DIRECTION => (Bits::known([0]), ""),
            libc::NFT_CT_STATUS => (view.status(), "the status of the connection"),
            libc::NFT_CT_MARK => (Bits::unknown(4), "the connection mark"),
            libc::NFT_CT_L3PROTOCOL => (Bits::known([family.number()]), ""),
            libc::NFT_CT_PROTOCOL => (Bits::known([packet.protocol]), ""),
            libc::NFT_CT_SRC_IP | libc::NFT_CT_DST_IP if family != Family::Ip => {
                return Step::Match(Truth::No);
            }
            libc::NFT_CT_SRC_IP6 | libc::NFT_CT_DST_IP6 if family != Family::Ip6 => {
                return Step::Match(Truth::No);
            }
            libc::NFT_CT_SRC | libc::NFT_CT_SRC_IP | libc::NFT_CT_SRC_IP6 => {
                (address(view.original_source()), "an address of the connection")
            }
            libc::NFT_CT_DST | libc::NFT_CT_DST_IP | libc::NFT_CT_DST_IP6 => {
                (address(Some(packet.original_destination)), "an address of the connection")
            }
            libc::NFT_CT_PROTO_DST if !is_reply && has_ports(packet.protocol) => {
                (Bits::known(packet.original_port.to_be_bytes()), "")
            }
            libc::NFT_CT_PROTO_SRC | libc::NFT_CT_PROTO_DST => {
                (Bits::unknown(2), "a port of the connection")
            }
            _ => {
                // A connection may lack the property.
                self.store_unknown(to, 16, "a property of the connection");
                return self.unsure(format_args!("the property {key} of ct is not known"));
            }
        };
        self.store(to, &bits, what)
    }

    fn fib(&mut self, to: Register, result: u32, flags: u32, view: &View<'_>) -> Step {
        /// `NFTA_FIB_F_MARK`.
        const MARK: u32 = 1 << 2;
        let asks = result == FIB_ADDRESS_TYPE && flags & !MARK == FIB_DESTINATION;
        let kind = view.destination_type().filter(|_| asks);
        match kind {
            Some(kind) => self.store(to, &Bits::known(kind.to_ne_bytes()), ""),
            None => {
                self.store_unknown(to, NAME, "a route");
                Step::Match(Truth::Unknown)
            }
        }
    }
}

fn set_payload(base: i32, offset: usize, bits: &Bits, view: &View<'_>, state: &mut State) -> Step {
    let end = offset.saturating_add(bits.len());
    match base {
        libc::NFT_PAYLOAD_NETWORK_HEADER => {
            let (at, addresses) = addresses(view.packet.family());
            state.network.write(offset, bits);
            if offset < at + addresses && end > at {
                return Step::Divert("a change of an address".to_owned(), Truth::Yes);
            }
        }
        libc::NFT_PAYLOAD_TRANSPORT_HEADER => {
            state.transport.write(offset, bits);
            if offset < 4 && has_ports(view.packet.protocol) {
                return Step::Divert("a change of a port".to_owned(), Truth::Yes);
            }
        }
        _ => {}
    }
    Step::NEXT
}

/// Returns the name of an interface, padded with zeros.
fn name(interface: Option<&str>) -> Bits {
    let Some(interface) = interface else { return Bits::unknown(NAME) };
    let mut name = interface.as_bytes().to_vec();
    name.resize(NAME, 0);
    Bits::known(name)
}

/// Returns the index of the interface of this name.
fn index(interface: Option<&str>) -> Bits {
    match interface {
        Some("") => Bits::known([0; 4]),
        _ => Bits::unknown(4),
    }
}
