//! The differences between kube-proxy's forwarding and the plan.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::{Ipv4Subnets, Ipv6Subnets};
use shunt_core::model::{Backend, Family};
use shunt_core::plan::{
    Conflict, Desired, DetectLocal, FrontendKey, NodeContext, Outcome as Planned, Set, SetMember,
    SourceRange,
};

use crate::kube_proxy::{
    Forwarding, Frontend, LocalTraffic, Mode, NodePortAddresses, Outcome, Sources, merged,
    shares_are_equal,
};

/// The result of a comparison with kube-proxy.
#[derive(Debug, Clone, PartialEq)]
pub struct Comparison {
    /// The mode of kube-proxy.
    pub mode: Mode,
    /// The number of frontends in kube-proxy or in the plan.
    pub frontends: usize,
    /// The frontends that differ.
    pub differences: Vec<Difference>,
    /// The settings that differ.
    pub settings: Vec<SettingDifference>,
    /// Known differences that the comparison does not count, and its limits.
    pub notes: Vec<String>,
}

impl Comparison {
    /// Returns true if nothing differs.
    #[must_use]
    pub fn is_same(&self) -> bool {
        self.differences.is_empty() && self.settings.is_empty()
    }
}

/// A frontend that differs.
#[derive(Debug, Clone, PartialEq)]
pub struct Difference {
    /// The service port, as `namespace/name:port`; empty if neither side names it.
    pub label: String,
    /// The frontend.
    pub key: FrontendKey,
    /// The kind of the difference; of several kinds, the first one.
    pub kind: Kind,
    /// The frontend in kube-proxy.
    pub kube_proxy: Option<Frontend>,
    /// The planned frontend, in the same form.
    pub shunt: Option<Frontend>,
    /// The properties of one side only.
    pub lines: Vec<Line>,
    /// The reason, if it is known.
    pub explanation: Option<String>,
}

/// The kind of a difference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// The plan lacks the frontend.
    OnlyKubeProxy,
    /// kube-proxy lacks the frontend.
    OnlyShunt,
    /// One side forwards, the other one rejects or drops; or one rejects and the other drops.
    Outcome,
    /// Both forward, to other backends or with other probabilities.
    Backends,
    /// Session affinity, allowed sources or masquerading.
    Policy,
}

/// A property of one side.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Line {
    /// Of kube-proxy: the switch removes it.
    Removed(String),
    /// Of the plan: the switch adds it.
    Added(String),
}

/// A setting that differs, for all Services of a family.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SettingDifference {
    /// The family.
    pub family: Family,
    /// The name of the setting.
    pub setting: &'static str,
    /// The value in kube-proxy.
    pub kube_proxy: String,
    /// The value in the plan.
    pub shunt: String,
    /// The field of the configuration that removes the difference.
    pub field: &'static str,
}

/// Compares kube-proxy's forwarding with the plan.
#[must_use]
pub fn against(kube_proxy: &Forwarding, desired: &Desired) -> Comparison {
    let planned: BTreeMap<FrontendKey, Frontend> =
        desired.frontends().into_iter().map(|(key, it)| (key, planned(key, it))).collect();
    let mut conflicts: BTreeMap<FrontendKey, Vec<&Conflict>> = BTreeMap::new();
    for conflict in desired.conflicts() {
        conflicts.entry(conflict.frontend).or_default().push(conflict);
    }
    let keys: BTreeSet<FrontendKey> =
        kube_proxy.frontends.keys().chain(planned.keys()).copied().collect();
    let masquerade_all = Masquerade { kube_proxy, desired };
    let mut differences: Vec<Difference> = keys
        .iter()
        .filter_map(|key| {
            let sides =
                [kube_proxy.frontends.get(key), planned.get(key)].map(|frontend| frontend.cloned());
            let explanation = conflicts.get(key).map(|conflicts| explain(conflicts));
            difference(*key, masquerade_all.applied(*key, sides), explanation)
        })
        .collect();
    differences.sort_by(|one, other| (&one.label, one.key).cmp(&(&other.label, other.key)));
    Comparison {
        mode: kube_proxy.mode,
        frontends: keys.len(),
        differences,
        settings: desired.node_context().map_or(Vec::new(), |it| settings(kube_proxy, it)),
        notes: notes(kube_proxy, desired),
    }
}

/// Returns a planned frontend in the form of kube-proxy's.
fn planned(key: FrontendKey, frontend: &shunt_core::plan::Frontend) -> Frontend {
    let balance = |pool: &[Backend]| Outcome::Balance(frontend.shares(pool));
    let outcome = match &frontend.outcome {
        Planned::Balance(pool) => balance(pool),
        Planned::Reject => Outcome::Reject,
        Planned::Drop => Outcome::Drop,
    };
    let (_, short_circuit) = shunt_core::plan::Frontend::pools_of(key);
    let from_node = match frontend.pool(key, short_circuit) {
        [] => outcome.clone(),
        pool => balance(pool),
    };
    Frontend {
        label: Some(frontend.label.to_string()),
        outcome,
        from_node,
        masquerade: frontend.masquerade,
        affinity: frontend.affinity,
        sources: match &frontend.sources {
            None => Sources::All,
            Some(ranges) => Sources::Only(merged(ranges.to_vec())),
        },
        unknown: BTreeSet::new(),
    }
}

/// The setting `masqueradeAll` of both sides, which concerns ClusterIPs.
struct Masquerade<'a> {
    kube_proxy: &'a Forwarding,
    desired: &'a Desired,
}

impl Masquerade<'_> {
    fn applied(&self, key: FrontendKey, sides: [Option<Frontend>; 2]) -> [Option<Frontend>; 2] {
        let cluster_ip = |address| SetMember { set: Set::ClusterIps, address };
        let FrontendKey::Address(address, ..) = key else { return sides };
        if !self.desired.has_member(cluster_ip(address)) {
            return sides;
        }
        let settings = self.kube_proxy.settings.get(&key.family());
        let own = self.desired.node_context().is_some_and(|it| it.options.masquerade_all);
        let all = [settings.is_some_and(|it| it.masquerade_all), own];
        let mut sides = sides;
        for (side, all) in sides.iter_mut().zip(all) {
            if let Some(side) = side {
                side.masquerade |= all;
            }
        }
        sides
    }
}

fn difference(
    key: FrontendKey,
    sides: [Option<Frontend>; 2],
    explanation: Option<String>,
) -> Option<Difference> {
    let mut kinds = BTreeSet::new();
    let mut lines = Vec::new();
    match &sides {
        [Some(old), Some(new)] => compare(old, new, &mut kinds, &mut lines),
        [Some(old), None] => {
            kinds.insert(Kind::OnlyKubeProxy);
            lines.extend(words(&old.outcome).into_iter().map(Line::Removed));
        }
        [None, Some(new)] => {
            kinds.insert(Kind::OnlyShunt);
            lines.extend(words(&new.outcome).into_iter().map(Line::Added));
        }
        [None, None] => {}
    }
    let kind = *kinds.first()?;
    let [kube_proxy, shunt] = sides;
    let label = [&shunt, &kube_proxy].into_iter().flatten().find_map(|it| it.label.clone());
    let label = label.unwrap_or_default();
    Some(Difference { label, key, kind, kube_proxy, shunt, lines, explanation })
}

/// Adds the kinds of the differences between both, and their lines.
fn compare(old: &Frontend, new: &Frontend, kinds: &mut BTreeSet<Kind>, lines: &mut Vec<Line>) {
    for what in &old.unknown {
        kinds.insert(Kind::Outcome);
        lines.push(Line::Removed(format!("a rule that shunt cannot read: {what}")));
    }
    if !old.outcome.is_like(&new.outcome) {
        kinds.insert(kind_of(&old.outcome, &new.outcome));
        lines.extend(changes(&old.outcome, &new.outcome));
    }
    if !old.from_node.is_like(&new.from_node) {
        let changes = changes(&old.from_node, &new.from_node);
        if !changes.iter().all(|line| lines.contains(line)) {
            kinds.insert(kind_of(&old.from_node, &new.from_node));
            lines.extend(changes.into_iter().map(|line| match line {
                Line::Removed(text) => Line::Removed(format!("from this node: {text}")),
                Line::Added(text) => Line::Added(format!("from this node: {text}")),
            }));
        }
    }
    // A frontend without endpoints has no rules for these.
    if !has_backends(old) || !has_backends(new) {
        return;
    }
    let mut policies = Vec::new();
    if old.affinity != new.affinity {
        policies.push((affinity_words(old.affinity), affinity_words(new.affinity)));
    }
    if old.sources != new.sources && old.sources != Sources::Unknown {
        policies.push((source_words(&old.sources), source_words(&new.sources)));
    }
    let masquerade = |yes| if yes { "masquerade" } else { "no masquerade" }.to_owned();
    let balanced = |frontend: &Frontend| matches!(frontend.outcome, Outcome::Balance(_));
    if old.masquerade != new.masquerade && balanced(old) && balanced(new) {
        policies.push((masquerade(old.masquerade), masquerade(new.masquerade)));
    }
    for (old, new) in policies {
        kinds.insert(Kind::Policy);
        lines.extend([Line::Removed(old), Line::Added(new)]);
    }
}

fn has_backends(frontend: &Frontend) -> bool {
    let outcomes = [&frontend.outcome, &frontend.from_node];
    outcomes.into_iter().any(|outcome| matches!(outcome, Outcome::Balance(_)))
}

fn kind_of(old: &Outcome, new: &Outcome) -> Kind {
    match (old, new) {
        (Outcome::Balance(_), Outcome::Balance(_)) => Kind::Backends,
        _ => Kind::Outcome,
    }
}

/// Returns the lines of one side only. Probabilities matter only where they differ within a side.
fn changes(old: &Outcome, new: &Outcome) -> Vec<Line> {
    let (old, new): (BTreeSet<String>, BTreeSet<String>) = match (old, new) {
        (Outcome::Balance(_), Outcome::Balance(_)) if is_uniform(old) && is_uniform(new) => {
            (names(old).collect(), names(new).collect())
        }
        (Outcome::Balance(_), Outcome::Balance(_)) => {
            (weighed(old).collect(), weighed(new).collect())
        }
        _ => (words(old).into_iter().collect(), words(new).into_iter().collect()),
    };
    let removed = old.difference(&new).cloned().map(Line::Removed);
    let added = new.difference(&old).cloned().map(Line::Added);
    removed.chain(added).collect()
}

fn is_uniform(outcome: &Outcome) -> bool {
    let mut shares = outcome.backends().map(|(_, share)| share);
    let sum: f64 = outcome.backends().map(|(_, share)| share).sum();
    let first = shares.next().unwrap_or_default();
    shares_are_equal(sum, 1.0) && shares.all(|share| shares_are_equal(share, first))
}

/// Describes an outcome, in one line per backend.
fn words(outcome: &Outcome) -> Vec<String> {
    match outcome {
        Outcome::Balance(_) if is_uniform(outcome) => names(outcome).collect(),
        Outcome::Balance(_) => weighed(outcome).collect(),
        Outcome::Reject => vec!["reject".to_owned()],
        Outcome::Drop => vec!["drop".to_owned()],
        Outcome::Untranslated => vec!["no rule".to_owned()],
    }
}

fn names(outcome: &Outcome) -> impl Iterator<Item = String> {
    outcome.backends().map(|(it, _)| std::net::SocketAddr::new(it.address, it.port).to_string())
}

fn weighed(outcome: &Outcome) -> impl Iterator<Item = String> {
    let shares = outcome.backends().map(|(_, share)| share * 100.0);
    names(outcome).zip(shares).map(|(name, share)| format!("{name} ({share:.1} %)"))
}

fn affinity_words(seconds: Option<u32>) -> String {
    match seconds {
        Some(seconds) => format!("session affinity of {seconds} s"),
        None => "no session affinity".to_owned(),
    }
}

fn source_words(sources: &Sources) -> String {
    match sources {
        Sources::Unknown => "unknown sources".to_owned(),
        Sources::All => "all sources".to_owned(),
        Sources::Only(ranges) => {
            let ranges: Vec<String> = ranges.iter().flat_map(prefixes).collect();
            format!("only sources in {}", ranges.join(", "))
        }
    }
}

/// Returns the prefixes of a range.
pub(super) fn prefixes(range: &SourceRange) -> Vec<String> {
    match (range.first, range.last) {
        (IpAddr::V4(first), IpAddr::V4(last)) => {
            Ipv4Subnets::new(first, last, 0).map(|net| net.to_string()).collect()
        }
        (IpAddr::V6(first), IpAddr::V6(last)) => {
            Ipv6Subnets::new(first, last, 0).map(|net| net.to_string()).collect()
        }
        _ => Vec::new(),
    }
}

fn explain(conflicts: &[&Conflict]) -> String {
    let one = |conflict: &&Conflict| {
        format!(
            "{} claims it, too; shunt gives it to {}: {}",
            conflict.loser, conflict.winner, conflict.reason
        )
    };
    conflicts.iter().map(one).collect::<Vec<_>>().join("; ")
}

fn settings(kube_proxy: &Forwarding, node: &NodeContext) -> Vec<SettingDifference> {
    let mut differences = Vec::new();
    for (family, theirs) in &kube_proxy.settings {
        let mut add = |setting, field, old: Option<String>, new: String| {
            if let Some(old) = old.filter(|old| *old != new) {
                let difference = SettingDifference {
                    family: *family,
                    setting,
                    kube_proxy: old,
                    shunt: new,
                    field,
                };
                differences.push(difference);
            }
        };
        let ours = node_port_words(node.node_port_addresses(*family).as_ref());
        let old = theirs.node_port_addresses.as_ref().map(|addresses| match addresses {
            NodePortAddresses::All => node_port_words(None),
            NodePortAddresses::Only(addresses) => node_port_words(Some(addresses)),
        });
        add("addresses of node ports", "nodePortAddresses", old, ours);
        let old = match &theirs.local_traffic {
            LocalTraffic::Unknown => None,
            LocalTraffic::NotDetected => Some(NOT_DETECTED.to_owned()),
            LocalTraffic::By(criterion) => Some(criterion.clone()),
        };
        let old = old.filter(|_| !node.options.masquerade_all);
        add("traffic of local pods", "detectLocalMode", old, local_traffic(node, *family));
        let masquerade = |all| if all { "all" } else { "not all" }.to_owned();
        add(
            "masquerade of traffic to ClusterIPs",
            "masqueradeAll",
            Some(masquerade(theirs.masquerade_all)),
            masquerade(node.options.masquerade_all),
        );
    }
    differences
}

fn node_port_words(addresses: Option<&BTreeSet<IpAddr>>) -> String {
    match addresses {
        None => "every address of the node".to_owned(),
        Some(addresses) if addresses.is_empty() => "none".to_owned(),
        Some(addresses) => addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
    }
}

const NOT_DETECTED: &str = "not detected";

fn local_traffic(node: &NodeContext, family: Family) -> String {
    let ip = if family == Family::V4 { "ip" } else { "ip6" };
    match &node.options.detect_local {
        DetectLocal::BridgeInterface(name) => format!("iifname \"{name}\""),
        DetectLocal::InterfaceNamePrefix(name) => format!("iifname \"{name}*\""),
        DetectLocal::Off | DetectLocal::ClusterCidr(_) | DetectLocal::NodeCidr => {
            let net = node.pod_cidr(family);
            net.map_or(NOT_DETECTED.to_owned(), |net| format!("{ip} saddr {net}"))
        }
    }
}

fn notes(kube_proxy: &Forwarding, desired: &Desired) -> Vec<String> {
    let mut notes = Vec::new();
    for family in Family::ALL.into_iter().filter(|it| !kube_proxy.settings.contains_key(it)) {
        notes.push(format!("kube-proxy has no rules for {family}"));
    }
    let has_loopback = |it: &NodeContext| it.options.loopback_node_ports.has(Family::V4);
    let loopback = desired.node_context().is_some_and(|it| has_loopback(it));
    match kube_proxy.settings.values().any(|settings| settings.loopback_node_ports) {
        true if loopback => notes.push(
            "kube-proxy answers to node ports on 127.0.0.1 (iptables.localhostNodePorts); shunt \
             does so for TCP, by a proxy in the agent"
                .to_owned(),
        ),
        true => notes.push(
            "kube-proxy answers to node ports on 127.0.0.1 (iptables.localhostNodePorts), shunt \
             does not by this configuration: add localhost to nodePortAddresses"
                .to_owned(),
        ),
        false => {}
    }
    notes
}
