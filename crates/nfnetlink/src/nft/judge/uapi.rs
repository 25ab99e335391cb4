//! Constants of expressions that the libc crate does not have.
//!
//! Source: `include/uapi/linux/netfilter/nf_tables.h`, `nf_tables_compat.h` and
//! `nf_conntrack_common.h`.

pub(super) const NFTA_IMMEDIATE_DREG: u16 = 1;

pub(super) const NFTA_BITWISE_SREG: u16 = 1;
pub(super) const NFTA_BITWISE_DREG: u16 = 2;
pub(super) const NFTA_BITWISE_LEN: u16 = 3;
pub(super) const NFTA_BITWISE_MASK: u16 = 4;
pub(super) const NFTA_BITWISE_XOR: u16 = 5;
pub(super) const NFTA_BITWISE_OP: u16 = 6;
pub(super) const NFTA_BITWISE_DATA: u16 = 7;
pub(super) const NFT_BITWISE_MASK_XOR: u32 = 0;
pub(super) const NFT_BITWISE_LSHIFT: u32 = 1;
pub(super) const NFT_BITWISE_RSHIFT: u32 = 2;

pub(super) const NFTA_BYTEORDER_SREG: u16 = 1;
pub(super) const NFTA_BYTEORDER_DREG: u16 = 2;
pub(super) const NFTA_BYTEORDER_LEN: u16 = 4;
pub(super) const NFTA_BYTEORDER_SIZE: u16 = 5;

pub(super) const NFTA_CMP_SREG: u16 = 1;
pub(super) const NFTA_CMP_OP: u16 = 2;
pub(super) const NFTA_CMP_DATA: u16 = 3;

pub(super) const NFTA_RANGE_SREG: u16 = 1;
pub(super) const NFTA_RANGE_OP: u16 = 2;
pub(super) const NFTA_RANGE_FROM_DATA: u16 = 3;
pub(super) const NFTA_RANGE_TO_DATA: u16 = 4;
pub(super) const NFT_RANGE_NEQ: u32 = 1;

pub(super) const NFTA_LOOKUP_SREG: u16 = 2;
pub(super) const NFTA_LOOKUP_FLAGS: u16 = 5;
pub(super) const NFT_LOOKUP_F_INV: u32 = 1;

pub(super) const NFTA_PAYLOAD_DREG: u16 = 1;
pub(super) const NFTA_PAYLOAD_BASE: u16 = 2;
pub(super) const NFTA_PAYLOAD_OFFSET: u16 = 3;
pub(super) const NFTA_PAYLOAD_LEN: u16 = 4;
pub(super) const NFTA_PAYLOAD_SREG: u16 = 5;
pub(super) const NFT_PAYLOAD_NETWORK_HEADER: u32 = 1;
pub(super) const NFT_PAYLOAD_TRANSPORT_HEADER: u32 = 2;

pub(super) const NFTA_META_DREG: u16 = 1;
pub(super) const NFTA_META_KEY: u16 = 2;
pub(super) const NFTA_META_SREG: u16 = 3;

pub(super) const NFTA_CT_DREG: u16 = 1;
pub(super) const NFTA_CT_KEY: u16 = 2;
pub(super) const NFTA_CT_DIRECTION: u16 = 3;
pub(super) const NFTA_CT_SREG: u16 = 4;

pub(super) const NFTA_FIB_DREG: u16 = 1;
pub(super) const NFTA_FIB_RESULT: u16 = 2;
pub(super) const NFTA_FIB_FLAGS: u16 = 3;
pub(super) const NFT_FIB_RESULT_ADDRTYPE: u32 = 3;
pub(super) const NFTA_FIB_F_DADDR: u32 = 1 << 1;
pub(super) const NFTA_FIB_F_MARK: u32 = 1 << 2;

pub(super) const NFTA_NAT_TYPE: u16 = 1;
pub(super) const NFT_NAT_SNAT: u32 = 0;

/// The register of the result of `numgen` and of `hash`.
pub(super) const NFTA_NG_DREG: u16 = 1;
pub(super) const NFTA_HASH_DREG: u16 = 2;

pub(super) const NFTA_MATCH_NAME: u16 = 1;
pub(super) const NFTA_MATCH_REV: u16 = 2;
pub(super) const NFTA_MATCH_INFO: u16 = 3;
pub(super) const NFTA_TARGET_REV: u16 = 2;
pub(super) const NFTA_TARGET_INFO: u16 = 3;

pub(super) const NFT_OBJECT_COUNTER: u32 = 1;
pub(super) const NFT_OBJECT_CT_HELPER: u32 = 3;
pub(super) const NFT_OBJECT_TUNNEL: u32 = 6;
pub(super) const NFT_OBJECT_CT_TIMEOUT: u32 = 7;
pub(super) const NFT_OBJECT_SECMARK: u32 = 8;
pub(super) const NFT_OBJECT_CT_EXPECT: u32 = 9;
pub(super) const NFT_OBJECT_SYNPROXY: u32 = 10;

pub(super) const NFTA_SET_DESC: u16 = 9;
pub(super) const NFTA_SET_DESC_CONCAT: u16 = 2;
pub(super) const NFTA_SET_FIELD_LEN: u16 = 1;
pub(super) const NFT_SET_INTERVAL: u32 = 0x4;
/// `NFT_SET_EVAL`: packets add and delete elements.
pub(super) const NFT_SET_EVAL: u32 = 0x20;

pub(super) const NFTA_SET_ELEM_FLAGS: u16 = 3;
pub(super) const NFT_SET_ELEM_INTERVAL_END: u32 = 0x1;
pub(super) const NFT_SET_ELEM_CATCHALL: u32 = 0x2;

pub(super) const NFT_TABLE_F_DORMANT: u32 = 0x1;

/// The states of a packet's connection (`NF_CT_STATE_BIT`, `XT_CONNTRACK_STATE_BIT`).
pub(super) const STATE_INVALID: u32 = 1;
pub(super) const STATE_NEW: u32 = 1 << 3;
pub(super) const STATE_UNTRACKED: u32 = 1 << 6;

/// Status bits of a connection (`IPS_*`).
pub(super) const IPS_EXPECTED: u32 = 1 << 0;
pub(super) const IPS_SEEN_REPLY: u32 = 1 << 1;
pub(super) const IPS_ASSURED: u32 = 1 << 2;
pub(super) const IPS_CONFIRMED: u32 = 1 << 3;
pub(super) const IPS_SRC_NAT: u32 = 1 << 4;
pub(super) const IPS_DST_NAT: u32 = 1 << 5;

/// The types of routes (`RTN_*`) that a destination has.
pub(super) const RTN_UNICAST: u32 = 1;
pub(super) const RTN_LOCAL: u32 = 2;
