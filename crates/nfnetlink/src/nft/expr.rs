//! The expressions of rules, as libnftnl objects.
//!
//! The `nftnl` crate's own expressions know one register and neither `numgen`, `fib` nor data
//! maps; its `Expression` trait is made for others to fill the gap, which [`Expr`] does.
#![allow(
    unsafe_code,
    reason = "libnftnl is a C library; all calls into it for expressions are here"
)]

use std::ffi::{CStr, CString};
use std::ptr::NonNull;

use nftnl::nftnl_sys as sys;

use super::uapi::NFT_OBJECT_CT_TIMEOUT;

/// A 32-bit register, by index (`NFT_REG32_00` + index). A value of more than four bytes fills
/// the registers after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Register(pub u8);

impl Register {
    /// The kernel's number. At multiples of four the 32-bit registers begin where those of 128 bits
    /// do, and the kernel dumps them under the latter's numbers; so we use these too.
    fn raw(self) -> u32 {
        let index = u32::from(self.0);
        if index.is_multiple_of(4) {
            libc::NFT_REG_1 as u32 + index / 4
        } else {
            libc::NFT_REG32_00 as u32 + index
        }
    }
}

/// `NFT_HASH_JENKINS` of `linux/netfilter/nf_tables.h`.
pub(super) const HASH_JENKINS: u32 = 0;

/// One expression of a rule. Numbers and marks are in host order, addresses and ports in network
/// order, as the kernel holds them in registers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Expr {
    /// Loads bytes of the network header.
    NetworkHeader {
        /// Offset in bytes.
        offset: u32,
        /// Length in bytes.
        length: u32,
        /// Where to.
        to: Register,
    },
    /// Loads bytes of the transport header.
    TransportHeader {
        /// Offset in bytes.
        offset: u32,
        /// Length in bytes.
        length: u32,
        /// Where to.
        to: Register,
    },
    /// Loads the transport protocol's number.
    L4Proto(Register),
    /// Loads these bytes.
    Immediate {
        /// The bytes.
        bytes: Vec<u8>,
        /// Where to.
        to: Register,
    },
    /// Stores the trace bit from the first byte: with 1 the kernel reports the rules that the
    /// packet meets from here on (see [`TraceListener`](super::TraceListener)).
    SetTrace(Register),
    /// Loads the packet mark.
    Mark(Register),
    /// Stores the packet mark.
    SetMark(Register),
    /// Loads the name of the incoming interface, padded with zeros to `IFNAMSIZ` bytes.
    InputInterfaceName(Register),
    /// Loads the connection's status bits (`IPS_*`).
    CtStatus(Register),
    /// Loads the state of the packet's connection, as a bit (`NF_CT_STATE_BIT`).
    CtState(Register),
    /// Loads the direction of the packet in its connection: 0 for the original one, 1 for replies.
    CtDirection(Register),
    /// Loads the source address that the connection had before translation.
    CtOriginalSource {
        /// True for IPv6.
        v6: bool,
        /// Where to.
        to: Register,
    },
    /// Loads the source port that the connection had before translation.
    CtOriginalSourcePort(Register),
    /// Loads the destination address that the connection had before translation.
    CtOriginalDestination {
        /// True for IPv6.
        v6: bool,
        /// Where to.
        to: Register,
    },
    /// Loads the destination port that the connection had before translation.
    CtOriginalPort(Register),
    /// Loads the source address of replies in the connection: the address of the server, after
    /// destination NAT.
    CtReplySource {
        /// True for IPv6.
        v6: bool,
        /// Where to.
        to: Register,
    },
    /// Loads the source port of replies in the connection.
    CtReplySourcePort(Register),
    /// Adds an element to a set, or continues if the set has it. Does not continue if the set is
    /// full.
    AddToSet {
        /// The set's name.
        set: String,
        /// The first register of the key.
        key: Register,
        /// The timeout in milliseconds.
        timeout: u64,
    },
    /// Adds an element to a map, or renews the timeout of an existing one, which keeps its data.
    UpdateMap {
        /// The map's name.
        map: String,
        /// The first register of the key.
        key: Register,
        /// The first register of the data.
        data: Register,
        /// The timeout in milliseconds.
        timeout: u64,
    },
    /// Loads the type (`RTN_*`) that the routing table gives the source or destination address.
    FibType {
        /// Ask for the source address.
        source: bool,
        /// Where to.
        to: Register,
    },
    /// Loads a uniformly random number below the modulus.
    Random {
        /// The modulus.
        modulus: u32,
        /// Where to.
        to: Register,
    },
    /// Loads a hash of registers (`jhash` of `linux/jhash.h`), scaled to a number below the modulus.
    Hash {
        /// The first register of the key.
        key: Register,
        /// The length of the key in bytes. A field that ends within a register is padded with zeros.
        length: u32,
        /// The modulus, at least 2.
        modulus: u32,
        /// The seed. With 0, the kernel chooses one.
        seed: u32,
        /// Where to.
        to: Register,
    },
    /// `register = (register & mask) ^ xor`.
    Bitwise {
        /// The register.
        register: Register,
        /// The mask.
        mask: Vec<u8>,
        /// The bits to flip after masking.
        xor: Vec<u8>,
    },
    /// Continues if the register equals the bytes, or with `negate` if it does not.
    Compare {
        /// The register.
        register: Register,
        /// Continue if they differ.
        negate: bool,
        /// The bytes.
        with: Vec<u8>,
    },
    /// Continues if the set has the key that starts at the register, or with `negate` if it does
    /// not.
    InSet {
        /// Continue if the set lacks the key.
        negate: bool,
        /// The set's name.
        set: String,
        /// The first register of the key.
        key: Register,
    },
    /// Continues if the map has the key, and loads its value.
    MapValue {
        /// The map's name.
        map: String,
        /// The first register of the key.
        key: Register,
        /// The first register of the value.
        to: Register,
    },
    /// Follows the map's verdict for the key; continues without one.
    MapVerdict {
        /// The map's name.
        map: String,
        /// The first register of the key.
        key: Register,
    },
    /// Gives a connection whose first packet this is the timeouts of an object `ct timeout` of the
    /// table. Has no effect for other packets, and other protocols than the object's.
    SetTimeouts(String),
    /// Destination NAT to the address and port in the registers.
    DestinationNat {
        /// True for IPv6 addresses.
        v6: bool,
        /// The register of the address.
        address: Register,
        /// The register of the port.
        port: Register,
    },
    /// Source NAT to the outgoing interface's address, source port chosen fully at random.
    Masquerade,
    /// Answers with ICMP or ICMPv6 port unreachable.
    Reject {
        /// True for ICMPv6.
        v6: bool,
    },
    /// Answers a TCP packet with a reset.
    RejectWithReset,
    /// Drops the packet.
    Drop,
    /// Ends the chain.
    Return,
    /// Goes to the chain and comes back.
    Jump(String),
    /// Goes to the chain and does not come back.
    Goto(String),
}

enum Value<'a> {
    U8(u8),
    U32(u32),
    U64(u64),
    Data(&'a [u8]),
    Text(&'a str),
}

impl nftnl::expr::Expression for Expr {
    fn to_expr(&self, _rule: &nftnl::Rule<'_>) -> NonNull<sys::nftnl_expr> {
        use Value::{Data, Text, U32, U64};
        match self {
            Expr::NetworkHeader { offset, length, to } => {
                payload(libc::NFT_PAYLOAD_NETWORK_HEADER, *offset, *length, *to)
            }
            Expr::TransportHeader { offset, length, to } => {
                payload(libc::NFT_PAYLOAD_TRANSPORT_HEADER, *offset, *length, *to)
            }
            Expr::L4Proto(to) => load_meta(libc::NFT_META_L4PROTO, *to),
            Expr::Immediate { bytes, to } => build(
                c"immediate",
                &[
                    (sys::NFTNL_EXPR_IMM_DREG, U32(to.raw())),
                    (sys::NFTNL_EXPR_IMM_DATA, Data(bytes)),
                ],
            ),
            Expr::SetTrace(from) => build(
                c"meta",
                &[
                    (sys::NFTNL_EXPR_META_KEY, U32(libc::NFT_META_NFTRACE as u32)),
                    (sys::NFTNL_EXPR_META_SREG, U32(from.raw())),
                ],
            ),
            Expr::Mark(to) => load_meta(libc::NFT_META_MARK, *to),
            Expr::SetMark(from) => build(
                c"meta",
                &[
                    (sys::NFTNL_EXPR_META_KEY, U32(libc::NFT_META_MARK as u32)),
                    (sys::NFTNL_EXPR_META_SREG, U32(from.raw())),
                ],
            ),
            Expr::InputInterfaceName(to) => load_meta(libc::NFT_META_IIFNAME, *to),
            Expr::CtStatus(to) => load_ct(libc::NFT_CT_STATUS, *to, None),
            Expr::CtState(to) => load_ct(libc::NFT_CT_STATE, *to, None),
            Expr::CtDirection(to) => load_ct(libc::NFT_CT_DIRECTION, *to, None),
            Expr::CtOriginalSource { v6, to } => {
                let key = if *v6 { libc::NFT_CT_SRC_IP6 } else { libc::NFT_CT_SRC_IP };
                load_ct(key, *to, ORIGINAL)
            }
            Expr::CtOriginalSourcePort(to) => load_ct(libc::NFT_CT_PROTO_SRC, *to, ORIGINAL),
            Expr::CtOriginalDestination { v6, to } => {
                let key = if *v6 { libc::NFT_CT_DST_IP6 } else { libc::NFT_CT_DST_IP };
                load_ct(key, *to, ORIGINAL)
            }
            Expr::CtOriginalPort(to) => load_ct(libc::NFT_CT_PROTO_DST, *to, ORIGINAL),
            Expr::CtReplySource { v6, to } => {
                let key = if *v6 { libc::NFT_CT_SRC_IP6 } else { libc::NFT_CT_SRC_IP };
                load_ct(key, *to, REPLY)
            }
            Expr::CtReplySourcePort(to) => load_ct(libc::NFT_CT_PROTO_SRC, *to, REPLY),
            Expr::AddToSet { set, key, timeout } => {
                put_into_set(libc::NFT_DYNSET_OP_ADD, set, *key, *timeout)
            }
            Expr::UpdateMap { map, key, data, timeout } => build(
                c"dynset",
                &[
                    (sys::NFTNL_EXPR_DYNSET_SREG_KEY, U32(key.raw())),
                    (sys::NFTNL_EXPR_DYNSET_SREG_DATA, U32(data.raw())),
                    (sys::NFTNL_EXPR_DYNSET_OP, U32(libc::NFT_DYNSET_OP_UPDATE as u32)),
                    (sys::NFTNL_EXPR_DYNSET_TIMEOUT, U64(*timeout)),
                    (sys::NFTNL_EXPR_DYNSET_SET_NAME, Text(map)),
                ],
            ),
            Expr::FibType { source, to } => {
                /// `NFT_FIB_RESULT_ADDRTYPE`, `NFTA_FIB_F_SADDR` and `NFTA_FIB_F_DADDR`.
                const RESULT_ADDRTYPE: u32 = 3;
                const F_SADDR: u32 = 1 << 0;
                const F_DADDR: u32 = 1 << 1;
                let address = if *source { F_SADDR } else { F_DADDR };
                build(
                    c"fib",
                    &[
                        (sys::NFTNL_EXPR_FIB_DREG, U32(to.raw())),
                        (sys::NFTNL_EXPR_FIB_RESULT, U32(RESULT_ADDRTYPE)),
                        (sys::NFTNL_EXPR_FIB_FLAGS, U32(address)),
                    ],
                )
            }
            Expr::Random { modulus, to } => build(
                c"numgen",
                &[
                    (sys::NFTNL_EXPR_NG_DREG, U32(to.raw())),
                    (sys::NFTNL_EXPR_NG_MODULUS, U32(*modulus)),
                    (sys::NFTNL_EXPR_NG_TYPE, U32(libc::NFT_NG_RANDOM as u32)),
                ],
            ),
            Expr::Hash { key, length, modulus, seed, to } => build(
                c"hash",
                &[
                    (sys::NFTNL_EXPR_HASH_SREG, U32(key.raw())),
                    (sys::NFTNL_EXPR_HASH_DREG, U32(to.raw())),
                    (sys::NFTNL_EXPR_HASH_LEN, U32(*length)),
                    (sys::NFTNL_EXPR_HASH_MODULUS, U32(*modulus)),
                    (sys::NFTNL_EXPR_HASH_SEED, U32(*seed)),
                    (sys::NFTNL_EXPR_HASH_TYPE, U32(HASH_JENKINS)),
                ],
            ),
            Expr::Bitwise { register, mask, xor } => build(
                c"bitwise",
                &[
                    (sys::NFTNL_EXPR_BITWISE_SREG, U32(register.raw())),
                    (sys::NFTNL_EXPR_BITWISE_DREG, U32(register.raw())),
                    (sys::NFTNL_EXPR_BITWISE_LEN, U32(mask.len() as u32)),
                    (sys::NFTNL_EXPR_BITWISE_MASK, Data(mask)),
                    (sys::NFTNL_EXPR_BITWISE_XOR, Data(xor)),
                ],
            ),
            Expr::Compare { register, negate, with } => {
                let op = if *negate { libc::NFT_CMP_NEQ } else { libc::NFT_CMP_EQ };
                build(
                    c"cmp",
                    &[
                        (sys::NFTNL_EXPR_CMP_SREG, U32(register.raw())),
                        (sys::NFTNL_EXPR_CMP_OP, U32(op as u32)),
                        (sys::NFTNL_EXPR_CMP_DATA, Data(with)),
                    ],
                )
            }
            Expr::InSet { set, key, negate } => {
                let flags = if *negate { libc::NFT_LOOKUP_F_INV as u32 } else { 0 };
                build(
                    c"lookup",
                    &[
                        (sys::NFTNL_EXPR_LOOKUP_SREG, U32(key.raw())),
                        (sys::NFTNL_EXPR_LOOKUP_SET, Text(set)),
                        (sys::NFTNL_EXPR_LOOKUP_FLAGS, U32(flags)),
                    ],
                )
            }
            Expr::MapValue { map, key, to } => map_lookup(map, *key, to.raw()),
            Expr::MapVerdict { map, key } => map_lookup(map, *key, libc::NFT_REG_VERDICT as u32),
            Expr::SetTimeouts(name) => build(
                c"objref",
                &[
                    (sys::NFTNL_EXPR_OBJREF_IMM_TYPE, U32(NFT_OBJECT_CT_TIMEOUT)),
                    (sys::NFTNL_EXPR_OBJREF_IMM_NAME, Text(name)),
                ],
            ),
            Expr::DestinationNat { v6, address, port } => {
                let family = if *v6 { libc::NFPROTO_IPV6 } else { libc::NFPROTO_IPV4 };
                build(
                    c"nat",
                    &[
                        (sys::NFTNL_EXPR_NAT_TYPE, U32(libc::NFT_NAT_DNAT as u32)),
                        (sys::NFTNL_EXPR_NAT_FAMILY, U32(family as u32)),
                        (sys::NFTNL_EXPR_NAT_REG_ADDR_MIN, U32(address.raw())),
                        (sys::NFTNL_EXPR_NAT_REG_PROTO_MIN, U32(port.raw())),
                    ],
                )
            }
            Expr::Masquerade => {
                /// `NF_NAT_RANGE_PROTO_RANDOM_FULLY`.
                const RANDOM_FULLY: u32 = 1 << 4;
                build(c"masq", &[(sys::NFTNL_EXPR_MASQ_FLAGS, U32(RANDOM_FULLY))])
            }
            Expr::Reject { v6 } => {
                // `ICMP_PORT_UNREACH` and `ICMPV6_PORT_UNREACH`.
                let code = if *v6 { 4 } else { 3 };
                build(
                    c"reject",
                    &[
                        (sys::NFTNL_EXPR_REJECT_TYPE, U32(libc::NFT_REJECT_ICMP_UNREACH as u32)),
                        (sys::NFTNL_EXPR_REJECT_CODE, Value::U8(code)),
                    ],
                )
            }
            Expr::RejectWithReset => build(
                c"reject",
                &[(sys::NFTNL_EXPR_REJECT_TYPE, U32(libc::NFT_REJECT_TCP_RST as u32))],
            ),
            Expr::Drop => verdict(libc::NF_DROP, None),
            Expr::Return => verdict(libc::NFT_RETURN, None),
            Expr::Jump(chain) => verdict(libc::NFT_JUMP, Some(chain)),
            Expr::Goto(chain) => verdict(libc::NFT_GOTO, Some(chain)),
        }
    }
}

fn payload(base: i32, offset: u32, length: u32, to: Register) -> NonNull<sys::nftnl_expr> {
    use Value::U32;
    build(
        c"payload",
        &[
            (sys::NFTNL_EXPR_PAYLOAD_DREG, U32(to.raw())),
            (sys::NFTNL_EXPR_PAYLOAD_BASE, U32(base as u32)),
            (sys::NFTNL_EXPR_PAYLOAD_OFFSET, U32(offset)),
            (sys::NFTNL_EXPR_PAYLOAD_LEN, U32(length)),
        ],
    )
}

fn load_meta(key: i32, to: Register) -> NonNull<sys::nftnl_expr> {
    build(
        c"meta",
        &[
            (sys::NFTNL_EXPR_META_KEY, Value::U32(key as u32)),
            (sys::NFTNL_EXPR_META_DREG, Value::U32(to.raw())),
        ],
    )
}

/// `IP_CT_DIR_ORIGINAL` and `IP_CT_DIR_REPLY`.
const ORIGINAL: Option<u8> = Some(0);
const REPLY: Option<u8> = Some(1);

fn load_ct(key: i32, to: Register, direction: Option<u8>) -> NonNull<sys::nftnl_expr> {
    let mut attributes = vec![
        (sys::NFTNL_EXPR_CT_KEY, Value::U32(key as u32)),
        (sys::NFTNL_EXPR_CT_DREG, Value::U32(to.raw())),
    ];
    attributes.extend(direction.map(|it| (sys::NFTNL_EXPR_CT_DIR, Value::U8(it))));
    build(c"ct", &attributes)
}

fn put_into_set(op: i32, set: &str, key: Register, timeout: u64) -> NonNull<sys::nftnl_expr> {
    build(
        c"dynset",
        &[
            (sys::NFTNL_EXPR_DYNSET_SREG_KEY, Value::U32(key.raw())),
            (sys::NFTNL_EXPR_DYNSET_OP, Value::U32(op as u32)),
            (sys::NFTNL_EXPR_DYNSET_TIMEOUT, Value::U64(timeout)),
            (sys::NFTNL_EXPR_DYNSET_SET_NAME, Value::Text(set)),
        ],
    )
}

fn map_lookup(map: &str, key: Register, to: u32) -> NonNull<sys::nftnl_expr> {
    build(
        c"lookup",
        &[
            (sys::NFTNL_EXPR_LOOKUP_SREG, Value::U32(key.raw())),
            (sys::NFTNL_EXPR_LOOKUP_DREG, Value::U32(to)),
            (sys::NFTNL_EXPR_LOOKUP_SET, Value::Text(map)),
        ],
    )
}

fn verdict(code: i32, chain: Option<&str>) -> NonNull<sys::nftnl_expr> {
    let mut attributes = vec![
        (sys::NFTNL_EXPR_IMM_DREG, Value::U32(libc::NFT_REG_VERDICT as u32)),
        (sys::NFTNL_EXPR_IMM_VERDICT, Value::U32(code as u32)),
    ];
    attributes.extend(chain.map(|chain| (sys::NFTNL_EXPR_IMM_CHAIN, Value::Text(chain))));
    build(c"immediate", &attributes)
}

/// Returns a counter for every element of a set with `counter`.
pub(super) fn counter() -> NonNull<sys::nftnl_expr> {
    build(c"counter", &[])
}

/// Makes a libnftnl expression. The caller owns it; adding it to a rule or set hands it on.
fn build(kind: &CStr, attributes: &[(u32, Value<'_>)]) -> NonNull<sys::nftnl_expr> {
    // SAFETY: the name is NUL-terminated and only read during the call.
    let expr = unsafe { sys::nftnl_expr_alloc(kind.as_ptr()) };
    let Some(expr) = NonNull::new(expr) else {
        // Only out of memory gets here: the names above are those that libnftnl has. The standard
        // library aborts then too.
        std::process::abort();
    };
    for (attribute, value) in attributes {
        let attribute = *attribute as u16;
        match value {
            // SAFETY: the expression is alive and ours.
            Value::U8(value) => unsafe {
                sys::nftnl_expr_set_u8(expr.as_ptr(), attribute, *value);
            },
            // SAFETY: as above.
            Value::U32(value) => unsafe {
                sys::nftnl_expr_set_u32(expr.as_ptr(), attribute, *value);
            },
            // SAFETY: as above.
            Value::U64(value) => unsafe {
                sys::nftnl_expr_set_u64(expr.as_ptr(), attribute, *value);
            },
            // SAFETY: as above; libnftnl copies the bytes, whose length is given.
            Value::Data(bytes) => unsafe {
                sys::nftnl_expr_set(
                    expr.as_ptr(),
                    attribute,
                    bytes.as_ptr().cast(),
                    bytes.len() as u32,
                );
            },
            Value::Text(text) => {
                let text = c_string(text);
                // SAFETY: as above; libnftnl copies the NUL-terminated text.
                unsafe { sys::nftnl_expr_set_str(expr.as_ptr(), attribute, text.as_ptr()) };
            }
        }
        // libnftnl 1.2.9 ignores a value of another length than the attribute's; 1.2.4 does not.
        // SAFETY: as above.
        debug_assert!(unsafe { sys::nftnl_expr_is_set(expr.as_ptr(), attribute) });
    }
    expr
}

/// The text up to its first NUL; names of chains and sets have none.
pub(super) fn c_string(text: &str) -> CString {
    let end = text.bytes().position(|b| b == 0).unwrap_or(text.len());
    CString::new(&text.as_bytes()[..end]).unwrap_or_default()
}
