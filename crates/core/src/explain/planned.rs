//! The planned tables, as the rules see them.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::IpAddr;

use crate::model::Family;
use crate::plan::{
    ChainName, Desired, FrontendKey, Key, Pools, Rule, Set, SetMember, Value, base_chains,
    on_demand_chain,
};

use super::walk::{Line, Lookup, Match, Tables};

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

    fn one(&self, set: Set, key: Lookup) -> Option<Match> {
        match key {
            Lookup::Frontend(key) => {
                let frontend = self.desired.frontend(key)?;
                let mut decisions = frontend.decisions(key);
                let wanted = Key::Frontend(key);
                let found = decisions.find(|one| one.set == set && one.key == wanted)?;
                Some(found.value.map_or(Match::Member, Match::Value))
            }
            Lookup::Slot(key, index) => {
                let pools = Pools::ALL.into_iter().find(|pools| pools.endpoints() == set)?;
                let pool = self.pool(key, pools)?;
                let slot = usize::try_from(index).ok()?;
                Some(Match::Value(Value::Backend(*pool.get(slot)?)))
            }
            Lookup::Source(key, source) => {
                let sources = self.desired.frontend(key)?.sources.as_ref()?;
                let inside = sources.iter().any(|it| (it.first..=it.last).contains(&source));
                inside.then_some(Match::Member)
            }
            Lookup::Client(..) => None,
            Lookup::Address(address) => self.member(set, address),
            Lookup::Pair(source, destination) => {
                self.member(set, source).filter(|_| source == destination)
            }
        }
    }

    fn pool(&self, key: FrontendKey, pools: Pools) -> Option<&[crate::model::Backend]> {
        Some(self.desired.frontend(key)?.pool(key, pools))
    }

    fn member(&self, set: Set, address: IpAddr) -> Option<Match> {
        let has = self.desired.has_member(SetMember { set, address });
        has.then_some(Match::Member)
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

    fn find(&mut self, set: Set, keys: &[Lookup]) -> Result<Vec<Option<Match>>, Infallible> {
        Ok(keys.iter().map(|key| self.one(set, *key)).collect())
    }

    fn is_local(&mut self, address: IpAddr) -> Result<bool, Infallible> {
        let known = |context: &crate::plan::NodeContext| {
            context.interface_addresses.contains(&address) || address.is_loopback()
        };
        Ok(self.desired.node_context().is_some_and(|context| known(context)))
    }
}
