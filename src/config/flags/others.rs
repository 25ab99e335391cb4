//! The flags without effect. shunt accepts them, so that it can take kube-proxy's command line.

use super::Flag;

pub(super) const FLAGS: &[Flag] = &[
    Flag::new(
        "feature-gates",
        "NAME=BOOL,…",
        "featureGates",
        "AllowServiceExternalIPs=false turns spec.externalIPs of all Services off; other gates have no effect.",
    ),
    Flag::new(
        "kube-api-burst",
        "COUNT",
        "clientConnection.burst",
        "Requests to the Kubernetes API at once.",
    ),
    Flag::new(
        "kube-api-qps",
        "RATE",
        "clientConnection.qps",
        "Requests to the Kubernetes API per second.",
    ),
    Flag::new(
        "config-sync-period",
        "DURATION",
        "configSyncPeriod",
        "How often objects are resynced.",
    ),
    Flag::new("profiling", "", "enableProfiling", "Serve profiles."),
    Flag::new(
        "show-hidden-metrics-for-version",
        "VERSION",
        "showHiddenMetricsForVersion",
        "Serve metrics that were hidden in that version.",
    ),
    Flag::new("ipvs-scheduler", "NAME", "ipvs.scheduler", "How IPVS chooses endpoints."),
    Flag::new(
        "ipvs-exclude-cidrs",
        "CIDRS",
        "ipvs.excludeCIDRs",
        "Where IPVS leaves foreign rules alone.",
    ),
    Flag::new(
        "ipvs-strict-arp",
        "",
        "ipvs.strictARP",
        "Answer ARP only for addresses of the interface.",
    ),
    Flag::new(
        "ipvs-tcp-timeout",
        "DURATION",
        "ipvs.tcpTimeout",
        "For idle TCP connections of IPVS.",
    ),
    Flag::new(
        "ipvs-tcpfin-timeout",
        "DURATION",
        "ipvs.tcpFinTimeout",
        "For closing TCP connections of IPVS.",
    ),
    Flag::new("ipvs-udp-timeout", "DURATION", "ipvs.udpTimeout", "For UDP packets of IPVS."),
    Flag::new("boot-id-file", "FILES", "", "Where to read the boot ID.")
        .without_effect("shunt does not use the boot ID"),
    Flag::new("machine-id-file", "FILES", "", "Where to read the machine ID.")
        .without_effect("shunt does not use the machine ID"),
];
