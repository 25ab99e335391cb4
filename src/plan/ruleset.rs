//! The chains and rules of our tables. Their number is constant; what scales are elements.

use std::fmt;

use ipnet::IpNet;

use super::{DetectLocal, Pools, Set, Surroundings};
use crate::model::{Family, Protocol};

/// The name of our tables, `ip shunt` and `ip6 shunt`.
pub const TABLE: &str = "shunt";

/// The comment of our tables. The number changes whenever the same elements or rules would mean
/// something else than before: a table with another comment is replaced.
pub const LAYOUT_COMMENT: &str = "shunt layout 1";

/// The name of one of our chains.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ChainName {
    /// Base chain: packets that arrive, before routing.
    NatPrerouting,
    /// Base chain: packets that the node itself sends.
    NatOutput,
    /// Base chain: packets that leave.
    NatPostrouting,
    /// Base chain: packets for the node itself.
    FilterInput,
    /// Base chain: packets that pass through.
    FilterForward,
    /// Base chain: packets that the node itself sends, after translation.
    FilterOutput,
    /// Finds the frontend of a packet.
    Services,
    /// Finds the frontend of a packet to one of the node's own addresses.
    Nodeports,
    /// Rejects or drops what goes to a frontend without endpoints.
    NoEndpoints,
    /// Rejects what goes to a ClusterIP on a port that it does not have.
    ClusterIps,
    /// Rejects.
    Reject,
    /// Marks what the node itself sends to an external frontend with policy Local.
    MarkNode,
    /// Base chain: packets that arrive, before anything is translated.
    FilterPrerouting,
    /// Base chain: packets that the node itself sends, before anything is translated.
    FilterOutputUntranslated,
    /// Drops what comes to a VIP from a source that may not use it.
    SourceRanges,
    /// Base chain: packets that arrive, after they were translated.
    AffinityPrerouting,
    /// Base chain: packets that the node itself sends, after they were translated.
    AffinityOutput,
    /// Finds out whether a translated connection goes to a frontend with session affinity.
    Affinity,
    /// Learns for so many seconds which backend a client has.
    Learn(u32),
    /// Sends a connection to one of the backends of a frontend.
    Balancer {
        /// In which pools they are.
        pools: Pools,
        /// A client that had one of them goes there again.
        sticky: bool,
        /// How many there are.
        count: u32,
    },
}

impl ChainName {
    /// The chain of that name, if it is one of ours.
    #[must_use]
    pub fn parse(name: &str) -> Option<ChainName> {
        // What is not written as we write it is none of ours.
        let exact = |chain: ChainName| (chain.to_string() == name).then_some(chain);
        let balancer = |pools: Pools| {
            let rest = name.strip_prefix(pools.balancer_prefix())?;
            let (sticky, count) = match rest.strip_prefix(STICKY) {
                Some(count) => (true, count),
                None => (false, rest),
            };
            exact(ChainName::Balancer { pools, sticky, count: count.parse().ok()? })
        };
        let learn = || exact(ChainName::Learn(name.strip_prefix(LEARN)?.parse().ok()?));
        FIXED
            .into_iter()
            .find_map(|(chain, text)| (text == name).then_some(chain))
            .or_else(learn)
            .or_else(|| Pools::ALL.into_iter().find_map(balancer))
    }

    /// True if the chain exists only while some frontend needs it.
    #[must_use]
    pub fn is_on_demand(self) -> bool {
        matches!(self, ChainName::Balancer { .. } | ChainName::Learn(_))
    }
}

const STICKY: &str = "sticky-";
const LEARN: &str = "affinity-";

const FIXED: [(ChainName, &str); 18] = [
    (ChainName::NatPrerouting, "nat-prerouting"),
    (ChainName::NatOutput, "nat-output"),
    (ChainName::NatPostrouting, "nat-postrouting"),
    (ChainName::FilterInput, "filter-input"),
    (ChainName::FilterForward, "filter-forward"),
    (ChainName::FilterOutput, "filter-output"),
    (ChainName::Services, "services"),
    (ChainName::Nodeports, "nodeports"),
    (ChainName::NoEndpoints, "no-endpoints"),
    (ChainName::ClusterIps, "cluster-ips-check"),
    (ChainName::Reject, "reject-no-endpoints"),
    (ChainName::MarkNode, "mark-node"),
    (ChainName::FilterPrerouting, "filter-prerouting"),
    (ChainName::FilterOutputUntranslated, "filter-output-untranslated"),
    (ChainName::SourceRanges, "source-ranges"),
    (ChainName::AffinityPrerouting, "affinity-prerouting"),
    (ChainName::AffinityOutput, "affinity-output"),
    (ChainName::Affinity, "affinity"),
];

impl fmt::Display for ChainName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ChainName::Learn(seconds) => write!(f, "{LEARN}{seconds}"),
            ChainName::Balancer { pools, sticky, count } => {
                let sticky = if *sticky { STICKY } else { "" };
                write!(f, "{}{sticky}{count}", pools.balancer_prefix())
            }
            fixed => {
                let text = FIXED.iter().find(|(chain, _)| chain == fixed).map(|(_, text)| *text);
                f.write_str(text.unwrap_or_default())
            }
        }
    }
}

/// What a base chain may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BaseKind {
    /// Filter packets.
    Filter,
    /// Translate addresses.
    Nat,
}

/// Where a base chain sees packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BaseHook {
    /// Packets that arrive.
    Prerouting,
    /// Packets for the node itself.
    Input,
    /// Packets that pass through.
    Forward,
    /// Packets that the node itself sends.
    Output,
    /// Packets that leave.
    Postrouting,
}

/// A chain with its rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chain {
    /// Its name.
    pub name: ChainName,
    /// For base chains: kind, hook and priority (of `linux/netfilter_ipv4.h`).
    pub base: Option<(BaseKind, BaseHook, i32)>,
    /// Its rules.
    pub rules: Vec<Rule>,
}

/// A rule: its statements one after the other, until one does not match.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// The statements.
    pub statements: Vec<Statement>,
    /// Why it is there.
    pub comment: Option<&'static str>,
}

/// One match or action of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Statement {
    /// The source address is in that prefix, or is not.
    Source(IpNet, Is),
    /// The destination address is in that prefix, or is not.
    Destination(IpNet, Is),
    /// The packet came in through an interface of that name, or did not.
    Interface(String, Is),
    /// The packet came in through an interface whose name begins like that, or did not.
    InterfacePrefix(String, Is),
    /// The source is an address of the node.
    SourceIsLocal,
    /// The destination is an address of the node.
    DestinationIsLocal,
    /// The packet opens a connection.
    NewConnection,
    /// The connection's destination was translated.
    Translated,
    /// The transport protocol.
    Protocol(Protocol),
    /// The set holds the key that the packet gives, or does not.
    InSet(Set, Is),
    /// Follow the verdict that the map holds for the key of the packet, if it holds one.
    Dispatch(Set),
    /// Likewise, but for the key of the packet before it was translated.
    DispatchUntranslated(Set),
    /// Send the connection to the backend that the map holds under a random index below that.
    Balance(Set, u32),
    /// Send the connection to the backend that the client had last, if it is known.
    Recall,
    /// Remember for so many seconds which backend the client has.
    Learn(u32),
    /// The mark has one of these bits.
    HasMark(u32),
    /// Set these bits of the mark; leave the others alone.
    SetMark(u32),
    /// Clear these bits of the mark; leave the others alone.
    ClearMark(u32),
    /// Go through a chain and come back.
    Jump(ChainName),
    /// Go to a chain and do not come back.
    Goto(ChainName),
    /// Give the connection a source address of the node.
    Masquerade,
    /// Answer with port unreachable.
    Reject,
    /// Drop the packet.
    Drop,
}

/// Whether a match is meant, or its opposite.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Is {
    /// It must match.
    So,
    /// It must not match.
    Not,
}

/// The priorities of nat chains (`NF_IP_PRI_NAT_DST`, `NF_IP_PRI_NAT_SRC`) and filter chains.
const NAT_DST: i32 = -100;
const NAT_SRC: i32 = 100;
const FILTER: i32 = 0;
/// Before translation.
const UNTRANSLATED: i32 = NAT_DST - 10;
/// After translation.
const TRANSLATED: i32 = NAT_DST + 10;

fn rule<const N: usize>(statements: [Statement; N]) -> Rule {
    Rule { statements: statements.into(), comment: None }
}

fn because<const N: usize>(comment: &'static str, statements: [Statement; N]) -> Rule {
    Rule { statements: statements.into(), comment: Some(comment) }
}

/// A chain that exists only while some frontend needs it; none for the names of other chains.
#[must_use]
pub fn on_demand_chain(name: ChainName) -> Option<Chain> {
    let rules = match name {
        ChainName::Balancer { pools, sticky, count } => {
            let mut rules = Vec::new();
            if pools.is_short_circuit() {
                rules.push(rule([Statement::Jump(ChainName::MarkNode)]));
            }
            if sticky {
                rules.push(rule([Statement::Recall]));
            }
            rules.push(rule([Statement::Balance(pools.endpoints(), count)]));
            rules
        }
        // nft can print the learned key only behind a match on the protocol.
        ChainName::Learn(seconds) => Protocol::ALL
            .map(|protocol| rule([Statement::Protocol(protocol), Statement::Learn(seconds)]))
            .into(),
        _ => return None,
    };
    Some(Chain { name, base: None, rules })
}

/// All chains of a family that are always there, in an order in which each is there before it is
/// referred to.
#[must_use]
pub fn base_chains(surroundings: &Surroundings, family: Family) -> Vec<Chain> {
    use BaseHook::{Forward, Input, Output, Postrouting, Prerouting};
    use BaseKind::{Filter, Nat};
    let chain = |name, rules| Chain { name, base: None, rules };
    let base = |name, kind, hook, priority, rules| Chain {
        name,
        base: Some((kind, hook, priority)),
        rules,
    };
    let new = |chain| rule([Statement::NewConnection, Statement::Jump(chain)]);
    let unserved = || vec![new(ChainName::NoEndpoints), new(ChainName::ClusterIps)];
    let restricted = || vec![new(ChainName::SourceRanges)];
    let learning = || {
        vec![rule([
            Statement::NewConnection,
            Statement::Translated,
            Statement::Jump(ChainName::Affinity),
        ])]
    };
    vec![
        chain(ChainName::Reject, vec![rule([Statement::Reject])]),
        chain(ChainName::MarkNode, vec![mark_node(surroundings, family)]),
        chain(ChainName::Nodeports, nodeports(surroundings)),
        chain(ChainName::Services, services(surroundings, family)),
        chain(ChainName::NoEndpoints, no_endpoints(surroundings, family)),
        chain(ChainName::ClusterIps, cluster_ips(surroundings, family)),
        chain(ChainName::SourceRanges, source_ranges()),
        chain(ChainName::Affinity, affinity()),
        base(ChainName::AffinityPrerouting, Filter, Prerouting, TRANSLATED, learning()),
        base(ChainName::AffinityOutput, Filter, Output, TRANSLATED, learning()),
        base(ChainName::FilterPrerouting, Filter, Prerouting, UNTRANSLATED, restricted()),
        base(ChainName::FilterOutputUntranslated, Filter, Output, UNTRANSLATED, restricted()),
        base(ChainName::NatPrerouting, Nat, Prerouting, NAT_DST, prerouting(surroundings, family)),
        base(ChainName::NatOutput, Nat, Output, NAT_DST, output(surroundings, family)),
        base(ChainName::NatPostrouting, Nat, Postrouting, NAT_SRC, postrouting(surroundings)),
        base(ChainName::FilterInput, Filter, Input, FILTER, vec![new(ChainName::NoEndpoints)]),
        base(ChainName::FilterForward, Filter, Forward, FILTER, unserved()),
        base(ChainName::FilterOutput, Filter, Output, FILTER, unserved()),
    ]
}

fn prerouting(surroundings: &Surroundings, family: Family) -> Vec<Rule> {
    let mut rules = Vec::new();
    if let Some(local) = local_traffic(surroundings, family, Is::So) {
        rules.push(because(
            "local pods, policy Local",
            [local.clone(), Statement::Dispatch(Set::ShortCircuit)],
        ));
        let nodeports = Statement::Dispatch(Set::ShortCircuitNodeports);
        rules.push(to_node_port_address(surroundings, family, [local, nodeports]));
    }
    rules.push(rule([Statement::Jump(ChainName::Services)]));
    rules
}

fn output(surroundings: &Surroundings, family: Family) -> Vec<Rule> {
    vec![
        because("the node itself, policy Local", [Statement::Dispatch(Set::ShortCircuit)]),
        to_node_port_address(
            surroundings,
            family,
            [Statement::Dispatch(Set::ShortCircuitNodeports)],
        ),
        rule([Statement::Jump(ChainName::Services)]),
    ]
}

fn services(surroundings: &Surroundings, family: Family) -> Vec<Rule> {
    let mark = Statement::SetMark(surroundings.options.masquerade_mark());
    let to_cluster_ip = Statement::InSet(Set::ClusterIps, Is::So);
    let mut rules = Vec::new();
    if surroundings.options.masquerade_all {
        rules.push(because("masqueradeAll", [to_cluster_ip, mark.clone()]));
    } else if let Some(not_local) = local_traffic(surroundings, family, Is::Not) {
        rules.push(because(
            "from elsewhere than a local pod",
            [not_local, to_cluster_ip, mark.clone()],
        ));
    }
    rules.push(rule([Statement::InSet(Set::MasqueradeServices, Is::So), mark]));
    rules.push(rule([Statement::Dispatch(Set::ServiceIps)]));
    let nodeports = [Statement::Goto(ChainName::Nodeports)];
    rules.push(to_node_port_address(surroundings, family, nodeports));
    rules
}

/// An address of the node can be in the prefix of the pods: it counts as a pod's, as for ClusterIPs.
fn mark_node(surroundings: &Surroundings, family: Family) -> Rule {
    let mark = Statement::SetMark(surroundings.options.masquerade_mark());
    let not_a_pod = local_traffic(surroundings, family, Is::Not).into_iter();
    let statements = not_a_pod.chain([Statement::SourceIsLocal, mark]).collect();
    Rule { statements, comment: Some("from the node itself") }
}

/// Matches traffic of local pods, or all other, if it can be told.
fn local_traffic(surroundings: &Surroundings, family: Family, is: Is) -> Option<Statement> {
    match &surroundings.options.detect_local {
        DetectLocal::Off => None,
        DetectLocal::ClusterCidr(_) | DetectLocal::NodeCidr => {
            surroundings.pod_cidr(family).map(|net| Statement::Source(net, is))
        }
        DetectLocal::BridgeInterface(name) => Some(Statement::Interface(name.clone(), is)),
        DetectLocal::InterfaceNamePrefix(name) => {
            Some(Statement::InterfacePrefix(name.clone(), is))
        }
    }
}

/// A rule for packets to an address on which NodePorts are offered; never for loopback.
fn to_node_port_address<const N: usize>(
    surroundings: &Surroundings,
    family: Family,
    then: [Statement; N],
) -> Rule {
    let mut statements = if surroundings.node_port_addresses(family).is_some() {
        vec![Statement::InSet(Set::NodeportIps, Is::So)]
    } else {
        vec![Statement::Destination(loopback(family), Is::Not), Statement::DestinationIsLocal]
    };
    statements.extend(then);
    Rule { statements, comment: None }
}

fn loopback(family: Family) -> IpNet {
    match family {
        Family::V4 => {
            IpNet::V4(ipnet::Ipv4Net::new_assert(std::net::Ipv4Addr::new(127, 0, 0, 0), 8))
        }
        Family::V6 => IpNet::V6(ipnet::Ipv6Net::new_assert(std::net::Ipv6Addr::LOCALHOST, 128)),
    }
}

fn nodeports(surroundings: &Surroundings) -> Vec<Rule> {
    let mark = Statement::SetMark(surroundings.options.masquerade_mark());
    vec![
        rule([Statement::InSet(Set::MasqueradeNodeports, Is::So), mark]),
        rule([Statement::Dispatch(Set::ServiceNodeports)]),
    ]
}

fn no_endpoints(surroundings: &Surroundings, family: Family) -> Vec<Rule> {
    let nodeports = [Statement::Dispatch(Set::NoEndpointNodeports)];
    vec![
        rule([Statement::Dispatch(Set::NoEndpointServices)]),
        to_node_port_address(surroundings, family, nodeports),
    ]
}

fn cluster_ips(surroundings: &Surroundings, family: Family) -> Vec<Rule> {
    let mut rules = vec![because(
        "a port that the ClusterIP does not have",
        [Statement::InSet(Set::ClusterIps, Is::So), Statement::Reject],
    )];
    let cidrs = surroundings.service_cidrs.iter().filter(|net| Family::of_net(net) == family);
    rules.extend(cidrs.map(|net| {
        because(
            "no Service has this address",
            [Statement::Destination(*net, Is::So), Statement::Drop],
        )
    }));
    rules
}

fn source_ranges() -> Vec<Rule> {
    vec![because(
        "loadBalancerSourceRanges",
        [
            Statement::InSet(Set::RestrictedVips, Is::So),
            Statement::InSet(Set::AllowedSources, Is::Not),
            Statement::Drop,
        ],
    )]
}

fn affinity() -> Vec<Rule> {
    let dispatch = |set| {
        Protocol::ALL
            .map(|protocol| {
                rule([Statement::Protocol(protocol), Statement::DispatchUntranslated(set)])
            })
            .into_iter()
    };
    dispatch(Set::StickyServices).chain(dispatch(Set::StickyNodeports)).collect()
}

fn postrouting(surroundings: &Surroundings) -> Vec<Rule> {
    let mark = surroundings.options.masquerade_mark();
    vec![
        because(
            "marked by this table",
            [Statement::HasMark(mark), Statement::ClearMark(mark), Statement::Masquerade],
        ),
        // A backend can have the node's own address, which the node may use without a Service.
        because(
            "pods that reach themselves",
            [Statement::Translated, Statement::InSet(Set::Hairpin, Is::So), Statement::Masquerade],
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chain_names_are_read_as_they_are_written() {
        let names = FIXED
            .into_iter()
            .map(|(chain, _)| chain)
            .chain(Pools::ALL.map(|pools| ChainName::Balancer { pools, sticky: false, count: 12 }))
            .chain(Pools::ALL.map(|pools| ChainName::Balancer { pools, sticky: true, count: 1 }))
            .chain([ChainName::Learn(10_800)]);
        for name in names {
            assert_eq!(ChainName::parse(&name.to_string()), Some(name));
        }
        for foreign in ["", "lb-", "lb-03", "lb-x", "lb-nodeport", "lb-short-circuit-", "input"] {
            assert_eq!(ChainName::parse(foreign), None, "{foreign}");
        }
    }
}
