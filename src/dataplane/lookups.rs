//! shunt's tables in the kernel, as the walk of a packet asks for them: few lookups of single
//! elements, and the rules. Reads only.

use std::collections::BTreeMap;
use std::net::IpAddr;

use foldhash::HashMap;
use nfnetlink::nft::{Element, Error, Kernel, Socket};
use nfnetlink::route::{RouteAnswer, RouteKind, RouteQuery, route_to};
use shunt_core::explain::{Line, Match, Tables};
use shunt_core::model::{Backend, Family};
use shunt_core::plan::{
    ChainName, FrontendKey, Key, NodeContext, Rule, Set, TABLE, Value, base_chains, on_demand_chain,
};

use super::codec::{Bytes, decode_value, encode_client, encode_key, table_family};
use super::listing::look_up;
use super::translate::expressions;
use super::verdicts::{Verdict, Verdicts, add_verdicts};

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
        Ok(found.get(&key).map(Verdict::connections))
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
        let found = look_up(&mut self.socket, family, set, &keys)?;
        Ok(found.into_iter().map(|element| Some(read(family, &element?))).collect())
    }

    fn last_backend(&mut self, client: IpAddr, key: FrontendKey) -> Result<Option<Backend>, Error> {
        let key = encode_client(client, key);
        let found = look_up(&mut self.socket, self.family, Set::Affinity, &[key])?.pop().flatten();
        Ok(match found.map(|element| read(self.family, &element)) {
            Some(Match::Value(Value::Backend(backend))) => Some(backend),
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

fn read(family: Family, element: &Element) -> Match {
    let Some(data) = element.as_listed().data else { return Match::Member };
    decode_value(family, data).map_or(Match::Foreign, Match::Value)
}

/// Reads all chains of the table. Each rule is one of the planned rules of its chain, or foreign.
fn read_chains(
    socket: &mut Socket,
    node_context: &NodeContext,
    family: Family,
) -> Result<BTreeMap<ChainName, Vec<Line>>, Error> {
    let table = table_family(family);
    if socket.table(table, TABLE)?.is_none() {
        return Ok(BTreeMap::new());
    }
    // No known rule leads to a chain of another name.
    let found = socket.chains(table, TABLE)?;
    let names = found.iter().filter_map(|chain| ChainName::parse(&chain.name));
    let mut chains: BTreeMap<ChainName, Vec<Line>> = names.map(|name| (name, Vec::new())).collect();
    let mut planned = base_chains(node_context, family);
    planned.extend(chains.keys().copied().filter_map(on_demand_chain));
    let planned: BTreeMap<ChainName, Vec<Rule>> =
        planned.into_iter().map(|chain| (chain.name, chain.rules)).collect();
    for rule in socket.rules(table, TABLE)? {
        let Some(name) = ChainName::parse(&rule.chain) else { continue };
        let Some(lines) = chains.get_mut(&name) else { continue };
        let mut plans = planned.get(&name).into_iter().flatten();
        let plan = plans.find(|plan| expressions(family, plan) == rule.exprs);
        lines.push(plan.cloned().map_or(Line::Foreign, Line::Rule));
    }
    Ok(chains)
}
