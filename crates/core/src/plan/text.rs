//! The planned ruleset as text, in the form of `nft list ruleset`.

use std::collections::BTreeSet;
use std::fmt::Write;

use super::layout::family_word;
use super::{
    AFFINITY_SIZE, BaseHook, Chain, ChainName, Desired, Element, Field, Key, LAYOUT_COMMENT, Rule,
    Set, SetValue, SourceRange, TABLE, TcpTimeouts, Value, base_chains, on_demand_chain,
};
use crate::model::Family;

/// Writes a rule in nft's syntax: the plan does not know the expressions that a rule becomes.
type RuleText = fn(Family, &Rule) -> String;

/// Writes the planned tables of both families; an empty text before the first plan.
#[must_use]
pub fn render(desired: &Desired, rule_text: RuleText) -> String {
    let mut text = String::new();
    let Some(node_context) = desired.node_context() else { return text };
    let frontends = desired.frontends();
    for family in Family::ALL {
        let own = || frontends.iter().filter(|(key, _)| key.family() == family);
        let mut elements: Vec<Element<'_>> =
            own().flat_map(|(key, frontend)| frontend.elements(*key)).collect();
        let members = desired.members().into_iter().filter(|member| member.family() == family);
        elements.extend(members.map(|member| member.element()));
        elements.sort();
        let on_demand: BTreeSet<ChainName> =
            own().flat_map(|(key, frontend)| frontend.chains(*key)).collect();
        let mut chains = base_chains(node_context, family);
        chains.extend(on_demand.into_iter().filter_map(on_demand_chain));
        // Writing to a String cannot fail.
        let timeouts = node_context.options.tcp_timeouts.as_ref();
        let _ = write_table(&mut text, family, timeouts, (&chains, rule_text), &elements);
    }
    text
}

fn write_table(
    out: &mut String,
    family: Family,
    timeouts: Option<&TcpTimeouts>,
    (chains, rule_text): (&[Chain], RuleText),
    elements: &[Element<'_>],
) -> std::fmt::Result {
    writeln!(out, "table {} {TABLE} {{", family_word(family))?;
    writeln!(out, "\tcomment \"{LAYOUT_COMMENT}\"")?;
    for set in Set::ALL {
        write_set(out, family, set, elements.iter().filter(|e| e.set == set))?;
    }
    if let Some(timeouts) = timeouts {
        timeouts.write(out, family_word(family))?;
    }
    for chain in chains {
        writeln!(out, "\n\tchain {} {{", chain.name)?;
        if let Some(base) = chain.base {
            writeln!(out, "\t\t{}", base_text(base))?;
        }
        for rule in &chain.rules {
            writeln!(out, "\t\t{}", rule_text(family, rule))?;
        }
        writeln!(out, "\t}}")?;
    }
    writeln!(out, "}}")
}

/// Writes the properties of a base chain like nft.
#[must_use]
pub fn base_text((hook, priority): (BaseHook, i32)) -> String {
    let (kind, hook) = match hook {
        BaseHook::Prerouting => ("nat", "prerouting"),
        BaseHook::Input => ("nat", "input"),
        BaseHook::Output => ("nat", "output"),
        BaseHook::Postrouting => ("nat", "postrouting"),
        BaseHook::FilterPrerouting => ("filter", "prerouting"),
        BaseHook::FilterForward => ("filter", "forward"),
        BaseHook::FilterOutput => ("filter", "output"),
    };
    format!("type {kind} hook {hook} priority {priority}; policy accept;")
}

fn write_set<'a>(
    out: &mut String,
    family: Family,
    set: Set,
    elements: impl Iterator<Item = &'a Element<'a>>,
) -> std::fmt::Result {
    let word = if set.value().is_some() { "map" } else { "set" };
    writeln!(out, "\n\t{word} {} {{", set.name())?;
    let has_index = set.key().contains(&Field::Index);
    let key: Vec<String> = set.key().iter().map(|f| type_text(family, *f, has_index)).collect();
    let value = match set.value() {
        None => String::new(),
        Some(SetValue::Verdict) => " : verdict".to_owned(),
        Some(SetValue::Backend) => {
            let part = |field| type_text(family, field, has_index);
            format!(" : {} . {}", part(Field::Destination), part(Field::Port))
        }
    };
    let how = if has_index { "typeof" } else { "type" };
    writeln!(out, "\t\t{how} {}{value}", key.join(" . "))?;
    if set.is_dynamic() {
        writeln!(out, "\t\tsize {AFFINITY_SIZE}\n\t\tflags dynamic,timeout")?;
    }
    if set.has_ranges() {
        writeln!(out, "\t\tflags interval")?;
    }
    if set.counts() {
        writeln!(out, "\t\tcounter")?;
    }
    let elements: Vec<String> = elements.map(element_text).collect();
    if !elements.is_empty() {
        writeln!(out, "\t\telements = {{ {} }}", elements.join(",\n\t\t\t     "))?;
    }
    writeln!(out, "\t}}")
}

fn type_text(family: Family, field: Field, type_of: bool) -> String {
    let text = match (field, type_of, family) {
        (Field::Source | Field::Destination, false, Family::V4) => "ipv4_addr",
        (Field::Source | Field::Destination, false, Family::V6) => "ipv6_addr",
        (Field::Protocol, false, _) => "inet_proto",
        (Field::Port, false, _) => "inet_service",
        (Field::Source, true, _) => return format!("{} saddr", family_word(family)),
        (Field::Destination, true, _) => return format!("{} daddr", family_word(family)),
        (Field::Protocol, true, _) => "meta l4proto",
        (Field::Port, true, _) => "th dport",
        (Field::Index, ..) => "numgen random mod 2",
    };
    text.to_owned()
}

/// Writes an element like nft.
#[must_use]
pub fn element_text(element: &Element<'_>) -> String {
    use super::FrontendKey::{Address, NodePort};
    let frontend = |key| match key {
        Address(address, protocol, port) => format!("{address} . {protocol} . {port}"),
        NodePort(_, protocol, port) => format!("{protocol} . {port}"),
    };
    let mut text = match element.key {
        Key::Frontend(key) => frontend(key),
        Key::Pool(key, index) => format!("{} . {index}", frontend(key)),
        Key::Source(key, SourceRange { first, last }) if first == last => {
            format!("{} . {first}", frontend(key))
        }
        Key::Source(key, SourceRange { first, last }) => {
            format!("{} . {first}-{last}", frontend(key))
        }
        Key::Address(address) => address.to_string(),
        Key::Hairpin(address) => format!("{address} . {address}"),
    };
    if let Some(comment) = element.comment {
        text.push_str(&format!(" comment \"{comment}\""));
    }
    match &element.value {
        None => {}
        Some(Value::Goto(chain)) => text.push_str(&format!(" : goto {chain}")),
        Some(Value::Drop) => text.push_str(" : drop"),
        Some(Value::Backend(backend)) => {
            text.push_str(&format!(" : {} . {}", backend.address, backend.port));
        }
    }
    text
}
