//! Removes shunt's tables, and the leftovers of kube-proxy.
//!
//! kube-proxy's names are those of version 1.36: `pkg/proxy/nftables/proxier.go` for its own
//! tables, `pkg/proxy/iptables/proxier.go` and `pkg/proxy/ipvs/proxier.go` for the chains that it
//! adds to the tables of iptables-nft. Other programs have chains that start with `KUBE-` too, and
//! theirs stay: the kubelet (`KUBE-FIREWALL`, `KUBE-IPTABLES-HINT`, `KUBE-KUBELET-CANARY`), and
//! kube-router and with it k3s (`KUBE-ROUTER-…`, `KUBE-POD-FW-…`, `KUBE-NWPLCY-…`).

use std::collections::{BTreeMap, BTreeSet};

use nfnetlink::nft::{Batch, DumpedChain, DumpedRule, Error, Kernel, TableFamily};
use shunt_core::model::Family;
use shunt_core::plan::TABLE;

use super::codec::table_family;
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

/// The chains to which kube-proxy itself jumps from the base chains. Another program has written a
/// jump to any other of its chains.
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

/// The number of attempts of a removal that commits of other processes interrupt.
const ATTEMPTS: usize = 50;

/// The objects to remove.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scope {
    /// shunt's own tables.
    pub own: bool,
    /// The tables of kube-proxy, and its chains in the tables of iptables-nft.
    pub kube_proxy: bool,
}

/// The removed objects.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Removed {
    /// The number of shunt's own tables.
    pub own_tables: usize,
    /// The number of kube-proxy's tables.
    pub kube_proxy_tables: usize,
    /// The number of kube-proxy's chains in tables of iptables-nft.
    pub kube_proxy_chains: usize,
    /// kube-proxy's chains that stay because rules of other programs jump there: `ip nat
    /// KUBE-MARK-MASQ`.
    pub kept: Vec<String>,
}

impl Removed {
    /// Returns true if there was nothing to remove.
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        self.own_tables + self.kube_proxy_tables + self.kube_proxy_chains == 0
    }
}

/// Removes all objects in scope in one transaction.
///
/// # Errors
/// The kernel's error; nothing is removed then.
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
    let (removed, batch) = prepare(kernel, scope)?;
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

/// The leftovers of kube-proxy in one table of iptables-nft.
#[derive(Debug, PartialEq, Eq)]
struct Leftovers {
    /// The rules outside of kube-proxy's chains that jump to them: chain and handle.
    jumps: Vec<(String, u64)>,
    /// The chains to delete.
    chains: BTreeSet<String>,
    /// The chains that must stay.
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
                if is_entry {
                    jumps.push((rule.chain.clone(), rule.handle));
                } else {
                    kept.insert(target);
                }
            }
        }
        // A kept chain stays unchanged, with all chains that it jumps to.
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
        // A chain can be deleted only without jumps to it, so all chains are flushed first.
        for chain in &self.chains {
            batch.flush_chain(family, table, chain);
        }
        for chain in &self.chains {
            batch.delete_chain(family, table, chain);
        }
    }
}

/// Returns true for the name of a chain of kube-proxy.
pub(crate) fn is_kube_proxys(chain: &str) -> bool {
    CHAINS.contains(&chain) || PREFIXES.iter().any(|prefix| chain.starts_with(prefix))
}
