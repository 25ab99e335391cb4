//! Removal: of our own tables, and of what kube-proxy leaves behind when it is gone.
//!
//! kube-proxy's names are those of version 1.36: `pkg/proxy/nftables/proxier.go` for its own tables,
//! `pkg/proxy/iptables/proxier.go` and `pkg/proxy/ipvs/proxier.go` for the chains that it adds to the
//! tables of iptables-nft. Other programs have chains that start with `KUBE-` too, and theirs stay:
//! the kubelet (`KUBE-FIREWALL`, `KUBE-IPTABLES-HINT`, `KUBE-KUBELET-CANARY`), and kube-router and
//! with it k3s (`KUBE-ROUTER-…`, `KUBE-POD-FW-…`, `KUBE-NWPLCY-…`).

use std::collections::{BTreeMap, BTreeSet};

use nfnetlink::nft::{Batch, DumpedChain, DumpedRule, Error, Kernel, TableFamily};
use shunt_core::model::Family;
use shunt_core::plan::TABLE;

use super::codec::table_family;
use super::listing::retried;
use super::ownership::TableOwner;

/// The table of kube-proxy in nftables mode, one for each family.
pub(crate) const KUBE_PROXY: &str = "kube-proxy";

/// The tables of iptables-nft that kube-proxy adds chains to.
pub(crate) const IPTABLES: [&str; 3] = ["nat", "filter", "mangle"];

/// Chains that exist once in a table.
const CHAINS: [&str; 13] = [
    "KUBE-EXTERNAL-SERVICES",
    "KUBE-FORWARD",
    "KUBE-IPVS-FILTER",
    "KUBE-IPVS-OUT-FILTER",
    "KUBE-LOAD-BALANCER",
    "KUBE-MARK-MASQ",
    "KUBE-NODE-PORT",
    "KUBE-NODEPORTS",
    "KUBE-POSTROUTING",
    "KUBE-PROXY-CANARY",
    "KUBE-PROXY-FIREWALL",
    "KUBE-SERVICES",
    "KUBE-SOURCE-RANGES-FIREWALL",
];

/// Chains that exist for each Service or endpoint.
const PREFIXES: [&str; 5] = ["KUBE-EXT-", "KUBE-FW-", "KUBE-SEP-", "KUBE-SVC-", "KUBE-SVL-"];

/// The chains that kube-proxy itself jumps to from the base chains. A jump to any other of its
/// chains was put there by somebody else.
const ENTRIES: [&str; 9] = [
    "KUBE-EXTERNAL-SERVICES",
    "KUBE-FORWARD",
    "KUBE-IPVS-FILTER",
    "KUBE-IPVS-OUT-FILTER",
    "KUBE-NODE-PORT",
    "KUBE-NODEPORTS",
    "KUBE-POSTROUTING",
    "KUBE-PROXY-FIREWALL",
    "KUBE-SERVICES",
];

/// How often a removal starts over because somebody else writes to nf_tables at the same time.
const ATTEMPTS: usize = 50;

/// What is to be removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scope {
    /// Our own tables.
    pub own: bool,
    /// The tables of kube-proxy, and its chains in the tables of iptables-nft.
    pub kube_proxy: bool,
}

/// What was removed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Removed {
    /// How many tables of our own.
    pub own_tables: usize,
    /// How many tables of kube-proxy.
    pub kube_proxy_tables: usize,
    /// How many of its chains in tables of iptables-nft.
    pub kube_proxy_chains: usize,
    /// Its chains that were left because rules of somebody else go there, as `ip nat KUBE-MARK-MASQ`.
    pub kept: Vec<String>,
}

impl Removed {
    /// True if there was nothing to remove.
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        self.own_tables + self.kube_proxy_tables + self.kube_proxy_chains == 0
    }
}

/// Removes all of it in one transaction.
///
/// # Errors
/// Whatever the kernel says; nothing is removed then.
pub fn remove(kernel: &mut dyn Kernel, scope: Scope) -> Result<Removed, Error> {
    for _ in 1..ATTEMPTS {
        match try_remove(kernel, scope) {
            Err(Error::StaleGeneration) => {}
            other => return other,
        }
    }
    try_remove(kernel, scope)
}

fn try_remove(kernel: &mut dyn Kernel, scope: Scope) -> Result<Removed, Error> {
    let (removed, batch) = retried(|| prepare(kernel, scope))?;
    if !batch.is_empty() {
        kernel.commit(&batch.finish())?;
    }
    Ok(removed)
}

fn prepare(kernel: &mut dyn Kernel, scope: Scope) -> Result<(Removed, Batch), Error> {
    let mut batch = Batch::new(Some(kernel.generation()?.id));
    let mut removed = Removed::default();
    for family in Family::ALL.map(table_family) {
        let own = if scope.own { kernel.table(family, TABLE)? } else { None };
        if let Some(own) = own {
            TableOwner::of(family, own.flags, own.owner, kernel.port())?;
            batch.delete_table(family, TABLE);
            removed.own_tables += 1;
        }
        if !scope.kube_proxy {
            continue;
        }
        if kernel.table(family, KUBE_PROXY)?.is_some() {
            batch.delete_table(family, KUBE_PROXY);
            removed.kube_proxy_tables += 1;
        }
        for table in IPTABLES {
            if kernel.table(family, table)?.is_some() {
                let leftovers =
                    Leftovers::of(&kernel.chains(family, table)?, &kernel.rules(family, table)?);
                leftovers.delete(family, table, &mut batch);
                removed.kube_proxy_chains += leftovers.chains.len();
                let kept = leftovers.kept.iter().map(|chain| format!("{family} {table} {chain}"));
                removed.kept.extend(kept);
            }
        }
    }
    Ok((removed, batch))
}

/// What kube-proxy has left in one table of iptables-nft.
#[derive(Debug, PartialEq, Eq)]
struct Leftovers {
    /// The rules outside of its chains that go to them: chain and handle.
    jumps: Vec<(String, u64)>,
    /// The chains that can go.
    chains: BTreeSet<String>,
    /// The chains that cannot.
    kept: BTreeSet<String>,
}

impl Leftovers {
    fn of(chains: &[DumpedChain], rules: &[DumpedRule]) -> Leftovers {
        let base: BTreeSet<&str> =
            chains.iter().filter(|chain| chain.base.is_some()).map(|c| c.name.as_str()).collect();
        let mut jumps = Vec::new();
        let mut kept = BTreeSet::new();
        let mut inner: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for rule in rules {
            let targets = rule.targets().filter(|chain| is_kube_proxys(chain));
            if is_kube_proxys(&rule.chain) {
                inner.entry(&rule.chain).or_default().extend(targets);
                continue;
            }
            for target in targets {
                let is_entry = base.contains(rule.chain.as_str()) && ENTRIES.contains(&target);
                match rule.handle.filter(|_| is_entry) {
                    Some(handle) => jumps.push((rule.chain.clone(), handle)),
                    None => _ = kept.insert(target),
                }
            }
        }
        // What is kept stays as it is, with all that it goes to.
        let mut open: Vec<&str> = kept.iter().copied().collect();
        while let Some(chain) = open.pop() {
            let targets = inner.get(chain).into_iter().flatten();
            open.extend(targets.filter(|target| kept.insert(target)));
        }
        let chains = chains
            .iter()
            .map(|chain| &chain.name)
            .filter(|name| is_kube_proxys(name) && !kept.contains(name.as_str()))
            .cloned()
            .collect();
        Leftovers { jumps, chains, kept: kept.into_iter().map(str::to_owned).collect() }
    }

    fn delete(&self, family: TableFamily, table: &str, batch: &mut Batch) {
        for (chain, handle) in &self.jumps {
            batch.delete_rule(family, table, chain, *handle);
        }
        // A chain can be deleted once nothing goes there, so all of them are emptied first.
        for chain in &self.chains {
            batch.flush_chain(family, table, chain);
        }
        for chain in &self.chains {
            batch.delete_chain(family, table, chain);
        }
    }
}

/// True for the name of a chain of kube-proxy.
pub(crate) fn is_kube_proxys(chain: &str) -> bool {
    CHAINS.contains(&chain) || PREFIXES.iter().any(|prefix| chain.starts_with(prefix))
}
