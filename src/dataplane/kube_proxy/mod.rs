//! kube-proxy on this node: its process, and its leftovers in the kernel.
//!
//! Owns: finding them ([`find`]), and removing IPVS services and their interface ([`remove_ipvs`]).
//! [`remove`](super::remove()) removes leftovers in nf_tables, in one transaction.
//!
//! Guarantees: finding changes nothing, loads no kernel module and starts no process. Must not
//! know: logs and metrics of the findings.

mod ipvs;

use std::fmt;
use std::fs;

use nfnetlink::nft::{Error, Kernel, TableFamily};
use nfnetlink::xtables::legacy_chains;
use serde::{Deserialize, Serialize};

use crate::dataplane::{IPTABLES, KUBE_PROXY, is_kube_proxys};

pub use ipvs::{RemovedIpvs, remove_ipvs};

/// The dummy interface with the addresses of all Services in IPVS mode.
const IPVS_INTERFACE: &str = "kube-ipvs0";
/// The interfaces of the network namespace of this thread.
const INTERFACES: &str = "/proc/thread-self/net/dev";
/// The virtual services of IPVS; the file exists only if the module is loaded.
const IPVS_SERVICES: &str = "/proc/thread-self/net/ip_vs";
/// The name of kube-proxy's process in `/proc`.
const PROCESS: &str = "kube-proxy";

/// kube-proxy and its leftovers in the network namespace of this thread.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct KubeProxyTraces {
    /// Visible processes: a container sees those of the node only with `hostPID`.
    pub processes: Vec<u32>,
    /// Tables of kube-proxy's nftables mode.
    pub nftables_tables: usize,
    /// kube-proxy's chains in the tables of iptables-nft.
    pub iptables_chains: usize,
    /// kube-proxy's chains in the tables of legacy iptables.
    pub legacy_iptables_chains: usize,
    /// True if the interface of kube-proxy's IPVS mode exists.
    pub ipvs_interface: bool,
    /// Services of IPVS if the interface exists. Without it they belong to other programs.
    pub ipvs_services: usize,
}

impl KubeProxyTraces {
    /// Returns true if nothing of kube-proxy was found.
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        *self == KubeProxyTraces::default()
    }

    /// Returns true if there are rules of kube-proxy, running or not.
    #[must_use]
    pub fn has_rules(&self) -> bool {
        !KubeProxyTraces { processes: Vec::new(), ..self.clone() }.is_nothing()
    }

    /// Returns the page on what to do in place of habits of that mode.
    #[must_use]
    pub fn guide(&self) -> Option<&'static str> {
        match self {
            KubeProxyTraces {
                ipvs_interface: false,
                iptables_chains: 0,
                legacy_iptables_chains: 0,
                ..
            } => None,
            _ => Some("docs/from-kube-proxy.md"),
        }
    }

    /// Returns the count of each kind. The kinds are values of a metric label.
    #[must_use]
    pub fn counts(&self) -> [(&'static str, usize); 6] {
        [
            ("process", self.processes.len()),
            ("nftables_table", self.nftables_tables),
            ("iptables_chain", self.iptables_chains),
            ("legacy_iptables_chain", self.legacy_iptables_chains),
            ("ipvs_interface", self.ipvs_interface.into()),
            ("ipvs_service", self.ipvs_services),
        ]
    }
}

impl fmt::Display for KubeProxyTraces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let processes: Vec<String> = self.processes.iter().map(ToString::to_string).collect();
        let counted = |count: usize, what: &str| match count {
            0 => None,
            1 => Some(format!("1 {what}")),
            _ => Some(format!("{count} {what}s")),
        };
        let parts = [
            (!processes.is_empty())
                .then(|| format!("a running process ({})", processes.join(", "))),
            counted(self.nftables_tables, "nftables table"),
            counted(self.iptables_chains, "iptables-nft chain"),
            counted(self.legacy_iptables_chains, "iptables-legacy chain"),
            self.ipvs_interface.then(|| format!("the interface {IPVS_INTERFACE}")),
            counted(self.ipvs_services, "IPVS service"),
        ];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        f.write_str(if parts.is_empty() { "nothing" } else { "" })?;
        f.write_str(&parts.join(", "))
    }
}

/// Finds kube-proxy and its leftovers in the network namespace of this thread.
///
/// # Errors
/// If the kernel does not list tables or chains.
pub fn find(kernel: &mut dyn Kernel) -> Result<KubeProxyTraces, Error> {
    let ipvs_interface = has_ipvs_interface();
    let mut found = KubeProxyTraces {
        processes: processes(),
        legacy_iptables_chains: legacy_iptables_chains(),
        ipvs_interface,
        ipvs_services: if ipvs_interface { ipvs_services() } else { 0 },
        ..KubeProxyTraces::default()
    };
    for family in [TableFamily::Ip, TableFamily::Ip6] {
        found.nftables_tables += usize::from(kernel.table(family, KUBE_PROXY)?.is_some());
        for table in IPTABLES {
            if kernel.table(family, table)?.is_some() {
                let chains = kernel.chains(family, table)?;
                found.iptables_chains +=
                    chains.iter().filter(|chain| is_kube_proxys(&chain.name)).count();
            }
        }
    }
    Ok(found)
}

fn processes() -> Vec<u32> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let own_namespace = fs::read_link("/proc/thread-self/ns/net").ok();
    let mut processes: Vec<u32> = entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|pid: &u32| {
            let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            name.trim_end() == PROCESS
                && fs::read_link(format!("/proc/{pid}/ns/net")).ok() == own_namespace
        })
        .collect();
    processes.sort_unstable();
    processes
}

fn legacy_iptables_chains() -> usize {
    let families = [TableFamily::Ip, TableFamily::Ip6];
    let chains = families.into_iter().flat_map(|family| {
        legacy_chains(family).unwrap_or_else(|error| {
            tracing::debug!(%error, %family, "cannot list the chains of legacy iptables");
            Vec::new()
        })
    });
    chains.filter(|chain| is_kube_proxys(chain)).count()
}

fn has_ipvs_interface() -> bool {
    let interfaces = fs::read_to_string(INTERFACES).unwrap_or_default();
    interfaces
        .lines()
        .any(|line| line.split(':').next().is_some_and(|n| n.trim() == IPVS_INTERFACE))
}

fn ipvs_services() -> usize {
    fs::read_to_string(IPVS_SERVICES).map_or(0, |text| count_ipvs_services(&text))
}

/// Counts the lines of services. Lines of their servers begin with an arrow.
fn count_ipvs_services(text: &str) -> usize {
    let is_service =
        |line: &&str| ["TCP ", "UDP ", "SCTP ", "FWM "].iter().any(|kind| line.starts_with(kind));
    text.lines().filter(is_service).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_of_ipvs_are_counted_and_their_servers_are_not() {
        let text = "IP Virtual Server version 1.2.1 (size=4096)\n\
                    Prot LocalAddress:Port Scheduler Flags\n  \
                      -> RemoteAddress:Port Forward Weight ActiveConn InActConn\n\
                    TCP  0A600001:01BB rr\n  \
                      -> C0000201:192B      Masq    1      0          0         \n\
                    UDP  [fd00:0096:0000:0000:0000:0000:0000:000a]:0035 rr\n";
        assert_eq!(count_ipvs_services(text), 2);
        assert_eq!(count_ipvs_services(""), 0);
    }

    #[test]
    fn what_was_found_is_said_in_words() {
        let found = KubeProxyTraces {
            processes: vec![7, 8],
            nftables_tables: 1,
            ipvs_interface: true,
            ipvs_services: 2,
            ..KubeProxyTraces::default()
        };
        assert_eq!(
            found.to_string(),
            "a running process (7, 8), 1 nftables table, the interface kube-ipvs0, 2 IPVS services"
        );
        assert_eq!(KubeProxyTraces::default().to_string(), "nothing");
    }
}
