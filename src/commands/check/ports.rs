//! The ports for health and metrics: other processes that listen there.

use std::fmt;
use std::net::SocketAddr;

use nfnetlink::sock_diag::{SockDiag, Transport, WaitingSocket};

use super::{Line, others, some_of};
use crate::config::Config;
use crate::dataplane::kube_proxy::Found;
use crate::taken_ports::socket_owners::{Process, owners};

/// The names of the lines.
pub(super) const NAMES: [&str; 2] = ["healthz-port", "metrics-port"];

/// The configured addresses, and the sockets that listen.
#[derive(Debug, Clone)]
pub(super) struct Facts {
    healthz: Option<SocketAddr>,
    metrics: Option<SocketAddr>,
    hard_fail: bool,
    listeners: Result<Vec<Listener>, String>,
    /// The process ID of a running agent, 0 if it is not visible here.
    agent: Option<i32>,
    /// Rules of kube-proxy are here.
    has_kube_proxy: bool,
}

/// A listening TCP socket.
#[derive(Debug, Clone)]
struct Listener {
    socket: WaitingSocket,
    /// The process, if visible.
    process: Option<Process>,
}

impl fmt::Display for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = SocketAddr::new(self.socket.address, self.socket.port);
        match &self.process {
            Some(process) => write!(f, "{process} on {address}"),
            None => write!(f, "a process that is not visible here on {address}"),
        }
    }
}

impl Facts {
    pub(super) fn gather(config: &Config, others: &others::Facts) -> Facts {
        let (healthz, metrics) = (config.healthz_bind_address, config.metrics_bind_address);
        let sockets = SockDiag::open().and_then(|mut kernel| kernel.waiting(Transport::Tcp));
        let listeners = sockets.map_err(|error| error.to_string()).map(|mut sockets| {
            sockets
                .retain(|it| [healthz, metrics].iter().flatten().any(|bind| conflict(*bind, it)));
            let processes = owners(&sockets.iter().map(|socket| socket.inode).collect());
            let listener = |socket: WaitingSocket| Listener {
                process: processes.get(&socket.inode).cloned(),
                socket,
            };
            sockets.into_iter().map(listener).collect()
        });
        Facts {
            healthz,
            metrics,
            hard_fail: config.bind_address_hard_fail,
            listeners,
            agent: others.agent.as_ref().ok().copied().flatten(),
            has_kube_proxy: others.kube_proxy.as_ref().is_ok_and(Found::has_rules),
        }
    }
}

/// Returns true if a socket cannot listen on `bind` because of another one.
fn conflict(bind: SocketAddr, taken: &WaitingSocket) -> bool {
    // The agent listens for both families on an unspecified address.
    bind.port() == taken.port && (bind.ip().is_unspecified() || taken.accepts(bind.ip()))
}

pub(super) fn judge(facts: &Facts) -> [Line; 2] {
    let [healthz, metrics] = NAMES;
    [
        port(facts, healthz, "healthzBindAddress", facts.healthz),
        port(facts, metrics, "metricsBindAddress", facts.metrics),
    ]
}

fn port(facts: &Facts, name: &'static str, field: &str, bind: Option<SocketAddr>) -> Line {
    let Some(bind) = bind else { return Line::ok(name, format!("{field} is empty: no server")) };
    let listeners = match &facts.listeners {
        Ok(listeners) => listeners.iter(),
        Err(error) => return Line::skip(name, format!("sockets cannot be listed: {error}")),
    };
    let taken: Vec<&Listener> = listeners.filter(|it| conflict(bind, &it.socket)).collect();
    if taken.is_empty() {
        return Line::ok(name, format!("{bind} is free"));
    }
    let text = format!("{bind} is taken by {}", some_of(&taken));
    // Any user can give a process any name.
    let ends_with_the_switch = taken.iter().all(|listener| match &listener.process {
        Some(process) if process.name == "kube-proxy" => {
            facts.has_kube_proxy && listener.socket.uid == 0
        }
        Some(process) => i32::try_from(process.process).ok() == facts.agent,
        None => facts.agent.is_some() || facts.has_kube_proxy,
    });
    if ends_with_the_switch {
        let remedy = "nothing to do if kube-proxy or, in an update, the old shunt holds this port: \
                      it becomes free when that process ends";
        return Line::warn(name, text, remedy);
    }
    let remedy = format!("free the port, or set {field} to another one");
    // Without metrics, Services work; without health, probes and load balancers fail.
    match name == NAMES[0] || facts.hard_fail {
        true => Line::fail(name, text, remedy),
        false => Line::warn(name, text, remedy),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Outcome::{Fail, Ok as Good, Warn};
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

    fn facts(process: Option<&str>, taken: &str) -> Facts {
        Facts {
            healthz: Some(address("0.0.0.0:10256")),
            metrics: Some(address("127.0.0.1:10249")),
            hard_fail: false,
            listeners: Ok(vec![Listener {
                socket: socket(taken),
                process: process.map(|name| Process { process: 7, name: name.to_owned() }),
            }]),
            agent: None,
            has_kube_proxy: false,
        }
    }

    #[test]
    fn port_of_another_process_fails_for_health_only() {
        let results = |facts: &Facts| judge(facts).map(|line| line.result);
        let other = facts(Some("nginx"), "0.0.0.0:10256");
        assert_eq!(results(&other), [Fail, Good]);
        let text = "0.0.0.0:10256 is taken by nginx (process 7) on 0.0.0.0:10256";
        assert_eq!(judge(&other)[0].text, text);
        let metrics = facts(None, "0.0.0.0:10249");
        assert_eq!(results(&metrics), [Good, Warn]);
        assert_eq!(results(&Facts { hard_fail: true, ..metrics }), [Good, Fail]);
        for (name, agent, has_kube_proxy, user, expected) in [
            ("kube-proxy", None, true, 0, Warn),
            ("kube-proxy", None, false, 0, Fail),
            ("kube-proxy", None, true, 1, Fail),
            ("shunt", Some(7), false, 0, Warn),
            ("shunt", Some(8), true, 0, Fail),
            ("shunt", Some(0), true, 0, Fail),
            ("shunt", None, true, 0, Fail),
        ] {
            let mut facts = Facts { agent, has_kube_proxy, ..facts(Some(name), "127.0.0.1:10256") };
            facts.listeners.as_mut().expect("a listing")[0].socket.uid = user;
            assert_eq!(results(&facts), [expected, Good], "{facts:?}");
        }
        let hidden = facts(None, "127.0.0.1:10256");
        assert_eq!(results(&hidden), [Fail, Good]);
        assert_eq!(results(&Facts { has_kube_proxy: true, ..hidden.clone() }), [Warn, Good]);
        assert_eq!(results(&Facts { healthz: None, ..hidden }), [Good, Good]);
    }
}
