//! The planned ruleset as text, in the form of `nft list ruleset`.

use std::collections::BTreeSet;
use std::fmt::Write;

use super::layout::family_word;
use super::{
    AFFINITY_SIZE, BaseHook, Chain, ChainName, Desired, Element, Field, GONE_ENDPOINTS, HASH_SEED,
    Is, Key, LAYOUT_COMMENT, Rule, Set, SetValue, SourceRange, Statement, TABLE, TcpTimeouts,
    Value, base_chains, on_demand_chain,
};
use crate::model::{Balancing, Family};

/// Writes the planned tables of both families; an empty text before the first plan.
#[must_use]
pub fn render(desired: &Desired) -> String {
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
        let _ = write_table(&mut text, family, timeouts, &chains, &elements);
    }
    text
}

fn write_table(
    out: &mut String,
    family: Family,
    timeouts: Option<&TcpTimeouts>,
    chains: &[Chain],
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
        (Field::Index, ..) => return index_text(family, Balancing::Random, 2),
        _ => return load_text(family, field),
    };
    text.to_owned()
}

fn load_text(family: Family, field: Field) -> String {
    match field {
        Field::Source => format!("{} saddr", family_word(family)),
        Field::Destination => format!("{} daddr", family_word(family)),
        Field::Protocol => "meta l4proto".to_owned(),
        Field::Port => "th dport".to_owned(),
        Field::Index => index_text(family, Balancing::Random, 1),
    }
}

/// Writes the choice of an index below this number.
fn index_text(family: Family, balancing: Balancing, count: u32) -> String {
    let source = load_text(family, Field::Source);
    let seed = format!("seed 0x{HASH_SEED:08x}");
    match balancing {
        Balancing::Random => format!("numgen random mod {count}"),
        Balancing::SourceHash => format!("jhash {source} mod {count} {seed}"),
        Balancing::SourceAndPortHash => format!("jhash {source} . th sport mod {count} {seed}"),
    }
}

fn key_text(family: Family, set: Set) -> String {
    let fields: Vec<String> = set.key().iter().map(|field| load_text(family, *field)).collect();
    fields.join(" . ")
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

/// Writes a rule like nft.
#[must_use]
pub fn rule_text(family: Family, rule: &Rule) -> String {
    let ip = family_word(family);
    let mut parts: Vec<String> = rule
        .statements
        .iter()
        .map(|statement| match statement {
            Statement::Source(net, is) => format!("{ip} saddr {}{}", not(*is), net_text(*net)),
            Statement::Destination(net, is) => {
                format!("{ip} daddr {}{}", not(*is), net_text(*net))
            }
            Statement::Interface(name, is) => format!("iifname {}\"{name}\"", not(*is)),
            Statement::InterfacePrefix(name, is) => format!("iifname {}\"{name}*\"", not(*is)),
            Statement::SourceIsLocal => "fib saddr type local".to_owned(),
            Statement::DestinationIsLocal(is) => format!("fib daddr type {}local", not(*is)),
            Statement::Translated => "ct status dnat".to_owned(),
            Statement::EstablishedClient => "ct state established ct direction original".to_owned(),
            Statement::ToGoneEndpoint => {
                format!("ct reply {ip} saddr . ct reply proto-src @{GONE_ENDPOINTS}")
            }
            Statement::Invalid => "ct state invalid".to_owned(),
            Statement::Protocol(protocol) => format!("meta l4proto {protocol}"),
            Statement::TcpFlags(of, flags) => format!("tcp flags & ({of}) == {flags}"),
            Statement::SetTimeouts(timeouts) => format!("ct timeout set \"{}\"", timeouts.name()),
            Statement::InSet(set, is) => {
                format!("{} {}@{}", key_text(family, *set), not(*is), set.name())
            }
            Statement::Dispatch(set) => {
                format!("{} vmap @{}", key_text(family, *set), set.name())
            }
            Statement::DispatchUntranslated(set) => {
                let fields = set.key().iter().map(|field| untranslated_text(family, *field));
                let key: Vec<String> = fields.collect();
                format!("{} vmap @{}", key.join(" . "), set.name())
            }
            Statement::AffinityLookup => {
                let set = Set::Affinity;
                format!("dnat {ip} addr . port to {} map @{}", key_text(family, set), set.name())
            }
            Statement::AffinityUpdate(seconds) => {
                let fields = Set::Affinity.key().iter();
                let key: Vec<String> =
                    fields.map(|field| untranslated_text(family, *field)).collect();
                format!(
                    "update @{} {{ {} timeout {} : {ip} daddr . th dport }}",
                    Set::Affinity.name(),
                    key.join(" . "),
                    duration_text(*seconds),
                )
            }
            Statement::Balance(set, balancing, count) => {
                let fields = set.key().iter().map(|field| match field {
                    Field::Index => index_text(family, *balancing, *count),
                    field => load_text(family, *field),
                });
                let key: Vec<String> = fields.collect();
                format!("dnat {ip} addr . port to {} map @{}", key.join(" . "), set.name())
            }
            Statement::HasMark(bits) => format!("meta mark & 0x{bits:08x} != 0x00000000"),
            Statement::SetMark(bits) => format!("meta mark set meta mark | 0x{bits:08x}"),
            Statement::ClearMark(bits) => format!("meta mark set meta mark & 0x{:08x}", !bits),
            Statement::Jump(chain) => format!("jump {chain}"),
            Statement::Goto(chain) => format!("goto {chain}"),
            Statement::Masquerade => "masquerade fully-random".to_owned(),
            Statement::Reject => "reject".to_owned(),
            Statement::Reset => "reject with tcp reset".to_owned(),
            Statement::Drop => "drop".to_owned(),
            Statement::Return => "return".to_owned(),
        })
        .collect();
    parts.extend(rule.comment.as_ref().map(|comment| format!("comment \"{comment}\"")));
    parts.join(" ")
}

/// Writes a field of the packet before the translation of its destination.
fn untranslated_text(family: Family, field: Field) -> String {
    match field {
        Field::Destination => format!("ct original {} daddr", family_word(family)),
        Field::Port => "ct original proto-dst".to_owned(),
        _ => load_text(family, field),
    }
}

/// Writes seconds like nft: `3h`, `1d2h`.
fn duration_text(seconds: u32) -> String {
    let parts = [
        (seconds / 86_400, 'd'),
        (seconds / 3_600 % 24, 'h'),
        (seconds / 60 % 60, 'm'),
        (seconds % 60, 's'),
    ];
    parts.iter().filter(|(n, _)| *n > 0).map(|(n, unit)| format!("{n}{unit}")).collect()
}

fn not(is: Is) -> &'static str {
    match is {
        Is::So => "",
        Is::Not => "!= ",
    }
}

/// Writes a prefix like nft, which omits the length for a whole address.
fn net_text(net: ipnet::IpNet) -> String {
    if net.prefix_len() == net.max_prefix_len() { net.addr().to_string() } else { net.to_string() }
}
