//! The chains and rules of our tables. Their number is constant; what scales are elements.

use std::fmt;

use ipnet::IpNet;

use super::{DetectLocal, Set, Surroundings};
use crate::model::Family;

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
    /// Sends a connection to one of so many backends of a frontend by address.
    Balancer(u32),
    /// Sends a connection to one of so many backends of a node port.
    NodeportBalancer(u32),
}

impl ChainName {
    /// The chain of that name, if it is one of ours.
    #[must_use]
    pub fn parse(name: &str) -> Option<ChainName> {
        let balancer = |prefix, make: fn(u32) -> ChainName| {
            let count: u32 = name.strip_prefix(prefix)?.parse().ok()?;
            Some(make(count)).filter(|chain| chain.to_string() == name)
        };
        FIXED
            .into_iter()
            .find_map(|(chain, text)| (text == name).then_some(chain))
            .or_else(|| balancer(NODEPORT_BALANCER, ChainName::NodeportBalancer))
            .or_else(|| balancer(BALANCER, ChainName::Balancer))
    }

    /// True if the chain exists only while some frontend has that many backends.
    #[must_use]
    pub fn is_balancer(self) -> bool {
        matches!(
            self,
            ChainName::Balancer(_) | ChainName::NodeportBalancer(_)
        )
    }
}

const BALANCER: &str = "lb-";
const NODEPORT_BALANCER: &str = "lb-nodeport-";

const FIXED: [(ChainName, &str); 11] = [
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
];

impl fmt::Display for ChainName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ChainName::Balancer(count) => write!(f, "{BALANCER}{count}"),
            ChainName::NodeportBalancer(count) => write!(f, "{NODEPORT_BALANCER}{count}"),
            fixed => {
                let text = FIXED
                    .iter()
                    .find(|(chain, _)| chain == fixed)
                    .map(|(_, text)| *text);
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
    /// The source address is outside that prefix.
    SourceOutside(IpNet),
    /// The destination address is outside that prefix.
    DestinationOutside(IpNet),
    /// The packet did not come in through an interface of that name, or with that prefix of it.
    NotFromInterface {
        /// The name or its beginning.
        name: String,
        /// Only the beginning counts.
        prefix: bool,
    },
    /// The destination is an address of the node.
    DestinationIsLocal,
    /// The packet opens a connection.
    NewConnection,
    /// The set holds the key that the packet gives.
    InSet(Set),
    /// Follow the verdict that the map holds for the key of the packet, if it holds one.
    Dispatch(Set),
    /// Send the connection to the backend that the map holds under a random index below that.
    Balance(Set, u32),
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
}

/// The priorities of nat chains (`NF_IP_PRI_NAT_DST`, `NF_IP_PRI_NAT_SRC`) and filter chains.
const NAT_DST: i32 = -100;
const NAT_SRC: i32 = 100;
const FILTER: i32 = 0;

fn rule<const N: usize>(statements: [Statement; N]) -> Rule {
    Rule {
        statements: statements.into(),
        comment: None,
    }
}

fn because<const N: usize>(comment: &'static str, statements: [Statement; N]) -> Rule {
    Rule {
        statements: statements.into(),
        comment: Some(comment),
    }
}

/// The chain that sends a connection to one of `count` backends.
#[must_use]
pub fn balancer(name: ChainName) -> Chain {
    let rules = match name {
        ChainName::Balancer(count) => vec![rule([Statement::Balance(Set::Endpoints, count)])],
        ChainName::NodeportBalancer(count) => {
            vec![rule([Statement::Balance(Set::NodeportEndpoints, count)])]
        }
        _ => Vec::new(),
    };
    Chain {
        name,
        base: None,
        rules,
    }
}

/// All chains of a family but the balancers, in an order in which each is there before it is
/// referred to.
#[must_use]
pub fn base_chains(surroundings: &Surroundings, family: Family) -> Vec<Chain> {
    use BaseHook::{Forward, Input, Output, Postrouting, Prerouting};
    use BaseKind::{Filter, Nat};
    let chain = |name, rules| Chain {
        name,
        base: None,
        rules,
    };
    let base = |name, kind, hook, priority, rules| Chain {
        name,
        base: Some((kind, hook, priority)),
        rules,
    };
    let new = |chain| rule([Statement::NewConnection, Statement::Jump(chain)]);
    vec![
        chain(ChainName::Reject, vec![rule([Statement::Reject])]),
        chain(ChainName::Nodeports, nodeports(surroundings)),
        chain(ChainName::Services, services(surroundings, family)),
        chain(ChainName::NoEndpoints, no_endpoints(surroundings, family)),
        chain(
            ChainName::ClusterIps,
            vec![because(
                "ClusterIPs reject ports that they do not have",
                [Statement::InSet(Set::ClusterIps), Statement::Reject],
            )],
        ),
        base(
            ChainName::NatPrerouting,
            Nat,
            Prerouting,
            NAT_DST,
            vec![rule([Statement::Jump(ChainName::Services)])],
        ),
        base(
            ChainName::NatOutput,
            Nat,
            Output,
            NAT_DST,
            vec![rule([Statement::Jump(ChainName::Services)])],
        ),
        base(
            ChainName::NatPostrouting,
            Nat,
            Postrouting,
            NAT_SRC,
            postrouting(surroundings),
        ),
        base(
            ChainName::FilterInput,
            Filter,
            Input,
            FILTER,
            vec![new(ChainName::NoEndpoints)],
        ),
        base(
            ChainName::FilterForward,
            Filter,
            Forward,
            FILTER,
            vec![new(ChainName::NoEndpoints), new(ChainName::ClusterIps)],
        ),
        base(
            ChainName::FilterOutput,
            Filter,
            Output,
            FILTER,
            vec![new(ChainName::NoEndpoints), new(ChainName::ClusterIps)],
        ),
    ]
}

fn services(surroundings: &Surroundings, family: Family) -> Vec<Rule> {
    let mark = Statement::SetMark(surroundings.options.masquerade_mark());
    let mut rules = Vec::new();
    if surroundings.options.masquerade_all {
        rules.push(because(
            "masqueradeAll",
            [Statement::InSet(Set::ClusterIps), mark.clone()],
        ));
    } else if let Some(not_local) = not_local(surroundings, family) {
        rules.push(because(
            "from elsewhere than a local pod",
            [not_local, Statement::InSet(Set::ClusterIps), mark.clone()],
        ));
    }
    rules.push(rule([Statement::InSet(Set::MasqueradeServices), mark]));
    rules.push(rule([Statement::Dispatch(Set::ServiceIps)]));
    rules.push(to_node_port_address(
        surroundings,
        family,
        Statement::Goto(ChainName::Nodeports),
    ));
    rules
}

/// Matches what is not local traffic, if it can be told.
fn not_local(surroundings: &Surroundings, family: Family) -> Option<Statement> {
    match &surroundings.options.detect_local {
        DetectLocal::Off => None,
        DetectLocal::ClusterCidr(_) | DetectLocal::NodeCidr => {
            surroundings.pod_cidr(family).map(Statement::SourceOutside)
        }
        DetectLocal::BridgeInterface(name) => Some(Statement::NotFromInterface {
            name: name.clone(),
            prefix: false,
        }),
        DetectLocal::InterfaceNamePrefix(name) => Some(Statement::NotFromInterface {
            name: name.clone(),
            prefix: true,
        }),
    }
}

/// A rule for packets to an address on which NodePorts are offered; never for loopback.
fn to_node_port_address(surroundings: &Surroundings, family: Family, then: Statement) -> Rule {
    if surroundings.node_port_addresses(family).is_some() {
        rule([Statement::InSet(Set::NodeportIps), then])
    } else {
        rule([
            Statement::DestinationOutside(loopback(family)),
            Statement::DestinationIsLocal,
            then,
        ])
    }
}

fn loopback(family: Family) -> IpNet {
    match family {
        Family::V4 => IpNet::V4(ipnet::Ipv4Net::new_assert(
            std::net::Ipv4Addr::new(127, 0, 0, 0),
            8,
        )),
        Family::V6 => IpNet::V6(ipnet::Ipv6Net::new_assert(
            std::net::Ipv6Addr::LOCALHOST,
            128,
        )),
    }
}

fn nodeports(surroundings: &Surroundings) -> Vec<Rule> {
    let mark = Statement::SetMark(surroundings.options.masquerade_mark());
    vec![
        rule([Statement::InSet(Set::MasqueradeNodeports), mark]),
        rule([Statement::Dispatch(Set::ServiceNodeports)]),
    ]
}

fn no_endpoints(surroundings: &Surroundings, family: Family) -> Vec<Rule> {
    vec![
        rule([Statement::Dispatch(Set::NoEndpointServices)]),
        to_node_port_address(
            surroundings,
            family,
            Statement::Dispatch(Set::NoEndpointNodeports),
        ),
    ]
}

fn postrouting(surroundings: &Surroundings) -> Vec<Rule> {
    let mark = surroundings.options.masquerade_mark();
    vec![
        because(
            "marked by this table",
            [
                Statement::HasMark(mark),
                Statement::ClearMark(mark),
                Statement::Masquerade,
            ],
        ),
        because(
            "pods that reach themselves",
            [Statement::InSet(Set::Hairpin), Statement::Masquerade],
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
            .chain([ChainName::Balancer(3), ChainName::NodeportBalancer(12)]);
        for name in names {
            assert_eq!(ChainName::parse(&name.to_string()), Some(name));
        }
        for foreign in ["", "lb-", "lb-03", "lb-x", "lb-nodeport", "input"] {
            assert_eq!(ChainName::parse(foreign), None, "{foreign}");
        }
    }
}
