//! The text of rules: a rule that the kernel lists reads like the plan's.

use nfnetlink::nft::{Batch, DumpedRule};
use shunt_core::model::{Balancing, Change, Dirty, Family, Node, Store};
use shunt_core::plan::{
    ChainName, DetectLocal, NodeContext, NodePortAddresses, Options, Pools, Set, TABLE,
    base_chains, on_demand_chain, rule_text,
};

use crate::dataplane::codec::{set_type, table_family};
use crate::dataplane::translate::expressions;

/// Contexts with every statement that a rule of the plan can have.
fn contexts() -> Vec<NodeContext> {
    let options = [
        (DetectLocal::ClusterCidr(Vec::new()), NodePortAddresses::Primary, true),
        (DetectLocal::NodeCidr, NodePortAddresses::Primary, false),
        (DetectLocal::BridgeInterface("cni0".into()), NodePortAddresses::Cidrs(Vec::new()), false),
        (
            DetectLocal::InterfaceNamePrefix("veth".into()),
            NodePortAddresses::Cidrs(Vec::new()),
            false,
        ),
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
    store.apply(Change::ServiceCidr("default".into(), cidrs), &mut dirty);
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

#[test]
fn decoded_rules_read_like_planned_ones() {
    let on_demand = [
        balancer(Pools::Services, Balancing::Random, false, 20),
        balancer(Pools::ShortCircuit, Balancing::Random, true, 2),
        balancer(Pools::Services, Balancing::SourceHash, false, 1_021),
        balancer(Pools::ShortCircuitNodeports, Balancing::SourceAndPortHash, false, 1_021),
        balancer(Pools::Nodeports, Balancing::SourceAndPortHash, true, 1_021),
        ChainName::AffinityTimeout(93_784),
        ChainName::AffinityPostrouting,
        ChainName::AffinityInput,
    ];
    let mut count = 0;
    for context in contexts() {
        for family in Family::ALL {
            let mut chains = base_chains(&context, family);
            chains.extend(on_demand.into_iter().filter_map(on_demand_chain));
            for rule in chains.iter().flat_map(|chain| &chain.rules) {
                let mut batch = Batch::new(None);
                let exprs = expressions(family, rule);
                batch.add_rule(
                    table_family(family),
                    TABLE,
                    "chain",
                    &exprs,
                    rule.comment.as_deref(),
                );
                let batch = batch.finish();
                let dumped = DumpedRule::of_batch(&batch).next().expect("one rule");
                let lengths = |name: &str| {
                    let kind = set_type(family, Set::from_name(name)?);
                    let value = match kind.data {
                        Some(nfnetlink::nft::SetData::Value { length, .. }) => length,
                        _ => 0,
                    };
                    Some((kind.key_length, value))
                };
                assert_eq!(
                    crate::dataplane::comparison::text_of(family, &dumped, lengths),
                    rule_text(family, rule)
                );
                count += 1;
            }
        }
    }
    assert!(count > 500, "only {count} rules");
}
