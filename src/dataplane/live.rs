//! What commands read from shunt's tables: the text of a rule, and the element of a frontend.

use std::borrow::Cow;
use std::collections::BTreeMap;

use nfnetlink::nft::{self, DumpedRule, Error, Expr, Kernel, rule_text};
use shunt_core::model::Family;
use shunt_core::plan::{
    ChainName, FrontendKey, Key, NodeContext, Rule, Set, Statement, TABLE, base_chains,
    on_demand_chain,
};

use super::codec::{encode_key, table_family};
use super::translate::expressions;

/// A rule of shunt in the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveRule {
    /// The matches and actions in the syntax of nft.
    pub text: String,
    /// The purpose of the rule.
    pub comment: Option<Cow<'static, str>>,
    /// The map of frontends whose verdict the rule follows.
    pub dispatches: Option<Set>,
    /// True if the rule translates the destination to a backend.
    pub balances: bool,
}

impl LiveRule {
    fn of(family: Family, rule: &Rule) -> LiveRule {
        let dispatches = rule.statements.iter().find_map(|statement| match statement {
            Statement::Dispatch(set) => Some(*set),
            _ => None,
        });
        let balance = |statement: &Statement| {
            matches!(statement, Statement::Balance(..) | Statement::AffinityLookup)
        };
        LiveRule {
            text: rule_text(table_family(family), &expressions(family, rule)),
            comment: rule.comment.clone(),
            dispatches,
            balances: rule.statements.iter().any(balance),
        }
    }
}

/// Returns the rules of a family that the kernel has like the plan, by their handles. Rules that
/// another process added or modified are not among them.
///
/// # Errors
/// If the kernel refuses the listing, or commits interrupt every attempt.
pub fn live_rules(
    kernel: &mut dyn Kernel,
    node_context: &NodeContext,
    family: Family,
) -> Result<BTreeMap<u64, LiveRule>, Error> {
    let rules = known_rules(kernel, node_context, family)?.into_iter();
    let found = rules.filter_map(|(rule, plan)| Some((rule.handle, LiveRule::of(family, &plan?))));
    Ok(found.collect())
}

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
/// If the kernel refuses the query, for example because there are no tables of shunt.
pub fn frontend_element(
    socket: &mut nft::Socket,
    set: Set,
    key: FrontendKey,
) -> Result<Option<nft::Element>, Error> {
    let bytes = encode_key(Key::Frontend(key));
    let family = table_family(key.family());
    Ok(socket.lookup(family, TABLE, set.name(), &[bytes.as_slice()])?.pop().flatten())
}
