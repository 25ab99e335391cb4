//! Numbers of the kernel's interface, from `include/uapi/linux/netfilter/nf_tables.h`: the agent's, and
//! those that it does not need. One that is wrong shows beside the kernel, in the test `sequences`.

pub(crate) use nfnetlink::nft::uapi::*;

pub(crate) const BATCH_GENID: u16 = 1;

pub(crate) const TABLE_F_MASK: u32 = 0x7;

pub(crate) const IMMEDIATE_DATA: u16 = 2;
pub(crate) const LOOKUP_SET: u16 = 1;
pub(crate) const LOOKUP_DREG: u16 = 3;
pub(crate) const DYNSET_SET_NAME: u16 = 1;
pub(crate) const OBJREF_IMM_NAME: u16 = 2;

pub(crate) const SET_EXPR: u16 = 17;
pub(crate) const SET_F_INTERVAL: u32 = libc::NFT_SET_INTERVAL as u32;
pub(crate) const SET_F_MAP: u32 = libc::NFT_SET_MAP as u32;
pub(crate) const SET_F_TIMEOUT: u32 = libc::NFT_SET_TIMEOUT as u32;

/// The size of `struct nft_verdict` on 64 bits.
pub(crate) const VERDICT_LEN: u32 = 16;
/// `NFT_DATA_VALUE_MAXLEN`.
pub(crate) const VALUE_MAX: usize = 64;
