//! The differences between the kernel's tables and the plan, as lines in nft's syntax.
//!
//! The agent compares encoded elements and repairs ([`super::drift`]). This comparison is for
//! people: it also shows what shunt has not written, and it writes nothing.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use nfnetlink::nft::{
    DumpedChain, DumpedRule, DumpedSet, DumpedTimeouts, ElementData, Error, Expr, Kernel,
};
use shunt_core::model::{Backend, Family};
use shunt_core::plan::{
    Chain, ChainName, Desired, Element, Field, Frontend, FrontendKey, GONE_ENDPOINTS, Key,
    LAYOUT_COMMENT, NodeContext, Pools, Set, TABLE, TcpTimeouts, Value, base_chains, base_text,
    element_text, on_demand_chain,
};

use super::codec::{decode_key, decode_value, gone_set_type, set_type, table_family};
use super::listing::list;
use super::reading::same_hook;
use super::translate::{commented, expressions, rule_text};

/// A place in a table where kernel and plan differ.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The family of the table.
    pub family: Family,
    /// The place in nft's words: `table`, or a set, map or chain with its name.
    pub name: String,
    /// The differences.
    pub lines: Vec<Side>,
}

/// A line that only one side has.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Side {
    /// Only the kernel.
    Kernel(String),
    /// Only the plan.
    Plan(String),
}

/// Compares the tables of both families with the plan. Elements that packets add are not compared,
/// and the order of backends in a pool is none of the plan's.
///
/// # Errors
/// If the kernel does not list its tables.
pub fn compare(kernel: &mut dyn Kernel, desired: &Desired) -> Result<Vec<Place>, Error> {
    let mut places = Vec::new();
    let Some(node_context) = desired.node_context() else { return Ok(places) };
    for family in Family::ALL.into_iter().filter(|it| node_context.options.has(*it)) {
        let listed = Listed::read(kernel, family)?;
        let resets = node_context.options.reset_gone_endpoints;
        let mut comparison = Comparison { family, resets, places: Vec::new() };
        let usable = comparison.table_and_sets(&listed);
        let found = listed.elements(kernel, &usable)?;
        let frontends = planned_frontends(desired, family, &found);
        comparison.timeouts(node_context.options.tcp_timeouts, &listed);
        comparison.elements(&planned_elements(desired, family, &frontends), found);
        comparison.chains(&planned_chains(&frontends, node_context, family), listed);
        places.extend(comparison.places.into_iter().filter(|place| !place.lines.is_empty()));
    }
    Ok(places)
}

/// A table in the kernel without its elements.
struct Listed {
    family: Family,
    /// The comment; `None` without a table.
    table: Option<Option<String>>,
    sets: HashMap<String, DumpedSet>,
    timeouts: Vec<DumpedTimeouts>,
    chains: Vec<DumpedChain>,
    rules: HashMap<String, Vec<DumpedRule>>,
}

impl Listed {
    fn read(kernel: &mut dyn Kernel, family: Family) -> Result<Listed, Error> {
        let table = table_family(family);
        let mut listed = Listed {
            family,
            table: kernel.table(table, TABLE)?.map(|table| table.comment),
            sets: HashMap::new(),
            timeouts: Vec::new(),
            chains: Vec::new(),
            rules: HashMap::new(),
        };
        if listed.table.is_some() {
            let sets = kernel.sets(table, TABLE)?;
            listed.sets = sets.into_iter().map(|set| (set.name.clone(), set)).collect();
            listed.timeouts = kernel.timeouts(table, TABLE)?;
            listed.chains = kernel.chains(table, TABLE)?;
            for rule in kernel.rules(table, TABLE)? {
                listed.rules.entry(rule.chain.clone()).or_default().push(rule);
            }
        }
        Ok(listed)
    }

    /// Lists the elements of these sets.
    fn elements(&self, kernel: &mut dyn Kernel, sets: &[Set]) -> Result<Vec<Found>, Error> {
        let mut found = Vec::new();
        for set in sets.iter().copied().filter(|set| !set.is_dynamic()) {
            list(kernel, self.family, set, &mut |element| {
                let key = decode_key(self.family, set, element.key, element.key_end);
                let value = element.data.and_then(|data| decode_value(self.family, data));
                let comment = element.comment.map(str::to_owned);
                // What shunt would not write is text only.
                let is_known = value.is_some() == set.value().is_some();
                found.push(match key.filter(|_| is_known) {
                    Some(key) => Found::Known { set, key, value, comment },
                    None => {
                        let text = raw_text(self.family, set, key, element.key, element.data);
                        let comment = comment.map(|it| format!(" comment \"{it}\""));
                        let (key, value) = text;
                        let text = format!("{key}{}{value}", comment.unwrap_or_default());
                        Found::Unknown { set, text }
                    }
                });
            })?;
        }
        Ok(found)
    }
}

/// An element in the kernel.
enum Found {
    /// shunt could have written it.
    Known { set: Set, key: Key, value: Option<Value>, comment: Option<String> },
    /// Its text.
    Unknown { set: Set, text: String },
}

/// A value of a map and a comment.
type Content = (Option<Value>, Option<String>);

/// The planned elements: those of pools as pools, in the order of the plan.
#[derive(Default)]
struct Elements {
    pools: BTreeMap<(Set, FrontendKey), Vec<Backend>>,
    others: BTreeMap<(Set, Key), Content>,
}

/// Returns the planned frontends. Pools in the kernel may be larger where the plan lets them.
fn planned_frontends(
    desired: &Desired,
    family: Family,
    found: &[Found],
) -> Vec<(FrontendKey, Frontend)> {
    let mut sizes: HashMap<(Set, FrontendKey), usize> = HashMap::new();
    for found in found {
        if let Found::Known { set, key: Key::Pool(frontend, _), .. } = found {
            *sizes.entry((*set, *frontend)).or_default() += 1;
        }
    }
    let own = desired.frontends().into_iter().filter(|(key, _)| key.family() == family);
    let size = |key, pools: Pools| sizes.get(&(pools.endpoints(), key)).copied();
    own.map(|(key, it)| (key, it.sized(key, |pools| size(key, pools).unwrap_or_default())))
        .collect()
}

fn planned_elements(
    desired: &Desired,
    family: Family,
    frontends: &[(FrontendKey, Frontend)],
) -> Elements {
    let mut elements = Elements::default();
    for (key, frontend) in frontends {
        for (pools, backends) in frontend.pools(*key) {
            elements.pools.insert((pools.endpoints(), *key), backends.to_vec());
        }
        elements.others.extend(frontend.decisions(*key).map(entry));
    }
    let members = desired.members().into_iter().filter(|member| member.family() == family);
    elements.others.extend(members.map(|member| entry(member.element())));
    elements
}

fn entry(element: Element<'_>) -> ((Set, Key), Content) {
    ((element.set, element.key), (element.value, element.comment.map(str::to_owned)))
}

/// Returns the planned chains, in the order of a listing.
fn planned_chains(
    frontends: &[(FrontendKey, Frontend)],
    node_context: &NodeContext,
    family: Family,
) -> Vec<Chain> {
    let on_demand: BTreeSet<ChainName> =
        frontends.iter().flat_map(|(key, frontend)| frontend.chains(*key)).collect();
    let mut chains = base_chains(node_context, family);
    chains.extend(on_demand.into_iter().filter_map(on_demand_chain));
    chains
}

/// The differences of a table so far.
struct Comparison {
    family: Family,
    /// The plan allows set and chains for gone endpoints, whether or not there are any.
    resets: bool,
    places: Vec<Place>,
}

impl Comparison {
    fn at(&mut self, name: String, lines: Vec<Side>) {
        match self.places.iter_mut().find(|place| place.name == name) {
            Some(place) => place.lines.extend(lines),
            None => self.places.push(Place { family: self.family, name, lines }),
        }
    }

    /// Compares the table and the definitions of its sets. Returns the sets whose elements can be
    /// read.
    fn table_and_sets(&mut self, listed: &Listed) -> Vec<Set> {
        let planned = Side::Plan(format!("comment \"{LAYOUT_COMMENT}\""));
        match &listed.table {
            None => {
                let family = table_family(self.family);
                self.at("table".to_owned(), vec![Side::Plan(format!("table {family} {TABLE}"))]);
            }
            Some(Some(comment)) if comment == LAYOUT_COMMENT => {}
            Some(Some(comment)) => {
                let found = Side::Kernel(format!("comment \"{comment}\""));
                self.at("table".to_owned(), vec![found, planned]);
            }
            Some(None) => self.at("table".to_owned(), vec![planned]),
        }
        let mut usable = Vec::new();
        for set in Set::ALL {
            // Elements first: the order of places is that of the sets.
            self.at(set_name(set), Vec::new());
            match listed.sets.get(set.name()) {
                Some(found) if found.is(&set_type(self.family, set)) => usable.push(set),
                found => {
                    let other = |_| Side::Kernel(format!("{} of another type", set_name(set)));
                    let lines = found.map(other).into_iter().chain([Side::Plan(set_name(set))]);
                    self.at(set_name(set), lines.collect());
                }
            }
        }
        let foreign: BTreeSet<&String> =
            listed.sets.keys().filter(|name| Set::from_name(name).is_none()).collect();
        let is_gone_set = |name: &str| {
            let found = listed.sets.get(name).filter(|_| self.resets && name == GONE_ENDPOINTS);
            found.is_some_and(|found| found.is(&gone_set_type(self.family)))
        };
        let foreign: Vec<&String> = foreign.into_iter().filter(|name| !is_gone_set(name)).collect();
        for name in foreign {
            self.at(format!("set {name}"), vec![Side::Kernel(format!("set {name}"))]);
        }
        usable
    }

    /// Compares the objects for TCP. The agent keeps those of former sysctls.
    fn timeouts(&mut self, planned: Option<TcpTimeouts>, listed: &Listed) {
        let text = |name: &str| format!("ct timeout {name}");
        let is_own = |it: &&DumpedTimeouts| it.name == TcpTimeouts::from(it.seconds).name();
        for foreign in listed.timeouts.iter().filter(|it| !is_own(it)) {
            self.at(text(&foreign.name), vec![Side::Kernel(text(&foreign.name))]);
        }
        let exists =
            |own: &TcpTimeouts| listed.timeouts.iter().any(|it| it.seconds == *own.seconds());
        if let Some(own) = planned.filter(|own| !exists(own)) {
            self.at(text(&own.name()), vec![Side::Plan(text(&own.name()))]);
        }
    }

    fn elements(&mut self, planned: &Elements, found: Vec<Found>) {
        let mut slots: BTreeMap<(Set, FrontendKey), BTreeMap<u32, Backend>> = BTreeMap::new();
        let mut others: BTreeMap<(Set, Key), Content> = BTreeMap::new();
        let mut lines: Vec<(Set, Side)> = Vec::new();
        for found in found {
            match found {
                Found::Unknown { set, text } => lines.push((set, Side::Kernel(text))),
                Found::Known {
                    set,
                    key: Key::Pool(frontend, index),
                    value: Some(Value::Backend(backend)),
                    comment: None,
                } => drop(slots.entry((set, frontend)).or_default().insert(index, backend)),
                Found::Known { set, key, value, comment } => {
                    others.insert((set, key), (value, comment));
                }
            }
        }
        let keys: BTreeSet<_> = planned.others.keys().chain(others.keys()).copied().collect();
        for (set, key) in keys {
            let (old, new) = (others.get(&(set, key)), planned.others.get(&(set, key)));
            if old != new {
                let text = |(value, comment): &Content| {
                    let (value, comment) = (value.clone(), comment.as_deref());
                    element_text(&Element { set, key, value, comment })
                };
                lines.extend(old.map(|old| (set, Side::Kernel(text(old)))));
                lines.extend(new.map(|new| (set, Side::Plan(text(new)))));
            }
        }
        let keys: BTreeSet<_> = planned.pools.keys().chain(slots.keys()).copied().collect();
        for (set, frontend) in keys {
            let new = planned.pools.get(&(set, frontend)).map_or(&[][..], Vec::as_slice);
            let old = slots.remove(&(set, frontend)).unwrap_or_default();
            lines.extend(pool_lines(set, frontend, &old, new).map(|line| (set, line)));
        }
        for (set, line) in lines {
            self.at(set_name(set), vec![line]);
        }
    }

    fn chains(&mut self, planned: &[Chain], mut listed: Listed) {
        let live: BTreeMap<String, DumpedChain> =
            listed.chains.into_iter().map(|chain| (chain.name.clone(), chain)).collect();
        let mut names: Vec<String> = planned.iter().map(|chain| chain.name.to_string()).collect();
        let known: BTreeSet<String> = names.iter().cloned().collect();
        names.extend(live.keys().filter(|name| !known.contains(*name)).cloned());
        for name in names {
            let rules = listed.rules.remove(&name).unwrap_or_default();
            // The agent keeps chains for a while that no frontend needs any more.
            let allowed = |name: &ChainName| self.resets || !name.is_for_gone_endpoints();
            let kept = || ChainName::parse(&name).filter(allowed).and_then(on_demand_chain);
            let wanted = planned.iter().find(|chain| chain.name.to_string() == name);
            let wanted = wanted.cloned().or_else(kept);
            let mut lines = Vec::new();
            let found = live.get(&name);
            if found.is_none() || wanted.is_none() {
                let text = format!("chain {name}");
                lines.push(if found.is_none() { Side::Plan(text) } else { Side::Kernel(text) });
            }
            let differs = |(found, wanted)| !same_hook(found, wanted);
            if found.zip(wanted.as_ref()).is_some_and(differs) || lines.len() == 1 {
                let old = found.and_then(|found| found.base.as_ref()).map(live_base_text);
                let new = wanted.as_ref().and_then(|wanted| wanted.base).map(base_text);
                lines.extend(old.map(Side::Kernel));
                lines.extend(new.map(Side::Plan));
            }
            lines.extend(self.rules(wanted.as_ref(), &rules));
            self.at(format!("chain {name}"), lines);
        }
    }

    /// Returns the rules of one side only, each where it belongs.
    fn rules(&self, wanted: Option<&Chain>, live: &[DumpedRule]) -> Vec<Side> {
        let planned = wanted.map_or(&[][..], |chain| chain.rules.as_slice());
        let exprs: Vec<Vec<Expr>> =
            planned.iter().map(|rule| expressions(self.family, rule)).collect();
        let steps = alignment(exprs.len(), live.len(), |new, old| exprs[new] == live[old].exprs);
        let line = |step| match step {
            Step::Both => None,
            Step::New(index) => Some(Side::Plan(rule_text(self.family, planned.get(index)?))),
            Step::Old(index) => {
                let DumpedRule { exprs, comment, .. } = live.get(index)?;
                Some(Side::Kernel(commented(self.family, exprs, comment.as_deref())))
            }
        };
        steps.into_iter().filter_map(line).collect()
    }
}

/// Writes the properties of a base chain in the kernel like nft.
fn live_base_text((kind, hook, priority, policy): &(String, u32, i32, u32)) -> String {
    const HOOKS: [&str; 5] = ["prerouting", "input", "forward", "output", "postrouting"];
    let hook = HOOKS.get(*hook as usize).copied().unwrap_or("unknown");
    let policy = if *policy == libc::NF_ACCEPT as u32 { "accept" } else { "drop" };
    format!("type {kind} hook {hook} priority {priority}; policy {policy};")
}

fn set_name(set: Set) -> String {
    let word = if set.value().is_some() { "map" } else { "set" };
    format!("{word} {}", set.name())
}

/// Returns the slots of a pool that differ. Backends of the plan keep their slots, and the others
/// fill the free ones, as in a transaction of the agent.
fn pool_lines(
    set: Set,
    frontend: FrontendKey,
    old: &BTreeMap<u32, Backend>,
    new: &[Backend],
) -> impl Iterator<Item = Side> {
    let mut missing: BTreeMap<Backend, usize> = BTreeMap::new();
    for backend in new {
        *missing.entry(*backend).or_default() += 1;
    }
    let mut slots: Vec<Option<Backend>> = vec![None; new.len()];
    for (slot, index) in slots.iter_mut().zip(0..) {
        let kept = old.get(&index).filter(|backend| missing.get(backend).is_some_and(|n| *n > 0));
        if let Some(kept) = kept {
            *slot = Some(*kept);
            *missing.entry(*kept).or_default() -= 1;
        }
    }
    let mut rest = missing.into_iter().flat_map(|(it, count)| std::iter::repeat_n(it, count));
    slots.iter_mut().filter(|slot| slot.is_none()).for_each(|slot| *slot = rest.next());
    let pools = Pools::ALL.into_iter().find(|pools| pools.endpoints() == set);
    let text = move |index, backend| {
        let element = pools.map(|pools| pools.slot(frontend, index, backend));
        element.map(|element| element_text(&element)).unwrap_or_default()
    };
    let planned: BTreeMap<u32, Backend> =
        (0..).zip(slots).filter_map(|(index, slot)| Some((index, slot?))).collect();
    let indices: BTreeSet<u32> = old.keys().chain(planned.keys()).copied().collect();
    let mut lines = Vec::new();
    for index in indices {
        let (old, new) = (old.get(&index), planned.get(&index));
        if old != new {
            lines.extend(old.map(|backend| Side::Kernel(text(index, *backend))));
            lines.extend(new.map(|backend| Side::Plan(text(index, *backend))));
        }
    }
    lines.into_iter()
}

/// Writes the key and the value of an element that shunt would not write.
fn raw_text(
    family: Family,
    set: Set,
    key: Option<Key>,
    bytes: &[u8],
    data: Option<ElementData<'_>>,
) -> (String, String) {
    let key = key.map(|key| element_text(&Element { set, key, value: None, comment: None }));
    let key = key.or_else(|| raw_key(family, set, bytes)).unwrap_or_else(|| hexadecimal(bytes));
    let value = match data {
        None if set.value().is_some() => " : (unknown)".to_owned(),
        None => String::new(),
        Some(ElementData::Value(bytes)) => format!(" : {}", hexadecimal(bytes)),
        Some(ElementData::Verdict(verdict)) => format!(" : {verdict}"),
    };
    (key, value)
}

/// Writes the fields of a key; `None` for bytes in the padding or another length.
fn raw_key(family: Family, set: Set, bytes: &[u8]) -> Option<String> {
    let mut rest = bytes;
    let mut fields = Vec::new();
    for field in set.key() {
        let size: usize = match (field, family) {
            (Field::Source | Field::Destination, Family::V6) => 16,
            (Field::Source | Field::Destination, Family::V4) | (Field::Index, _) => 4,
            (Field::Protocol, _) => 1,
            (Field::Port, _) => 2,
        };
        let (value, tail) = rest.split_at_checked(size.next_multiple_of(4))?;
        let (value, padding) = value.split_at_checked(size)?;
        rest = tail;
        if padding.iter().any(|byte| *byte != 0) {
            return None;
        }
        fields.push(match field {
            Field::Source | Field::Destination => nfnetlink::attr::ip(value)?.to_string(),
            Field::Protocol => value.first()?.to_string(),
            Field::Port => u16::from_be_bytes(value.try_into().ok()?).to_string(),
            Field::Index => u32::from_ne_bytes(value.try_into().ok()?).to_string(),
        });
    }
    rest.is_empty().then(|| fields.join(" . "))
}

fn hexadecimal(bytes: &[u8]) -> String {
    let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("0x{digits}")
}

/// A step through two lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// Both lists have it.
    Both,
    /// Only the new list has it, at this index.
    New(usize),
    /// Only the old list has it, at this index.
    Old(usize),
}

/// Aligns two lists at a longest common subsequence.
fn alignment(new: usize, old: usize, same: impl Fn(usize, usize) -> bool) -> Vec<Step> {
    // The length of the longest common subsequence behind each pair of indices.
    let mut longest = vec![vec![0_usize; old + 1]; new + 1];
    for i in (0..new).rev() {
        for j in (0..old).rev() {
            longest[i][j] = match same(i, j) {
                true => longest[i + 1][j + 1] + 1,
                false => longest[i + 1][j].max(longest[i][j + 1]),
            };
        }
    }
    let (mut i, mut j) = (0, 0);
    let mut steps = Vec::new();
    while i < new || j < old {
        if i < new && j < old && same(i, j) {
            steps.push(Step::Both);
            (i, j) = (i + 1, j + 1);
        } else if j < old && (i == new || longest[i][j + 1] >= longest[i + 1][j]) {
            steps.push(Step::Old(j));
            j += 1;
        } else {
            steps.push(Step::New(i));
            i += 1;
        }
    }
    steps
}
