//! The description of a message that the kernel refused: operation, object and key.

use std::fmt;

use nix::errno::Errno;

use super::uapi::{
    NFTA_CHAIN_NAME, NFTA_DATA_VALUE, NFTA_OBJ_NAME, NFTA_RULE_CHAIN, NFTA_SET_ELEM_KEY,
    NFTA_SET_ELEM_LIST_ELEMENTS, NFTA_SET_ELEM_LIST_SET, NFTA_SET_NAME, NFTA_TABLE_NAME,
    NLMSGERR_ATTR_MSG, NLMSGERR_ATTR_OFFS,
};
use super::{DumpedRule, rule_text};
use crate::Family;
use crate::attr::{Attrs, align};
use crate::message::{HEADER, Message};

/// A message of a transaction that the kernel refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The error of the `NLMSG_ERROR` message.
    pub errno: Errno,
    /// The kernel's text (`NLMSGERR_ATTR_MSG` of the extended acknowledgement), if the kernel sent
    /// one.
    pub explanation: Option<String>,
    /// The refused operation: `add chain`, `delete an element of`, …
    pub operation: &'static str,
    /// The family of the table; `None` if the kernel refused the begin or end of the transaction.
    pub family: Option<Family>,
    /// The name of the table.
    pub table: String,
    /// The name of the chain or set; empty if the message was about the table itself.
    pub object: String,
    /// The text of the rule, if the message was about one.
    pub rule: Option<String>,
    /// The key of the element that the kernel reported; all keys of the message if it reported
    /// none.
    pub keys: Vec<Vec<u8>>,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.operation)?;
        if let Some(family) = self.family {
            write!(f, " {family} {} {}", self.table, self.object)?;
        }
        if let Some(rule) = &self.rule {
            write!(f, " (`{rule}`)")?;
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

/// The content of an `NLMSG_ERROR` message: the error, the sequence number of the refused message,
/// and the extended acknowledgement. An error of 0 is an acknowledgement.
pub(crate) struct Answer {
    pub(super) errno: i32,
    pub(super) sequence: u32,
    pub(super) explanation: Option<String>,
    pub(super) offset: Option<usize>,
}

impl Answer {
    /// Decodes an `NLMSG_ERROR` message.
    pub(crate) fn parse(message: &Message<'_>) -> Option<Answer> {
        /// `NLM_F_CAPPED` and `NLM_F_ACK_TLVS` of `linux/netlink.h`.
        const CAPPED: u16 = 0x100;
        const TLVS: u16 = 0x200;
        let original = message.payload.get(4..4 + HEADER)?;
        let number = |at| Some(u32::from_ne_bytes(*original.get(at..)?.first_chunk()?));
        let length = if message.flags & CAPPED != 0 { HEADER } else { align(number(0)? as usize) };
        let has_attrs = message.flags & TLVS != 0;
        let attrs = if has_attrs { message.attrs_behind(4 + length) } else { Attrs::new(&[]) };
        Some(Answer {
            errno: message.error_code()?,
            sequence: number(8)?,
            explanation: attrs.text(NLMSGERR_ATTR_MSG).map(str::to_owned),
            // The offset is in host byte order, unlike the numbers of nf_tables.
            offset: attrs
                .find(NLMSGERR_ATTR_OFFS)
                .and_then(|a| a.payload.try_into().ok())
                .map(|b| u32::from_ne_bytes(b) as usize),
        })
    }

    /// Describes the refused message by its operation and object.
    pub(super) fn refusal(&self, message: Option<Message<'_>>) -> Refusal {
        let [subsystem, kind] = message.map_or(0, |message| message.kind).to_be_bytes();
        let message = message.filter(|_| i32::from(subsystem) == libc::NFNL_SUBSYS_NFTABLES);
        let attrs = message.map_or(Attrs::new(&[]), |message| message.attrs());
        let kind = i32::from(kind);
        let (operation, object) = match kind {
            _ if message.is_none() => ("begin or end the transaction", None),
            libc::NFT_MSG_NEWTABLE => ("add table", None),
            libc::NFT_MSG_DELTABLE => ("delete table", None),
            libc::NFT_MSG_NEWCHAIN => ("add chain", Some(NFTA_CHAIN_NAME)),
            libc::NFT_MSG_DELCHAIN => ("delete chain", Some(NFTA_CHAIN_NAME)),
            libc::NFT_MSG_NEWRULE => ("add a rule to chain", Some(NFTA_RULE_CHAIN)),
            libc::NFT_MSG_DELRULE => ("delete a rule of chain", Some(NFTA_RULE_CHAIN)),
            libc::NFT_MSG_NEWSET => ("add set", Some(NFTA_SET_NAME)),
            libc::NFT_MSG_DELSET => ("delete set", Some(NFTA_SET_NAME)),
            libc::NFT_MSG_NEWOBJ => ("add object", Some(NFTA_OBJ_NAME)),
            libc::NFT_MSG_NEWSETELEM => ("add an element to", Some(NFTA_SET_ELEM_LIST_SET)),
            libc::NFT_MSG_DELSETELEM => ("delete an element of", Some(NFTA_SET_ELEM_LIST_SET)),
            _ => ("do something", None),
        };
        let text = |kind| attrs.text(kind).unwrap_or_default().to_owned();
        let is_element = matches!(kind, libc::NFT_MSG_NEWSETELEM | libc::NFT_MSG_DELSETELEM);
        let keys = message.filter(|_| is_element).map(|it| element_keys(&it, self.offset));
        let family = message.and_then(|it| Family::from_number(*it.payload.first()?));
        let rule = DumpedRule::parse(&attrs).filter(|_| kind == libc::NFT_MSG_NEWRULE);
        Refusal {
            errno: Errno::from_raw(self.errno),
            explanation: self.explanation.clone(),
            operation,
            family,
            rule: rule.zip(family).map(|(rule, family)| rule_text(family, &rule.exprs)),
            // All messages begin with the name of the table.
            table: text(NFTA_TABLE_NAME),
            object: object.map(text).unwrap_or_default(),
            keys: keys.unwrap_or_default(),
        }
    }
}

/// Returns the key of the element at this offset of the message; all keys without an offset or an
/// element there.
fn element_keys(message: &Message<'_>, offset: Option<usize>) -> Vec<Vec<u8>> {
    let Some(list) = message.attrs().find(NFTA_SET_ELEM_LIST_ELEMENTS) else {
        return Vec::new();
    };
    let list_end = HEADER + message.payload.len();
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
