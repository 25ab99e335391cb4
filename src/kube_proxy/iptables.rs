//! Reads the rules of kube-proxy's iptables mode, as `iptables-nft` keeps them in nf_tables.

use std::collections::{BTreeMap, BTreeSet};

use nfnetlink::nft::{Error, Kernel, Verdict};
use shunt_core::model::{Family, Protocol};
use shunt_core::plan::{FrontendKey, SourceRange};

use super::forwarding::{
    Forwarding, Frontend, LocalTraffic, Mode, NodePortAddresses, Outcome, Settings, Sources, merged,
};
use super::rules::{Action, Condition, Rule, Table};
use super::walk::{Client, Walk};
use crate::dataplane::{retried, table_family};

const NAT: &str = "nat";
const FILTER: &str = "filter";
/// kube-proxy's chains.
const PREFIX: &str = "KUBE-";
const SERVICES: &str = "KUBE-SERVICES";
const EXTERNAL_SERVICES: &str = "KUBE-EXTERNAL-SERVICES";
const NODEPORTS: &str = "KUBE-NODEPORTS";
const MARK_MASQ: &str = "KUBE-MARK-MASQ";
const FIREWALL_PREFIX: &str = "KUBE-FW-";
const SERVICE_PREFIX: &str = "KUBE-SVC-";

/// Reads the tables of both families; `None` if none has kube-proxy's chains.
///
/// # Errors
/// If the kernel does not list the rules.
pub(super) fn read(kernel: &mut dyn Kernel) -> Result<Option<Forwarding>, Error> {
    let mut read = |family, name| retried(|| table(kernel, family, name));
    let (mut frontends, mut settings) = (BTreeMap::new(), BTreeMap::new());
    for family in Family::ALL {
        let nat = read(family, NAT)?;
        if nat.rules(SERVICES).is_empty() {
            continue;
        }
        let found = Found { family, nat, filter: read(family, FILTER)? };
        settings.insert(family, found.settings());
        frontends.extend(found.frontends());
    }
    let found = !settings.is_empty();
    Ok(found.then_some(Forwarding { mode: Mode::Iptables, frontends, settings }))
}

fn table(kernel: &mut dyn Kernel, family: Family, name: &str) -> Result<Table, Error> {
    let in_kernel = table_family(family);
    let mut table = Table::default();
    if kernel.table(in_kernel, name)?.is_none() {
        return Ok(table);
    }
    for rule in kernel.rules(in_kernel, name)?.iter().filter(|it| it.chain.starts_with(PREFIX)) {
        // iptables has no sets of nf_tables.
        let read = Rule::read(family, rule, |_| None, |_| false);
        table.chains.entry(rule.chain.clone()).or_default().push(read);
    }
    Ok(table)
}

/// The tables of a family.
struct Found {
    family: Family,
    nat: Table,
    filter: Table,
}

impl Found {
    fn settings(&self) -> Settings {
        let mut settings = Settings::default();
        let to_node_ports = |rule: &&Rule| target(rule) == Some(NODEPORTS);
        let mut addresses = BTreeSet::new();
        for rule in self.nat.rules(SERVICES).iter().filter(to_node_ports) {
            let only = rule.conditions.iter().filter_map(|condition| match condition {
                Condition::Destination(net, true) => Some(net.addr()),
                _ => None,
            });
            addresses.extend(only);
            if rule.conditions.contains(&Condition::DestinationIsLocal) {
                settings.node_port_addresses = Some(NodePortAddresses::All);
            }
        }
        if !addresses.is_empty() {
            settings.node_port_addresses = Some(NodePortAddresses::Only(addresses));
        }
        settings.loopback_node_ports = self.nat.rules(NODEPORTS).iter().any(is_for_loopback);
        let mut service_chains =
            self.nat.chains.iter().filter(|(name, _)| name.starts_with(SERVICE_PREFIX)).peekable();
        if service_chains.peek().is_some() {
            settings.local_traffic = LocalTraffic::NotDetected;
        }
        let rules = service_chains.flat_map(|(_, rules)| rules);
        for rule in rules.filter(|rule| target(rule) == Some(MARK_MASQ)) {
            let criterion = rule.conditions.iter().find_map(|it| it.local_traffic(self.family));
            settings.masquerade_all |= criterion.is_none();
            settings.local_traffic = criterion.map_or(LocalTraffic::Unknown, LocalTraffic::By);
        }
        settings
    }

    fn frontends(&self) -> BTreeMap<FrontendKey, Frontend> {
        let mut frontends = BTreeMap::new();
        let services = self.nat.rules(SERVICES).iter();
        let node_ports = self.nat.rules(NODEPORTS).iter().filter(|rule| !is_for_loopback(rule));
        for rule in services.chain(node_ports) {
            if let Some((key, chain)) = self.key(rule).zip(target(rule)) {
                let read = || self.translated(rule, chain);
                // The first rule of a frontend wins.
                frontends.entry(key).or_insert_with(read);
            }
        }
        for chain in [SERVICES, EXTERNAL_SERVICES] {
            for rule in self.filter.rules(chain) {
                let outcome = match rule.action {
                    Action::Reject => Outcome::Reject,
                    Action::Verdict(Verdict::Drop) => Outcome::Drop,
                    _ => continue,
                };
                let Some(key) = self.key(rule) else { continue };
                let frontend = frontends.entry(key).or_insert_with(|| untranslated(rule));
                for place in [&mut frontend.outcome, &mut frontend.from_node] {
                    if *place == Outcome::Untranslated {
                        *place = outcome.clone();
                    }
                }
            }
        }
        frontends
    }

    /// Returns the frontend to which the rule's conditions belong.
    fn key(&self, rule: &Rule) -> Option<FrontendKey> {
        let find = |pick: fn(&Condition) -> Option<u16>| rule.conditions.iter().find_map(pick);
        let number = find(|it| match it {
            Condition::Protocol(number) => Some((*number).into()),
            _ => None,
        });
        let protocol = Protocol::from_number(u8::try_from(number?).ok()?)?;
        let port = find(|it| match it {
            Condition::Port(port) => Some(*port),
            _ => None,
        })?;
        let address = rule.conditions.iter().find_map(|it| match it {
            Condition::Destination(net, true) if net.prefix_len() == net.max_prefix_len() => {
                Some(net.addr())
            }
            _ => None,
        });
        Some(match address {
            Some(address) => FrontendKey::Address(address, protocol, port),
            None => FrontendKey::NodePort(self.family, protocol, port),
        })
    }

    fn translated(&self, rule: &Rule, chain: &str) -> Frontend {
        let (chain, sources) = match chain.starts_with(FIREWALL_PREFIX) {
            true => self.behind_firewall(chain),
            false => (chain, Sources::All),
        };
        let walk = |client| Walk::new(&self.nat, self.family, chain, client);
        let (outside, node) = (walk(Client::Outside), walk(Client::Node));
        Frontend {
            label: rule.comment.as_deref().and_then(label),
            outcome: outside.outcome(),
            from_node: node.outcome(),
            masquerade: outside.marked,
            affinity: outside.affinity.or(node.affinity),
            sources,
            unknown: outside.unknown.into_iter().chain(node.unknown).collect(),
        }
    }

    /// Returns the chain behind a chain of source ranges, and the ranges.
    fn behind_firewall<'a>(&'a self, chain: &'a str) -> (&'a str, Sources) {
        let mut behind = None;
        let mut ranges = Vec::new();
        let mut all = false;
        for rule in self.nat.rules(chain) {
            let Some(next) = target(rule).filter(|next| *next != MARK_MASQ) else { continue };
            behind = behind.or(Some(next));
            let mut sources = rule.conditions.iter().filter_map(|condition| match condition {
                Condition::Source(net, true) => Some(*net),
                _ => None,
            });
            match sources.next() {
                Some(net) => {
                    ranges.push(SourceRange { first: net.network(), last: net.broadcast() });
                }
                None => all = true,
            }
        }
        let sources = if all { Sources::All } else { Sources::Only(merged(ranges)) };
        (behind.unwrap_or(chain), sources)
    }
}

/// Returns the chain that the rule goes to.
fn target(rule: &Rule) -> Option<&str> {
    match &rule.action {
        Action::Verdict(Verdict::Jump(chain) | Verdict::Goto(chain)) => Some(chain),
        _ => None,
    }
}

fn is_for_loopback(rule: &Rule) -> bool {
    rule.conditions.iter().any(|condition| match condition {
        Condition::Destination(net, true) => net.addr().is_loopback(),
        _ => false,
    })
}

fn untranslated(rule: &Rule) -> Frontend {
    Frontend {
        label: rule.comment.as_deref().and_then(label),
        outcome: Outcome::Untranslated,
        from_node: Outcome::Untranslated,
        masquerade: false,
        affinity: None,
        sources: Sources::All,
        unknown: BTreeSet::new(),
    }
}

/// Reads `namespace/name:port` from a comment such as `namespace/name:port cluster IP`.
fn label(comment: &str) -> Option<String> {
    let first = comment.split(' ').next()?;
    first.contains('/').then(|| first.to_owned())
}
