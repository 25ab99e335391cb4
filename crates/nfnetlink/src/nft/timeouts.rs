//! The object `ct timeout` of TCP: the timeouts of connections by their state, in place of sysctls.
//!
//! The kernel cannot change the object. It copies a timeout that the object lacks from the sysctls of
//! the moment, so that a dump has all of them.

use super::batch::Batch;
use super::uapi::{
    NFT_OBJECT_CT_TIMEOUT, NFTA_CT_TIMEOUT_DATA, NFTA_CT_TIMEOUT_L4PROTO, NFTA_OBJ_DATA,
    NFTA_OBJ_NAME, NFTA_OBJ_TABLE, NFTA_OBJ_TYPE,
};
use crate::Family;
use crate::attr::{Attrs, nest, put, put_be32, put_text};

/// The number of timeouts of TCP.
pub const TCP_TIMEOUTS: usize = 11;

/// An object `ct timeout` of TCP in the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DumpedTimeouts {
    /// Its name.
    pub name: String,
    /// The timeouts in seconds, in the order of `CTA_TIMEOUT_TCP_*`: SYN_SENT, SYN_RECV, ESTABLISHED,
    /// FIN_WAIT, CLOSE_WAIT, LAST_ACK, TIME_WAIT, CLOSE, SYN_SENT2, retransmitted, unacknowledged.
    pub seconds: [u32; TCP_TIMEOUTS],
}

impl DumpedTimeouts {
    /// Reads an object; `None` for one of another table, type or protocol.
    #[must_use]
    pub fn parse(attrs: &Attrs<'_>, table: &str) -> Option<DumpedTimeouts> {
        if attrs.text(NFTA_OBJ_TABLE)? != table
            || attrs.be32(NFTA_OBJ_TYPE)? != NFT_OBJECT_CT_TIMEOUT
        {
            return None;
        }
        let data = attrs.find(NFTA_OBJ_DATA)?.children();
        if data.find(NFTA_CT_TIMEOUT_L4PROTO)?.payload != [libc::IPPROTO_TCP as u8] {
            return None;
        }
        let policy = data.find(NFTA_CT_TIMEOUT_DATA)?.children();
        let mut seconds = [0; TCP_TIMEOUTS];
        for (timeout, kind) in seconds.iter_mut().zip(1..) {
            *timeout = policy.be32(kind)?;
        }
        Some(DumpedTimeouts { name: attrs.text(NFTA_OBJ_NAME)?.to_owned(), seconds })
    }
}

impl Batch {
    /// Adds an object `ct timeout` of TCP with these timeouts in seconds, in the order of
    /// [`DumpedTimeouts::seconds`]. Kernels without `CONFIG_NF_CONNTRACK_TIMEOUT` refuse it (`ENOENT`).
    pub fn add_tcp_timeouts(
        &mut self,
        family: Family,
        table: &str,
        name: &str,
        seconds: &[u32; TCP_TIMEOUTS],
    ) {
        let create = libc::NLM_F_CREATE as u16;
        self.nft(libc::NFT_MSG_NEWOBJ, create, family, |body| {
            put_text(body, NFTA_OBJ_TABLE, table);
            put_text(body, NFTA_OBJ_NAME, name);
            put_be32(body, NFTA_OBJ_TYPE, NFT_OBJECT_CT_TIMEOUT);
            nest(body, NFTA_OBJ_DATA, |data| {
                put(data, NFTA_CT_TIMEOUT_L4PROTO, &[libc::IPPROTO_TCP as u8]);
                nest(data, NFTA_CT_TIMEOUT_DATA, |policy| {
                    for (timeout, kind) in seconds.iter().zip(1..) {
                        put_be32(policy, kind, *timeout);
                    }
                });
            });
        });
    }
}
