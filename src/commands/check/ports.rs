//! The ports for health and metrics: other processes that listen there.

use std::fmt;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::{Line, others, some_of};
use crate::config::Config;
use crate::dataplane::kube_proxy::Found;
use crate::taken_ports::socket_owners::{Process, owners};

/// The names of the lines.
pub(super) const NAMES: [&str; 2] = ["healthz-port", "metrics-port"];

/// `TCP_LISTEN` in `/proc/net/tcp`.
const LISTEN: &str = "0A";

/// The configured addresses, and the sockets that listen.
#[derive(Debug, Clone)]
pub(super) struct Facts {
    healthz: Option<SocketAddr>,
    metrics: Option<SocketAddr>,
    hard_fail: bool,
    listeners: Vec<Listener>,
    /// The process ID of a running agent, 0 if it is not visible here.
    agent: Option<i32>,
    /// Rules of kube-proxy are here.
    has_kube_proxy: bool,
}

/// A listening TCP socket.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Listener {
    address: SocketAddr,
    user: u32,
    inode: u32,
    /// The process, if visible.
    process: Option<Process>,
}

impl fmt::Display for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.process {
            Some(process) => write!(f, "{process} on {}", self.address),
            None => write!(f, "a process that is not visible here on {}", self.address),
        }
    }
}

impl Facts {
    pub(super) fn gather(config: &Config, others: &others::Facts) -> Facts {
        let (healthz, metrics) = (config.healthz_bind_address, config.metrics_bind_address);
        let mut listeners: Vec<Listener> = ["tcp", "tcp6"]
            .iter()
            .filter_map(|file| fs::read_to_string(format!("/proc/thread-self/net/{file}")).ok())
            .flat_map(|text| text.lines().filter_map(parse).collect::<Vec<_>>())
            .collect();
        let wanted = [healthz, metrics];
        listeners.retain(|it| wanted.iter().flatten().any(|bind| conflict(*bind, it.address)));
        let processes = owners(&listeners.iter().map(|listener| listener.inode).collect());
        for listener in &mut listeners {
            listener.process = processes.get(&listener.inode).cloned();
        }
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

/// Returns true if a socket cannot listen on `bind` because another one listens on `taken`.
fn conflict(bind: SocketAddr, taken: SocketAddr) -> bool {
    let (port, bind, other) = (bind.port(), bind.ip(), taken.ip());
    // The agent listens for both families there, and so does a socket on ::.
    let is_any = bind.is_unspecified() || other == IpAddr::V6(Ipv6Addr::UNSPECIFIED);
    let is_of_one_family = bind.is_ipv4() == other.is_ipv4();
    port == taken.port()
        && (is_any || is_of_one_family && (other.is_unspecified() || bind == other))
}

/// Reads a line of `/proc/net/tcp` or `/proc/net/tcp6`; `None` unless the socket listens.
fn parse(line: &str) -> Option<Listener> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let (local, state, inode) = (fields.get(1)?, fields.get(3)?, fields.get(9)?);
    let user = fields.get(7)?.parse().ok()?;
    if *state != LISTEN {
        return None;
    }
    let (address, port) = local.split_once(':')?;
    // The kernel writes each word of an address as a number in host byte order.
    let word = |at: usize| -> Option<[u8; 4]> {
        Some(u32::from_str_radix(address.get(at..at + 8)?, 16).ok()?.to_ne_bytes())
    };
    let ip: IpAddr = match address.len() {
        8 => Ipv4Addr::from(word(0)?).into(),
        32 => {
            let words = [word(0)?, word(8)?, word(16)?, word(24)?];
            Ipv6Addr::from(<[u8; 16]>::try_from(words.concat()).ok()?).to_canonical()
        }
        _ => return None,
    };
    let address = SocketAddr::new(ip, u16::from_str_radix(port, 16).ok()?);
    Some(Listener { address, user, inode: inode.parse().ok()?, process: None })
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
    let taken: Vec<&Listener> =
        facts.listeners.iter().filter(|it| conflict(bind, it.address)).collect();
    if taken.is_empty() {
        return Line::ok(name, format!("{bind} is free"));
    }
    let text = format!("{bind} is taken by {}", some_of(&taken));
    // Any user can give a process any name.
    let ends_with_the_switch = taken.iter().all(|listener| match &listener.process {
        Some(process) if process.name == "kube-proxy" => facts.has_kube_proxy && listener.user == 0,
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

    #[test]
    fn listeners_are_read() {
        let v4 = "   0: 0100007F:2809 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4021 1";
        let listener = parse(v4).expect("a listener");
        assert_eq!((listener.address, listener.inode), (address("127.0.0.1:10249"), 4021));
        let v6 = "   1: 00000000000000000000000000000000:2810 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4022 1";
        assert_eq!(parse(v6).map(|it| it.address), Some(address("[::]:10256")));
        let local = "   1: B80D01200000000000000000010000AA:2810 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4022 1";
        assert_eq!(parse(local).map(|it| it.address), Some(address("[2001:db8::aa00:1]:10256")));
        assert_eq!(parse(&v4.replace(" 0A ", " 01 ")), None);
        assert_eq!(parse("  sl  local_address rem_address   st"), None);
        assert_eq!(parse("0: 01é00:2 0 0A 0 0 0 0 0 1"), None);
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
            assert_eq!(conflict(address(bind), address(taken)), expected, "{bind} {taken}");
        }
    }

    fn facts(process: Option<&str>, taken: &str) -> Facts {
        Facts {
            healthz: Some(address("0.0.0.0:10256")),
            metrics: Some(address("127.0.0.1:10249")),
            hard_fail: false,
            listeners: vec![Listener {
                address: address(taken),
                user: 0,
                inode: 1,
                process: process.map(|name| Process { process: 7, name: name.to_owned() }),
            }],
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
            facts.listeners[0].user = user;
            assert_eq!(results(&facts), [expected, Good], "{facts:?}");
        }
        let hidden = facts(None, "127.0.0.1:10256");
        assert_eq!(results(&hidden), [Fail, Good]);
        assert_eq!(results(&Facts { has_kube_proxy: true, ..hidden.clone() }), [Warn, Good]);
        assert_eq!(results(&Facts { healthz: None, ..hidden }), [Good, Good]);
    }
}
