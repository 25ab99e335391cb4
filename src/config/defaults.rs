//! Defaults of fields that are not set.
//!
//! They are kube-proxy's (`pkg/proxy/apis/config/v1alpha1/defaults.go` and
//! `platformApplyDefaults`), except that there is no minimum time between two commits.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use ipnet::IpNet;
use serde_json::Value;
use shunt_core::model::{Balancing, Family};

use super::{Configuration, FIELDS, NodePortAddresses};
use crate::source::spanned_yaml::{parse_ip_sloppy, parse_net};

const HEALTHZ_PORT: u16 = 10_256;
const METRICS_PORT: u16 = 10_249;
/// The word in `nodePortAddresses` for the node's primary addresses.
pub(super) const PRIMARY: &str = "primary";

/// The proxy mode that a file was written for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    Nftables,
    /// kube-proxy's default, if the file names none.
    Iptables,
    Ipvs,
}

impl Mode {
    /// Returns the mode of a file. An unknown mode counts as none.
    pub(super) fn of(written: &Configuration) -> Mode {
        match written.text("mode") {
            Some("nftables") => Mode::Nftables,
            Some("ipvs") => Mode::Ipvs,
            _ => Mode::Iptables,
        }
    }

    /// Returns kube-proxy's default of `nodePortAddresses` in that mode.
    pub(super) fn node_port_addresses(self) -> &'static [&'static str] {
        match self {
            Mode::Nftables => &["primary"],
            Mode::Iptables | Mode::Ipvs => &["0.0.0.0/0", "::/0"],
        }
    }

    /// Returns the section from which kube-proxy takes the times in that mode.
    pub(super) fn section(self) -> &'static str {
        match self {
            Mode::Nftables => "nftables",
            Mode::Iptables => "iptables",
            Mode::Ipvs => "ipvs",
        }
    }
}

/// Returns the prefixes for which an entry of `nodePortAddresses` stands: a word as in kube-proxy 1.37, or
/// a prefix.
pub(super) fn prefixes_of(entry: &str) -> Vec<&str> {
    match entry {
        "all" => vec!["0.0.0.0/0", "::/0"],
        "localhost" => vec!["127.0.0.0/8", "::1/128"],
        prefix => vec![prefix],
    }
}

/// Returns the written configuration with a value for every field. Its mode is always `nftables`;
/// the values of a file for another mode move from that mode's section to `nftables`.
pub(super) fn fill(written: &Configuration) -> Configuration {
    let mut full = written.clone();
    let mode = Mode::of(written);
    fill_nftables(&mut full, written, mode);
    let is_v6 =
        written.text("bindAddress").is_some_and(|a| parse_ip_sloppy(a).is_ok_and(|a| a.is_ipv6()));
    let (any, loopback): (IpAddr, IpAddr) = match is_v6 {
        true => (Ipv6Addr::UNSPECIFIED.into(), Ipv6Addr::LOCALHOST.into()),
        false => (Ipv4Addr::UNSPECIFIED.into(), Ipv4Addr::LOCALHOST.into()),
    };
    fill_listener(&mut full, "healthzBindAddress", (any, HEALTHZ_PORT).into());
    fill_listener(&mut full, "metricsBindAddress", (loopback, METRICS_PORT).into());
    if full.is_unset("nodePortAddresses") {
        full.put("nodePortAddresses", mode.node_port_addresses());
    }
    fill_loopback(&mut full, mode);
    if mode == Mode::Ipvs && written.text("ipvs.scheduler").is_some_and(is_hash) {
        let balancing = written.text("shunt.loadBalancing");
        let balancing = balancing.unwrap_or(Balancing::SourceHash.name()).to_owned();
        full.put("shunt.loadBalancing", balancing);
    }
    for field in &FIELDS {
        let default = field.kind.default();
        if full.is_unset(field.path) && !default.is_null() {
            full.put(field.path, default);
        }
    }
    full
}

/// Returns true for a scheduler of IPVS that hashes the source (`ipvsadm(8)`), or for Maglev's name.
pub(super) fn is_hash(scheduler: &str) -> bool {
    matches!(scheduler, "sh" | "mh" | "maglev")
}

/// Moves the values of the mode's section to `nftables`, so that a file for another mode keeps its
/// effect.
fn fill_nftables(full: &mut Configuration, written: &Configuration, mode: Mode) {
    if mode != Mode::Nftables {
        for (name, section) in [
            ("syncPeriod", mode.section()),
            ("minSyncPeriod", mode.section()),
            ("masqueradeBit", "iptables"),
            ("masqueradeAll", "iptables"),
        ] {
            let (own, other) = (format!("nftables.{name}"), format!("{section}.{name}"));
            if let Some(value) = written.get(&other).filter(|_| written.is_unset(&own)) {
                full.put(&own, value.clone());
            }
        }
    }
    full.put("mode", "nftables");
}

/// Adds the prefix for node ports on 127.0.0.1 where kube-proxy's iptables mode has them without:
/// where the prefixes contain that address.
fn fill_loopback(full: &mut Configuration, mode: Mode) {
    if mode != Mode::Iptables {
        return;
    }
    if full.is("iptables.localhostNodePorts", false) {
        return drop_loopback(full);
    }
    let mut words: Vec<&str> = full.list("nodePortAddresses").collect();
    let nets = words.iter().flat_map(|word| prefixes_of(word)).filter_map(|it| parse_net(it).ok());
    let nets: Vec<IpNet> = nets.filter(|net| Family::of_net(net) == Family::V4).collect();
    let is_all = nets.is_empty() && !words.contains(&PRIMARY);
    let is_inside = nets.iter().any(|net| net.contains(&IpAddr::from(Ipv4Addr::LOCALHOST)));
    let is_explicit = NodePortAddresses { primary: false, nets }.has_loopback(Family::V4);
    if is_all {
        words.push("0.0.0.0/0");
    }
    if (is_all || is_inside) && !is_explicit {
        words.push("127.0.0.0/8");
    }
    let words: Value = words.into_iter().collect();
    full.put("nodePortAddresses", words);
}

/// Replaces the prefixes of 127.0.0.1: mode nftables has no other field for it, and without any prefix
/// the family would be on all addresses.
fn drop_loopback(full: &mut Configuration) {
    // No node has an address in it.
    const NOWHERE: &str = "0.0.0.0/32";
    let prefixes = full.list("nodePortAddresses").flat_map(prefixes_of);
    let words = prefixes.map(|prefix| match parse_net(prefix) {
        Ok(net) if net.addr().is_ipv4() && net.addr().is_loopback() => NOWHERE,
        _ => prefix,
    });
    let words: Value = words.collect();
    full.put("nodePortAddresses", words);
}

/// Keeps an empty address, which turns the server off. Adds the default port if there is none.
fn fill_listener(full: &mut Configuration, path: &str, default: SocketAddr) {
    match full.get(path).and_then(Value::as_str) {
        None => full.put(path, default.to_string()),
        Some(written) => {
            if let Ok(ip) = parse_ip_sloppy(written) {
                full.put(path, SocketAddr::new(ip, default.port()).to_string());
            }
        }
    }
}
