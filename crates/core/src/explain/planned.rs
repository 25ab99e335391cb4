//! The planned tables, as the rules see them.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::IpAddr;

use crate::model::Family;
use crate::plan::{
    ChainName, Desired, FrontendKey, Key, Pools, Rule, Set, SetMember, SourceRange, Value,
    base_chains, on_demand_chain,
};

use super::walk::{Line, Match, Tables};

/// The tables of a family as planned. `affinity` is empty: rules fill it.
#[derive(Debug)]
pub struct Planned<'a> {
    desired: &'a Desired,
    chains: BTreeMap<ChainName, Vec<Rule>>,
}

impl<'a> Planned<'a> {
    /// Returns the planned tables of a family; empty before the first plan.
    #[must_use]
    pub fn new(desired: &'a Desired, family: Family) -> Planned<'a> {
        let chains = desired.node_context().map(|context| base_chains(context, family));
        let chains = chains.unwrap_or_default().into_iter();
        Planned { desired, chains: chains.map(|chain| (chain.name, chain.rules)).collect() }
    }

    fn one(&self, set: Set, key: Key) -> Option<Match> {
        match key {
            Key::Frontend(frontend) => {
                let planned = self.desired.frontend(frontend)?;
                let mut decisions = planned.decisions(frontend);
                let found = decisions.find(|one| one.set == set && one.key == key)?;
                Some(found.value.map_or(Match::Member, Match::Value))
            }
            Key::Pool(frontend, index) => {
                let pools = Pools::ALL.into_iter().find(|pools| pools.endpoints() == set)?;
                let pool = self.desired.frontend(frontend)?.pool(frontend, pools);
                Some(Match::Value(Value::Backend(*pool.get(index as usize)?)))
            }
            Key::Source(frontend, SourceRange { first: source, .. }) => {
                let sources = self.desired.frontend(frontend)?.sources.as_ref()?;
                let inside = sources.iter().any(|it| (it.first..=it.last).contains(&source));
                inside.then_some(Match::Member)
            }
            Key::Address(address) | Key::Hairpin(address) => {
                let member = SetMember { set, address };
                self.desired.has_member(member).then_some(Match::Member)
            }
        }
    }
}

impl Tables for Planned<'_> {
    type Error = Infallible;

    fn rules(&mut self, chain: ChainName) -> Result<Option<Vec<Line>>, Infallible> {
        let rules = match self.chains.get(&chain) {
            Some(rules) => Some(rules.clone()),
            None => on_demand_chain(chain).map(|chain| chain.rules),
        };
        Ok(rules.map(|rules| rules.into_iter().map(Line::Rule).collect()))
    }

    fn find(&mut self, set: Set, keys: &[Key]) -> Result<Vec<Option<Match>>, Infallible> {
        Ok(keys.iter().map(|key| self.one(set, *key)).collect())
    }

    fn last_backend(
        &mut self,
        _: IpAddr,
        _: FrontendKey,
    ) -> Result<Option<crate::model::Backend>, Infallible> {
        Ok(None)
    }

    fn is_local(&mut self, address: IpAddr) -> Result<bool, Infallible> {
        let known = |context: &crate::plan::NodeContext| {
            context.interface_addresses.contains(&address) || address.is_loopback()
        };
        Ok(self.desired.node_context().is_some_and(|context| known(context)))
    }
}
