//! Constants of the kernel's interface that the libc crate does not have.
//!
//! Source: `include/uapi/linux/netfilter/nf_tables.h`, `nfnetlink.h` and `netlink.h`. Attributes
//! and enumerations of that interface never change their numbers.
#![allow(missing_docs, reason = "the kernel documents them")]

pub const NFTA_LIST_ELEM: u16 = 1;

pub const NFTA_TABLE_NAME: u16 = 1;
pub const NFTA_TABLE_FLAGS: u16 = 2;
pub const NFTA_TABLE_USERDATA: u16 = 6;
pub const NFTA_TABLE_OWNER: u16 = 7;

pub const NFTA_CHAIN_TABLE: u16 = 1;
pub const NFTA_CHAIN_NAME: u16 = 3;
pub const NFTA_CHAIN_HOOK: u16 = 4;
pub const NFTA_CHAIN_POLICY: u16 = 5;
pub const NFTA_CHAIN_USE: u16 = 6;
pub const NFTA_CHAIN_TYPE: u16 = 7;

pub const NFTA_HOOK_HOOKNUM: u16 = 1;
pub const NFTA_HOOK_PRIORITY: u16 = 2;
pub const NFTA_HOOK_DEVS: u16 = 4;

pub const NFTA_SET_TABLE: u16 = 1;
pub const NFTA_SET_NAME: u16 = 2;
pub const NFTA_SET_FLAGS: u16 = 3;
pub const NFTA_SET_KEY_TYPE: u16 = 4;
pub const NFTA_SET_KEY_LEN: u16 = 5;
pub const NFTA_SET_DATA_TYPE: u16 = 6;
pub const NFTA_SET_DATA_LEN: u16 = 7;
pub const NFTA_SET_DESC: u16 = 9;
pub const NFTA_SET_TIMEOUT: u16 = 11;

pub const NFTA_SET_DESC_SIZE: u16 = 1;
pub const NFTA_SET_DESC_CONCAT: u16 = 2;
pub const NFTA_SET_FIELD_LEN: u16 = 1;

pub const NFTA_RULE_TABLE: u16 = 1;
pub const NFTA_RULE_CHAIN: u16 = 2;
pub const NFTA_RULE_HANDLE: u16 = 3;
pub const NFTA_RULE_EXPRESSIONS: u16 = 4;
pub const NFTA_RULE_USERDATA: u16 = 7;

pub const NFTA_EXPR_NAME: u16 = 1;
pub const NFTA_EXPR_DATA: u16 = 2;

pub const NFTA_OBJ_TABLE: u16 = 1;
pub const NFTA_OBJ_NAME: u16 = 2;
pub const NFTA_OBJ_TYPE: u16 = 3;
pub const NFTA_OBJ_DATA: u16 = 4;
pub const NFT_OBJECT_COUNTER: u32 = 1;
pub const NFT_OBJECT_CT_HELPER: u32 = 3;
pub const NFT_OBJECT_TUNNEL: u32 = 6;
pub const NFT_OBJECT_CT_TIMEOUT: u32 = 7;
pub const NFT_OBJECT_SECMARK: u32 = 8;
pub const NFT_OBJECT_CT_EXPECT: u32 = 9;
pub const NFT_OBJECT_SYNPROXY: u32 = 10;
pub const NFTA_CT_TIMEOUT_L4PROTO: u16 = 2;
pub const NFTA_CT_TIMEOUT_DATA: u16 = 3;

pub const NFTA_SET_ELEM_LIST_TABLE: u16 = 1;
pub const NFTA_SET_ELEM_LIST_SET: u16 = 2;
pub const NFTA_SET_ELEM_LIST_ELEMENTS: u16 = 3;

pub const NFTA_SET_ELEM_KEY: u16 = 1;
pub const NFTA_SET_ELEM_DATA: u16 = 2;
pub const NFTA_SET_ELEM_FLAGS: u16 = 3;
pub const NFTA_SET_ELEM_TIMEOUT: u16 = 4;
pub const NFTA_SET_ELEM_EXPIRATION: u16 = 5;
pub const NFTA_SET_ELEM_USERDATA: u16 = 6;
pub const NFTA_SET_ELEM_EXPR: u16 = 7;
pub const NFTA_SET_ELEM_KEY_END: u16 = 10;
pub const NFTA_SET_ELEM_EXPRESSIONS: u16 = 11;

pub const NFTA_COUNTER_BYTES: u16 = 1;
pub const NFTA_COUNTER_PACKETS: u16 = 2;

pub const NFTA_DATA_VALUE: u16 = 1;
pub const NFTA_DATA_VERDICT: u16 = 2;
pub const NFTA_VERDICT_CODE: u16 = 1;
pub const NFTA_VERDICT_CHAIN: u16 = 2;

pub const NFTA_GEN_ID: u16 = 1;
pub const NFTA_GEN_PROC_PID: u16 = 2;
pub const NFTA_GEN_PROC_NAME: u16 = 3;

pub const NFTA_TRACE_TABLE: u16 = 1;
pub const NFTA_TRACE_CHAIN: u16 = 2;
pub const NFTA_TRACE_RULE_HANDLE: u16 = 3;
pub const NFTA_TRACE_TYPE: u16 = 4;
pub const NFTA_TRACE_VERDICT: u16 = 5;
pub const NFTA_TRACE_ID: u16 = 6;
pub const NFTA_TRACE_NETWORK_HEADER: u16 = 8;
pub const NFTA_TRACE_TRANSPORT_HEADER: u16 = 9;
pub const NFTA_TRACE_IIF: u16 = 10;
pub const NFTA_TRACE_OIF: u16 = 12;
pub const NFTA_TRACE_MARK: u16 = 14;
pub const NFTA_TRACE_POLICY: u16 = 16;

/// `NFT_SET_CONCAT`: keys are concatenations of ranges.
pub const NFT_SET_CONCAT: u32 = 0x80;
/// `NFT_SET_ELEM_CATCHALL`: the element of all keys without another.
pub const NFT_SET_ELEM_CATCHALL: u32 = 0x2;
/// The data type of a verdict map (`NFT_DATA_VERDICT`).
pub const NFT_DATA_VERDICT: u32 = 0xffff_ff00;

pub const NLMSGERR_ATTR_MSG: u16 = 1;
pub const NLMSGERR_ATTR_OFFS: u16 = 2;

/// The states of a packet's connection (`NF_CT_STATE_BIT`, `XT_CONNTRACK_STATE_BIT`).
pub const STATE_INVALID: u32 = 1;
pub const STATE_NEW: u32 = 1 << 3;
pub const STATE_UNTRACKED: u32 = 1 << 6;

/// Status bits of a connection (`IPS_*`).
pub const IPS_EXPECTED: u32 = 1 << 0;
pub const IPS_SEEN_REPLY: u32 = 1 << 1;
pub const IPS_ASSURED: u32 = 1 << 2;
pub const IPS_CONFIRMED: u32 = 1 << 3;
pub const IPS_SRC_NAT: u32 = 1 << 4;
pub const IPS_DST_NAT: u32 = 1 << 5;

/// The types of routes (`RTN_*`) that a destination has.
pub const RTN_UNICAST: u32 = 1;
pub const RTN_LOCAL: u32 = 2;

/// The type of a message of nf_tables (`NFT_MSG_*`).
pub const fn kind(message: i32) -> u16 {
    (libc::NFNL_SUBSYS_NFTABLES as u16) << 8 | message as u16
}
