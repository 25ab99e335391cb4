//! Other implementations of Services on this node: kube-proxy, another shunt, network plugins.

use std::time::Duration;

use nfnetlink::nft::Socket;
use nfnetlink::route::Link;

use super::{Line, some_of};
use crate::dataplane::kube_proxy::{self, Found};
use crate::serve::presence::{Peer, connect_to_agent};

/// How long a running agent may take to accept a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(500);

/// Interfaces that a network plugin makes, with the plugin and the setting by which it implements
/// Services itself. An interface shows the plugin, not the setting.
const PLUGINS: [(&str, &str, &str); 5] = [
    (
        "cilium_host",
        "Cilium, which handles Services before nf_tables if its kube-proxy replacement is on",
        "set kubeProxyReplacement=false in Cilium (`cilium-dbg status` shows it), or keep Cilium's",
    ),
    (
        "bpfin.cali",
        "Calico with its eBPF dataplane, which handles Services before nf_tables",
        "set bpfEnabled: false in Calico's FelixConfiguration, or keep Calico's",
    ),
    (
        "kube-dummy-if",
        "kube-router's service proxy, with the addresses of Services",
        "start kube-router with --run-service-proxy=false, and run `kube-router --cleanup-config`",
    ),
    (
        "antrea-gw0",
        "Antrea, which handles ClusterIPs of pods if AntreaProxy is on",
        "look up antreaProxy in Antrea's configuration; with proxyAll, keep Antrea's",
    ),
    (
        "ovn-k8s-mp0",
        "OVN-Kubernetes, which implements Services itself",
        "keep OVN-Kubernetes's; shunt has nothing to do on this node",
    ),
];

/// The findings on this node.
#[derive(Debug, Clone)]
pub(super) struct Facts {
    pub(super) kube_proxy: Result<Found, String>,
    /// The process ID of a running agent, 0 if it is not visible here.
    pub(super) agent: Result<Option<i32>, String>,
    interfaces: Vec<String>,
}

impl Facts {
    pub(super) fn gather(links: &Result<Vec<Link>, String>) -> Facts {
        let found = Socket::open().and_then(|mut socket| kube_proxy::find(&mut socket));
        let agent = connect_to_agent(CONNECT_TIMEOUT);
        let links = links.iter().flatten();
        Facts {
            kube_proxy: found.map_err(|error| error.to_string()),
            agent: agent
                .map(|found| found.map(|(_, agent)| agent.process))
                .map_err(|error| error.to_string()),
            interfaces: links.map(|link| link.name.clone()).collect(),
        }
    }
}

pub(super) fn judge(facts: &Facts) -> [Line; 3] {
    [kube_proxy(facts), agent(facts), plugins(facts)]
}

fn kube_proxy(facts: &Facts) -> Line {
    const NAME: &str = "kube-proxy";
    let found = match &facts.kube_proxy {
        Ok(found) => found,
        Err(error) => return Line::skip(NAME, format!("rules cannot be listed: {error}")),
    };
    if found.is_nothing() {
        return Line::ok(NAME, "no process visible, no rules");
    }
    let remedy = match found.processes.is_empty() {
        false => "stop it, start shunt here, then run `shunt cleanup --kube-proxy --keep-own`",
        true => {
            "if kube-proxy still runs here (its process is visible only with hostPID), stop it; with \
             shunt running, run `shunt cleanup --kube-proxy --keep-own`"
        }
    };
    let guide = found.guide().map(|guide| format!("; see {guide} for what changes"));
    Line::warn(NAME, format!("found {found}"), remedy.to_owned() + &guide.unwrap_or_default())
}

fn agent(facts: &Facts) -> Line {
    const NAME: &str = "other-agent";
    match &facts.agent {
        Ok(None) => Line::ok(NAME, "no other shunt runs in this network namespace"),
        Ok(Some(process)) => {
            let process = Peer::name(*process);
            Line::warn(
                NAME,
                format!("another shunt ({process}) programs this network namespace"),
                "nothing to do for an update; otherwise stop it: a second one waits until it ends",
            )
        }
        Err(error) => Line::skip(NAME, format!("the lock cannot be read: {error}")),
    }
}

fn plugins(facts: &Facts) -> Line {
    const NAME: &str = "service-implementation";
    let found: Vec<_> = PLUGINS
        .iter()
        .filter(|(interface, ..)| facts.interfaces.iter().any(|name| name == interface))
        .collect();
    let text = some_of(found.iter().map(|(name, what, _)| format!("interface {name}: {what}")));
    match found.is_empty() {
        true => Line::ok(NAME, "no interface of a network plugin that implements Services"),
        false => {
            let remedies: Vec<&str> = found.iter().map(|(.., remedy)| *remedy).collect();
            Line::warn(NAME, text, remedies.join("; "))
        }
    }
}
