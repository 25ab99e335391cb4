//! Defaults of fields that are not set.
//!
//! They are kube-proxy's (`pkg/proxy/apis/config/v1alpha1/defaults.go` and
//! `platformApplyDefaults`), except that there is no minimum time between two commits.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use ipnet::IpNet;
use shunt_core::model::{Balancing, Family};

use super::raw::{Configuration, Conntrack, FlushFrequency, GoDuration, Logging, OutputRouting};
use super::{NodePortAddresses, OOM_SCORE_ADJ};
use crate::flows::sysctl;
use crate::source::spanned_yaml::{parse_ip_sloppy, parse_net};

const HEALTHZ_PORT: u16 = 10_256;
const METRICS_PORT: u16 = 10_249;
const MASQUERADE_BIT: i32 = 14;
const SYNC_PERIOD: GoDuration = GoDuration::from_secs(30);
const CONFIG_SYNC_PERIOD: GoDuration = GoDuration::from_secs(900);
/// The word in `nodePortAddresses` for the node's primary addresses.
pub(super) const PRIMARY: &str = "primary";
const FLUSH_FREQUENCY: GoDuration = GoDuration::from_secs(5);

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
        match written.mode.as_deref() {
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

/// The words in `nodePortAddresses` that stand for prefixes, as in kube-proxy 1.37. `primary` stands
/// for the node's primary addresses.
pub(super) fn prefixes_of(word: &str) -> Option<[IpNet; 2]> {
    const ALL: [IpNet; 2] = [
        IpNet::new_assert(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0),
        IpNet::new_assert(IpAddr::V6(Ipv6Addr::UNSPECIFIED), 0),
    ];
    const LOOPBACK: [IpNet; 2] = [
        IpNet::new_assert(IpAddr::V4(Ipv4Addr::new(127, 0, 0, 0)), 8),
        IpNet::new_assert(IpAddr::V6(Ipv6Addr::LOCALHOST), 128),
    ];
    match word {
        "all" => Some(ALL),
        "localhost" => Some(LOOPBACK),
        _ => None,
    }
}

/// Returns the written configuration with a value for every field. Its mode is always `nftables`;
/// the values of a file for another mode move from that mode's section to `nftables`.
pub(super) fn fill(written: &Configuration) -> Configuration {
    let mut full = written.clone();
    fill_nftables(&mut full, written);
    for text in [
        &mut full.client_connection.kubeconfig,
        &mut full.client_connection.accept_content_types,
        &mut full.hostname_override,
        &mut full.show_hidden_metrics_for_version,
        &mut full.ipvs.scheduler,
        &mut full.winkernel.network_name,
        &mut full.winkernel.source_vip,
        &mut full.winkernel.root_hns_endpoint_name,
        &mut full.detect_local.bridge_interface,
        &mut full.detect_local.interface_name_prefix,
        &mut full.cluster_cidr,
        &mut full.port_range,
    ] {
        text.get_or_insert_default();
    }

    full.api_version = super::API_VERSION.to_owned();
    full.kind = super::KIND.to_owned();
    let client = &mut full.client_connection;
    fill_text(&mut client.content_type, "application/vnd.kubernetes.protobuf");
    client.qps = Some(client.qps.filter(|qps| *qps != 0.0).unwrap_or(5.0));
    client.burst = Some(client.burst.filter(|burst| *burst != 0).unwrap_or(10));
    fill_logging(&mut full.logging);

    fill_text(&mut full.bind_address, "0.0.0.0");
    let v6 = full
        .bind_address
        .as_deref()
        .and_then(|a| parse_ip_sloppy(a).ok())
        .is_some_and(|a| a.is_ipv6());
    let (any, loopback): (IpAddr, IpAddr) = if v6 {
        (Ipv6Addr::UNSPECIFIED.into(), Ipv6Addr::LOCALHOST.into())
    } else {
        (Ipv4Addr::UNSPECIFIED.into(), Ipv4Addr::LOCALHOST.into())
    };
    fill_listener(&mut full.healthz_bind_address, (any, HEALTHZ_PORT).into());
    fill_listener(&mut full.metrics_bind_address, (loopback, METRICS_PORT).into());

    full.iptables.masquerade_bit.get_or_insert(MASQUERADE_BIT);
    full.iptables.localhost_node_ports.get_or_insert(true);
    fill_period(&mut full.iptables.sync_period, SYNC_PERIOD);
    fill_period(&mut full.iptables.min_sync_period, GoDuration::from_secs(1));
    fill_period(&mut full.ipvs.sync_period, SYNC_PERIOD);
    full.ipvs.exclude_cidrs.get_or_insert_default();
    for duration in [
        &mut full.ipvs.min_sync_period,
        &mut full.ipvs.tcp_timeout,
        &mut full.ipvs.tcp_fin_timeout,
        &mut full.ipvs.udp_timeout,
    ] {
        duration.get_or_insert_default();
    }

    fill_text(&mut full.detect_local_mode, "ClusterCIDR");
    if full.node_port_addresses.is_empty() {
        let default = Mode::of(written).node_port_addresses();
        full.node_port_addresses.extend(default.iter().map(ToString::to_string));
    }
    fill_loopback(&mut full, Mode::of(written));
    full.oom_score_adj.get_or_insert(OOM_SCORE_ADJ.into());
    fill_conntrack(&mut full.conntrack);
    fill_period(&mut full.config_sync_period, CONFIG_SYNC_PERIOD);
    let is_hash = Mode::of(written) == Mode::Ipvs
        && written.ipvs.scheduler.as_deref().is_some_and(super::effective::is_hash);
    let balancing = if is_hash { Balancing::SourceHash } else { Balancing::default() };
    fill_text(&mut full.shunt.load_balancing, balancing.name());
    full
}

/// Moves the values of the mode's section to `nftables`, so that a file for another mode keeps its
/// effect.
fn fill_nftables(full: &mut Configuration, written: &Configuration) {
    let mode = Mode::of(written);
    let (sync, min_sync) = match mode {
        Mode::Nftables => (None, None),
        Mode::Iptables => (written.iptables.sync_period, written.iptables.min_sync_period),
        Mode::Ipvs => (written.ipvs.sync_period, written.ipvs.min_sync_period),
    };
    let own = &written.nftables;
    let set = |period: &GoDuration| !period.is_zero();
    let full_own = &mut full.nftables;
    full_own.sync_period =
        Some(own.sync_period.filter(set).or(sync.filter(set)).unwrap_or(SYNC_PERIOD));
    full_own.min_sync_period =
        Some(own.min_sync_period.filter(set).or(min_sync).unwrap_or_default());
    full_own.masquerade_bit = own
        .masquerade_bit
        .or(written.iptables.masquerade_bit.filter(|_| mode != Mode::Nftables))
        .or(Some(MASQUERADE_BIT));
    full_own.masquerade_all |= mode != Mode::Nftables && written.iptables.masquerade_all;
    full.mode = Some("nftables".to_owned());
}

/// Fills in kube-proxy's values, so that a node without kube-proxy keeps them after a reboot.
fn fill_conntrack(conntrack: &mut Conntrack) {
    let defaults = sysctl::Settings::default();
    let number = |default: u32| i32::try_from(default).unwrap_or(i32::MAX);
    conntrack.max_per_core.get_or_insert(number(defaults.max_per_core));
    conntrack.min.get_or_insert(number(defaults.min));
    for (duration, default) in [
        (&mut conntrack.tcp_established_timeout, defaults.tcp_established_timeout),
        (&mut conntrack.tcp_close_wait_timeout, defaults.tcp_close_wait_timeout),
        (&mut conntrack.udp_timeout, defaults.udp_timeout),
        (&mut conntrack.udp_stream_timeout, defaults.udp_stream_timeout),
    ] {
        let seconds = i64::try_from(default.as_secs()).unwrap_or(i64::MAX);
        duration.get_or_insert(GoDuration::from_secs(seconds));
    }
}

/// Adds the prefix for node ports on 127.0.0.1 where kube-proxy's iptables mode has them without:
/// where the prefixes contain that address.
fn fill_loopback(full: &mut Configuration, mode: Mode) {
    if mode != Mode::Iptables || full.iptables.localhost_node_ports == Some(false) {
        return;
    }
    let words = full.node_port_addresses.iter();
    let nets = words.flat_map(|word| match prefixes_of(word) {
        Some(nets) => nets.to_vec(),
        None => parse_net(word).into_iter().collect(),
    });
    let nets: Vec<IpNet> = nets.filter(|net| Family::of_net(net) == Family::V4).collect();
    let has_primary = full.node_port_addresses.iter().any(|word| word == PRIMARY);
    let is_all = nets.is_empty() && !has_primary;
    let is_inside = nets.iter().any(|net| net.contains(&IpAddr::from(Ipv4Addr::LOCALHOST)));
    let is_explicit = NodePortAddresses::Cidrs(nets).has_loopback(Family::V4);
    if is_all {
        full.node_port_addresses.push("0.0.0.0/0".to_owned());
    }
    if (is_all || is_inside) && !is_explicit {
        full.node_port_addresses.push("127.0.0.0/8".to_owned());
    }
}

fn fill_logging(logging: &mut Logging) {
    fill_text(&mut logging.format, "text");
    let set = logging.flush_frequency.filter(|frequency| !frequency.0.is_zero());
    logging.flush_frequency = Some(set.unwrap_or(FlushFrequency(FLUSH_FREQUENCY)));
    logging.verbosity.get_or_insert_default();
    let fill = |routing: &mut OutputRouting| {
        routing.info_buffer_size.get_or_insert_with(|| "0".into());
    };
    fill(&mut logging.options.text);
    fill(&mut logging.options.json);
}

fn fill_text(field: &mut Option<String>, default: &str) {
    if field.as_deref().is_none_or(str::is_empty) {
        *field = Some(default.to_owned());
    }
}

fn fill_period(field: &mut Option<GoDuration>, default: GoDuration) {
    if field.is_none_or(GoDuration::is_zero) {
        *field = Some(default);
    }
}

/// Keeps an empty address, which turns the server off. Adds the default port if there is none.
fn fill_listener(field: &mut Option<String>, default: SocketAddr) {
    let written = field.get_or_insert_with(|| default.to_string());
    if let Ok(ip) = parse_ip_sloppy(written) {
        *written = SocketAddr::new(ip, default.port()).to_string();
    }
}
