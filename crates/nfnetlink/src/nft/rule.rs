//! The statements of rules that other programs wrote: conditions and actions, with the values that
//! they use.
//!
//! The kernel lists a rule as expressions that load, change and use registers. [`Statement::all`]
//! follows the registers, so that each statement has its operands. It decodes what `nft`, knftables
//! and `iptables-nft` write for address translation and filters; the rest is
//! [`Statement::Unknown`].

use super::element::{ElementData, VerdictCode};
use super::expr::HASH_JENKINS;
use super::expr_attributes::{
    bitwise, cmp, compat, ct, dynset, fib, hash, lookup, masq, meta, nat, numgen, payload, reject,
};
use super::uapi::{
    NFT_OBJECT_CT_TIMEOUT, NFTA_DATA_VALUE, NFTA_DATA_VERDICT, NFTA_EXPR_DATA, NFTA_EXPR_NAME,
    NFTA_IMMEDIATE_DATA, NFTA_OBJREF_IMM_NAME, NFTA_OBJREF_IMM_TYPE, NFTA_VERDICT_CHAIN,
    NFTA_VERDICT_CODE,
};
use crate::attr::{Attr, Attrs};

/// The number of 32-bit registers (`NFT_REG32_COUNT`).
const REGISTERS: usize = 16;

/// A value of a packet or connection, or a constant, that a rule uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Operand {
    /// Bytes of the network header.
    Network {
        /// The offset in bytes.
        offset: u32,
        /// The number of bytes.
        length: u32,
    },
    /// Bytes of the transport header.
    Transport {
        /// The offset in bytes.
        offset: u32,
        /// The number of bytes.
        length: u32,
    },
    /// The number of the transport protocol.
    Protocol,
    /// The packet mark.
    Mark,
    /// The name of the incoming interface.
    InputInterface,
    /// The name of the outgoing interface.
    OutputInterface,
    /// A property of the connection, by its key (`NFT_CT_*`), and the direction if one is given.
    Connection(u32, Option<u8>),
    /// The type (`RTN_*`) that the routing table gives to the source or destination address.
    AddressType {
        /// True for the source address.
        source: bool,
    },
    /// A random number, or the next one of a series, below the modulus.
    Number {
        /// The modulus.
        modulus: u32,
        /// True for a random number.
        random: bool,
    },
    /// A hash of fields, scaled to a number below the modulus.
    Hash {
        /// The fields.
        key: Vec<Operand>,
        /// The modulus.
        modulus: u32,
        /// The seed.
        seed: u32,
    },
    /// The value of a map for a key.
    MapValue {
        /// The name of the map.
        map: String,
        /// The fields of the key.
        key: Vec<Operand>,
    },
    /// Constant bytes.
    Bytes(Vec<u8>),
    /// `(value & mask) ^ xor`.
    Bits {
        /// The value.
        of: Box<Operand>,
        /// The mask.
        mask: Vec<u8>,
        /// The bits to flip after masking.
        xor: Vec<u8>,
    },
    /// A value that is not decoded, with the name of the expression.
    Unknown(String),
}

/// A comparison (`NFT_CMP_*`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Comparison {
    /// `==`
    Equal,
    /// `!=`
    NotEqual,
    /// `<`
    Less,
    /// `<=`
    LessOrEqual,
    /// `>`
    Greater,
    /// `>=`
    GreaterOrEqual,
}

/// The end of a rule's evaluation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The chain accepts the packet.
    Accept,
    /// The kernel drops the packet.
    Drop,
    /// The chain ends.
    Return,
    /// The packet continues in a chain, and returns after its end.
    Jump(String),
    /// The packet continues in a chain, without a return.
    Goto(String),
    /// Another verdict, such as `queue`, by its code.
    Other(i32),
}

/// A match or a target of iptables, which the kernel runs from inside a rule of nf_tables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Extension {
    /// The name, such as `statistic`.
    pub name: String,
    /// The revision of the structure.
    pub revision: u32,
    /// The structure of the extension, in host byte order.
    pub info: Vec<u8>,
}

/// A condition or an action of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Statement {
    /// Continues if the comparison holds.
    Compare(Operand, Comparison, Vec<u8>),
    /// Continues if the set has the key, or if it lacks the key.
    InSet {
        /// The fields of the key.
        key: Vec<Operand>,
        /// The name of the set.
        set: String,
        /// True to continue if the set lacks the key.
        negate: bool,
    },
    /// Follows the verdict of a map for the key, if the map has the key.
    VerdictMap {
        /// The fields of the key.
        key: Vec<Operand>,
        /// The name of the map.
        map: String,
    },
    /// Ends the rule.
    Verdict(Verdict),
    /// Translates the destination.
    DestinationNat {
        /// The new address.
        address: Option<Operand>,
        /// The new port.
        port: Option<Operand>,
    },
    /// Translates the source.
    SourceNat {
        /// The new address.
        address: Option<Operand>,
    },
    /// Translates the source to an address of the outgoing interface.
    Masquerade {
        /// True if the kernel chooses the source port fully at random.
        fully_random: bool,
    },
    /// Rejects the packet.
    Reject {
        /// The kind of the answer (`NFT_REJECT_*`).
        kind: u32,
        /// The code of ICMP or ICMPv6.
        code: u8,
    },
    /// Sets the packet mark.
    SetMark(Operand),
    /// Adds an element to a set or map, or renews its timeout.
    Update {
        /// The name of the set or map.
        set: String,
        /// The fields of the key.
        key: Vec<Operand>,
        /// The fields of the value in a map; empty for a set.
        data: Vec<Operand>,
        /// The timeout in milliseconds; 0 for that of the set.
        timeout: u64,
    },
    /// Gives new connections the timeouts of the object `ct timeout` of this name.
    SetTimeouts(String),
    /// Counts packets.
    Counter,
    /// A match of iptables: continues if it holds.
    Match(Extension),
    /// A target of iptables.
    Target(Extension),
    /// An expression that is not decoded, by its name.
    Unknown(String),
}

impl Statement {
    /// Decodes the expressions of a rule. `lengths` returns the lengths in bytes of the keys and values
    /// of a set, by its name: the expressions lack them.
    pub(super) fn all(
        expressions: &[u8],
        lengths: impl Fn(&str) -> Option<(u32, u32)>,
    ) -> Vec<Statement> {
        let mut registers = Registers::default();
        let decode = |expression: Attr<'_>| {
            let attrs = expression.children();
            let name = attrs.find(NFTA_EXPR_NAME).and_then(|a| a.text()).unwrap_or("?").to_owned();
            let data = attrs.find(NFTA_EXPR_DATA);
            let data = data.map_or(Attrs::new(&[]), |data| data.children());
            match registers.run(&name, &data, &lengths) {
                Some(Effect::Load) => None,
                Some(Effect::Statement(statement)) => Some(statement),
                None => Some(Statement::Unknown(name)),
            }
        };
        Attrs::new(expressions).filter_map(decode).collect()
    }
}

/// The effect of an expression.
enum Effect {
    /// It only changed registers.
    Load,
    /// It is a statement.
    Statement(Statement),
}

/// The operands in the registers, each at its first register.
#[derive(Default)]
struct Registers([Option<Operand>; REGISTERS]);

impl Registers {
    /// Returns the index of a 32-bit register by the kernel's number. The numbers 1 to 4 are those
    /// of the 128-bit registers.
    fn index(number: u32) -> Option<usize> {
        let index = match number {
            1..=4 => (number - 1) * 4,
            _ => number.checked_sub(libc::NFT_REG32_00 as u32)?,
        };
        usize::try_from(index).ok().filter(|index| *index < REGISTERS)
    }

    /// Stores an operand, which overwrites all registers that it fills. The length of a map's values
    /// is unknown here.
    fn store(&mut self, register: u32, operand: Operand) -> Option<()> {
        let filled = match &operand {
            Operand::MapValue { .. } => REGISTERS,
            operand => operand.registers(),
        };
        let slots = self.0.get_mut(Registers::index(register)?..)?;
        slots.iter_mut().take(filled).for_each(|slot| *slot = None);
        *slots.first_mut()? = Some(operand);
        Some(())
    }

    /// Returns the operand of a register. A value of a map fills several registers.
    fn load(&self, register: u32) -> Option<Operand> {
        let index = Registers::index(register)?;
        let before = || match self.0[..index].iter().rev().find(|it| it.is_some()) {
            Some(Some(value @ Operand::MapValue { .. })) => Some(value.clone()),
            _ => None,
        };
        self.0[index].clone().or_else(before)
    }

    /// Returns the operands of a key or value of this length in bytes.
    fn fields(&self, register: u32, length: Option<u32>) -> Option<Vec<Operand>> {
        let first = Registers::index(register)?;
        let count = length.map_or(1, |length| length.div_ceil(4) as usize);
        let slots = self.0.get(first..(first + count.max(1)).min(REGISTERS))?;
        // A field of more than four bytes is at its first register; what an earlier, longer one left
        // behind it is no part of this one.
        let mut fields = Vec::new();
        let mut next = 0;
        for (index, slot) in slots.iter().enumerate() {
            if let (Some(operand), true) = (slot, index >= next) {
                next = index + operand.registers();
                fields.push(operand.clone());
            }
        }
        (!fields.is_empty()).then_some(fields)
    }

    fn run(
        &mut self,
        name: &str,
        data: &Attrs<'_>,
        lengths: &impl Fn(&str) -> Option<(u32, u32)>,
    ) -> Option<Effect> {
        let number = |kind| data.find(kind).and_then(|a| a.be32());
        let text = |kind| data.find(kind).and_then(|a| a.text()).map(str::to_owned);
        let loaded = match name {
            "payload" => payload(data),
            "meta" => match number(meta::DREG) {
                Some(_) => meta_value(number(meta::KEY)?),
                None => {
                    let value = self.load(number(meta::SREG)?)?;
                    let is_mark = number(meta::KEY)? == libc::NFT_META_MARK as u32;
                    return is_mark.then_some(Effect::Statement(Statement::SetMark(value)));
                }
            },
            "ct" => {
                let direction = data.find(ct::DIRECTION).and_then(|a| a.payload.first().copied());
                Some(Operand::Connection(number(ct::KEY)?, direction))
            }
            "fib" => Some(fib(data)),
            "numgen" => Some(Operand::Number {
                modulus: number(numgen::MODULUS)?,
                random: number(numgen::TYPE)? == libc::NFT_NG_RANDOM as u32,
            }),
            "hash" => self.hash(data),
            "bitwise" => {
                let value = |kind| {
                    data.find(kind)?.children().find(NFTA_DATA_VALUE).map(|a| a.payload.to_vec())
                };
                let of = self.load(number(bitwise::SREG)?)?;
                let bits = value(bitwise::MASK).zip(value(bitwise::XOR));
                Some(match bits {
                    Some((mask, xor)) => Operand::Bits { of: Box::new(of), mask, xor },
                    None => Operand::Unknown(name.to_owned()),
                })
            }
            "immediate" => match verdict_or_value(data)? {
                VerdictOrValue::Verdict(verdict) => {
                    return Some(Effect::Statement(Statement::Verdict(verdict)));
                }
                VerdictOrValue::Value(bytes) => Some(Operand::Bytes(bytes)),
            },
            "lookup" => {
                let set = text(lookup::SET)?;
                let key = self.fields(number(lookup::SREG)?, lengths(&set).map(|it| it.0))?;
                match number(lookup::DREG) {
                    None => {
                        let negate =
                            number(lookup::FLAGS).unwrap_or(0) & libc::NFT_LOOKUP_F_INV as u32 != 0;
                        return Some(Effect::Statement(Statement::InSet { key, set, negate }));
                    }
                    Some(register) if register == libc::NFT_REG_VERDICT as u32 => {
                        let map = Statement::VerdictMap { key, map: set };
                        return Some(Effect::Statement(map));
                    }
                    Some(_) => Some(Operand::MapValue { map: set, key }),
                }
            }
            _ => return self.statement(name, data, lengths).map(Effect::Statement),
        };
        let to = match name {
            "bitwise" => number(bitwise::DREG)?,
            "hash" => number(hash::DREG)?,
            "lookup" => number(lookup::DREG)?,
            _ => number(payload::DREG)?,
        };
        self.store(to, loaded.unwrap_or_else(|| Operand::Unknown(name.to_owned())))?;
        Some(Effect::Load)
    }

    /// Decodes a hash of registers; `None` for another kind of hash.
    fn hash(&self, data: &Attrs<'_>) -> Option<Operand> {
        let number = |kind| data.find(kind).and_then(|a| a.be32());
        let is_jhash = number(hash::TYPE).is_none_or(|it| it == HASH_JENKINS);
        let key = self.fields(number(hash::SREG)?, number(hash::LEN)).filter(|_| is_jhash)?;
        let seed = number(hash::SEED).unwrap_or(0);
        Some(Operand::Hash { key, modulus: number(hash::MODULUS)?, seed })
    }

    fn statement(
        &self,
        name: &str,
        data: &Attrs<'_>,
        lengths: &impl Fn(&str) -> Option<(u32, u32)>,
    ) -> Option<Statement> {
        let number = |kind| data.find(kind).and_then(|a| a.be32());
        let text = |kind| data.find(kind).and_then(|a| a.text()).map(str::to_owned);
        let operand = |kind| number(kind).map(|register| self.load(register));
        Some(match name {
            "cmp" => {
                let with = data.find(cmp::DATA)?.children().find(NFTA_DATA_VALUE)?;
                let comparison = Comparison::from_raw(number(cmp::OP)?)?;
                Statement::Compare(self.load(number(cmp::SREG)?)?, comparison, with.payload.into())
            }
            "nat" => {
                let address = match operand(nat::ADDRESS) {
                    Some(operand) => Some(operand?),
                    None => None,
                };
                let port = match operand(nat::PORT) {
                    Some(operand) => Some(operand?),
                    None => None,
                };
                if number(nat::TYPE)? == libc::NFT_NAT_DNAT as u32 {
                    Statement::DestinationNat { address, port }
                } else {
                    Statement::SourceNat { address }
                }
            }
            "masq" => Statement::Masquerade {
                fully_random: number(masq::FLAGS).unwrap_or(0) & masq::RANDOM_FULLY != 0,
            },
            "reject" => Statement::Reject {
                kind: number(reject::TYPE)?,
                code: data.find(reject::CODE).and_then(|a| a.payload.first().copied()).unwrap_or(0),
            },
            "counter" => Statement::Counter,
            "objref" if number(NFTA_OBJREF_IMM_TYPE)? == NFT_OBJECT_CT_TIMEOUT => {
                Statement::SetTimeouts(text(NFTA_OBJREF_IMM_NAME)?)
            }
            "dynset" => {
                let set = text(dynset::SET)?;
                let (key_length, data_length) = lengths(&set).unzip();
                let key = self.fields(number(dynset::KEY)?, key_length)?;
                let value = match number(dynset::DATA) {
                    Some(register) => self.fields(register, data_length)?,
                    None => Vec::new(),
                };
                let timeout = data.find(dynset::TIMEOUT).and_then(|a| a.be64()).unwrap_or(0);
                Statement::Update { set, key, data: value, timeout }
            }
            "match" | "target" => {
                let extension = Extension {
                    name: text(compat::NAME)?,
                    revision: number(compat::REVISION)?,
                    info: data.find(compat::INFO).map(|a| a.payload.to_vec()).unwrap_or_default(),
                };
                if name == "match" {
                    Statement::Match(extension)
                } else {
                    Statement::Target(extension)
                }
            }
            _ => return None,
        })
    }
}

impl Operand {
    /// Returns the number of 32-bit registers that the value fills.
    fn registers(&self) -> usize {
        match self {
            Operand::Network { length, .. } | Operand::Transport { length, .. } => {
                length.div_ceil(4).max(1) as usize
            }
            Operand::InputInterface | Operand::OutputInterface => libc::IFNAMSIZ / 4,
            Operand::Bytes(bytes) => bytes.len().div_ceil(4).max(1),
            Operand::Connection(key, _) => match *key as i32 {
                libc::NFT_CT_SRC_IP6 | libc::NFT_CT_DST_IP6 => 4,
                _ => 1,
            },
            Operand::Bits { of, .. } => of.registers(),
            _ => 1,
        }
    }
}

impl Comparison {
    fn from_raw(number: u32) -> Option<Comparison> {
        Some(match i32::try_from(number).ok()? {
            libc::NFT_CMP_EQ => Comparison::Equal,
            libc::NFT_CMP_NEQ => Comparison::NotEqual,
            libc::NFT_CMP_LT => Comparison::Less,
            libc::NFT_CMP_LTE => Comparison::LessOrEqual,
            libc::NFT_CMP_GT => Comparison::Greater,
            libc::NFT_CMP_GTE => Comparison::GreaterOrEqual,
            _ => return None,
        })
    }
}

enum VerdictOrValue {
    Verdict(Verdict),
    Value(Vec<u8>),
}

fn verdict_or_value(data: &Attrs<'_>) -> Option<VerdictOrValue> {
    let data = data.find(NFTA_IMMEDIATE_DATA)?.children();
    if let Some(value) = data.find(NFTA_DATA_VALUE) {
        return Some(VerdictOrValue::Value(value.payload.to_vec()));
    }
    let verdict = data.find(NFTA_DATA_VERDICT)?.children();
    let code = verdict.find(NFTA_VERDICT_CODE)?.be32()? as i32;
    let chain = || Some(verdict.find(NFTA_VERDICT_CHAIN)?.text()?.to_owned());
    Some(VerdictOrValue::Verdict(match code {
        libc::NF_ACCEPT => Verdict::Accept,
        libc::NF_DROP => Verdict::Drop,
        libc::NFT_RETURN => Verdict::Return,
        libc::NFT_JUMP => Verdict::Jump(chain()?),
        libc::NFT_GOTO => Verdict::Goto(chain()?),
        code => Verdict::Other(code),
    }))
}

impl Verdict {
    /// Returns the verdict of a map element; `None` for a value.
    #[must_use]
    pub fn of_element(data: ElementData<'_>) -> Option<Verdict> {
        let ElementData::Verdict(code, chain) = data else { return None };
        Some(match code {
            VerdictCode::Drop => Verdict::Drop,
            VerdictCode::Accept => Verdict::Accept,
            VerdictCode::Return => Verdict::Return,
            VerdictCode::Continue => Verdict::Other(libc::NFT_CONTINUE),
            VerdictCode::Goto => Verdict::Goto(chain?.to_owned()),
            VerdictCode::Jump => Verdict::Jump(chain?.to_owned()),
        })
    }
}

fn payload(data: &Attrs<'_>) -> Option<Operand> {
    let number = |kind| data.find(kind).and_then(|a| a.be32());
    let (offset, length) = (number(payload::OFFSET)?, number(payload::LENGTH)?);
    match i32::try_from(number(payload::BASE)?).ok()? {
        libc::NFT_PAYLOAD_NETWORK_HEADER => Some(Operand::Network { offset, length }),
        libc::NFT_PAYLOAD_TRANSPORT_HEADER => Some(Operand::Transport { offset, length }),
        _ => None,
    }
}

fn meta_value(key: u32) -> Option<Operand> {
    Some(match i32::try_from(key).ok()? {
        libc::NFT_META_L4PROTO => Operand::Protocol,
        libc::NFT_META_MARK => Operand::Mark,
        libc::NFT_META_IIFNAME => Operand::InputInterface,
        libc::NFT_META_OIFNAME => Operand::OutputInterface,
        _ => return None,
    })
}

fn fib(data: &Attrs<'_>) -> Operand {
    /// `NFT_FIB_RESULT_ADDRTYPE`, `NFTA_FIB_F_SADDR` and `NFTA_FIB_F_DADDR`.
    const ADDRESS_TYPE: u32 = 3;
    const SOURCE: u32 = 1;
    const DESTINATION: u32 = 2;
    let number = |kind| data.find(kind).and_then(|a| a.be32());
    match (number(fib::RESULT), number(fib::FLAGS)) {
        (Some(ADDRESS_TYPE), Some(SOURCE)) => Operand::AddressType { source: true },
        (Some(ADDRESS_TYPE), Some(DESTINATION)) => Operand::AddressType { source: false },
        _ => Operand::Unknown("fib".to_owned()),
    }
}
