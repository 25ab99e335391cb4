//! The flags without effect. shunt accepts them, so that it can take kube-proxy's command line.

use super::{Flag, Kind, NUMBER};

pub(super) const FLAGS: &[Flag] = &[
    Flag::new(
        "feature-gates",
        "NAME=BOOL,…",
        "featureGates",
        Kind::Gates,
        "AllowServiceExternalIPs=false turns spec.externalIPs of all Services off; other gates have no effect.",
    ),
    Flag::new(
        "kube-api-burst",
        "COUNT",
        "clientConnection.burst",
        NUMBER,
        "Requests to the Kubernetes API at once.",
    ),
    Flag::new(
        "kube-api-qps",
        "RATE",
        "clientConnection.qps",
        Kind::Rate,
        "Requests to the Kubernetes API per second.",
    ),
    Flag::new(
        "config-sync-period",
        "DURATION",
        "configSyncPeriod",
        Kind::Period,
        "How often objects are resynced.",
    ),
    Flag::new("profiling", "", "enableProfiling", Kind::Switch, "Serve profiles."),
    Flag::new(
        "show-hidden-metrics-for-version",
        "VERSION",
        "showHiddenMetricsForVersion",
        Kind::Text,
        "Serve metrics that were hidden in that version.",
    ),
    Flag::new(
        "ipvs-scheduler",
        "NAME",
        "ipvs.scheduler",
        Kind::Text,
        "How IPVS chooses endpoints.",
    ),
    Flag::new(
        "ipvs-exclude-cidrs",
        "CIDRS",
        "ipvs.excludeCIDRs",
        Kind::List,
        "Where IPVS leaves foreign rules alone.",
    ),
    Flag::new(
        "ipvs-strict-arp",
        "",
        "ipvs.strictARP",
        Kind::Switch,
        "Answer ARP only for addresses of the interface.",
    ),
    Flag::new(
        "ipvs-tcp-timeout",
        "DURATION",
        "ipvs.tcpTimeout",
        Kind::Duration,
        "For idle TCP connections of IPVS.",
    ),
    Flag::new(
        "ipvs-tcpfin-timeout",
        "DURATION",
        "ipvs.tcpFinTimeout",
        Kind::Duration,
        "For closing TCP connections of IPVS.",
    ),
    Flag::new(
        "ipvs-udp-timeout",
        "DURATION",
        "ipvs.udpTimeout",
        Kind::Duration,
        "For UDP packets of IPVS.",
    ),
    Flag::new("boot-id-file", "FILES", "", Kind::Text, "Where to read the boot ID.")
        .without_effect("shunt does not use the boot ID"),
    Flag::new("machine-id-file", "FILES", "", Kind::Text, "Where to read the machine ID.")
        .without_effect("shunt does not use the machine ID"),
];
