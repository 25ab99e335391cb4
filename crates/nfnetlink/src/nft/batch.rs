//! Transactions: all messages in one contiguous buffer.
//!
//! The `Batch` of the `nftnl` crate splits its messages into pages and writes a BATCH_BEGIN without
//! a generation id. The kernel requires the whole transaction in one `send`. This `Batch` keeps
//! one buffer, accepts the same `NlMsg` objects, and writes BATCH_BEGIN and BATCH_END itself.
#![allow(unsafe_code, reason = "NlMsg::write and the set attributes that nftnl lacks are C calls")]

use std::marker::PhantomData;

use nftnl::nftnl_sys as sys;
use nftnl::{Chain, MsgType, NlMsg, Policy, ProtoFamily, Rule, Table};
use nix::errno::Errno;

use super::expr_codec::{c_string, counter};
use super::refusal::{Answer, Refusal};
use super::uapi::{
    NFTA_CHAIN_NAME, NFTA_CHAIN_TABLE, NFTA_RULE_CHAIN, NFTA_RULE_HANDLE, NFTA_RULE_TABLE,
    NFTA_SET_ELEM_LIST_ELEMENTS, NFTA_SET_ELEM_LIST_SET, NFTA_SET_ELEM_LIST_TABLE, NFTA_SET_NAME,
    NFTA_SET_TABLE, NFTA_TABLE_FLAGS, NFTA_TABLE_NAME, NFTA_TABLE_USERDATA,
};
use super::{BaseChain, Elements, Expr, SetType, userdata};
use crate::Family;
use crate::attr::{align, nest, put_be32, put_be64, put_text};
use crate::message::{self, HEADER, Message, messages, put_netfilter_header};

/// The subsystem in `res_id` handles `NFNL_MSG_BATCH_BEGIN` and the messages after it.
const SUBSYSTEM: u16 = libc::NFNL_SUBSYS_NFTABLES as u16;

/// A transaction under construction: its messages, in order.
pub struct Batch {
    buffer: Vec<u8>,
    /// The offset of each message in the buffer; the index is the sequence number.
    starts: Vec<usize>,
    scratch: Vec<u8>,
}

/// A complete transaction, ready for [`Kernel::commit`](super::Kernel::commit).
pub struct FinishedBatch {
    buffer: Vec<u8>,
    starts: Vec<usize>,
}

impl Batch {
    /// Begins a transaction. With a generation, the kernel refuses it if the ruleset of the
    /// namespace has changed since (`NFNL_BATCH_GENID`).
    #[must_use]
    pub fn new(generation: Option<u32>) -> Batch {
        let mut batch = Batch { buffer: Vec::new(), starts: Vec::new(), scratch: Vec::new() };
        batch.raw(libc::NFNL_MSG_BATCH_BEGIN as u16, 0, libc::AF_UNSPEC as u8, SUBSYSTEM, |body| {
            if let Some(generation) = generation {
                put_be32(body, libc::NFNL_BATCH_GENID as u16, generation);
            }
        });
        batch
    }

    /// Returns true if the transaction has no message between begin and end.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.starts.len() == 1
    }

    /// Appends `NFNL_MSG_BATCH_END`, without which the kernel commits nothing.
    #[must_use]
    pub fn finish(mut self) -> FinishedBatch {
        self.raw(libc::NFNL_MSG_BATCH_END as u16, 0, libc::AF_UNSPEC as u8, SUBSYSTEM, |_| {});
        FinishedBatch { buffer: self.buffer, starts: self.starts }
    }

    /// Adds a table with flags (`NFT_TABLE_F_*`) and a comment, or sets the flags of an existing
    /// table. (`nftnl::Table` supports neither flags nor comment.)
    pub fn add_table(&mut self, family: Family, name: &str, flags: u32, comment: &str) {
        let create = libc::NLM_F_CREATE as u16;
        self.nft(libc::NFT_MSG_NEWTABLE, create, family, |body| {
            put_text(body, NFTA_TABLE_NAME, name);
            put_be32(body, NFTA_TABLE_FLAGS, flags);
            userdata::put_comment(body, NFTA_TABLE_USERDATA, comment);
        });
    }

    /// Deletes a table with all its chains, rules, sets and elements.
    pub fn delete_table(&mut self, family: Family, name: &str) {
        self.delete(libc::NFT_MSG_DELTABLE, family, &[(NFTA_TABLE_NAME, name)]);
    }

    /// Adds a chain; with `base` a base chain, attached to a hook with policy accept.
    pub fn add_chain(&mut self, family: Family, table: &str, name: &str, base: Option<BaseChain>) {
        let table = Table::new(c_string(table), proto(family));
        let mut chain = Chain::new(c_string(name), &table);
        if let Some(base) = base {
            chain.set_hook(base.hook, base.priority);
            chain.set_type(base.kind);
            chain.set_policy(Policy::Accept);
        }
        self.object(&chain);
    }

    /// Deletes a chain with its rules. The kernel refuses if a rule or element still refers to the
    /// chain.
    pub fn delete_chain(&mut self, family: Family, table: &str, name: &str) {
        let names = [(NFTA_CHAIN_TABLE, table), (NFTA_CHAIN_NAME, name)];
        self.delete(libc::NFT_MSG_DELCHAIN, family, &names);
    }

    /// Deletes all rules of a chain.
    pub fn flush_chain(&mut self, family: Family, table: &str, name: &str) {
        // Without the handle of a rule, this means all rules of the chain.
        let names = [(NFTA_RULE_TABLE, table), (NFTA_RULE_CHAIN, name)];
        self.delete(libc::NFT_MSG_DELRULE, family, &names);
    }

    /// Deletes one rule by its handle, which the kernel assigned (`NFTA_RULE_HANDLE`).
    pub fn delete_rule(&mut self, family: Family, table: &str, chain: &str, handle: u64) {
        self.nft(libc::NFT_MSG_DELRULE, 0, family, |body| {
            put_text(body, NFTA_RULE_TABLE, table);
            put_text(body, NFTA_RULE_CHAIN, chain);
            put_be64(body, NFTA_RULE_HANDLE, handle);
        });
    }

    /// Appends a rule to the end of a chain.
    pub fn add_rule(
        &mut self,
        family: Family,
        table: &str,
        chain: &str,
        exprs: &[Expr],
        comment: Option<&str>,
    ) {
        let table = Table::new(c_string(table), proto(family));
        let chain = Chain::new(c_string(chain), &table);
        let mut rule = Rule::new(&chain);
        for expr in exprs {
            rule.add_expr(expr);
        }
        if let Some(comment) = comment {
            // Adds the rule without its comment if that is too long.
            let _ = rule.set_comment(c_string(comment));
        }
        self.object(&rule);
    }

    /// Adds an empty set or map with this definition.
    pub fn add_set(&mut self, family: Family, table: &str, name: &str, kind: &SetType) {
        let table = Table::new(c_string(table), proto(family));
        let (name, id) = (c_string(name), self.sequence());
        let set = nftnl::set::Set::<AnyKey>::new_named(&name, id, &table, proto(family));
        let raw = set.as_ptr().as_ptr();
        let set_u32 = |attribute: sys::nftnl_set_attr, value: u32| {
            // SAFETY: the set is alive until the end of this function.
            unsafe { sys::nftnl_set_set_u32(raw, attribute as u16, value) };
        };
        set_u32(sys::NFTNL_SET_FLAGS, kind.flags());
        set_u32(sys::NFTNL_SET_KEY_TYPE, kind.key_type);
        set_u32(sys::NFTNL_SET_KEY_LEN, kind.key_length);
        if let Some((data_type, length)) = kind.data {
            set_u32(sys::NFTNL_SET_DATA_TYPE, data_type);
            set_u32(sys::NFTNL_SET_DATA_LEN, length);
        }
        if let Some(size) = kind.size {
            set_u32(sys::NFTNL_SET_DESC_SIZE, size);
        }
        let set_data = |attribute: sys::nftnl_set_attr, data: &[u8]| {
            // SAFETY: the set is alive; libnftnl copies the bytes, whose length is given.
            unsafe {
                let (attribute, length) = (attribute as u16, data.len() as u32);
                sys::nftnl_set_set_data(raw, attribute, data.as_ptr().cast(), length);
            }
        };
        if let Some(type_of) = &kind.type_of {
            set_data(sys::NFTNL_SET_USERDATA, &userdata::set_typeof(family, type_of));
        }
        if let Some(fields) = kind.range_fields {
            let count = fields.iter().position(|length| *length == 0).unwrap_or(fields.len());
            set_data(sys::NFTNL_SET_DESC_CONCAT, &fields[..count]);
        }
        if kind.counter {
            // SAFETY: the set is alive and takes over the expression.
            unsafe { sys::nftnl_set_add_expr(raw, counter().as_ptr()) };
        }
        self.object(&set);
    }

    /// Deletes a set or map with its elements. The kernel refuses if a rule still refers to it.
    pub fn delete_set(&mut self, family: Family, table: &str, name: &str) {
        let names = [(NFTA_SET_TABLE, table), (NFTA_SET_NAME, name)];
        self.delete(libc::NFT_MSG_DELSET, family, &names);
    }

    /// Deletes what has these names.
    fn delete(&mut self, message: i32, family: Family, names: &[(u16, &str)]) {
        self.nft(message, 0, family, |body| {
            names.iter().for_each(|(kind, name)| put_text(body, *kind, name));
        });
    }

    /// Adds elements to a set or map, in as many messages as the lists need.
    pub fn add_elements(&mut self, family: Family, table: &str, set: &str, elements: &Elements) {
        let flags = libc::NLM_F_CREATE as u16;
        self.elements(libc::NFT_MSG_NEWSETELEM, flags, family, table, set, elements);
    }

    /// Deletes elements from a set or map; the kernel refuses the transaction if one does not
    /// exist.
    pub fn delete_elements(&mut self, family: Family, table: &str, set: &str, elements: &Elements) {
        self.elements(libc::NFT_MSG_DELSETELEM, 0, family, table, set, elements);
    }

    fn elements(
        &mut self,
        message: i32,
        flags: u16,
        family: Family,
        table: &str,
        set: &str,
        elements: &Elements,
    ) {
        self.buffer.reserve(elements.byte_len() + 1024);
        for list in elements.lists() {
            self.nft(message, flags, family, |body| {
                put_text(body, NFTA_SET_ELEM_LIST_TABLE, table);
                put_text(body, NFTA_SET_ELEM_LIST_SET, set);
                nest(body, NFTA_SET_ELEM_LIST_ELEMENTS, |inside| inside.extend_from_slice(list));
            });
        }
    }

    /// Appends the addition of an object that libnftnl encodes.
    fn object(&mut self, object: &impl NlMsg) {
        if self.scratch.is_empty() {
            self.scratch = vec![0; nftnl::nft_nlmsg_maxsize() as usize];
        }
        // SAFETY: the scratch buffer has the size that the trait requires.
        unsafe { object.write(self.scratch.as_mut_ptr().cast(), self.sequence(), MsgType::Add) };
        let length = messages(&self.scratch).next().map_or(0, |it| HEADER + it.payload.len());
        let start = self.buffer.len();
        self.starts.push(start);
        let written = &mut self.scratch[..align(length)];
        self.buffer.extend_from_slice(written);
        // libmnl 1.0.4 does not write padding: without this, padding would hold bytes of an earlier
        // message.
        written.fill(0);
        // nftnl requests an acknowledgement of every message, and many of them overrun the receive
        // buffer. The kernel reports errors without this flag.
        let ack = libc::NLM_F_ACK as u16;
        let flags = u16::from_ne_bytes([self.buffer[start + 6], self.buffer[start + 7]]) & !ack;
        let flags = flags | libc::NLM_F_REQUEST as u16;
        self.buffer[start + 6..start + 8].copy_from_slice(&flags.to_ne_bytes());
    }

    /// Returns the number of the next message, its sequence number.
    fn sequence(&self) -> u32 {
        self.starts.len() as u32
    }

    /// Appends a message of nf_tables.
    pub(super) fn nft(
        &mut self,
        message: i32,
        flags: u16,
        family: Family,
        body: impl FnOnce(&mut Vec<u8>),
    ) {
        let kind = (SUBSYSTEM << 8) | message as u16;
        self.raw(kind, flags, family.number(), 0, body);
    }

    fn raw(
        &mut self,
        kind: u16,
        flags: u16,
        family: u8,
        resource: u16,
        body: impl FnOnce(&mut Vec<u8>),
    ) {
        let sequence = self.sequence();
        self.starts.push(self.buffer.len());
        message::put(&mut self.buffer, kind, flags, sequence, |it| {
            put_netfilter_header(it, family, resource);
            body(it);
        });
    }
}

impl FinishedBatch {
    /// Returns the messages of the transaction, including begin and end.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.buffer
    }

    /// Returns the number of messages, without begin and end.
    #[must_use]
    pub fn messages(&self) -> u32 {
        self.starts.len() as u32 - 2
    }

    /// Describes the kernel's refusal of the message with this sequence number (the first has 1).
    /// `offset` is the offset of the offending attribute, if the kernel reported one.
    #[must_use]
    pub fn refusal(&self, sequence: u32, errno: Errno, offset: Option<usize>) -> Refusal {
        self.refused(&Answer { errno: errno as i32, sequence, explanation: None, offset })
    }

    pub(crate) fn refused(&self, answer: &Answer) -> Refusal {
        answer.refusal(self.message(answer.sequence))
    }

    /// Returns the message with that sequence number.
    fn message(&self, sequence: u32) -> Option<Message<'_>> {
        messages(self.buffer.get(*self.starts.get(sequence as usize)?..)?).next()
    }
}

fn proto(family: Family) -> ProtoFamily {
    match family {
        Family::Ip => ProtoFamily::Ipv4,
        Family::Ip6 => ProtoFamily::Ipv6,
    }
}

/// A placeholder for the key type that `nftnl::set::Set` requires; `add_set` sets the real type and
/// length afterwards.
struct AnyKey(PhantomData<()>);

impl nftnl::set::SetKey for AnyKey {
    const TYPE: u32 = 0;
    const LEN: u32 = 0;

    fn data(&self) -> Box<[u8]> {
        Box::default()
    }
}
