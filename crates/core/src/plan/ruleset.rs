//! The chains and rules of shunt's tables. Their number does not grow with the number of Services;
//! only elements scale.

use ipnet::IpNet;

use super::memory::remember;
use super::rule::{because, rule};
use super::{
    BaseHook, Chain, ChainName, DetectLocal, Is, NodeContext, PREPARED_SIZES, Pools, Rule, Set,
    Statement, TcpTimeouts,
};
use crate::model::{Balancing, Family, Protocol};

/// The name of shunt's tables, `ip shunt` and `ip6 shunt`.
pub const TABLE: &str = "shunt";

/// The comment of shunt's tables. The number changes with the meaning of elements or rules: the
/// agent replaces a table that has another comment.
pub const LAYOUT_COMMENT: &str = "shunt layout 3";

/// The name of the set of gone endpoints. It is no [`Set`]: it exists only while it has
/// elements, which are no part of the plan.
pub const GONE_ENDPOINTS: &str = "gone-endpoints";

/// The seed of the hash of a source. Without one, each kernel would choose its own
/// (`nft_jhash_init`), and nodes would choose different backends.
pub const HASH_SEED: u32 = 0x7368_756e;

/// The priorities of nat chains (`NF_IP_PRI_NAT_DST`, `NF_IP_PRI_NAT_SRC`).
const NAT_DST: i32 = -100;
const NAT_SRC: i32 = 100;
/// Before every masquerade: the first nat chain that binds the source ends the walk, and this chain
/// needs the client's own address.
const AFFINITY_PRIORITY: i32 = NAT_SRC - 10;
/// Before destination NAT, which drops packets of the node itself to an endpoint without a route,
/// and the address of a gone pod may have none (`nf_nat_ipv4_local_fn`).
const RESET_PRIORITY: i32 = NAT_DST - 10;
/// The priority of filters (`NF_IP_PRI_FILTER`).
const FILTER: i32 = 0;

/// Returns a chain that exists only while some frontend or gone endpoint needs it; `None` for the
/// names of other chains.
#[must_use]
pub fn on_demand_chain(name: ChainName) -> Option<Chain> {
    if !name.is_on_demand() {
        return None;
    }
    let (base, rules) = match name {
        ChainName::Balancer { pools, balancing, affinity, count } => {
            (None, balance(pools, balancing, affinity, count))
        }
        // nft can print the key only behind a match on the protocol.
        ChainName::AffinityTimeout(seconds) => {
            let update = Statement::AffinityUpdate(seconds);
            let rules =
                Protocol::ALL.map(|protocol| rule([Statement::Protocol(protocol), update.clone()]));
            (None, rules.into())
        }
        ChainName::AffinityPostrouting => (Some(BaseHook::Postrouting), vec![affinity_base()]),
        ChainName::AffinityInput => (Some(BaseHook::Input), vec![affinity_base()]),
        ChainName::ResetPrerouting => (Some(BaseHook::FilterPrerouting), vec![reset_gone()]),
        ChainName::ResetOutput => (Some(BaseHook::FilterOutput), vec![reset_gone()]),
        _ => return None,
    };
    let priority = if name.is_for_gone_endpoints() { RESET_PRIORITY } else { AFFINITY_PRIORITY };
    Some(Chain { name, base: base.map(|hook| (hook, priority)), rules })
}

/// Returns the rule that resets established connections to gone endpoints. New connections do not
/// go there: half-open ones end by themselves, and the client's next SYN gets another backend.
fn reset_gone() -> Rule {
    rule([Statement::ToGoneEndpoint, Statement::Reset])
}

/// Returns the rules of a balancer.
///
/// The kernel reads the generation once per lookup. During a commit, a packet can come here by the
/// old number of backends, and miss its index in the new pool. It then goes to the backend at index
/// 0. That has a chain of its own, `lb-1`, because the kernel walks all elements of a map once for
/// each rule that the map is bound to (`nf_tables_bind_set`).
fn balance(pools: Pools, balancing: Balancing, affinity: bool, count: u32) -> Vec<Rule> {
    let mark_node = pools.is_short_circuit().then(|| rule([Statement::Jump(ChainName::MarkNode)]));
    let balancer =
        |balancing, count| ChainName::Balancer { pools, balancing, affinity: false, count };
    let first = balancer(Balancing::Random, 1);
    let name = ChainName::Balancer { pools, balancing, affinity, count };
    let mut statements = vec![Statement::Jump(ChainName::ShortAttempt)];
    if affinity {
        statements.push(Statement::Jump(ChainName::AffinityLookup));
        statements.push(Statement::Goto(balancer(balancing, count)));
    } else {
        statements.push(Statement::Balance(pools, balancing, count));
        statements.extend((name != first).then_some(Statement::Goto(first)));
    }
    mark_node.into_iter().chain(statements.into_iter().map(|it| rule([it]))).collect()
}

/// Returns the rule that lets the entry of a connection end after a second without an answer. It
/// must meet real SYNs only: a connection that the kernel picks up in mid-stream would end, too.
fn short_attempt(timeouts: TcpTimeouts) -> Rule {
    rule([Statement::SetTimeouts(timeouts)])
}

/// Returns the rule that drops an endpoint's repeated answer to an attempt whose entry has ended. It
/// would reach the client untranslated, and the client's reset would end the next attempt.
fn late_answer() -> Rule {
    because("a late answer to an attempt to connect", [Statement::LateAnswer, Statement::Drop])
}

fn affinity_base() -> Rule {
    rule([Statement::Translated, Statement::Jump(ChainName::AffinityUpdate)])
}

/// Returns the chains of a family that exist at all times.
#[must_use]
pub fn base_chains(node_context: &NodeContext, family: Family) -> Vec<Chain> {
    let chain = |name, rules| Chain { name, base: None, rules };
    let base = |name, hook, priority, rules| Chain { name, base: Some((hook, priority)), rules };
    let to_services = || vec![rule([Statement::Jump(ChainName::Services)])];
    let mut prerouting = to_services();
    prerouting.extend(hygiene(node_context, family, true));
    let mut output = to_services();
    output.extend(hygiene(node_context, family, false));
    let timeouts = node_context.options.tcp_timeouts;
    let attempts = timeouts.map(short_attempt).into_iter();
    let answers = timeouts.map(|_| late_answer()).into_iter();
    let mut chains = vec![
        base(ChainName::NatPrerouting, BaseHook::Prerouting, NAT_DST, prerouting),
        base(ChainName::NatOutput, BaseHook::Output, NAT_DST, output),
        base(ChainName::NatPostrouting, BaseHook::Postrouting, NAT_SRC, postrouting(node_context)),
        base(ChainName::Forward, BaseHook::FilterForward, FILTER, answers.collect()),
        chain(ChainName::Services, services(node_context, family)),
        chain(ChainName::External, external(node_context, family)),
        chain(ChainName::Nodeports, nodeports(node_context, family)),
        chain(ChainName::Reject, vec![rule([Statement::Reject])]),
        chain(ChainName::MarkNode, vec![mark_node(node_context, family)]),
        chain(ChainName::AffinityLookup, vec![rule([Statement::AffinityLookup])]),
        chain(ChainName::AffinityUpdate, affinity_update()),
        chain(ChainName::ShortAttempt, attempts.collect()),
        chain(ChainName::Node, remember(node_context)),
    ];
    for pools in Pools::ALL {
        chains.extend((1..=PREPARED_SIZES).map(|count| {
            let balancing = Balancing::Random;
            let name = ChainName::Balancer { pools, balancing, affinity: false, count };
            chain(name, balance(pools, balancing, false, count))
        }));
    }
    chains
}

/// Returns rules that reject unknown ports of a ClusterIP, and drop packets to unused addresses of
/// the ServiceCIDRs. They exempt arriving packets to an address of the node: the node itself may
/// serve a ClusterIP, as a DNS cache does.
fn hygiene(
    node_context: &NodeContext,
    family: Family,
    arriving: bool,
) -> impl Iterator<Item = Rule> + use<'_> {
    let unless_local =
        move || arriving.then_some(Statement::DestinationIsLocal(Is::Not)).into_iter();
    let closed = move |comment, to, end| {
        because(comment, [to].into_iter().chain(unless_local()).chain([end]))
    };
    let port = Statement::InSet(Set::ClusterIps, Is::So);
    let port = closed("a port that the ClusterIP does not have", port, Statement::Reject);
    let cidrs = node_context.service_cidrs.iter().filter(move |net| Family::of_net(net) == family);
    let addresses = cidrs.map(move |net| {
        let inside = Statement::Destination(*net, Is::So);
        closed("no Service has this address", inside, Statement::Drop)
    });
    [port].into_iter().chain(addresses)
}

fn services(node_context: &NodeContext, family: Family) -> Vec<Rule> {
    let mark = Statement::SetMark(node_context.options.masquerade_mark());
    let to_cluster_ip = Statement::InSet(Set::ClusterIps, Is::So);
    let mut rules = Vec::new();
    if node_context.options.masquerade_all {
        rules.push(because("masqueradeAll", [to_cluster_ip, mark]));
    } else if let Some(not_local) = local_traffic(node_context, family, Is::Not) {
        rules.push(because("from elsewhere than a local pod", [not_local, to_cluster_ip, mark]));
    }
    rules.push(rule([
        Statement::InSet(Set::ExternalIps, Is::So),
        Statement::Jump(ChainName::External),
    ]));
    rules.push(rule([Statement::Dispatch(Set::ServiceIps)]));
    let nodeports = Statement::Goto(ChainName::Nodeports);
    rules.push(to_node_port_address(node_context, family, nodeports));
    rules
}

fn external(node_context: &NodeContext, family: Family) -> Vec<Rule> {
    let mut rules = vec![because(
        "loadBalancerSourceRanges",
        [
            Statement::InSet(Set::RestrictedVips, Is::So),
            Statement::InSet(Set::AllowedSources, Is::Not),
            Statement::Drop,
        ],
    )];
    rules.push(cluster_policy(node_context, Set::MasqueradeServices, Set::ServiceIps));
    rules.extend(short_circuit(node_context, family, Set::ShortCircuit));
    rules
}

fn nodeports(node_context: &NodeContext, family: Family) -> Vec<Rule> {
    let (masquerade, services) = (Set::MasqueradeNodeports, Set::ServiceNodeports);
    let mut rules = vec![cluster_policy(node_context, masquerade, services)];
    rules.extend(short_circuit(node_context, family, Set::ShortCircuitNodeports));
    rules.push(rule([Statement::Dispatch(services)]));
    rules
}

/// Returns the rule of policy Cluster. It comes before those of policy Local, since it needs neither
/// the source of the packet nor a lookup of a route.
fn cluster_policy(node_context: &NodeContext, masquerade: Set, services: Set) -> Rule {
    let mark = Statement::SetMark(node_context.options.masquerade_mark());
    rule([Statement::InSet(masquerade, Is::So), mark, Statement::Dispatch(services)])
}

/// Returns the short-circuit rules of policy Local: local pods and the node itself reach all
/// endpoints. Their traffic counts as if it had left the node and come back.
fn short_circuit(node_context: &NodeContext, family: Family, map: Set) -> Vec<Rule> {
    let pods = local_traffic(node_context, family, Is::So)
        .map(|local| because("local pods, policy Local", [local, Statement::Dispatch(map)]));
    let node = because(
        "the node itself, policy Local",
        [Statement::SourceIsLocal, Statement::Dispatch(map)],
    );
    pods.into_iter().chain([node]).collect()
}

/// Returns the rule that marks packets from the node itself. An address of the node in the prefix
/// of the pods counts as a pod's, as for ClusterIPs.
fn mark_node(node_context: &NodeContext, family: Family) -> Rule {
    let mark = Statement::SetMark(node_context.options.masquerade_mark());
    let not_a_pod = local_traffic(node_context, family, Is::Not).into_iter();
    because("from the node itself", not_a_pod.chain([Statement::SourceIsLocal, mark]))
}

/// Returns a match for traffic of local pods, or for all other traffic; `None` without a configured
/// criterion.
fn local_traffic(node_context: &NodeContext, family: Family, is: Is) -> Option<Statement> {
    match &node_context.options.detect_local {
        DetectLocal::Off => None,
        DetectLocal::ClusterCidr(_) | DetectLocal::NodeCidr => {
            node_context.pod_cidr(family).map(|net| Statement::Source(net, is))
        }
        DetectLocal::BridgeInterface(name) => Some(Statement::Interface(name.clone(), is)),
        DetectLocal::InterfaceNamePrefix(name) => {
            Some(Statement::InterfacePrefix(name.clone(), is))
        }
    }
}

/// Returns a rule for packets to the addresses of NodePorts; never to loopback.
fn to_node_port_address(node_context: &NodeContext, family: Family, then: Statement) -> Rule {
    let statements = if node_context.node_port_addresses(family).is_some() {
        vec![Statement::InSet(Set::NodeportIps, Is::So)]
    } else {
        vec![
            Statement::Destination(loopback(family), Is::Not),
            Statement::DestinationIsLocal(Is::So),
        ]
    };
    rule(statements.into_iter().chain([then]))
}

fn loopback(family: Family) -> IpNet {
    match family {
        Family::V4 => {
            IpNet::V4(ipnet::Ipv4Net::new_assert(std::net::Ipv4Addr::new(127, 0, 0, 0), 8))
        }
        Family::V6 => IpNet::V6(ipnet::Ipv6Net::new_assert(std::net::Ipv6Addr::LOCALHOST, 128)),
    }
}

fn affinity_update() -> Vec<Rule> {
    let dispatch = |set| {
        Protocol::ALL
            .map(|protocol| {
                rule([Statement::Protocol(protocol), Statement::DispatchUntranslated(set)])
            })
            .into_iter()
    };
    dispatch(Set::AffinityServices).chain(dispatch(Set::AffinityNodeports)).collect()
}

fn postrouting(node_context: &NodeContext) -> Vec<Rule> {
    let mark = node_context.options.masquerade_mark();
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
