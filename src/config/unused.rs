//! Validation of fields without effect, so that a typo shows before the file goes back to
//! kube-proxy. A value that kube-proxy rejects is an error. In the section of a mode that is not in
//! use, which it does not validate, it is a warning.

use super::defaults::Mode;
use super::effective::{Check, EXTERNAL_IPS, text};
use super::raw::Configuration;
use crate::source::spanned_yaml::{Diagnostic, Severity, parse_net};

/// The feature gates of kube-proxy 1.36 and 1.37 without an effect here, and their defaults.
const GATES: [(&str, bool); 13] = [
    ("AllAlpha", false),
    ("AllBeta", false),
    ("ComponentFlagz", true),
    ("ComponentStatusz", true),
    ("ContextualLogging", true),
    ("KubeProxyIPVS", true),
    ("KubeProxyNFTablesLocalhostNodePorts", false),
    ("LoggingAlphaOptions", false),
    ("LoggingBetaOptions", true),
    ("MultiCIDRServiceAllocator", true),
    ("NFTablesNetlink", true),
    ("NativeHistograms", false),
    ("PreferSameTrafficDistribution", true),
];

/// Adds the findings about fields without effect.
pub(super) fn check(written: &Configuration, problems: &mut Vec<Diagnostic>) {
    let mut check = Check { problems };
    gates(written, &mut check);
    if let Some(burst) = written.client_connection.burst.filter(|burst| *burst < 0) {
        check.error("clientConnection.burst", burst, "negative; write 0 or more");
    }
    check.period("configSyncPeriod", written.config_sync_period);
    logging(written, &mut check);
    times(written, &mut check);
    prefixes(written, &mut check);
}

fn gates(written: &Configuration, check: &mut Check<'_>) {
    for (name, on) in written.feature_gates.iter().filter(|(name, _)| *name != EXTERNAL_IPS) {
        let reason = match GATES.iter().find(|(known, _)| known == name) {
            Some((_, default)) if on == default => continue,
            Some((_, default)) => format!("has no effect; kube-proxy's default is {default}"),
            None => "has no effect: unknown feature gate".to_owned(),
        };
        let value = format!("{name}={on}");
        check.add(Severity::Warning, "featureGates", Some(&value), reason);
    }
}

fn logging(written: &Configuration, check: &mut Check<'_>) {
    let frequency = written.logging.flush_frequency.unwrap_or_default().0;
    check.period("logging.flushFrequency", Some(frequency));
    if !written.logging.vmodule.is_empty()
        && !matches!(text(&written.logging.format), None | Some("text"))
    {
        check.add(
            Severity::Error,
            "logging.vmodule",
            None,
            "only valid with format text; remove it",
        );
    }
    for (i, item) in written.logging.vmodule.iter().enumerate() {
        if item.file_pattern.is_empty() || item.file_pattern.contains(['=', ',']) {
            let reason = "not a pattern of file names; write one without = and comma";
            check.error(&format!("logging.vmodule[{i}].filePattern"), &item.file_pattern, reason);
        }
    }
}

/// Validates the times in the sections of other modes.
fn times(written: &Configuration, check: &mut Check<'_>) {
    let severity = |of: Mode| {
        if Mode::of(written) == of { Severity::Error } else { Severity::Warning }
    };
    let (of_iptables, of_ipvs) = (severity(Mode::Iptables), severity(Mode::Ipvs));
    for (field, time, severity) in [
        ("iptables.syncPeriod", written.iptables.sync_period, of_iptables),
        ("iptables.minSyncPeriod", written.iptables.min_sync_period, of_iptables),
        ("ipvs.syncPeriod", written.ipvs.sync_period, of_ipvs),
        ("ipvs.minSyncPeriod", written.ipvs.min_sync_period, of_ipvs),
        ("ipvs.tcpTimeout", written.ipvs.tcp_timeout, of_ipvs),
        ("ipvs.tcpFinTimeout", written.ipvs.tcp_fin_timeout, of_ipvs),
        ("ipvs.udpTimeout", written.ipvs.udp_timeout, of_ipvs),
    ] {
        if let Some(time) = time.filter(|time| time.get().is_none()) {
            check.add(severity, field, Some(&time), "negative duration; write a positive one");
        }
    }
}

/// Validates the prefixes of other modes.
fn prefixes(written: &Configuration, check: &mut Check<'_>) {
    let severity =
        if Mode::of(written) == Mode::Ipvs { Severity::Error } else { Severity::Warning };
    for (i, net) in written.ipvs.exclude_cidrs.iter().flatten().enumerate() {
        if let Err(reason) = parse_net(net) {
            check.add(severity, &format!("ipvs.excludeCIDRs[{i}]"), Some(net), reason);
        }
    }
    if !matches!(text(&written.detect_local_mode), None | Some("ClusterCIDR")) {
        for net in text(&written.cluster_cidr).into_iter().flat_map(|nets| nets.split(',')) {
            if let Err(reason) = parse_net(net) {
                check.add(Severity::Warning, "clusterCIDR", Some(&net), reason);
            }
        }
    }
}
