//! What a transaction does to the tables, message by message (`net/netfilter/nf_tables_api.c`).
//!
//! Messages are applied to a copy, in order, and an error does not end the transaction: the
//! messages after it are judged too, with what the refused one had done before it failed.

use std::sync::Arc;

use nfnetlink::attr::{self, Attr, Attrs};
use nfnetlink::message::Message;
use nfnetlink::nft::{DumpedChain, DumpedRule, DumpedSet, DumpedTable, TABLE_OWNER, TABLE_PERSIST};
use nix::errno::Errno;

use crate::namespace::{Features, Ipv6, Refuse};
use crate::objects::{Chain, Data, Kind, Rule, Set, Table, Tables};
use crate::uapi::*;

/// A message that was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Refused {
    /// `nlmsg_seq` of the message.
    pub(crate) sequence: u32,
    pub(crate) errno: Errno,
    /// Where in the message the attribute begins that the kernel points at.
    pub(crate) offset: Option<usize>,
}

/// Why a message is refused.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Failure {
    errno: Errno,
    offset: Option<usize>,
}

impl From<Errno> for Failure {
    fn from(errno: Errno) -> Failure {
        Failure { errno, offset: None }
    }
}

/// A failure that points at an attribute, by how far it is from the start of the message.
pub(crate) fn at(message: &Message<'_>, attr: &Attr<'_>, errno: Errno) -> Failure {
    /// `NLMSG_HDRLEN`.
    const HEADER: usize = 16;
    let payload = message.payload.as_ptr() as usize;
    let offset = HEADER + (attr.payload.as_ptr() as usize - 4) - payload;
    Failure { errno, offset: Some(offset) }
}

/// `nfgen_family`.
fn family(message: &Message<'_>) -> u8 {
    message.payload[0]
}

/// A transaction under way.
pub(crate) struct Transaction<'a> {
    tables: Tables,
    /// The netlink port that sends it.
    port: u32,
    features: Features,
    /// What is refused for no reason that the tables know.
    refuse: Option<&'a Refuse>,
    /// Something will be different after it.
    changed: bool,
}

impl<'a> Transaction<'a> {
    /// Runs all messages on a copy of the tables; true with it if that makes a difference.
    pub(crate) fn run(
        tables: &Tables,
        port: u32,
        features: Features,
        refuse: Option<&'a Refuse>,
        messages: &[Message<'_>],
    ) -> Result<(Tables, bool), Vec<Refused>> {
        let mut transaction =
            Transaction { tables: tables.clone(), port, features, refuse, changed: false };
        let mut refused = Vec::new();
        for message in messages {
            if let Err(failure) = transaction.apply(message) {
                let Failure { errno, offset } = failure;
                refused.push(Refused { sequence: message.sequence, errno, offset });
            }
        }
        if !refused.is_empty() {
            return Err(refused);
        }
        for table in transaction.tables.0.values_mut() {
            (table.updating, table.chains_changed) = (false, false);
        }
        Ok((transaction.tables, transaction.changed))
    }

    fn apply(&mut self, message: &Message<'_>) -> Result<(), Failure> {
        let [subsystem, kind] = message.kind.to_be_bytes();
        assert_eq!(i32::from(subsystem), libc::NFNL_SUBSYS_NFTABLES, "a message for nf_tables");
        let kind = i32::from(kind);
        let foreign =
            libc::NLM_F_REPLACE | if kind == libc::NFT_MSG_NEWRULE { 0 } else { libc::NLM_F_EXCL };
        assert!(message.flags & foreign as u16 == 0, "flags that the agent does not use");
        match kind {
            libc::NFT_MSG_NEWTABLE => self.new_table(message),
            libc::NFT_MSG_DELTABLE => self.delete_table(message),
            libc::NFT_MSG_NEWCHAIN => self.new_chain(message),
            libc::NFT_MSG_DELCHAIN => self.delete_chain(message),
            libc::NFT_MSG_NEWRULE => self.new_rule(message),
            libc::NFT_MSG_DELRULE => self.delete_rule(message),
            libc::NFT_MSG_NEWSET => self.new_set(message),
            libc::NFT_MSG_DELSET => self.delete_set(message),
            libc::NFT_MSG_NEWOBJ => self.new_object(message),
            libc::NFT_MSG_NEWSETELEM | libc::NFT_MSG_DELSETELEM => {
                self.elements(message, kind == libc::NFT_MSG_NEWSETELEM)
            }
            other => unreachable!("the fake does not know message {other} of nf_tables"),
        }
    }

    /// The table that a message names, if its owner lets this port at it.
    fn table(&mut self, message: &Message<'_>, attribute: u16) -> Result<&mut Table, Failure> {
        let name = message.attrs().find(attribute).ok_or(Errno::EINVAL)?;
        let key = (family(message), text(&name));
        let port = self.port;
        let table = self.tables.0.get_mut(&key).ok_or(at(message, &name, Errno::ENOENT))?;
        match table.head.owner {
            Some(owner) if owner != port => Err(at(message, &name, Errno::EPERM)),
            _ => Ok(table),
        }
    }

    fn new_table(&mut self, message: &Message<'_>) -> Result<(), Failure> {
        if self.lacks_ipv6(message, Ipv6::Absent) {
            return Err(Errno::EOPNOTSUPP.into());
        }
        let attrs = message.attrs();
        let name = attrs.find(NFTA_TABLE_NAME).ok_or(Errno::EINVAL)?;
        let flags = number(&attrs, NFTA_TABLE_FLAGS);
        let (port, known) = (self.port, self.features.table_flags);
        if self.tables.0.contains_key(&(family(message), text(&name))) {
            let table = self.table(message, NFTA_TABLE_NAME)?;
            self.changed |= update_table(table, flags, known, port)?;
            return Ok(());
        }
        let mut head = DumpedTable::parse(&attrs).ok_or(Errno::EINVAL)?;
        if head.flags & !known != 0 {
            return Err(Errno::EOPNOTSUPP.into());
        }
        head.owner = (head.flags & TABLE_OWNER != 0).then_some(port);
        let (updating, chains_changed, handles) = Default::default();
        let (chains, sets, objects) = Default::default();
        let table = Table { head, updating, chains_changed, chains, sets, objects, handles };
        self.tables.0.insert((family(message), text(&name)), table);
        self.changed = true;
        Ok(())
    }

    fn lacks_ipv6(&self, message: &Message<'_>, ipv6: Ipv6) -> bool {
        family(message) == libc::NFPROTO_IPV6 as u8 && self.features.ipv6 == ipv6
    }

    fn delete_table(&mut self, message: &Message<'_>) -> Result<(), Failure> {
        self.table(message, NFTA_TABLE_NAME)?;
        let name = message.attrs().find(NFTA_TABLE_NAME).ok_or(Errno::EINVAL)?;
        self.tables.0.remove(&(family(message), text(&name)));
        self.changed = true;
        Ok(())
    }

    fn new_chain(&mut self, message: &Message<'_>) -> Result<(), Failure> {
        if let Some(kind) = message.attrs().find(NFTA_CHAIN_TYPE)
            && self.lacks_ipv6(message, Ipv6::TablesOnly)
        {
            return Err(at(message, &kind, Errno::ENOENT));
        }
        let table = self.table(message, NFTA_CHAIN_TABLE)?;
        let attrs = message.attrs();
        let name = attrs.find(NFTA_CHAIN_NAME).ok_or(Errno::EINVAL)?;
        let policy = attrs.find(NFTA_CHAIN_POLICY);
        let found = table.chain_mut(&text(&name));
        if let Some(policy) = &policy {
            let is_base = match &found {
                Some(chain) => chain.head.base.is_some(),
                None => attrs.find(NFTA_CHAIN_HOOK).is_some(),
            };
            if !is_base {
                return Err(at(message, policy, Errno::EOPNOTSUPP));
            }
        }
        match found {
            Some(chain) => {
                let clash = || at(message, &name, Errno::EEXIST);
                if let Some(new) = head(message)?.base {
                    let old = chain.head.base.as_ref().ok_or_else(clash)?;
                    if (new.1, new.2) != (old.1, old.2) {
                        return Err(Errno::EOPNOTSUPP.into());
                    }
                    if new.0 != old.0 {
                        return Err(clash());
                    }
                }
                if let (Some((.., old)), Some(policy)) = (&mut chain.head.base, policy) {
                    *old = policy.be32().unwrap_or(*old);
                }
                table.chains_changed = true;
            }
            None => {
                if attrs.find(NFTA_CHAIN_HOOK).is_some() && table.updating {
                    return Err(Errno::EINVAL.into());
                }
                let chain = Chain { head: head(message)?, rules: Vec::new() };
                table.chains.push(Arc::new(chain));
            }
        }
        self.changed = true;
        Ok(())
    }

    fn delete_chain(&mut self, message: &Message<'_>) -> Result<(), Failure> {
        let table = self.table(message, NFTA_CHAIN_TABLE)?;
        let attr = message.attrs().find(NFTA_CHAIN_NAME).ok_or(Errno::EINVAL)?;
        let name = text(&attr);
        // Its own rules count if they go back to it.
        let used = table.uses(&name) > 0;
        let chain = table.chain_mut(&name).ok_or(at(message, &attr, Errno::ENOENT))?;
        // They go first, and stay gone should it turn out that the chain is in use.
        let had_rules = !std::mem::take(&mut chain.rules).is_empty();
        let is_base = chain.head.base.is_some();
        if !used {
            table.chains_changed |= is_base;
            table.chains.retain(|chain| chain.head.name != name);
        }
        self.changed |= had_rules || !used;
        if used { Err(Errno::EBUSY.into()) } else { Ok(()) }
    }

    fn new_rule(&mut self, message: &Message<'_>) -> Result<(), Failure> {
        let table = self.table(message, NFTA_RULE_TABLE)?;
        let attrs = message.attrs();
        let chain = attrs.find(NFTA_RULE_CHAIN).ok_or(Errno::EINVAL)?;
        let name = text(&chain);
        table.chain(&name).ok_or(at(message, &chain, Errno::ENOENT))?;
        let list = attrs.find(NFTA_RULE_EXPRESSIONS);
        let expressions = list.map_or(Attrs::new(&[]), |list| list.children());
        let head = DumpedRule::parse(&attrs).ok_or(Errno::EINVAL)?;
        let mut rule = Rule { head, sets: Vec::new() };
        for expression in expressions {
            refer(table, &expression, &mut rule).map_err(|e| at(message, &expression, e))?;
        }
        table.handles += 1;
        rule.head.handle = table.handles;
        if let Some(chain) = table.chain_mut(&name) {
            chain.rules.push(rule);
        }
        self.changed = true;
        Ok(())
    }

    fn delete_rule(&mut self, message: &Message<'_>) -> Result<(), Failure> {
        let table = self.table(message, NFTA_RULE_TABLE)?;
        let attrs = message.attrs();
        let name = attrs.find(NFTA_RULE_CHAIN).ok_or(Errno::EINVAL)?;
        let chain = table.chain_mut(&text(&name)).ok_or(at(message, &name, Errno::ENOENT))?;
        let before = chain.rules.len();
        match attrs.find(NFTA_RULE_HANDLE) {
            None => chain.rules.clear(),
            Some(handle) => {
                chain.rules.retain(|rule| Some(rule.head.handle) != handle.be64());
                if chain.rules.len() == before {
                    return Err(at(message, &handle, Errno::ENOENT));
                }
            }
        }
        self.changed |= before > 0;
        Ok(())
    }

    fn new_set(&mut self, message: &Message<'_>) -> Result<(), Failure> {
        let kind = definition(&message.attrs())?;
        let table = self.table(message, NFTA_SET_TABLE)?;
        let name = message.attrs().find(NFTA_SET_NAME).ok_or(Errno::EINVAL)?;
        match table.set(&text(&name)) {
            Some(set) if set.kind != kind => {
                return Err(at(message, &name, Errno::EEXIST));
            }
            Some(_) => {}
            None => {
                let mut sent = Vec::new();
                // Which is sent as 0.
                if let Some((NFT_DATA_VERDICT, length)) = kind.data {
                    attr::put_be32(&mut sent, NFTA_SET_DATA_LEN, length);
                }
                sent.extend_from_slice(&message.payload[4..]);
                let head = DumpedSet::parse(&Attrs::new(&sent)).ok_or(Errno::EINVAL)?;
                let (elements, targets) = Default::default();
                table.sets.push(Arc::new(Set { head, kind, elements, targets, added: 0 }));
            }
        }
        self.changed = true;
        Ok(())
    }

    fn new_object(&mut self, message: &Message<'_>) -> Result<(), Failure> {
        let known = self.features.timeouts;
        let table = self.table(message, NFTA_OBJ_TABLE)?;
        let attrs = message.attrs();
        let name = attrs.find(NFTA_OBJ_NAME).ok_or(Errno::EINVAL)?;
        attrs.find(NFTA_OBJ_TYPE).and(attrs.find(NFTA_OBJ_DATA)).ok_or(Errno::EINVAL)?;
        if !known {
            return Err(Errno::ENOENT.into());
        }
        assert!(!table.objects.contains_key(&text(&name)), "an object is never added again");
        table.objects.insert(text(&name), message.payload[4..].to_vec());
        self.changed = true;
        Ok(())
    }

    fn delete_set(&mut self, message: &Message<'_>) -> Result<(), Failure> {
        let table = self.table(message, NFTA_SET_TABLE)?;
        let attr = message.attrs().find(NFTA_SET_NAME).ok_or(Errno::EINVAL)?;
        let name = text(&attr);
        table.set(&name).ok_or(at(message, &attr, Errno::ENOENT))?;
        let mut rules = table.chains.iter().flat_map(|chain| &chain.rules);
        if rules.any(|rule| rule.sets.contains(&name)) {
            return Err(at(message, &attr, Errno::EBUSY));
        }
        table.sets.retain(|set| set.head.name != name);
        self.changed = true;
        Ok(())
    }

    fn elements(&mut self, message: &Message<'_>, add: bool) -> Result<(), Failure> {
        let refuse = self.refuse;
        let mut changed = false;
        let table = self.table(message, NFTA_SET_ELEM_LIST_TABLE)?;
        let attrs = message.attrs();
        let name = attrs.find(NFTA_SET_ELEM_LIST_SET).ok_or(Errno::EINVAL)?;
        table.set(&text(&name)).ok_or(at(message, &name, Errno::ENOENT))?;
        let list = attrs.find(NFTA_SET_ELEM_LIST_ELEMENTS).ok_or(Errno::EINVAL)?;
        let result = list.children().try_for_each(|element| {
            let result = if add {
                table.add_element(&text(&name), &element, refuse)
            } else {
                table.delete_element(&text(&name), &element)
            };
            changed |= result.map_err(|errno| at(message, &element, errno))?;
            Ok(())
        });
        self.changed |= changed;
        result
    }
}

/// Sets the flags of a table that is there (`nf_tables_updtable`). True if something changes.
fn update_table(
    table: &mut Table,
    flags: Option<u32>,
    known: u32,
    port: u32,
) -> Result<bool, Errno> {
    let head = &mut table.head;
    let Some(flags) = flags.filter(|flags| *flags != head.flags) else { return Ok(false) };
    let is_orphan = head.flags & (TABLE_OWNER | TABLE_PERSIST) == TABLE_PERSIST;
    let gives_up = head.owner.is_some() && flags & TABLE_OWNER == 0;
    let takes = flags & TABLE_OWNER != 0 && !is_orphan;
    if flags & !known != 0 || gives_up || takes || (flags ^ head.flags) & TABLE_PERSIST != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    // `nft_table_pending_update`.
    if table.updating || table.chains_changed {
        return Err(Errno::EINVAL);
    }
    table.updating = true;
    head.flags = flags;
    head.owner = (flags & TABLE_OWNER != 0).then_some(port);
    Ok(true)
}

/// What a message says of a chain (`nft_chain_parse_hook`).
fn head(message: &Message<'_>) -> Result<DumpedChain, Errno> {
    /// `NF_INET_FORWARD`, and `NF_IP_PRI_CONNTRACK`, before which nothing is translated.
    const FORWARD: u32 = 2;
    const CONNTRACK: i32 = -200;
    let attrs = message.attrs();
    let table = attrs.find(NFTA_CHAIN_TABLE).map(|a| text(&a)).unwrap_or_default();
    let head = DumpedChain::parse(&attrs, &table).ok_or(Errno::EINVAL)?;
    match &head.base {
        Some((kind, hook, priority, _))
            if kind == "nat" && (*hook == FORWARD || *priority <= CONNTRACK) =>
        {
            Err(Errno::EOPNOTSUPP)
        }
        _ => Ok(head),
    }
}

/// Notes what an expression refers to, which must be there. What it computes is not looked at.
fn refer(table: &Table, expression: &Attr<'_>, rule: &mut Rule) -> Result<(), Errno> {
    let attrs = expression.children();
    let name = attrs.find(NFTA_EXPR_NAME).map(|a| text(&a)).ok_or(Errno::EINVAL)?;
    let data = attrs.find(NFTA_EXPR_DATA).map(|data| data.children());
    let data = data.unwrap_or(Attrs::new(&[]));
    match name.as_str() {
        "immediate" => {
            let value = data.find(IMMEDIATE_DATA).and_then(|data| Data::parse(&data.children()));
            if let Some(Data::Verdict(_, Some(chain))) = value {
                table.target(&chain)?;
            }
        }
        "lookup" | "dynset" => {
            let attribute = if name == "lookup" { LOOKUP_SET } else { DYNSET_SET_NAME };
            let set = data.find(attribute).map(|a| text(&a)).ok_or(Errno::EINVAL)?;
            let found = table.set(&set).ok_or(Errno::ENOENT)?;
            if name == "lookup" && !found.answers(number(&data, LOOKUP_DREG)) {
                return Err(Errno::EINVAL);
            }
            rule.sets.push(set);
        }
        "objref" => {
            let object = data.find(OBJREF_IMM_NAME).map(|a| text(&a)).ok_or(Errno::EINVAL)?;
            table.objects.get(&object).ok_or(Errno::ENOENT)?;
        }
        _ => {}
    }
    Ok(())
}

/// Reads the definition of a set.
fn definition(attrs: &Attrs<'_>) -> Result<Kind, Errno> {
    let flags = number(attrs, NFTA_SET_FLAGS).unwrap_or(0);
    let length = |attribute: u16| {
        number(attrs, attribute).filter(|length| (1..=VALUE_MAX as u32).contains(length))
    };
    let key = (
        number(attrs, NFTA_SET_KEY_TYPE).unwrap_or(0),
        length(NFTA_SET_KEY_LEN).ok_or(Errno::EINVAL)?,
    );
    let data = match (flags & SET_F_MAP != 0, number(attrs, NFTA_SET_DATA_TYPE)) {
        (false, None) => None,
        (true, Some(NFT_DATA_VERDICT)) => Some((NFT_DATA_VERDICT, VERDICT_LEN)),
        (true, Some(kind)) => Some((kind, length(NFTA_SET_DATA_LEN).ok_or(Errno::EINVAL)?)),
        _ => return Err(Errno::EINVAL),
    };
    let description = attrs.find(NFTA_SET_DESC).map(|a| a.children()).unwrap_or(Attrs::new(&[]));
    let fields = description.find(NFTA_SET_DESC_CONCAT).map(|a| a.children());
    let fields =
        fields.into_iter().flatten().filter_map(|f| number(&f.children(), NFTA_SET_FIELD_LEN));
    let expression = attrs.find(SET_EXPR).and_then(|a| a.children().find(NFTA_EXPR_NAME));
    let (fields, expression) = (fields.collect(), expression.map(|a| text(&a)));
    Ok(Kind { flags, key, data, fields, expression })
}

pub(crate) fn number(attrs: &Attrs<'_>, kind: u16) -> Option<u32> {
    attrs.find(kind).and_then(|a| a.be32())
}

fn text(attr: &Attr<'_>) -> String {
    attr.text().unwrap_or_default().to_owned()
}
