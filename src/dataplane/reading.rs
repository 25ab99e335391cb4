//! Reads the kernel's state: at the start, and when another process may have modified it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use foldhash::HashSet;
use nfnetlink::nft::{DumpedChain, DumpedRule, DumpedSet, DumpedTimeouts, Error, Kernel};
use shunt_core::model::{ArrivalMap, Backend, Change, Family};
use shunt_core::plan::{
    Chain, ChainName, Element, Frontend, FrontendKey, GONE_ENDPOINTS, Key, LAYOUT_COMMENT,
    NodeContext, Outcome, Pools, Rule, Set, SetMember, TABLE, TcpTimeouts, Value, base_text,
    recall,
};

use super::capacity::Sizes;
use super::codec::{decode, encode_key, encode_key_end, gone_set_type, set_type, table_family};
use super::gone;
use super::listing::{Structure, list, planned_chains};
use super::ownership::TableOwner;
use super::record::{KernelRecord, Stray, Table, TableState};
use super::slots::Slotted;
use super::translate::expressions;

/// Reads what the rules of an earlier agent remember of Node and ServiceCIDRs. Both tables remember
/// the same. Empty without tables; `None` if they remember nothing of this Node.
pub(super) fn remembered(
    kernel: &mut dyn Kernel,
    node_name: &str,
) -> Result<Option<Vec<Change>>, Error> {
    let mut found = Some(Vec::new());
    for family in Family::ALL {
        let Some(table) = kernel.table(table_family(family), TABLE)? else { continue };
        found = None;
        if table.comment.as_deref() == Some(LAYOUT_COMMENT) {
            let rules = kernel.rules(table_family(family), TABLE)?;
            let chain = ChainName::Node.to_string();
            let facts = rules.iter().filter(|rule| rule.chain == chain);
            found = recall(facts.filter_map(|rule| rule.comment.as_deref()), node_name);
        }
        if found.is_some() {
            break;
        }
    }
    Ok(found)
}

/// The result of one reading.
pub(super) struct Reading {
    pub(super) generation: u32,
    pub(super) record: KernelRecord,
    /// The gone endpoints of each family.
    pub(super) gone: [gone::Listing; 2],
}

impl Reading {
    /// Reads the tables of both families.
    pub(super) fn new(
        kernel: &mut dyn Kernel,
        node_context: &NodeContext,
    ) -> Result<Reading, Error> {
        let generation = kernel.generation()?.id;
        let (record, gone) = Default::default();
        let mut reading = Reading { generation, record, gone };
        for family in Family::ALL {
            let state = read_structure(kernel, node_context, family)?;
            if let TableState::Ours(table) = &state {
                reading.read_elements(kernel, family)?;
                if table.has_gone_set {
                    reading.gone[family as usize] = gone::listed(kernel, family)?;
                }
            }
            reading.record.set_table(family, state);
        }
        Ok(reading)
    }
}

/// Reads everything except elements: a few hundred messages.
pub(super) fn read_structure(
    kernel: &mut dyn Kernel,
    node_context: &NodeContext,
    family: Family,
) -> Result<TableState, Error> {
    let table = table_family(family);
    let Some(found) = kernel.table(table, TABLE)? else {
        return Ok(TableState::Absent);
    };
    let owner = TableOwner::of(table, found.flags, found.owner, kernel.port())?;
    let Some(owner) = owner.filter(|_| found.comment.as_deref() == Some(LAYOUT_COMMENT)) else {
        return Ok(TableState::Unusable);
    };
    let Structure { sets, timeouts, chains: found_chains, mut rules } =
        Structure::read(kernel, family)?;
    let is_gone_set =
        |found: &DumpedSet| found.name == GONE_ENDPOINTS && found.is(&gone_set_type(family));
    let has_gone_set = sets.iter().any(is_gone_set);
    let is_own = |found: &&DumpedSet| {
        Set::from_name(&found.name).is_some_and(|set| found.is(&set_type(family, set)))
    };
    let own_sets = sets.iter().filter(is_own).count();
    if own_sets < Set::ALL.len() || sets.len() > own_sets + usize::from(has_gone_set) {
        return Ok(TableState::Unusable);
    }
    let planned = planned_chains(node_context, family);
    let mut chains = BTreeMap::new();
    for found in found_chains {
        let wanted = ChainName::parse(&found.name).and_then(&planned);
        let Some(wanted) = wanted.filter(|wanted| same_hook(&found, wanted)) else {
            return Ok(TableState::Unusable);
        };
        let live = rules.remove(&found.name).unwrap_or_default();
        let right = implements(family, &wanted, &live);
        chains.insert(wanted.name, right.then_some(wanted));
    }
    let own = |found: DumpedTimeouts| {
        let own = TcpTimeouts::from(found.seconds);
        (found.name == own.name()).then_some(own)
    };
    let timeouts: BTreeSet<TcpTimeouts> = timeouts.into_iter().filter_map(own).collect();
    let mut sizes = Sizes::default();
    for found in &sets {
        if let Some(set) = Set::from_name(&found.name).filter(|set| set.is_hashed()) {
            sizes[set as usize] = found.size;
        }
    }
    Ok(TableState::Ours(Table { chains, owner, sizes, has_gone_set, timeouts, rebuild: false }))
}

/// Returns true if both are regular chains, or base chains at the same hook and priority.
fn same_hook(found: &DumpedChain, wanted: &Chain) -> bool {
    found.base.as_ref().map(live_base_text) == wanted.base.map(base_text)
}

/// Writes the properties of a base chain in the kernel like nft.
pub(super) fn live_base_text((kind, hook, priority, policy): &(String, u32, i32, u32)) -> String {
    const HOOKS: [&str; 5] = ["prerouting", "input", "forward", "output", "postrouting"];
    let hook = HOOKS.get(*hook as usize).copied().unwrap_or("unknown");
    let policy = if *policy == libc::NF_ACCEPT as u32 { "accept" } else { "drop" };
    format!("type {kind} hook {hook} priority {priority}; policy {policy};")
}

/// Returns true if the kernel's rules are those of the chain.
fn implements(family: Family, chain: &Chain, live: &[DumpedRule]) -> bool {
    // The chain that remembers the Node has its facts in comments.
    let same = |(wanted, live): (&Rule, &DumpedRule)| {
        expressions(family, wanted) == live.exprs
            && wanted.comment.as_deref() == live.comment.as_deref()
    };
    chain.rules.len() == live.len() && chain.rules.iter().zip(live).all(same)
}

/// The elements of a frontend in a reading.
#[derive(Default)]
struct FoundFrontend {
    /// The slots of the pools, which are most of the elements.
    slots: Vec<(Pools, u32, Backend)>,
    /// All other elements.
    others: Vec<FoundElement>,
}

type FoundElement = (Set, Key, Option<Value>, Option<Arc<str>>);

impl Reading {
    fn read_elements(&mut self, kernel: &mut dyn Kernel, family: Family) -> Result<(), Error> {
        let record = &mut self.record;
        let mut frontends: ArrivalMap<FrontendKey, FoundFrontend> = ArrivalMap::default();
        let mut labels: HashSet<Arc<str>> = HashSet::default();
        for set in Set::ALL.into_iter().filter(|set| !set.is_dynamic()) {
            let pools = Pools::ALL.into_iter().find(|pools| pools.endpoints() == set);
            list(kernel, family, set, &mut |element| {
                let Some(Element { key, value, comment, .. }) = decode(family, set, &element)
                else {
                    record.strays.insert(Stray {
                        family,
                        set,
                        key: element.key.to_vec(),
                        key_end: element.key_end.map(<[u8]>::to_vec),
                    });
                    return;
                };
                let frontend = match key {
                    Key::Frontend(frontend) | Key::Pool(frontend, _) | Key::Source(frontend, _) => {
                        frontend
                    }
                    Key::Address(address) | Key::Hairpin(address) => {
                        return record.set_member(SetMember { set, address }, true);
                    }
                };
                let found = frontends.entry(frontend).or_default();
                if let (Some(pools), Key::Pool(_, index), Some(Value::Backend(backend)), None) =
                    (pools, key, &value, comment)
                {
                    return found.slots.push((pools, index, *backend));
                }
                let label = comment.map(|comment| {
                    labels.get(comment).cloned().unwrap_or_else(|| {
                        let label: Arc<str> = comment.into();
                        labels.insert(label.clone());
                        label
                    })
                });
                found.others.push((set, key, value, label));
            })?;
        }
        record.reserve(frontends.len(), 0);
        for (key, mut found) in frontends {
            found.sort();
            match assemble(key, &found) {
                Some(frontend) => record.set_frontend(key, Some(Slotted::in_order(frontend))),
                None => record.strays.extend(found.keys(key).map(|(set, key)| Stray {
                    family,
                    set,
                    key: encode_key(key).as_slice().to_vec(),
                    key_end: encode_key_end(key).map(|end| end.as_slice().to_vec()),
                })),
            }
        }
        Ok(())
    }
}

impl FoundFrontend {
    /// Sorts the elements. While others commit, the kernel can list an element twice.
    fn sort(&mut self) {
        self.slots.sort_unstable();
        self.slots.dedup();
        self.others.sort_unstable();
        self.others.dedup();
    }

    /// Returns the range of the frontend's elements.
    fn keys(&self, key: FrontendKey) -> impl Iterator<Item = (Set, Key)> {
        let slots = self.slots.iter();
        let slots = slots.map(move |(pools, index, _)| (pools.endpoints(), Key::Pool(key, *index)));
        slots.chain(self.others.iter().map(|(set, key, ..)| (*set, *key)))
    }

    /// Returns one of the pools, up to the first gap.
    fn pool(&self, pools: Pools) -> Arc<[Backend]> {
        let slots = self.slots.iter().filter(|(of, ..)| *of == pools).zip(0..);
        let slots = slots.take_while(|((_, index, _), slot)| index == slot);
        slots.map(|((_, _, backend), _)| *backend).collect()
    }
}

/// Decodes a frontend from its elements, in order. Returns `None` unless they are exactly those
/// that shunt would write for it.
fn assemble(key: FrontendKey, found: &FoundFrontend) -> Option<Frontend> {
    let (main, short_circuit) = Frontend::pools_of(key);
    let others = &found.others;
    let (_, _, value, label) = others.iter().find(|(set, ..)| *set == main.verdicts())?;
    let ranges = others.iter().filter_map(|(_, key, ..)| match key {
        Key::Source(_, range) => Some(*range),
        _ => None,
    });
    let has = |wanted: &[Set]| others.iter().any(|(set, ..)| wanted.contains(set));
    let balancing = others.iter().find_map(|(_, _, value, _)| match value {
        Some(Value::Goto(ChainName::Balancer { balancing, .. })) => Some(*balancing),
        _ => None,
    });
    let frontend = Frontend {
        label: label.clone()?,
        balancing: balancing.unwrap_or_default(),
        outcome: match value.as_ref()? {
            Value::Drop => Outcome::Drop,
            Value::Goto(ChainName::Reject) => Outcome::Reject,
            _ => Outcome::Balance(found.pool(main)),
        },
        masquerade: has(&[Set::MasqueradeServices, Set::MasqueradeNodeports]),
        short_circuit: found.pool(short_circuit),
        affinity: others.iter().find_map(|(_, _, value, _)| match value {
            Some(Value::Goto(ChainName::AffinityTimeout(seconds))) => Some(*seconds),
            _ => None,
        }),
        sources: has(&[Set::RestrictedVips]).then(|| ranges.collect()),
        larger: None,
    };
    let slots: usize = frontend.pools(key).map(|(_, pool)| pool.len()).sum();
    let mut wanted: Vec<Element<'_>> = frontend.decisions(key).collect();
    wanted.sort_unstable();
    let others = others.iter().map(|(set, key, value, label)| Element {
        set: *set,
        key: *key,
        value: value.clone(),
        comment: label.as_deref(),
    });
    (slots == found.slots.len() && wanted.into_iter().eq(others)).then_some(frontend)
}
