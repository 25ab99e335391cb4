//! The differences between the kernel's tables and the plan, as lines in nft's syntax.
//!
//! The agent compares encoded elements and repairs ([`super::drift`]). This comparison is for
//! people: it also shows what shunt has not written, and it writes nothing.

use std::collections::{BTreeMap, BTreeSet};

use nfnetlink::nft::{
    DumpedChain, DumpedElement, DumpedRule, DumpedSet, DumpedTimeouts, ElementData, Error, Expr,
    Kernel,
};
use shunt_core::model::{Backend, Balancing, Family};
use shunt_core::plan::{
    Chain, ChainName, Desired, Element, Frontend, FrontendKey, GONE_ENDPOINTS, Key, LAYOUT_COMMENT,
    NodeContext, Pools, Rule, Set, TABLE, TcpTimeouts, Value, base_chains, base_text, element_text,
    on_demand_chain,
};

use super::codec::{decode_key, decode_value, gone_set_type, key_text, set_type, table_family};
use super::listing::{Structure, list};
use super::reading::live_base_text;
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
        let table = kernel.table(table_family(family), TABLE)?.map(|table| table.comment);
        let structure = match table {
            Some(_) => Structure::read(kernel, family)?,
            None => Structure::default(),
        };
        let resets = node_context.options.reset_gone_endpoints;
        let mut comparison = TableDifferences { family, resets, places: Vec::new() };
        let usable = comparison.table_and_sets(table, &structure);
        let found = comparison.listed(kernel, &usable)?;
        let frontends = planned_frontends(desired, family, &found);
        comparison.timeouts(node_context.options.tcp_timeouts, &structure);
        comparison.elements(&planned_elements(desired, family, &frontends, &found), &found);
        comparison.chains(planned_chains(&frontends, node_context, family), structure);
        places.extend(comparison.places.into_iter().filter(|place| !place.lines.is_empty()));
    }
    Ok(places)
}

/// Elements: their values in maps, and their comments.
type Elements = BTreeMap<(Set, Key), (Option<Value>, Option<String>)>;

/// Returns the planned frontends. Pools in the kernel may be larger where the plan lets them.
fn planned_frontends(
    desired: &Desired,
    family: Family,
    found: &Elements,
) -> Vec<(FrontendKey, Frontend)> {
    let own = desired.frontends().into_iter().filter(|(key, _)| key.family() == family);
    let size = |key, pools: Pools| {
        let slot = |index| (pools.endpoints(), Key::Pool(key, index));
        found.range(slot(0)..=slot(u32::MAX)).count()
    };
    own.map(|(key, it)| (key, it.sized(key, |pools| size(key, pools)))).collect()
}

fn planned_elements(
    desired: &Desired,
    family: Family,
    frontends: &[(FrontendKey, Frontend)],
    found: &Elements,
) -> Elements {
    let entry = |element: Element<'_>| {
        ((element.set, element.key), (element.value, element.comment.map(str::to_owned)))
    };
    let mut elements = Elements::new();
    for (key, frontend) in frontends {
        elements.extend(frontend.decisions(*key).map(entry));
        for (pools, backends) in frontend.pools(*key) {
            let backends = match frontend.balancing {
                Balancing::Random => in_slots(pools, *key, backends, found),
                // The slots are those of the hash.
                _ => backends.to_vec(),
            };
            let slots = (0..).zip(backends);
            elements.extend(slots.map(|(index, it)| entry(pools.slot(*key, index, it))));
        }
    }
    let members = desired.members().into_iter().filter(|member| member.family() == family);
    elements.extend(members.map(|member| entry(member.element())));
    elements
}

/// Returns the backends of a pool in the order of their slots. Those in the kernel keep their slots,
/// and the others fill the free ones, as in a transaction of the agent.
fn in_slots(pools: Pools, key: FrontendKey, planned: &[Backend], found: &Elements) -> Vec<Backend> {
    let mut open: BTreeMap<Backend, usize> = BTreeMap::new();
    for backend in planned {
        *open.entry(*backend).or_default() += 1;
    }
    let mut kept = |index| match found.get(&(pools.endpoints(), Key::Pool(key, index))) {
        Some((Some(Value::Backend(backend)), _)) => {
            let count = open.get_mut(backend).filter(|count| **count > 0)?;
            *count -= 1;
            Some(*backend)
        }
        _ => None,
    };
    let slots: Vec<Option<Backend>> = (0..).take(planned.len()).map(&mut kept).collect();
    let mut rest = open.into_iter().flat_map(|(it, count)| std::iter::repeat_n(it, count));
    slots.into_iter().filter_map(|kept| kept.or_else(|| rest.next())).collect()
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
struct TableDifferences {
    family: Family,
    /// The plan allows set and chains for gone endpoints, whether or not there are any.
    resets: bool,
    places: Vec<Place>,
}

impl TableDifferences {
    fn at(&mut self, name: String, lines: Vec<Side>) {
        match self.places.iter_mut().find(|place| place.name == name) {
            Some(place) => place.lines.extend(lines),
            None => self.places.push(Place { family: self.family, name, lines }),
        }
    }

    /// Compares the table and the definitions of its sets. Returns the sets whose elements can be
    /// read.
    fn table_and_sets(&mut self, table: Option<Option<String>>, listed: &Structure) -> Vec<Set> {
        let planned = Side::Plan(format!("comment \"{LAYOUT_COMMENT}\""));
        match table {
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
            match listed.sets.iter().find(|found| found.name == set.name()) {
                Some(found) if found.is(&set_type(self.family, set)) => usable.push(set),
                found => {
                    let other = |_| Side::Kernel(format!("{} of another type", set_name(set)));
                    let lines = found.map(other).into_iter().chain([Side::Plan(set_name(set))]);
                    self.at(set_name(set), lines.collect());
                }
            }
        }
        let is_gone_set = |found: &DumpedSet| {
            self.resets && found.name == GONE_ENDPOINTS && found.is(&gone_set_type(self.family))
        };
        let foreign = listed.sets.iter().filter(|found| !is_gone_set(found));
        let foreign = foreign.filter(|found| Set::from_name(&found.name).is_none());
        let names: Vec<String> = foreign.map(|found| format!("set {}", found.name)).collect();
        for name in names {
            self.at(name.clone(), vec![Side::Kernel(name)]);
        }
        usable
    }

    /// Lists the elements of these sets. What shunt would not write is a difference.
    fn listed(&mut self, kernel: &mut dyn Kernel, sets: &[Set]) -> Result<Elements, Error> {
        let (family, mut found) = (self.family, Elements::new());
        for set in sets.iter().copied().filter(|set| !set.is_dynamic()) {
            let mut unknown = Vec::new();
            list(kernel, family, set, &mut |element| {
                let key = decode_key(family, set, element.key, element.key_end);
                let value = element.data.and_then(|data| decode_value(family, data));
                let is_known = value.is_some() == set.value().is_some();
                match key.filter(|_| is_known) {
                    Some(key) => {
                        found.insert((set, key), (value, element.comment.map(str::to_owned)));
                    }
                    None => unknown.push(Side::Kernel(raw_text(family, set, key, &element))),
                }
            })?;
            self.at(set_name(set), unknown);
        }
        Ok(found)
    }

    /// Compares the objects for TCP. The agent keeps those of former sysctls.
    fn timeouts(&mut self, planned: Option<TcpTimeouts>, listed: &Structure) {
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

    fn elements(&mut self, planned: &Elements, found: &Elements) {
        let places: BTreeSet<_> = planned.keys().chain(found.keys()).copied().collect();
        for (set, key) in places {
            let (old, new) = (found.get(&(set, key)), planned.get(&(set, key)));
            if old != new {
                let text = |(value, comment): &(Option<Value>, Option<String>)| {
                    let (value, comment) = (value.clone(), comment.as_deref());
                    element_text(&Element { set, key, value, comment })
                };
                self.at(set_name(set), sides(old.map(text), new.map(text)));
            }
        }
    }

    fn chains(&mut self, planned: Vec<Chain>, listed: Structure) {
        let Structure { chains, mut rules, .. } = listed;
        let mut live: BTreeMap<String, DumpedChain> =
            chains.into_iter().map(|chain| (chain.name.clone(), chain)).collect();
        for chain in planned {
            let name = chain.name.to_string();
            let (found, rules) = (live.remove(&name), rules.remove(&name));
            self.chain(name, Some(chain), found, &rules.unwrap_or_default());
        }
        for (name, found) in live {
            // The agent keeps chains for a while that no frontend needs any more.
            let allowed = |name: &ChainName| self.resets || !name.is_for_gone_endpoints();
            let kept = ChainName::parse(&name).filter(allowed).and_then(on_demand_chain);
            let rules = rules.remove(&name).unwrap_or_default();
            self.chain(name, kept, Some(found), &rules);
        }
    }

    fn chain(
        &mut self,
        name: String,
        wanted: Option<Chain>,
        found: Option<DumpedChain>,
        rules: &[DumpedRule],
    ) {
        let place = format!("chain {name}");
        let mut lines = Vec::new();
        if wanted.is_some() != found.is_some() {
            let text = |exists: bool| exists.then(|| place.clone());
            lines = sides(text(found.is_some()), text(wanted.is_some()));
        }
        let old = found.and_then(|found| found.base).map(|base| live_base_text(&base));
        let new = wanted.as_ref().and_then(|wanted| wanted.base).map(base_text);
        if old != new {
            lines.extend(sides(old, new));
        }
        let planned = wanted.map_or_else(Vec::new, |chain| chain.rules);
        lines.extend(self.rules(&planned, rules));
        self.at(place, lines);
    }

    /// Returns the rules of one side only; all of both sides if they differ in their order.
    fn rules(&self, planned: &[Rule], live: &[DumpedRule]) -> Vec<Side> {
        let exprs = |rule: &Rule| expressions(self.family, rule);
        let planned: Vec<_> = planned.iter().map(|rule| (exprs(rule), rule)).collect();
        if planned.iter().map(|(exprs, _)| exprs).eq(live.iter().map(|rule| &rule.exprs)) {
            return Vec::new();
        }
        let in_kernel = |exprs: &[Expr]| live.iter().any(|rule| rule.exprs == exprs);
        let in_plan = |exprs: &[Expr]| planned.iter().any(|(own, _)| own == exprs);
        let is_order = live.iter().all(|rule| in_plan(&rule.exprs))
            && planned.iter().all(|(exprs, _)| in_kernel(exprs));
        let kernel = live.iter().filter(|rule| is_order || !in_plan(&rule.exprs));
        let kernel = kernel.map(|DumpedRule { exprs, comment, .. }| {
            Side::Kernel(commented(self.family, exprs, comment.as_deref()))
        });
        let plan = planned.iter().filter(|(exprs, _)| is_order || !in_kernel(exprs));
        let plan = plan.map(|(_, rule)| Side::Plan(rule_text(self.family, rule)));
        kernel.chain(plan).collect()
    }
}

/// Returns the lines of a place with different texts.
fn sides(kernel: Option<String>, plan: Option<String>) -> Vec<Side> {
    kernel.map(Side::Kernel).into_iter().chain(plan.map(Side::Plan)).collect()
}

fn set_name(set: Set) -> String {
    let word = if set.value().is_some() { "map" } else { "set" };
    format!("{word} {}", set.name())
}

/// Writes an element that shunt would not write.
fn raw_text(family: Family, set: Set, key: Option<Key>, element: &DumpedElement<'_>) -> String {
    let known = key.map(|key| element_text(&Element { set, key, value: None, comment: None }));
    let key = known.or_else(|| key_text(family, set, element.key));
    let key = key.unwrap_or_else(|| match element.key {
        [] => "*".to_owned(),
        key => hexadecimal(key),
    });
    let comment = element.comment.map(|it| format!(" comment \"{it}\"")).unwrap_or_default();
    match element.data {
        None => format!("{key}{comment}"),
        Some(ElementData::Value(bytes)) => format!("{key}{comment} : {}", hexadecimal(bytes)),
        Some(ElementData::Verdict(verdict)) => format!("{key}{comment} : {verdict}"),
    }
}

fn hexadecimal(bytes: &[u8]) -> String {
    let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("0x{digits}")
}
