//! Numbers of the kernel's interface, from `include/uapi/linux/netfilter/nf_tables.h`.
//!
//! The agent has its own: a number that is wrong there must not be right here.

pub(crate) const NEWTABLE: u8 = 0;
pub(crate) const DELTABLE: u8 = 2;
pub(crate) const NEWCHAIN: u8 = 3;
pub(crate) const DELCHAIN: u8 = 5;
pub(crate) const NEWRULE: u8 = 6;
pub(crate) const DELRULE: u8 = 8;
pub(crate) const NEWSET: u8 = 9;
pub(crate) const DELSET: u8 = 11;
pub(crate) const NEWSETELEM: u8 = 12;
pub(crate) const DELSETELEM: u8 = 14;
pub(crate) const NEWOBJ: u8 = 18;

pub(crate) const BATCH_GENID: u16 = 1;
pub(crate) const LIST_ELEM: u16 = 1;

pub(crate) const TABLE_NAME: u16 = 1;
pub(crate) const TABLE_FLAGS: u16 = 2;
pub(crate) const TABLE_USERDATA: u16 = 6;
pub(crate) const TABLE_OWNER: u16 = 7;

pub(crate) const TABLE_F_OWNER: u32 = 0x2;
pub(crate) const TABLE_F_PERSIST: u32 = 0x4;
pub(crate) const TABLE_F_MASK: u32 = 0x7;

pub(crate) const CHAIN_TABLE: u16 = 1;
pub(crate) const CHAIN_NAME: u16 = 3;
pub(crate) const CHAIN_HOOK: u16 = 4;
pub(crate) const CHAIN_POLICY: u16 = 5;
pub(crate) const CHAIN_TYPE: u16 = 7;

pub(crate) const HOOK_HOOKNUM: u16 = 1;
pub(crate) const HOOK_PRIORITY: u16 = 2;

pub(crate) const RULE_TABLE: u16 = 1;
pub(crate) const RULE_CHAIN: u16 = 2;
pub(crate) const RULE_HANDLE: u16 = 3;
pub(crate) const RULE_EXPRESSIONS: u16 = 4;
pub(crate) const RULE_USERDATA: u16 = 7;

pub(crate) const EXPR_NAME: u16 = 1;
pub(crate) const EXPR_DATA: u16 = 2;
pub(crate) const IMMEDIATE_DATA: u16 = 2;
pub(crate) const LOOKUP_SET: u16 = 1;
pub(crate) const LOOKUP_DREG: u16 = 3;
pub(crate) const DYNSET_SET_NAME: u16 = 1;

pub(crate) const SET_TABLE: u16 = 1;
pub(crate) const SET_NAME: u16 = 2;
pub(crate) const SET_FLAGS: u16 = 3;
pub(crate) const SET_KEY_TYPE: u16 = 4;
pub(crate) const SET_KEY_LEN: u16 = 5;
pub(crate) const SET_DATA_TYPE: u16 = 6;
pub(crate) const SET_DATA_LEN: u16 = 7;
pub(crate) const SET_DESC: u16 = 9;
pub(crate) const SET_EXPR: u16 = 17;

pub(crate) const SET_DESC_SIZE: u16 = 1;
pub(crate) const SET_DESC_CONCAT: u16 = 2;
pub(crate) const SET_FIELD_LEN: u16 = 1;

pub(crate) const SET_F_INTERVAL: u32 = 0x4;
pub(crate) const SET_F_MAP: u32 = 0x8;
pub(crate) const SET_F_TIMEOUT: u32 = 0x10;
pub(crate) const SET_F_CONCAT: u32 = 0x80;

pub(crate) const OBJ_TABLE: u16 = 1;
pub(crate) const OBJ_NAME: u16 = 2;
pub(crate) const OBJ_TYPE: u16 = 3;
pub(crate) const OBJ_DATA: u16 = 4;
pub(crate) const OBJREF_IMM_NAME: u16 = 2;

pub(crate) const ELEM_LIST_TABLE: u16 = 1;
pub(crate) const ELEM_LIST_SET: u16 = 2;
pub(crate) const ELEM_LIST_ELEMENTS: u16 = 3;

pub(crate) const ELEM_KEY: u16 = 1;
pub(crate) const ELEM_DATA: u16 = 2;
pub(crate) const ELEM_TIMEOUT: u16 = 4;
pub(crate) const ELEM_EXPIRATION: u16 = 5;
pub(crate) const ELEM_EXPR: u16 = 7;
pub(crate) const ELEM_KEY_END: u16 = 10;

pub(crate) const COUNTER_BYTES: u16 = 1;
pub(crate) const COUNTER_PACKETS: u16 = 2;

pub(crate) const DATA_VALUE: u16 = 1;
pub(crate) const DATA_VERDICT: u16 = 2;
pub(crate) const VERDICT_CODE: u16 = 1;
pub(crate) const VERDICT_CHAIN: u16 = 2;

/// The data type of a verdict map, and the size of `struct nft_verdict` on 64 bits.
pub(crate) const TYPE_VERDICT: u32 = 0xffff_ff00;
pub(crate) const VERDICT_LEN: u32 = 16;
/// `NFT_DATA_VALUE_MAXLEN`.
pub(crate) const VALUE_MAX: usize = 64;
