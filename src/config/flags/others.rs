//! The flags without effect. shunt accepts them, so that it can take kube-proxy's command line.

use super::{Flag, duration, ignored, list, number, period, switch, text};

pub(super) const FLAGS: &[Flag] = &[
    Flag::new(
        "feature-gates",
        "NAME=BOOL,…",
        "featureGates",
        |draft, value| {
            for gate in value.split(',').filter(|gate| !gate.is_empty()) {
                let (name, on) = gate.split_once('=').ok_or("not a list such as Name=true")?;
                let on = super::parse_bool(on.trim())?;
                draft.configuration.feature_gates.insert(name.trim().to_owned(), on);
            }
            Ok(())
        },
        "AllowServiceExternalIPs=false turns spec.externalIPs of all Services off; other gates have no effect.",
    ),
    Flag::new(
        "kube-api-burst",
        "COUNT",
        "clientConnection.burst",
        |draft, value| number(&mut draft.configuration.client_connection.burst, value),
        "Requests to the Kubernetes API at once.",
    ),
    Flag::new(
        "kube-api-qps",
        "RATE",
        "clientConnection.qps",
        |draft, value| number(&mut draft.configuration.client_connection.qps, value),
        "Requests to the Kubernetes API per second.",
    ),
    Flag::new(
        "config-sync-period",
        "DURATION",
        "configSyncPeriod",
        |draft, value| period(&mut draft.configuration.config_sync_period, value),
        "How often objects are resynced.",
    ),
    Flag::new(
        "profiling",
        "",
        "enableProfiling",
        |draft, value| switch(&mut draft.configuration.enable_profiling, value),
        "Serve profiles.",
    ),
    Flag::new(
        "show-hidden-metrics-for-version",
        "VERSION",
        "showHiddenMetricsForVersion",
        |draft, value| text(&mut draft.configuration.show_hidden_metrics_for_version, value),
        "Serve metrics that were hidden in that version.",
    ),
    Flag::new(
        "ipvs-scheduler",
        "NAME",
        "ipvs.scheduler",
        |draft, value| text(&mut draft.configuration.ipvs.scheduler, value),
        "How IPVS chooses endpoints.",
    ),
    Flag::new(
        "ipvs-exclude-cidrs",
        "CIDRS",
        "ipvs.excludeCIDRs",
        |draft, value| list(draft.configuration.ipvs.exclude_cidrs.get_or_insert_default(), value),
        "Where IPVS leaves foreign rules alone.",
    ),
    Flag::new(
        "ipvs-strict-arp",
        "",
        "ipvs.strictARP",
        |draft, value| switch(&mut draft.configuration.ipvs.strict_arp, value),
        "Answer ARP only for addresses of the interface.",
    ),
    Flag::new(
        "ipvs-tcp-timeout",
        "DURATION",
        "ipvs.tcpTimeout",
        |draft, value| duration(&mut draft.configuration.ipvs.tcp_timeout, value),
        "For idle TCP connections of IPVS.",
    ),
    Flag::new(
        "ipvs-tcpfin-timeout",
        "DURATION",
        "ipvs.tcpFinTimeout",
        |draft, value| duration(&mut draft.configuration.ipvs.tcp_fin_timeout, value),
        "For closing TCP connections of IPVS.",
    ),
    Flag::new(
        "ipvs-udp-timeout",
        "DURATION",
        "ipvs.udpTimeout",
        |draft, value| duration(&mut draft.configuration.ipvs.udp_timeout, value),
        "For UDP packets of IPVS.",
    ),
    Flag::new("boot-id-file", "FILES", "", ignored, "Where to read the boot ID.")
        .without_effect("shunt does not use the boot ID"),
    Flag::new("machine-id-file", "FILES", "", ignored, "Where to read the machine ID.")
        .without_effect("shunt does not use the machine ID"),
];
