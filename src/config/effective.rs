//! Defaults and validation: from what was written to the values in force.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use ipnet::IpNet;

use crate::conntrack::sysctl;
use crate::document::{At, Problem, Severity, parse_ip, parse_net};

use super::raw::{Configuration, GoDuration};
use super::{Config, DetectLocal, LogFormat, NodePortAddresses};

const HEALTHZ_PORT: u16 = 10_256;
const METRICS_PORT: u16 = 10_249;
const MASQUERADE_BIT: u8 = 14;
const SYNC_PERIOD: GoDuration = GoDuration::from_secs(30);
const CONFIG_SYNC_PERIOD: GoDuration = GoDuration::from_secs(900);

/// The longest name of a network interface (IFNAMSIZ without the zero at its end).
const INTERFACE_NAME: usize = 15;

const IPTABLES: At<'_> = At::top("iptables");
const NFTABLES: At<'_> = At::top("nftables");

/// Fills in defaults and validates, adding all that is wrong to `problems`. If one of them is an
/// error, the result is not to be used.
pub(super) fn effective(raw: &Configuration, problems: &mut Vec<Problem>) -> Config {
    let mut check = Check { problems };
    let nftables_mode = mode(raw, &mut check);
    check_unused(raw, &mut check);

    let bind_address = text(&raw.bind_address)
        .and_then(|text| check.value(At::top("bindAddress"), text, parse_ip(text)));
    let v6 = bind_address.is_some_and(|address| address.is_ipv6());
    let any: IpAddr = if v6 { [0; 8].into() } else { [0; 4].into() };
    let loopback: IpAddr = if v6 {
        std::net::Ipv6Addr::LOCALHOST.into()
    } else {
        std::net::Ipv4Addr::LOCALHOST.into()
    };

    // In the other modes kube-proxy takes these from the section for iptables. Who used them there
    // wants the same from us.
    let other_bit = masquerade_bit(raw.iptables.masquerade_bit, &IPTABLES, &mut check);
    let bit = masquerade_bit(raw.nftables.masquerade_bit, &NFTABLES, &mut check)
        .or(other_bit.filter(|_| !nftables_mode));
    let masquerade_all =
        raw.nftables.masquerade_all || (!nftables_mode && raw.iptables.masquerade_all);
    if nftables_mode && raw.iptables.masquerade_all {
        let reason = "has no effect in mode nftables: write nftables.masqueradeAll";
        check.add(Severity::Note, IPTABLES.field("masqueradeAll"), None, reason);
    }

    let set = |period: Option<GoDuration>| period.filter(|period| !period.is_zero());
    let sync_period = check
        .period(NFTABLES.field("syncPeriod"), set(raw.nftables.sync_period).unwrap_or(SYNC_PERIOD));
    let min_sync_period = check
        .period(NFTABLES.field("minSyncPeriod"), raw.nftables.min_sync_period.unwrap_or_default());
    if min_sync_period > sync_period {
        let at = NFTABLES.field("minSyncPeriod");
        let value = raw.nftables.min_sync_period.unwrap_or_default();
        check.error(at, value, "longer than nftables.syncPeriod; write a shorter time");
    }

    Config {
        hostname_override: hostname(raw, &mut check),
        kubeconfig: text(&raw.client_connection.kubeconfig).map(Into::into),
        bind_address: bind_address.filter(|address| !address.is_unspecified()),
        healthz_bind_address: listen_address(
            At::top("healthzBindAddress"),
            raw.healthz_bind_address.as_deref(),
            (any, HEALTHZ_PORT).into(),
            &mut check,
        ),
        metrics_bind_address: listen_address(
            At::top("metricsBindAddress"),
            raw.metrics_bind_address.as_deref(),
            (loopback, METRICS_PORT).into(),
            &mut check,
        ),
        detect_local: detect_local(raw, &mut check),
        node_port_addresses: node_port_addresses(raw, &mut check),
        masquerade_bit: bit.unwrap_or(MASQUERADE_BIT),
        masquerade_all,
        sync_period,
        min_sync_period,
        conntrack: conntrack(raw),
        log_format: log_format(raw, &mut check),
        verbosity: verbosity(raw, &mut check),
    }
}

/// Collects problems.
struct Check<'p> {
    problems: &'p mut Vec<Problem>,
}

impl Check<'_> {
    fn add(
        &mut self,
        severity: Severity,
        at: At<'_>,
        value: Option<&dyn fmt::Display>,
        reason: impl Into<String>,
    ) {
        let problem = Problem::new(severity, at.path(), reason);
        self.problems.push(match value {
            Some(value) => problem.with_value(value),
            None => problem,
        });
    }

    fn error(&mut self, at: At<'_>, value: impl fmt::Display, reason: impl Into<String>) {
        self.add(Severity::Error, at, Some(&value), reason);
    }

    /// The value, or its problem.
    fn value<T>(&mut self, at: At<'_>, text: &str, value: Result<T, String>) -> Option<T> {
        value.map_err(|reason| self.error(at, text, reason)).ok()
    }

    fn period(&mut self, at: At<'_>, period: GoDuration) -> Duration {
        period.get().unwrap_or_else(|| {
            self.error(at, period, "a negative duration; write a positive one");
            Duration::ZERO
        })
    }
}

/// The text, if there is any.
fn text(field: &Option<String>) -> Option<&str> {
    field.as_deref().filter(|text| !text.is_empty())
}

fn mode(raw: &Configuration, check: &mut Check<'_>) -> bool {
    match text(&raw.mode) {
        Some("nftables") => return true,
        None => {}
        Some(mode @ ("iptables" | "ipvs")) => {
            let reason = "shunt programs nftables, whatever the mode; write nftables";
            check.add(Severity::Warning, At::top("mode"), Some(&mode), reason);
        }
        Some(mode) => check.error(At::top("mode"), mode, "not a mode; write nftables"),
    }
    false
}

/// What is accepted without effect is validated all the same: a typo in it should not wait for the
/// day when the file goes back to kube-proxy.
fn check_unused(raw: &Configuration, check: &mut Check<'_>) {
    let iptables_sync = raw.iptables.sync_period.unwrap_or_default();
    let iptables_min = raw.iptables.min_sync_period.unwrap_or_default();
    let config_sync = raw.config_sync_period.unwrap_or(CONFIG_SYNC_PERIOD);
    let conntrack = At::top("conntrack");
    let ipvs = At::top("ipvs");
    for (at, period) in [
        (IPTABLES.field("syncPeriod"), Some(iptables_sync)),
        (IPTABLES.field("minSyncPeriod"), Some(iptables_min)),
        (At::top("configSyncPeriod"), Some(config_sync)),
        (ipvs.field("syncPeriod"), raw.ipvs.sync_period),
        (ipvs.field("minSyncPeriod"), raw.ipvs.min_sync_period),
        (ipvs.field("tcpTimeout"), raw.ipvs.tcp_timeout),
        (ipvs.field("tcpFinTimeout"), raw.ipvs.tcp_fin_timeout),
        (ipvs.field("udpTimeout"), raw.ipvs.udp_timeout),
        (conntrack.field("tcpEstablishedTimeout"), raw.conntrack.tcp_established_timeout),
        (conntrack.field("tcpCloseWaitTimeout"), raw.conntrack.tcp_close_wait_timeout),
        (conntrack.field("udpTimeout"), raw.conntrack.udp_timeout),
        (conntrack.field("udpStreamTimeout"), raw.conntrack.udp_stream_timeout),
    ] {
        if let Some(period) = period {
            check.period(at, period);
        }
    }
    let client = At::top("clientConnection");
    for (at, number) in [
        (conntrack.field("maxPerCore"), raw.conntrack.max_per_core),
        (conntrack.field("min"), raw.conntrack.min),
        (client.field("burst"), raw.client_connection.burst),
    ] {
        if let Some(number) = number.filter(|number| *number < 0) {
            check.error(at, number, "negative; write 0 or more");
        }
    }
    if let Some(score) = raw.oom_score_adj.filter(|score| !(-1000..=1000).contains(score)) {
        check.error(At::top("oomScoreAdj"), score, "out of range; write -1000 to 1000");
    }
}

/// What the section asks for. kube-proxy sets sysctls also where nobody asked it to; we do not.
fn conntrack(raw: &Configuration) -> sysctl::Settings {
    let raw = &raw.conntrack;
    let defaults = sysctl::Settings::default();
    // Either number asks for a size of the table, which takes both.
    let sized = raw.max_per_core.is_some() || raw.min.is_some();
    let number = |written: Option<i64>, default: u32| match written {
        // Negative numbers have been reported.
        Some(number) => u32::try_from(number).unwrap_or(if number < 0 { 0 } else { u32::MAX }),
        None if sized => default,
        None => 0,
    };
    let time = |written: Option<GoDuration>| written.and_then(GoDuration::get).unwrap_or_default();
    sysctl::Settings {
        max_per_core: number(raw.max_per_core, defaults.max_per_core),
        min: number(raw.min, defaults.min),
        tcp_established_timeout: time(raw.tcp_established_timeout),
        tcp_close_wait_timeout: time(raw.tcp_close_wait_timeout),
        tcp_be_liberal: raw.tcp_be_liberal,
        udp_timeout: time(raw.udp_timeout),
        udp_stream_timeout: time(raw.udp_stream_timeout),
    }
}

fn hostname(raw: &Configuration, check: &mut Check<'_>) -> Option<String> {
    let written = text(&raw.hostname_override)?;
    let name = written.trim().to_lowercase();
    if name.is_empty() {
        check.error(At::top("hostnameOverride"), written, "blank; write the name of the Node");
    }
    Some(name)
}

fn masquerade_bit(bit: Option<i64>, section: &At<'_>, check: &mut Check<'_>) -> Option<u8> {
    let bit = bit?;
    let valid = u8::try_from(bit).ok().filter(|bit| *bit < 32);
    if valid.is_none() {
        check.error(section.field("masqueradeBit"), bit, "not a bit of the mark; write 0 to 31");
    }
    valid
}

/// An address to listen on: `address:port`, or an address that gets the default port.
fn listen_address(
    at: At<'_>,
    written: Option<&str>,
    default: SocketAddr,
    check: &mut Check<'_>,
) -> Option<SocketAddr> {
    match written {
        None => Some(default),
        Some("") => None,
        Some(text) => {
            let address = text
                .parse()
                .or_else(|_| parse_ip(text).map(|ip| (ip, default.port()).into()))
                .map_err(|_| format!("not an address to listen on; write one such as {default}"));
            check.value(at, text, address)
        }
    }
}

fn detect_local(raw: &Configuration, check: &mut Check<'_>) -> DetectLocal {
    let at = At::top("detectLocalMode");
    let section = At::top("detectLocal");
    let cidrs = cluster_cidrs(raw, check);
    match text(&raw.detect_local_mode) {
        None if cidrs.is_empty() => DetectLocal::Off,
        Some("ClusterCIDR") if cidrs.is_empty() => {
            let reason = "clusterCIDR is empty, so traffic of pods is not told from other traffic; \
                          write clusterCIDR";
            check.add(Severity::Warning, at, Some(&"ClusterCIDR"), reason);
            DetectLocal::Off
        }
        None | Some("ClusterCIDR") => DetectLocal::ClusterCidr(cidrs),
        Some("NodeCIDR") => DetectLocal::NodeCidr,
        Some("BridgeInterface") => {
            let at = section.field("bridgeInterface");
            interface(at, &raw.detect_local.bridge_interface, check)
                .map_or(DetectLocal::Off, DetectLocal::BridgeInterface)
        }
        Some("InterfaceNamePrefix") => {
            let at = section.field("interfaceNamePrefix");
            interface(at, &raw.detect_local.interface_name_prefix, check)
                .map_or(DetectLocal::Off, DetectLocal::InterfaceNamePrefix)
        }
        Some(mode) => {
            let reason = "not a mode; write ClusterCIDR, NodeCIDR, BridgeInterface or \
                          InterfaceNamePrefix";
            check.error(at, mode, reason);
            DetectLocal::Off
        }
    }
}

fn interface(at: At<'_>, field: &Option<String>, check: &mut Check<'_>) -> Option<String> {
    match text(field) {
        None => {
            let reason = "is needed with this detectLocalMode";
            check.add(Severity::Error, at, None, reason);
            None
        }
        Some(name) if name.len() > INTERFACE_NAME => {
            let reason =
                format!("longer than the {INTERFACE_NAME} bytes an interface name can have");
            check.error(at, name, reason);
            None
        }
        Some(name) => Some(name.to_owned()),
    }
}

/// One prefix, or one per family.
fn cluster_cidrs(raw: &Configuration, check: &mut Check<'_>) -> Vec<IpNet> {
    let at = At::top("clusterCIDR");
    let mut nets: Vec<IpNet> = Vec::new();
    let Some(written) = text(&raw.cluster_cidr) else {
        return nets;
    };
    for text in written.split(',') {
        let Some(net) = check.value(at, text, parse_net(text)) else {
            continue;
        };
        let is_v4 = |net: &IpNet| matches!(net, IpNet::V4(_));
        if nets.iter().any(|other| is_v4(other) == is_v4(&net)) {
            check.error(at, written, "two prefixes of one family; write at most one of each");
            break;
        }
        nets.push(net);
    }
    nets
}

fn node_port_addresses(raw: &Configuration, check: &mut Check<'_>) -> NodePortAddresses {
    let at = At::top("nodePortAddresses");
    let written = &raw.node_port_addresses;
    if written.is_empty() || (written.len() == 1 && written[0] == "primary") {
        return NodePortAddresses::Primary;
    }
    let mut nets = Vec::new();
    for (i, text) in written.iter().enumerate() {
        if text == "primary" {
            check.error(at.index(i), text, "stands alone; remove the prefixes beside it");
        } else if let Some(net) = check.value(at.index(i), text, parse_net(text)) {
            nets.push(net);
        }
    }
    NodePortAddresses::Cidrs(nets)
}

fn log_format(raw: &Configuration, check: &mut Check<'_>) -> LogFormat {
    match text(&raw.logging.format) {
        None | Some("text") => LogFormat::Text,
        Some("json") => LogFormat::Json,
        Some(format) => {
            let logging = At::top("logging");
            check.error(logging.field("format"), format, "not a format; write text or json");
            LogFormat::Text
        }
    }
}

fn verbosity(raw: &Configuration, check: &mut Check<'_>) -> u8 {
    let verbosity = raw.logging.verbosity.unwrap_or_default();
    if verbosity < 0 {
        let logging = At::top("logging");
        check.error(logging.field("verbosity"), verbosity, "negative; write 0 or more");
    }
    u8::try_from(verbosity.max(0)).unwrap_or(u8::MAX)
}
