//! What can go wrong between us and the kernel, in words that name the object.

use std::fmt;
use std::io;

use nix::errno::Errno;

use super::TableFamily;
use super::batch::{FinishedBatch, HEADERS, u32_at};
use super::uapi::{
    NFTA_CHAIN_NAME, NFTA_CHAIN_TABLE, NFTA_DATA_VALUE, NFTA_RULE_CHAIN, NFTA_RULE_TABLE,
    NFTA_SET_ELEM_KEY, NFTA_SET_ELEM_LIST_ELEMENTS, NFTA_SET_ELEM_LIST_SET,
    NFTA_SET_ELEM_LIST_TABLE, NFTA_SET_NAME, NFTA_SET_TABLE, NFTA_TABLE_NAME, NLMSGERR_ATTR_MSG,
    NLMSGERR_ATTR_OFFS,
};
use crate::attr::Attrs;
use crate::message::errno;

/// A failed call.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No socket to nf_tables.
    #[error("cannot open a netlink socket to nf_tables: {0}")]
    Open(io::Error),
    /// The kernel took no message at all.
    #[error("cannot send {bytes} bytes to nf_tables: {reason}")]
    Send {
        /// The size of the message or transaction.
        bytes: usize,
        /// Why.
        reason: io::Error,
    },
    /// The transaction is larger than the socket may send, and it may not be made larger.
    #[error(
        "a transaction of {bytes} bytes exceeds the socket's send buffer, and raising it was \
         refused ({reason}): CAP_NET_ADMIN is needed in the initial user namespace, or a larger \
         net.core.wmem_max"
    )]
    TooLarge {
        /// The size of the transaction.
        bytes: usize,
        /// What the kernel answered when asked for a larger buffer.
        reason: io::Error,
    },
    /// No answer could be read.
    #[error("cannot read the answer of nf_tables: {0}")]
    Receive(io::Error),
    /// The answer makes no sense.
    #[error("nf_tables answered with something that is not understood: {0}")]
    Malformed(&'static str),
    /// A request other than a transaction was refused.
    #[error("nf_tables refused to {request}: {errno}")]
    Request {
        /// What was asked for.
        request: &'static str,
        /// The kernel's answer.
        errno: Errno,
    },
    /// The rules changed while they were being listed.
    #[error("the rules changed while they were being listed")]
    Interrupted,
    /// The rules of the namespace are not those of the expected generation any more: somebody
    /// changed something. Nothing was applied.
    #[error("somebody else changed the rules since they were last looked at")]
    StaleGeneration,
    /// A table belongs to another socket, which alone may change it.
    #[error(
        "the table {family} {table} belongs to another process (netlink port {port}, mostly its \
         process id), which alone may change it: end that one first"
    )]
    Owned {
        /// The family of the table.
        family: TableFamily,
        /// Its name.
        table: String,
        /// The netlink port of the owner.
        port: u32,
    },
    /// The transaction was refused as a whole; nothing was applied.
    #[error("nf_tables refused the transaction, nothing was applied: {}", join(.0))]
    Refused(Vec<Refusal>),
}

fn join(refusals: &[Refusal]) -> String {
    /// One cause can make many messages fail; the first say it all.
    const SHOWN: usize = 3;
    let mut text =
        refusals.iter().take(SHOWN).map(ToString::to_string).collect::<Vec<_>>().join("; ");
    if refusals.len() > SHOWN {
        text.push_str(&format!("; and {} more", refusals.len() - SHOWN));
    }
    text
}

/// One message of a transaction that the kernel refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The kernel's error.
    pub errno: Errno,
    /// The kernel's own words (extended acknowledgement), where it has any.
    pub explanation: Option<String>,
    /// What was to be done: `add chain`, `delete element of`, …
    pub operation: &'static str,
    /// The family of the table.
    pub family: Option<TableFamily>,
    /// The table.
    pub table: String,
    /// The chain or set; empty where it was the table itself.
    pub object: String,
    /// The key of the element that the kernel points at or, where it points at none, all keys of
    /// the message.
    pub keys: Vec<Vec<u8>>,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.operation)?;
        if let Some(family) = self.family {
            write!(f, " {family} {} {}", self.table, self.object)?;
        }
        if let [key, more @ ..] = &self.keys[..] {
            f.write_str(" key ")?;
            key.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
            if !more.is_empty() {
                write!(f, " or one of {} more", more.len())?;
            }
        }
        write!(f, ": {} ({})", self.errno.desc(), self.errno as i32)?;
        match &self.explanation {
            Some(text) => write!(f, ": {text}"),
            None => Ok(()),
        }
    }
}

/// The content of an `NLMSG_ERROR` message: its error, the sequence number that it answers, and
/// the extended acknowledgement. An error of 0 is an acknowledgement.
pub(super) struct Answer {
    pub(super) errno: i32,
    pub(super) sequence: u32,
    pub(super) explanation: Option<String>,
    pub(super) offset: Option<usize>,
}

impl Answer {
    /// Reads the payload of the message; `flags` are those of its header.
    pub(super) fn parse(payload: &[u8], flags: u16) -> Option<Answer> {
        /// `NLM_F_CAPPED` and `NLM_F_ACK_TLVS` of `linux/netlink.h`.
        const CAPPED: u16 = 0x100;
        const TLVS: u16 = 0x200;
        let error = i32::from_ne_bytes(payload.get(..4)?.try_into().ok()?);
        let original = payload.get(4..20)?;
        let original_length =
            if flags & CAPPED != 0 { 16 } else { crate::attr::align(u32_at(original, 0) as usize) };
        let attrs = match payload.get(4 + original_length..) {
            Some(rest) if flags & TLVS != 0 => Attrs::new(rest),
            _ => Attrs::new(&[]),
        };
        Some(Answer {
            errno: errno(error),
            sequence: u32_at(original, 8),
            explanation: attrs.find(NLMSGERR_ATTR_MSG).and_then(|a| a.text()).map(str::to_owned),
            // The offset is in host order, unlike the numbers of nf_tables.
            offset: attrs
                .find(NLMSGERR_ATTR_OFFS)
                .and_then(|a| a.payload.try_into().ok())
                .map(|b| u32::from_ne_bytes(b) as usize),
        })
    }

    /// Names the message of the batch that was refused.
    pub(super) fn refusal(self, batch: &FinishedBatch) -> Refusal {
        let message = batch.message(self.sequence).unwrap_or(&[]);
        let kind = message.get(4).copied().map_or(-1, i32::from);
        let body = message.get(HEADERS..).unwrap_or(&[]);
        let text = |attribute: u16| {
            Attrs::new(body).find(attribute).and_then(|a| a.text()).unwrap_or_default().to_owned()
        };
        let nft = message.get(5).copied() == Some(libc::NFNL_SUBSYS_NFTABLES as u8);
        let (operation, table, object) = match kind {
            _ if !nft => ("begin or end the transaction", String::new(), String::new()),
            libc::NFT_MSG_NEWTABLE => ("add table", text(NFTA_TABLE_NAME), String::new()),
            libc::NFT_MSG_DELTABLE => ("delete table", text(NFTA_TABLE_NAME), String::new()),
            libc::NFT_MSG_NEWCHAIN => ("add chain", text(NFTA_CHAIN_TABLE), text(NFTA_CHAIN_NAME)),
            libc::NFT_MSG_DELCHAIN => {
                ("delete chain", text(NFTA_CHAIN_TABLE), text(NFTA_CHAIN_NAME))
            }
            libc::NFT_MSG_NEWRULE => {
                ("add a rule to chain", text(NFTA_RULE_TABLE), text(NFTA_RULE_CHAIN))
            }
            libc::NFT_MSG_DELRULE => {
                ("delete a rule of chain", text(NFTA_RULE_TABLE), text(NFTA_RULE_CHAIN))
            }
            libc::NFT_MSG_NEWSET => ("add set", text(NFTA_SET_TABLE), text(NFTA_SET_NAME)),
            libc::NFT_MSG_NEWSETELEM => {
                ("add an element to", text(NFTA_SET_ELEM_LIST_TABLE), text(NFTA_SET_ELEM_LIST_SET))
            }
            libc::NFT_MSG_DELSETELEM => (
                "delete an element of",
                text(NFTA_SET_ELEM_LIST_TABLE),
                text(NFTA_SET_ELEM_LIST_SET),
            ),
            _ => ("do something", String::new(), String::new()),
        };
        let is_element = nft && matches!(kind, libc::NFT_MSG_NEWSETELEM | libc::NFT_MSG_DELSETELEM);
        Refusal {
            errno: Errno::from_raw(self.errno),
            explanation: self.explanation,
            operation,
            family: message.get(16).copied().filter(|_| nft).and_then(TableFamily::from_number),
            table,
            object,
            keys: if is_element { element_keys(message, self.offset) } else { Vec::new() },
        }
    }
}

/// The key of the element at that offset of the message, or all keys where there is no offset.
fn element_keys(message: &[u8], offset: Option<usize>) -> Vec<Vec<u8>> {
    let attributes = Attrs::new(message.get(HEADERS..).unwrap_or(&[]));
    let Some(list) = attributes.find(NFTA_SET_ELEM_LIST_ELEMENTS) else {
        return Vec::new();
    };
    let list_end = message.len();
    let list_start = list_end.saturating_sub(list.payload.len());
    let mut elements = list.children();
    let mut keys = Vec::new();
    while let Some(element) = elements.next() {
        let end = list_start + elements.offset_in(list.payload);
        let key = element.children().find(NFTA_SET_ELEM_KEY);
        let key = key.and_then(|k| k.children().find(NFTA_DATA_VALUE));
        let Some(key) = key.map(|k| k.payload.to_vec()) else {
            continue;
        };
        match offset {
            Some(offset) if offset >= list_start && offset < end => return vec![key],
            _ => keys.push(key),
        }
    }
    keys
}
