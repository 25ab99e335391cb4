//! The text of rules: a rule that the kernel lists reads like the plan's.

use std::collections::BTreeSet;

use nfnetlink::message::messages;
use nfnetlink::nft::{Batch, DumpedRule};
use shunt_core::model::{Balancing, Change, Dirty, Family, Node, ObjectName, Store};
use shunt_core::plan::{
    ChainName, DetectLocal, NodeContext, NodePortAddresses, Options, Pools, TABLE, base_chains,
    on_demand_chain,
};

use crate::dataplane::codec::table_family;
use crate::dataplane::translate::{commented, expressions};

/// Contexts with every statement that a rule of the plan can have.
fn contexts() -> Vec<NodeContext> {
    let all = || NodePortAddresses { primary: false, nets: Vec::new() };
    let options = [
        (DetectLocal::ClusterCidr(Vec::new()), NodePortAddresses::default(), true),
        (DetectLocal::NodeCidr, NodePortAddresses::default(), false),
        (DetectLocal::BridgeInterface("cni0".into()), all(), false),
        (DetectLocal::InterfaceNamePrefix("veth".into()), all(), false),
    ];
    let mut store = Store::new();
    let mut dirty = Dirty::default();
    let node = Node {
        name: "node-1".into(),
        addresses: vec!["192.0.2.10".parse().unwrap(), "2001:db8::10".parse().unwrap()],
        pod_cidrs: vec!["10.244.0.0/20".parse().unwrap(), "fd00:244::/64".parse().unwrap()],
        zone: None,
        eligible: true,
    };
    store.apply(Change::node(node), &mut dirty);
    let cidrs = ["10.96.0.0/12", "fd00:96::/108"];
    let cidrs = cidrs.iter().map(|cidr| cidr.parse().unwrap()).collect();
    store.apply(Change::ServiceCidr(ObjectName::new("", "default"), cidrs), &mut dirty);
    let context = |(detect_local, node_port_addresses, masquerade_all)| {
        let options =
            Options { detect_local, node_port_addresses, masquerade_all, ..Options::default() };
        NodeContext::of(&store, &options, "node-1")
    };
    options.into_iter().map(context).collect()
}

fn balancer(pools: Pools, balancing: Balancing, affinity: bool, count: u32) -> ChainName {
    ChainName::Balancer { pools, balancing, affinity, count }
}

/// What nft prints for rules of these contexts.
const TEXTS: [&str; 16] = [
    "ct status dnat ip saddr . ip daddr @hairpin masquerade fully-random",
    "meta l4proto tcp ct status dnat ct state established ct direction original \
     ct reply ip6 saddr . ct reply proto-src @gone-endpoints reject with tcp reset",
    "dnat ip addr . port to ip saddr . ip daddr . meta l4proto . th dport map @affinity",
    "dnat ip6 addr . port to meta l4proto . th dport . jhash ip6 saddr . th sport mod 1021 \
     seed 0x7368756e map @short-circuit-nodeport-endpoints",
    "dnat ip addr . port to ip daddr . meta l4proto . th dport . numgen random mod 20 \
     map @endpoints",
    "fib saddr type local meta mark set meta mark | 0x00004000",
    "iifname \"cni0\" ip daddr . meta l4proto . th dport vmap @short-circuit",
    "iifname != \"veth*\" ip daddr @cluster-ips meta mark set meta mark | 0x00004000",
    "ip daddr . meta l4proto . th dport @restricted-vips \
     ip daddr . meta l4proto . th dport . ip saddr != @allowed-sources drop",
    "ip daddr != 127.0.0.0/8 fib daddr type local goto nodeports",
    "ip6 daddr fd00:96::/108 fib daddr type != local drop",
    "ip saddr != 10.244.0.0/20 ip daddr @cluster-ips meta mark set meta mark | 0x00004000",
    "meta l4proto sctp update @affinity { ip saddr . ct original ip daddr . meta l4proto \
     . ct original proto-dst timeout 1d2h3m4s : ip daddr . th dport }",
    "meta l4proto tcp tcp flags & (fin|syn|rst|ack) == syn ct timeout set \"tcp-ca810283\"",
    "ct state invalid meta l4proto tcp tcp flags & (syn|rst|ack) == syn|ack drop",
    "meta mark & 0x00004000 != 0x00000000 meta mark set meta mark & 0xffffbfff \
     masquerade fully-random",
];

#[test]
fn rules_are_read_as_they_are_written_and_have_the_text_of_nft() {
    let on_demand = [
        balancer(Pools::Services, Balancing::Random, false, 20),
        balancer(Pools::ShortCircuit, Balancing::Random, true, 2),
        balancer(Pools::Services, Balancing::SourceHash, false, 1_021),
        balancer(Pools::ShortCircuitNodeports, Balancing::SourceAndPortHash, false, 1_021),
        balancer(Pools::Nodeports, Balancing::SourceAndPortHash, true, 1_021),
        ChainName::AffinityTimeout(93_784),
        ChainName::AffinityPostrouting,
        ChainName::AffinityInput,
        ChainName::ResetPrerouting,
    ];
    let mut missing = BTreeSet::from(TEXTS);
    for context in contexts() {
        for family in Family::ALL {
            let mut chains = base_chains(&context, family);
            chains.extend(on_demand.into_iter().filter_map(on_demand_chain));
            for rule in chains.iter().flat_map(|chain| &chain.rules) {
                let exprs = expressions(family, rule);
                let mut batch = Batch::new(None);
                let comment = rule.comment.as_deref();
                batch.add_rule(table_family(family), TABLE, "chain", &exprs, comment);
                let batch = batch.finish();
                let sent = messages(batch.bytes()).nth(1).expect("a message");
                let read = DumpedRule::parse(&sent.attrs()).expect("a rule");
                assert_eq!((&read.exprs, read.comment.as_deref()), (&exprs, comment));
                let text = commented(family, &exprs, None);
                missing.remove(text.as_str());
            }
        }
    }
    assert_eq!(missing, BTreeSet::new());
}
