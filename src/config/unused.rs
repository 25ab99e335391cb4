//! Validation of fields without effect, so that a typo shows before the file goes back to
//! kube-proxy. A value that kube-proxy rejects is an error. In the section of a mode that is not in
//! use, which it does not validate, it is a warning.

use serde_json::Value;

use super::Configuration;
use super::check::Check;
use super::defaults::Mode;
use super::effective::EXTERNAL_IPS;
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
    if let Some(burst) = written.number("clientConnection.burst").filter(|burst| *burst < 0) {
        check.error("clientConnection.burst", burst, "negative; write 0 or more");
    }
    check.period(written, "configSyncPeriod");
    check.period(written, "logging.flushFrequency");
    patterns(written, &mut check);
    times(written, &mut check);
    prefixes(written, &mut check);
}

fn gates(written: &Configuration, check: &mut Check<'_>) {
    let gates = written.get("featureGates").and_then(Value::as_object).into_iter().flatten();
    for (name, on) in gates.filter(|(name, _)| *name != EXTERNAL_IPS) {
        let reason = match GATES.iter().find(|(known, _)| known == name) {
            Some((_, default)) if on.as_bool() == Some(*default) => continue,
            Some((_, default)) => format!("has no effect; kube-proxy's default is {default}"),
            None => "has no effect: unknown feature gate".to_owned(),
        };
        let value = format!("{name}={on}");
        check.add(Severity::Warning, "featureGates", Some(&value), reason);
    }
}

fn patterns(written: &Configuration, check: &mut Check<'_>) {
    const FIELD: &str = "logging.vmodule";
    if !written.is_unset(FIELD) && !matches!(written.text("logging.format"), None | Some("text")) {
        check.add(Severity::Error, FIELD, None, "only valid with format text; remove it");
    }
    let items = written.get(FIELD).and_then(Value::as_array);
    for (i, item) in items.into_iter().flatten().enumerate() {
        let pattern = item["filePattern"].as_str().unwrap_or_default();
        if pattern.is_empty() || pattern.contains(['=', ',']) {
            let reason = "not a pattern of file names; write one without = and comma";
            check.error(&format!("{FIELD}[{i}].filePattern"), pattern, reason);
        }
    }
}

/// Validates the times in the sections of other modes.
fn times(written: &Configuration, check: &mut Check<'_>) {
    for field in [
        "iptables.syncPeriod",
        "iptables.minSyncPeriod",
        "ipvs.syncPeriod",
        "ipvs.minSyncPeriod",
        "ipvs.tcpTimeout",
        "ipvs.tcpFinTimeout",
        "ipvs.udpTimeout",
    ] {
        let is_negative = written.duration(field).is_some_and(|time| time.get().is_none());
        if let Some(time) = written.text(field).filter(|_| is_negative) {
            let is_of_mode = field.split('.').next() == Some(Mode::of(written).section());
            let severity = if is_of_mode { Severity::Error } else { Severity::Warning };
            check.add(severity, field, Some(&time), "negative duration; write a positive one");
        }
    }
}

/// Validates the prefixes of other modes.
fn prefixes(written: &Configuration, check: &mut Check<'_>) {
    let severity =
        if Mode::of(written) == Mode::Ipvs { Severity::Error } else { Severity::Warning };
    for (i, net) in written.list("ipvs.excludeCIDRs").enumerate() {
        if let Err(reason) = parse_net(net) {
            check.add(severity, &format!("ipvs.excludeCIDRs[{i}]"), Some(&net), reason);
        }
    }
    if !matches!(written.text("detectLocalMode"), None | Some("ClusterCIDR")) {
        for net in written.text("clusterCIDR").into_iter().flat_map(|nets| nets.split(',')) {
            if let Err(reason) = parse_net(net) {
                check.add(Severity::Warning, "clusterCIDR", Some(&net), reason);
            }
        }
    }
}
