//! The ports for health and metrics: other processes that listen there.

use std::net::SocketAddr;

use nfnetlink::sock_diag::{WaitingSocket, waiting};
use shunt_core::model::Protocol;

use super::{Judgement, NodeFacts, fail, ok, some_of, warn};
use crate::dataplane::kube_proxy::KubeProxyTraces;
use crate::taken_ports::socket_owners::{Process, owners};

/// Returns true if a socket cannot listen on `bind` because of another one.
fn conflict(bind: SocketAddr, taken: &WaitingSocket) -> bool {
    // The agent listens for both families on an unspecified address.
    bind.port() == taken.port && (bind.ip().is_unspecified() || taken.accepts(bind.ip()))
}

/// Without health, probes and load balancers fail.
pub(super) fn healthz(facts: &NodeFacts<'_>) -> Judgement {
    let bind = facts.effective.as_ref()?.config.healthz_bind_address;
    port(facts, "healthzBindAddress", bind, true)
}

/// Without metrics, Services work.
pub(super) fn metrics(facts: &NodeFacts<'_>) -> Judgement {
    let config = &facts.effective.as_ref()?.config;
    let is_needed = config.bind_address_hard_fail;
    port(facts, "metricsBindAddress", config.metrics_bind_address, is_needed)
}

fn port(
    facts: &NodeFacts<'_>,
    field: &str,
    bind: Option<SocketAddr>,
    is_needed: bool,
) -> Judgement {
    let Some(bind) = bind else { return ok(format!("{field} is empty: no server")) };
    let sockets = waiting(Protocol::Tcp.number());
    let mut sockets = sockets.map_err(|error| format!("cannot list sockets: {error}"))?;
    sockets.retain(|socket| conflict(bind, socket));
    let processes = owners(&sockets.iter().map(|socket| socket.inode).collect());
    if sockets.is_empty() {
        return ok(format!("{bind} is free"));
    }
    let taken = sockets.iter().map(|socket| {
        let address = SocketAddr::new(socket.address, socket.port);
        match processes.get(&socket.inode) {
            Some(process) => format!("{process} on {address}"),
            None => format!("a process that this command cannot see, on {address}"),
        }
    });
    let text = format!("{bind} is taken by {}", some_of(taken));
    let agent = facts.agent.as_ref().ok().copied().flatten();
    let has_kube_proxy = facts.kube_proxy.as_ref().is_ok_and(KubeProxyTraces::has_rules);
    let ends = |socket: &WaitingSocket| {
        ends_with_the_switch(socket, processes.get(&socket.inode), agent, has_kube_proxy)
    };
    if sockets.iter().all(ends) {
        let remedy = "nothing to do if kube-proxy or, in an update, the old shunt holds this port: \
                      it becomes free when that process ends";
        return warn(text, remedy);
    }
    let remedy = format!("free the port, or set {field} to another one");
    if is_needed { fail(text, remedy) } else { warn(text, remedy) }
}

/// Returns true for kube-proxy and another shunt. Any user can give a process any name.
fn ends_with_the_switch(
    socket: &WaitingSocket,
    process: Option<&Process>,
    agent: Option<i32>,
    has_kube_proxy: bool,
) -> bool {
    match process {
        Some(process) if process.name == "kube-proxy" => has_kube_proxy && socket.uid == 0,
        Some(process) => i32::try_from(process.process).ok() == agent,
        None => agent.is_some() || has_kube_proxy,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> SocketAddr {
        text.parse().expect("an address")
    }

    fn socket(taken: &str) -> WaitingSocket {
        let taken = address(taken);
        let (address, port) = (taken.ip(), taken.port());
        WaitingSocket { address, port, v6_only: false, interface: None, uid: 0, inode: 1 }
    }

    #[test]
    fn addresses_conflict_if_one_covers_the_other() {
        for (bind, taken, expected) in [
            ("0.0.0.0:1", "127.0.0.1:1", true),
            ("127.0.0.1:1", "0.0.0.0:1", true),
            ("127.0.0.1:1", "127.0.0.1:1", true),
            ("127.0.0.1:1", "192.0.2.1:1", false),
            ("127.0.0.1:1", "127.0.0.1:2", false),
            ("0.0.0.0:1", "[::1]:1", true),
            ("[::1]:1", "0.0.0.0:1", false),
            ("0.0.0.0:1", "[::]:1", true),
            ("[::]:1", "192.0.2.1:1", true),
        ] {
            assert_eq!(conflict(address(bind), &socket(taken)), expected, "{bind} {taken}");
        }
    }

    #[test]
    fn only_kube_proxy_and_an_agent_free_their_ports() {
        for (name, agent, has_kube_proxy, uid, expected) in [
            (Some("nginx"), None, false, 0, false),
            (Some("kube-proxy"), None, true, 0, true),
            (Some("kube-proxy"), None, false, 0, false),
            (Some("kube-proxy"), None, true, 1, false),
            (Some("shunt"), Some(7), false, 0, true),
            (Some("shunt"), Some(8), true, 0, false),
            (Some("shunt"), Some(0), true, 0, false),
            (Some("shunt"), None, true, 0, false),
            (None, None, false, 0, false),
            (None, None, true, 0, true),
        ] {
            let process = name.map(|name| Process { process: 7, name: name.to_owned() });
            let socket = WaitingSocket { uid, ..socket("127.0.0.1:10256") };
            let found = ends_with_the_switch(&socket, process.as_ref(), agent, has_kube_proxy);
            assert_eq!(found, expected, "{process:?} {agent:?} {has_kube_proxy}");
        }
    }
}
