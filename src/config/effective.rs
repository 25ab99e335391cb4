//! Validation: from the written configuration to the values in force.
//!
//! The rules are kube-proxy's (`pkg/proxy/apis/config/validation`). In the sections of modes that
//! are not in use, which kube-proxy does not validate, errors are warnings.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use ipnet::IpNet;
use serde_json::Value;
use shunt_core::model::{Balancing, Family};
use shunt_core::plan::Options;

use super::content_type::content_type;
use super::defaults::{Mode, PRIMARY, is_hash, prefixes_of};
use super::{Config, Configuration, DetectLocal, GoDuration, LogFormat, NodePortAddresses};
use crate::flows::sysctl;
use crate::source::spanned_yaml::{Diagnostics, Severity, parse_ip_sloppy, parse_net};

/// The longest name of a network interface (IFNAMSIZ without the zero at its end).
const INTERFACE_NAME: usize = 15;

/// The only feature gate with an effect: without it, `spec.externalIPs` count for nothing (KEP-5707).
const EXTERNAL_IPS: &str = "AllowServiceExternalIPs";

/// Validates and adds all findings to `check`. If one of them is an error, the result must not
/// be used. `full` is `written` with its defaults.
pub(super) fn effective(
    written: &Configuration,
    full: &Configuration,
    check: &mut Diagnostics,
) -> Config {
    gates(written, check);
    mode(written, check);
    let bind_address = full
        .text("bindAddress")
        .and_then(|text| check.valid("bindAddress", text, parse_ip_sloppy(text)));
    let (sync_period, min_sync_period) = periods(written, full, check);
    let detect_local = detect_local(written, full, check);
    let node_port_addresses = node_port_addresses(written, full, check);
    note_loopback(written, full, check);
    let options = Options {
        ignore_external_ips: full.is(&format!("featureGates.{EXTERNAL_IPS}"), false),
        node_address: bind_address.filter(|address| !address.is_unspecified()),
        detect_local,
        node_port_addresses,
        masquerade_bit: masquerade_bit(written, full, check),
        masquerade_all: full.is("nftables.masqueradeAll", true),
        reset_gone_endpoints: full.is("shunt.resetGoneEndpoints", true),
        balancing: load_balancing(written, full, check),
        ..Options::default()
    };
    Config {
        options,
        node_name: node_name(full, check),
        kubeconfig: full.text("clientConnection.kubeconfig").map(Into::into),
        content_type: content_type(full, check),
        master: None,
        healthz_bind_address: listen_address(full, "healthzBindAddress", check),
        metrics_bind_address: listen_address(full, "metricsBindAddress", check),
        bind_address_hard_fail: full.is("bindAddressHardFail", true),
        sync_period,
        min_sync_period,
        conntrack: conntrack(full, check),
        oom_score_adj: oom_score_adj(full, check),
        log_format: log_format(full, check),
        verbosity: full
            .number("logging.verbosity")
            .map_or(0, |it| it.try_into().unwrap_or(u8::MAX)),
    }
}

fn gates(written: &Configuration, check: &mut Diagnostics) {
    let gates = written.get("featureGates").and_then(Value::as_object).into_iter().flatten();
    for (name, on) in gates.filter(|(name, _)| *name != EXTERNAL_IPS) {
        let value = format!("{name}={on}");
        check.add(Severity::Note, &"featureGates", Some(&value), "has no effect");
    }
}

fn mode(written: &Configuration, check: &mut Diagnostics) {
    match written.text("mode") {
        None | Some("nftables") => {}
        Some(mode @ ("iptables" | "ipvs")) => {
            let mut reason = "shunt programs nftables in every mode; write nftables".to_owned();
            let localhost = mode == "iptables" && !written.is("iptables.localhostNodePorts", false);
            if written.is_unset("nodePortAddresses") {
                let (list, also) = match localhost {
                    true => (", 127.0.0.0/8", " and on 127.0.0.1"),
                    false => ("", ""),
                };
                reason.push_str(&format!(
                    ", and nodePortAddresses: [0.0.0.0/0, '::/0'{list}] to keep node ports on \
                     every local address{also}; with mode nftables they are on the primary \
                     addresses only",
                ));
            }
            reason.push_str("; see docs/from-kube-proxy.md for what changes");
            check.add(Severity::Warning, &"mode", Some(&mode), reason);
        }
        Some(mode) => check.error("mode", mode, "unknown mode; write nftables"),
    }
}

/// Validates both bits, wherever they were written. kube-proxy always validates that of iptables,
/// and that of nftables only in its mode.
fn masquerade_bit(written: &Configuration, full: &Configuration, check: &mut Diagnostics) -> u8 {
    let valid = |bit: i64| u8::try_from(bit).ok().filter(|bit| *bit < 32);
    for field in ["iptables.masqueradeBit", "nftables.masqueradeBit"] {
        if let Some(bit) = written.number(field).filter(|bit| valid(*bit).is_none()) {
            check.error(field, bit, "not a bit of the mark; write 0 to 31");
        }
    }
    for (field, is_set) in [
        ("masqueradeBit", written.number("iptables.masqueradeBit").is_some_and(|bit| bit != 14)),
        ("masqueradeAll", written.is("iptables.masqueradeAll", true)),
    ] {
        if is_set && Mode::of(written) == Mode::Nftables {
            let reason = format!("has no effect in mode nftables; write nftables.{field}");
            check.note(format_args!("iptables.{field}"), &reason);
        }
    }
    full.number("nftables.masqueradeBit").and_then(valid).unwrap_or_default()
}

/// Validates `syncPeriod` and `minSyncPeriod`. Errors name the section in which they were written.
fn periods(
    written: &Configuration,
    full: &Configuration,
    check: &mut Diagnostics,
) -> (Duration, Duration) {
    const SYNC: &str = "nftables.syncPeriod";
    const MIN: &str = "nftables.minSyncPeriod";
    // That of another mode moves to nftables, where a negative one is zero.
    for section in BTreeSet::from(["nftables", Mode::of(written).section()]) {
        for name in ["syncPeriod", "minSyncPeriod"] {
            period(written, &format!("{section}.{name}"), check);
        }
    }
    let time = |field| full.duration(field).and_then(GoDuration::get).unwrap_or_default();
    let (sync, min) = (time(SYNC), time(MIN));
    if min > sync {
        let section = |own| match written.is_unset(own) {
            true => Mode::of(written).section(),
            false => "nftables",
        };
        let reason = format!("longer than {}.syncPeriod; write a shorter time", section(SYNC));
        let written = full.text(MIN).unwrap_or_default();
        check.error(format_args!("{}.minSyncPeriod", section(MIN)), written, reason);
    }
    (sync, min)
}

/// Returns the duration in a field.
fn period(configuration: &Configuration, field: &str, check: &mut Diagnostics) -> Duration {
    let period = configuration.duration(field).unwrap_or_default();
    period.get().unwrap_or_else(|| {
        let written = configuration.text(field).unwrap_or_default();
        check.error(field, written, "negative duration; write a positive one");
        Duration::ZERO
    })
}

/// Validates the section `conntrack`.
fn conntrack(full: &Configuration, check: &mut Diagnostics) -> sysctl::ConntrackSettings {
    let mut number = |field| {
        let written = full.number(field).unwrap_or_default();
        u32::try_from(written).unwrap_or_else(|_| {
            check.error(field, written, "negative; write 0 or more");
            0
        })
    };
    let (max_per_core, min) = (number("conntrack.maxPerCore"), number("conntrack.min"));
    let mut time = |field| period(full, field, check);
    sysctl::ConntrackSettings {
        max_per_core,
        min,
        tcp_established_timeout: time("conntrack.tcpEstablishedTimeout"),
        tcp_close_wait_timeout: time("conntrack.tcpCloseWaitTimeout"),
        tcp_be_liberal: full.is("conntrack.tcpBeLiberal", true),
        udp_timeout: time("conntrack.udpTimeout"),
        udp_stream_timeout: time("conntrack.udpStreamTimeout"),
    }
}

fn node_name(full: &Configuration, check: &mut Diagnostics) -> String {
    let written = full.text("hostnameOverride").unwrap_or_default();
    let name = written.trim().to_lowercase();
    if name.is_empty() && !written.is_empty() {
        check.error("hostnameOverride", written, "blank; write the name of the Node");
    }
    name
}

fn oom_score_adj(full: &Configuration, check: &mut Diagnostics) -> i16 {
    let written = full.number("oomScoreAdj").unwrap_or_default();
    let valid = i16::try_from(written).ok().filter(|score| (-1000..=1000).contains(score));
    valid.unwrap_or_else(|| {
        check.error("oomScoreAdj", written, "out of range; write -1000 to 1000");
        0
    })
}

/// Parses an address to listen on; an empty one means no server.
fn listen_address(
    full: &Configuration,
    field: &str,
    check: &mut Diagnostics,
) -> Option<SocketAddr> {
    let written = full.text(field)?;
    let address = match socket_address(written) {
        Some(address) if address.port() == 0 => Err("has port 0; write 1 to 65535".to_owned()),
        Some(address) => Ok(address),
        None => Err("not an address to listen on; write one such as 0.0.0.0:10256".to_owned()),
    };
    check.valid(field, written, address)
}

/// Parses an address and a port. Both may have leading zeros, as for Go.
fn socket_address(text: &str) -> Option<SocketAddr> {
    let (host, port) = text.rsplit_once(':')?;
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let address = match bare {
        Some(bare) => parse_ip_sloppy(bare).ok()?,
        None => parse_ip_sloppy(host).ok().filter(|_| !host.contains(':'))?,
    };
    Some(SocketAddr::new(address, port.parse().ok()?))
}

fn detect_local(
    written: &Configuration,
    full: &Configuration,
    check: &mut Diagnostics,
) -> DetectLocal {
    let field = "detectLocalMode";
    match full.text(field).unwrap_or_default() {
        "ClusterCIDR" => {
            let cidrs = cluster_cidrs(full, check);
            if !cidrs.is_empty() {
                return DetectLocal::ClusterCidr(cidrs);
            }
            if !written.is_unset(field) && full.is_unset("clusterCIDR") {
                let reason = "clusterCIDR is empty, so shunt cannot detect traffic of local pods; \
                              write clusterCIDR";
                check.add(Severity::Note, &field, Some(&"ClusterCIDR"), reason);
            }
            DetectLocal::Off
        }
        "NodeCIDR" => DetectLocal::NodeCidr,
        "BridgeInterface" => interface(full, "detectLocal.bridgeInterface", check)
            .map_or(DetectLocal::Off, DetectLocal::BridgeInterface),
        "InterfaceNamePrefix" => interface(full, "detectLocal.interfaceNamePrefix", check)
            .map_or(DetectLocal::Off, DetectLocal::InterfaceNamePrefix),
        mode => {
            let reason = "unknown mode; write ClusterCIDR, NodeCIDR, BridgeInterface or \
                          InterfaceNamePrefix";
            check.error(field, mode, reason);
            DetectLocal::Off
        }
    }
}

fn interface(full: &Configuration, at: &str, check: &mut Diagnostics) -> Option<String> {
    match full.text(at) {
        None => {
            let reason = "required by this detectLocalMode; write the name of the interface";
            check.missing(at, reason);
            None
        }
        Some(name) if name.len() > INTERFACE_NAME => {
            let reason =
                format!("longer than {INTERFACE_NAME} bytes; write the name of an interface");
            check.error(at, name, reason);
            None
        }
        Some(name) => Some(name.to_owned()),
    }
}

/// Parses one prefix, or one per family.
fn cluster_cidrs(full: &Configuration, check: &mut Diagnostics) -> Vec<IpNet> {
    let field = "clusterCIDR";
    let mut nets: Vec<IpNet> = Vec::new();
    let Some(written) = full.text(field) else {
        return nets;
    };
    for text in written.split(',') {
        let Some(net) = check.valid(field, text, parse_net(text)) else {
            continue;
        };
        if nets.iter().any(|other| Family::of_net(other) == Family::of_net(&net)) {
            check.error(field, written, "two prefixes of one family; write at most one of each");
            break;
        }
        nets.push(net);
    }
    nets
}

fn is_of_both_families(nets: &[IpNet]) -> bool {
    Family::ALL.iter().all(|family| nets.iter().any(|net| Family::of_net(net) == *family))
}

fn node_port_addresses(
    written: &Configuration,
    full: &Configuration,
    check: &mut Diagnostics,
) -> NodePortAddresses {
    let field = "nodePortAddresses";
    let mut nets = Vec::new();
    let (mut primary, mut named) = (false, 0);
    let written_count = written.list(field).count();
    for (i, text) in full.list(field).enumerate() {
        primary |= text == PRIMARY;
        for prefix in prefixes_of(text).into_iter().filter(|prefix| *prefix != PRIMARY) {
            nets.extend(check.valid(format_args!("{field}[{i}]"), text, parse_net(prefix)));
        }
        if i < written_count {
            named = nets.len();
        }
    }
    let cluster = full.text("clusterCIDR").unwrap_or_default().split(',');
    let cluster: Vec<IpNet> = cluster.filter_map(|net| parse_net(net).ok()).collect();
    let is_named = written_count > 0 && !primary;
    if is_named && is_of_both_families(&cluster) && !is_of_both_families(&nets[..named]) {
        let reason = "has prefixes of one family only, while clusterCIDR has both; node ports of \
                      the other family are on all addresses; write prefixes for it, too";
        check.add(Severity::Warning, &field, None, reason);
    }
    NodePortAddresses { primary, nets }
}

/// A loopback prefix opts in. In kube-proxy's iptables mode, `localhostNodePorts` can opt out.
fn note_loopback(written: &Configuration, full: &Configuration, check: &mut Diagnostics) {
    if !written.is_unset("nodePortAddresses")
        && full.list("nodePortAddresses").ne(written.list("nodePortAddresses"))
        && Mode::of(written) == Mode::Iptables
        && full.is("iptables.localhostNodePorts", false)
    {
        let reason = "iptables.localhostNodePorts is false: node ports are not on 127.0.0.1";
        check.note("nodePortAddresses", reason);
    }
}

fn load_balancing(
    written: &Configuration,
    full: &Configuration,
    check: &mut Diagnostics,
) -> Balancing {
    if let Some(scheduler) = written.text("ipvs.scheduler") {
        let own = written.text("shunt.loadBalancing");
        let reason = match Mode::of(written) {
            Mode::Ipvs if own.is_some() => Some("has no effect: shunt.loadBalancing overrides it"),
            Mode::Ipvs if is_hash(scheduler) => None,
            Mode::Ipvs => Some(
                "shunt chooses endpoints at random, which spreads connections as rr does; for \
                 weights see docs/load-balancing.md",
            ),
            _ => Some("has no effect in this mode; write shunt.loadBalancing"),
        };
        if let Some(reason) = reason {
            check.add(Severity::Note, &"ipvs.scheduler", Some(&scheduler), reason);
        }
    }
    let word = full.text("shunt.loadBalancing").unwrap_or_default();
    let balancing = check.valid("shunt.loadBalancing", word, word.parse());
    balancing.unwrap_or_default()
}

fn log_format(full: &Configuration, check: &mut Diagnostics) -> LogFormat {
    match full.text("logging.format") {
        Some("json") => LogFormat::Json,
        Some("text") | None => LogFormat::Text,
        Some(format) => {
            check.error("logging.format", format, "unknown format; write text or json");
            LogFormat::Text
        }
    }
}
