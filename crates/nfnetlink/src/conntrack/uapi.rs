//! Constants of the kernel's interface that the libc crate does not have.
//!
//! Source: `include/uapi/linux/netfilter/nfnetlink_conntrack.h`. The flags of the filter are in
//! `net/netfilter/nf_conntrack_netlink.c`; their numbers are part of the interface, too.

pub(super) const IPCTNL_MSG_CT_GET: u16 = 1;
pub(super) const IPCTNL_MSG_CT_DELETE: u16 = 2;
pub(super) const IPCTNL_MSG_CT_GET_STATS: u16 = 5;

pub(super) const CTA_TUPLE_ORIG: u16 = 1;
pub(super) const CTA_TUPLE_REPLY: u16 = 2;
pub(super) const CTA_STATUS: u16 = 3;
pub(super) const CTA_ID: u16 = 12;
pub(super) const CTA_ZONE: u16 = 18;
pub(super) const CTA_FILTER: u16 = 25;

pub(super) const CTA_TUPLE_IP: u16 = 1;
pub(super) const CTA_TUPLE_PROTO: u16 = 2;
pub(super) const CTA_TUPLE_ZONE: u16 = 3;

pub(super) const CTA_IP_V4_SRC: u16 = 1;
pub(super) const CTA_IP_V4_DST: u16 = 2;
pub(super) const CTA_IP_V6_SRC: u16 = 3;
pub(super) const CTA_IP_V6_DST: u16 = 4;

pub(super) const CTA_PROTO_NUM: u16 = 1;
pub(super) const CTA_PROTO_SRC_PORT: u16 = 2;
pub(super) const CTA_PROTO_DST_PORT: u16 = 3;

pub(super) const CTA_FILTER_ORIG_FLAGS: u16 = 1;
pub(super) const CTA_FILTER_F_CTA_IP_DST: u32 = 1 << 1;
pub(super) const CTA_FILTER_F_CTA_PROTO_NUM: u32 = 1 << 3;
pub(super) const CTA_FILTER_F_CTA_PROTO_DST_PORT: u32 = 1 << 5;

pub(super) const CTA_STATS_GLOBAL_ENTRIES: u16 = 1;
pub(super) const CTA_STATS_GLOBAL_MAX_ENTRIES: u16 = 2;
