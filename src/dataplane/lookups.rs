//! shunt's tables in the kernel, as the walk of a packet asks for them: few lookups of single
//! elements, and the rules. Reads only.

use std::collections::BTreeMap;
use std::net::IpAddr;

use foldhash::HashMap;
use nfnetlink::nft::{DumpedRule, Error, Kernel, Socket};
use nfnetlink::route::{RouteAnswer, RouteKind, RouteQuery, route_to};
use shunt_core::explain::{Line, Match, Tables};
use shunt_core::model::{Backend, Family};
use shunt_core::plan::{ChainName, FrontendKey, Key, NodeContext, Set, TABLE, Value};

use super::codec::{Bytes, decode_value, encode_client, encode_key, table_family};
use super::listing::{Structure, look_up, planned_chains};
use super::translate::expressions;
use super::verdicts::{FrontendVerdict, Verdicts, add_verdicts};

/// The tables of one family in the kernel of this thread's network namespace.
pub struct KernelTables {
    socket: Socket,
    family: Family,
    chains: BTreeMap<ChainName, Vec<Line>>,
    local: HashMap<IpAddr, bool>,
}

impl KernelTables {
    /// Opens the tables and reads their rules. `node_context` makes the rules that are known.
    ///
    /// # Errors
    /// If the kernel has no nf_tables or denies its use.
    pub fn open(node_context: &NodeContext, family: Family) -> Result<KernelTables, Error> {
        let mut socket = Socket::open()?;
        let chains = read_chains(&mut socket, node_context, family)?;
        Ok(KernelTables { socket, family, chains, local: HashMap::default() })
    }

    /// Returns the count of new connections to a frontend, over all clients; `None` if the kernel does
    /// not have it.
    ///
    /// # Errors
    /// If the kernel does not answer.
    pub fn connections(&mut self, key: FrontendKey) -> Result<Option<u64>, Error> {
        let mut found = Verdicts::default();
        add_verdicts(&mut self.socket, &[key], &mut found)?;
        Ok(found.get(&key).map(FrontendVerdict::connections))
    }
}

impl Tables for KernelTables {
    type Error = Error;

    fn rules(&mut self, chain: ChainName) -> Result<Option<Vec<Line>>, Error> {
        Ok(self.chains.get(&chain).cloned())
    }

    fn find(&mut self, set: Set, keys: &[Key]) -> Result<Vec<Option<Match>>, Error> {
        let family = self.family;
        let keys: Vec<Bytes> = keys.iter().map(|key| encode_key(*key)).collect();
        let mut found = vec![None; keys.len()];
        look_up(&mut self.socket, family, set, &keys, &mut |place, element| {
            let value = |data| decode_value(family, data).map_or(Match::Foreign, Match::Value);
            if let Some(slot) = found.get_mut(place) {
                *slot = Some(element.data.map_or(Match::Member, value));
            }
        })?;
        Ok(found)
    }

    fn last_backend(&mut self, client: IpAddr, key: FrontendKey) -> Result<Option<Backend>, Error> {
        let (family, key) = (self.family, encode_client(client, key));
        let mut found = None;
        look_up(&mut self.socket, family, Set::Affinity, &[key], &mut |_, element| {
            found = element.data.and_then(|data| decode_value(family, data));
        })?;
        Ok(match found {
            Some(Value::Backend(backend)) => Some(backend),
            _ => None,
        })
    }

    fn is_local(&mut self, address: IpAddr) -> Result<bool, Error> {
        if let Some(known) = self.local.get(&address) {
            return Ok(*known);
        }
        // Without an answer, the address is not one of the node.
        let answer = route_to(RouteQuery::to(address));
        let is_local = matches!(
            answer,
            Ok(RouteAnswer::Route(route)) if route.kind == RouteKind::Local
        );
        self.local.insert(address, is_local);
        Ok(is_local)
    }
}

/// Reads all chains of the table. Each rule is one of the planned rules of its chain, or foreign.
fn read_chains(
    socket: &mut Socket,
    node_context: &NodeContext,
    family: Family,
) -> Result<BTreeMap<ChainName, Vec<Line>>, Error> {
    if socket.table(table_family(family), TABLE)?.is_none() {
        return Ok(BTreeMap::new());
    }
    let planned = planned_chains(node_context, family);
    let Structure { chains, mut rules, .. } = Structure::read(socket, family)?;
    // No known rule leads to a chain of another name.
    let named = chains.into_iter().filter_map(|it| Some((ChainName::parse(&it.name)?, it.name)));
    Ok(named
        .map(|(name, text)| {
            let planned = planned(name).map_or_else(Vec::new, |chain| chain.rules);
            let line = |rule: DumpedRule| {
                let plan = planned.iter().find(|plan| expressions(family, plan) == rule.exprs);
                plan.cloned().map_or(Line::Foreign, Line::Rule)
            };
            (name, rules.remove(&text).into_iter().flatten().map(line).collect())
        })
        .collect())
}
