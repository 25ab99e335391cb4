//! Other implementations of Services on this node: kube-proxy, another shunt, network plugins.

use std::time::Duration;

use nfnetlink::nft::Socket;

use super::{Judgement, NodeFacts, ok, some_of, warn};
use crate::dataplane::kube_proxy::{self, KubeProxyTraces};
use crate::serve::presence::{connect_to_agent, name_of};

/// How long a running agent may take to accept a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(500);

/// Interfaces that a network plugin makes, with the plugin and the setting by which it implements
/// Services itself. An interface shows the plugin, not the setting.
const PLUGINS: [(&str, &str, &str); 5] = [
    (
        "cilium_host",
        "Cilium, which handles Services before nf_tables if its kube-proxy replacement is on",
        "set kubeProxyReplacement=false in Cilium (`cilium-dbg status` shows it), or keep Cilium \
         for Services",
    ),
    (
        "bpfin.cali",
        "Calico with its eBPF dataplane, which handles Services before nf_tables",
        "set bpfEnabled: false in Calico's FelixConfiguration, or keep Calico for Services",
    ),
    (
        "kube-dummy-if",
        "kube-router's service proxy, with the addresses of Services",
        "start kube-router with --run-service-proxy=false, and run `kube-router --cleanup-config`",
    ),
    (
        "antrea-gw0",
        "Antrea, which handles ClusterIPs of pods if AntreaProxy is on",
        "look up antreaProxy in Antrea's configuration; with proxyAll, keep Antrea for Services",
    ),
    (
        "ovn-k8s-mp0",
        "OVN-Kubernetes, which implements Services itself",
        "keep OVN-Kubernetes; shunt has nothing to do on this node",
    ),
];

/// Looks for a running agent: its process ID, 0 if it is not visible here.
pub(super) fn find_agent() -> Result<Option<i32>, String> {
    let agent = connect_to_agent(CONNECT_TIMEOUT)
        .map_err(|it| format!("cannot check for another shunt: {it}"));
    Ok(agent?.map(|(_, process)| process))
}

/// Looks for kube-proxy.
pub(super) fn find_kube_proxy() -> Result<KubeProxyTraces, String> {
    let found = Socket::open().and_then(|mut socket| kube_proxy::find(&mut socket));
    found.map_err(|error| format!("cannot list rules: {error}"))
}

pub(super) fn kube_proxy(facts: &NodeFacts<'_>) -> Judgement {
    let found = facts.kube_proxy.as_ref()?;
    if found.is_nothing() {
        return ok("no visible process, no rules");
    }
    let remedy = match found.processes.is_empty() {
        false => "stop it, start shunt here, then run `shunt cleanup --kube-proxy --keep-own`",
        true => {
            "if kube-proxy still runs here (its process is visible only with hostPID), stop it; with \
             shunt running, run `shunt cleanup --kube-proxy --keep-own`"
        }
    };
    let guide = found.guide().map(|guide| format!("; see {guide} for what changes"));
    warn(format!("found {found}"), remedy.to_owned() + &guide.unwrap_or_default())
}

pub(super) fn agent(facts: &NodeFacts<'_>) -> Judgement {
    match facts.agent.as_ref()? {
        None => ok("no other shunt runs in this network namespace"),
        Some(process) => {
            let process = name_of(*process);
            warn(
                format!("another shunt ({process}) programs this network namespace"),
                "nothing to do for an update; otherwise stop it: a second one waits until it ends",
            )
        }
    }
}

pub(super) fn plugins(facts: &NodeFacts<'_>) -> Judgement {
    let found: Vec<_> = PLUGINS
        .iter()
        .filter(|(interface, ..)| facts.links.iter().flatten().any(|link| link.name == *interface))
        .collect();
    let text = some_of(found.iter().map(|(name, what, _)| format!("interface {name}: {what}")));
    match found.is_empty() {
        true => ok("no interface of a network plugin that implements Services"),
        false => {
            let remedies: Vec<&str> = found.iter().map(|(.., remedy)| *remedy).collect();
            warn(text, remedies.join("; "))
        }
    }
}
