//! What commands read from shunt's tables: the planned form of a rule, and the element of a frontend.

use std::collections::BTreeMap;

use nfnetlink::nft::{self, DumpedRule, Error, Expr, Kernel};
use shunt_core::model::Family;
use shunt_core::plan::{
    ChainName, FrontendKey, Key, NodeContext, Rule, Set, TABLE, base_chains, on_demand_chain,
};

use super::codec::{encode_key, table_family};
use super::listing::look_up;
use super::translate::expressions;

/// Lists the rules of a family, each with the planned rule of its chain that it implements.
pub(super) fn known_rules(
    kernel: &mut dyn Kernel,
    node_context: &NodeContext,
    family: Family,
) -> Result<Vec<(DumpedRule, Option<Rule>)>, Error> {
    let live = kernel.rules(table_family(family), TABLE)?;
    let names: Vec<ChainName> =
        live.iter().filter_map(|rule| ChainName::parse(&rule.chain)).collect();
    let mut chains = base_chains(node_context, family);
    chains.extend(names.into_iter().filter_map(on_demand_chain));
    let planned: BTreeMap<String, Vec<(Vec<Expr>, Rule)>> = chains
        .into_iter()
        .map(|chain| {
            let rules = chain.rules.into_iter().map(|rule| (expressions(family, &rule), rule));
            (chain.name.to_string(), rules.collect())
        })
        .collect();
    let plan_of = |rule: &DumpedRule| {
        let (_, plan) = planned.get(&rule.chain)?.iter().find(|(exprs, _)| *exprs == rule.exprs)?;
        Some(plan.clone())
    };
    let plans: Vec<Option<Rule>> = live.iter().map(plan_of).collect();
    Ok(live.into_iter().zip(plans).collect())
}

/// Returns the element of a frontend in one of shunt's maps, as the kernel has it.
///
/// # Errors
/// If the kernel does not answer.
pub fn frontend_element(
    socket: &mut nft::Socket,
    set: Set,
    key: FrontendKey,
) -> Result<Option<nft::Element>, Error> {
    let key_bytes = encode_key(Key::Frontend(key));
    Ok(look_up(socket, key.family(), set, &[key_bytes])?.pop().flatten())
}
