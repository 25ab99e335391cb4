//! The expressions of rules: what this crate writes, and what the kernel lists of any program.

use super::Verdict;
use super::uapi::NFT_OBJECT_CT_TIMEOUT;
use crate::Family;

/// `NFT_HASH_JENKINS`.
pub(super) const JENKINS: u32 = 0;
/// `NF_NAT_RANGE_PROTO_RANDOM_FULLY`.
pub(super) const RANDOM_FULLY: u32 = 1 << 4;
/// `NFT_FIB_RESULT_ADDRTYPE`, `NFTA_FIB_F_SADDR` and `NFTA_FIB_F_DADDR`.
pub(super) const FIB_ADDRESS_TYPE: u32 = 3;
pub(super) const FIB_SOURCE: u32 = 1 << 0;
pub(super) const FIB_DESTINATION: u32 = 1 << 1;

/// `ICMP_PORT_UNREACH` and `ICMPV6_PORT_UNREACH`.
pub(super) fn port_unreachable(family: Family) -> u8 {
    if family == Family::Ip { 3 } else { 4 }
}

/// A 32-bit register, by index (`NFT_REG32_00` + index). A value of more than four bytes fills
/// the registers after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Register(pub u8);

impl Register {
    /// The number of registers (`NFT_REG32_COUNT`).
    pub(super) const COUNT: usize = 16;

    pub(super) fn index(self) -> usize {
        self.0.into()
    }

    /// The kernel's number. At multiples of four the 32-bit registers begin where those of 128 bits
    /// do, and the kernel dumps them under the latter's numbers; so we use these too.
    pub(super) fn raw(self) -> u32 {
        let index = u32::from(self.0);
        if index.is_multiple_of(4) {
            libc::NFT_REG_1 as u32 + index / 4
        } else {
            libc::NFT_REG32_00 as u32 + index
        }
    }

    pub(super) fn from_raw(number: u32) -> Option<Register> {
        let index = match number {
            1..=4 => (number - 1) * 4,
            _ => number.checked_sub(libc::NFT_REG32_00 as u32)?,
        };
        let index = u8::try_from(index).ok()?;
        Some(Register(index)).filter(|register| register.index() < Register::COUNT)
    }
}

/// A comparison (`NFT_CMP_*`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum Comparison {
    /// `==`
    Equal = libc::NFT_CMP_EQ,
    /// `!=`
    NotEqual = libc::NFT_CMP_NEQ,
    /// `<`
    Less = libc::NFT_CMP_LT,
    /// `<=`
    LessOrEqual = libc::NFT_CMP_LTE,
    /// `>`
    Greater = libc::NFT_CMP_GT,
    /// `>=`
    GreaterOrEqual = libc::NFT_CMP_GTE,
}

impl Comparison {
    pub(super) fn from_raw(number: u32) -> Option<Comparison> {
        use Comparison::{Equal, Greater, GreaterOrEqual, Less, LessOrEqual, NotEqual};
        let mut all = [Equal, NotEqual, Less, LessOrEqual, Greater, GreaterOrEqual].into_iter();
        all.find(|comparison| *comparison as u32 == number)
    }
}

/// What a rule wants of a set or map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// Continues if the set has the key.
    Member,
    /// Continues if the set lacks the key.
    NoMember,
    /// Continues if the map has the key, and loads its value.
    Value(Register),
    /// Follows the map's verdict for the key; continues without one.
    Verdict,
}

/// An operation on bits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Bitwise {
    /// `(value & mask) ^ xor`.
    Mask {
        /// The mask.
        mask: Vec<u8>,
        /// The bits to flip after masking.
        xor: Vec<u8>,
    },
    /// An operation that is not decoded.
    Other,
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

/// One expression of a rule. Numbers and marks are in host order, addresses and ports in network
/// order, as the kernel holds them in registers.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "registers, offsets and lengths in bytes, keys of the kernel")]
pub enum Expr {
    /// Loads these bytes.
    Value { bytes: Vec<u8>, to: Register },
    /// Ends the rule.
    Verdict(Verdict),
    /// Loads bytes of a header (`NFT_PAYLOAD_*`).
    Payload { base: i32, offset: u32, length: u32, to: Register },
    /// Stores bytes of a header.
    SetPayload { base: i32, offset: u32, length: u32, from: Register },
    /// Loads a property of the packet (`NFT_META_*`).
    Meta { key: i32, to: Register },
    /// Stores a property of the packet. With `NFT_META_NFTRACE` and a first byte of 1, the kernel
    /// reports the rules that the packet meets from here on (see
    /// [`TraceListener`](super::TraceListener)).
    SetMeta { key: i32, from: Register },
    /// Loads a property of the connection (`NFT_CT_*`), of one direction (`IP_CT_DIR_*`).
    Ct { key: i32, direction: Option<u8>, to: Register },
    /// Stores a property of the connection.
    SetCt { key: i32, from: Register },
    /// Continues if the comparison with the bytes holds.
    Compare { from: Register, comparison: Comparison, with: Vec<u8> },
    /// Continues if the value is between these, or with `negate` if it is not.
    Range { from: Register, negate: bool, first: Vec<u8>, last: Vec<u8> },
    /// Changes bits.
    Bitwise { from: Register, to: Register, length: u32, operation: Bitwise },
    /// Reverses the bytes of each unit of this size.
    ByteOrder { from: Register, to: Register, length: u32, size: u32 },
    /// Looks up the key that starts at the register.
    Lookup { set: String, key: Register, wanted: Wanted },
    /// Loads what the routing table has about an address of the packet.
    Fib { result: u32, flags: u32, to: Register },
    /// Loads a number below the modulus: a random one, or the next of a series.
    Number { modulus: u32, random: bool, to: Register },
    /// Loads a hash of registers (`jhash` of `linux/jhash.h`), scaled to a number below the
    /// modulus, which is at least 2. A field of the key that ends within a register is padded with
    /// zeros. With seed 0, the kernel chooses one.
    Hash { key: Register, length: u32, modulus: u32, seed: u32, to: Register },
    /// Adds an element to a set or map, or continues if there is one. With `renew`, an existing
    /// element keeps its data and gets the timeout, in milliseconds, anew. Does not continue if the
    /// set is full.
    Update { set: String, key: Register, data: Option<Register>, timeout: u64, renew: bool },
    /// An object of the table, by its type (`NFT_OBJECT_*`) and name.
    Object { kind: u32, name: String },
    /// Translates the destination or the source to the address and port in the registers.
    Nat { destination: bool, family: u32, address: Option<Register>, port: Option<Register> },
    /// Translates the source to an address of the outgoing interface. With `fully_random`, the
    /// kernel chooses the source port fully at random.
    Masquerade { fully_random: bool },
    /// Rejects the packet with an answer of this kind (`NFT_REJECT_*`), or a code of ICMP.
    Reject { kind: i32, code: u8 },
    /// Counts packets.
    Counter,
    /// A match of iptables: continues if it holds.
    Match(Extension),
    /// A target of iptables.
    Target(Extension),
    /// An expression that is not decoded, by its name.
    Other(String),
}

impl Expr {
    /// Loads bytes of the network header.
    #[must_use]
    pub fn network(offset: u32, length: u32, to: Register) -> Expr {
        Expr::Payload { base: libc::NFT_PAYLOAD_NETWORK_HEADER, offset, length, to }
    }

    /// Loads bytes of the transport header.
    #[must_use]
    pub fn transport(offset: u32, length: u32, to: Register) -> Expr {
        Expr::Payload { base: libc::NFT_PAYLOAD_TRANSPORT_HEADER, offset, length, to }
    }

    /// Loads the number of the transport protocol.
    #[must_use]
    pub fn protocol(to: Register) -> Expr {
        Expr::Meta { key: libc::NFT_META_L4PROTO, to }
    }

    /// Continues if the register has these bytes.
    #[must_use]
    pub fn equals(from: Register, with: impl Into<Vec<u8>>) -> Expr {
        Expr::Compare { from, comparison: Comparison::Equal, with: with.into() }
    }

    /// `register = (register & mask) ^ xor`.
    #[must_use]
    pub fn mask(register: Register, mask: impl Into<Vec<u8>>, xor: impl Into<Vec<u8>>) -> Expr {
        let (mask, xor) = (mask.into(), xor.into());
        let length = mask.len() as u32;
        let operation = Bitwise::Mask { mask, xor };
        Expr::Bitwise { from: register, to: register, length, operation }
    }

    /// Loads the type (`RTN_*`) that the routing table gives the source or destination address.
    #[must_use]
    pub fn address_type(source: bool, to: Register) -> Expr {
        let flags = if source { FIB_SOURCE } else { FIB_DESTINATION };
        Expr::Fib { result: FIB_ADDRESS_TYPE, flags, to }
    }

    /// Translates the destination to the address and port in the registers.
    #[must_use]
    pub fn destination_nat(family: Family, address: Register, port: Register) -> Expr {
        let family = family.number().into();
        Expr::Nat { destination: true, family, address: Some(address), port: Some(port) }
    }

    /// Answers with ICMP or ICMPv6 port unreachable.
    #[must_use]
    pub fn port_unreachable(family: Family) -> Expr {
        Expr::Reject { kind: libc::NFT_REJECT_ICMP_UNREACH, code: port_unreachable(family) }
    }

    /// Gives a connection whose first packet this is the timeouts of an object `ct timeout` of the
    /// table. Has no effect for other packets, and other protocols than the object's.
    #[must_use]
    pub fn timeouts(name: impl Into<String>) -> Expr {
        Expr::Object { kind: NFT_OBJECT_CT_TIMEOUT, name: name.into() }
    }
}
