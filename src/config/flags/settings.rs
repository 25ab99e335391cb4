//! The flags with an effect.

use shunt_core::model::Balancing;

use super::{Flag, period, port};

pub(super) const FLAGS: &[Flag] = &[
    Flag::new(
        "hostname-override",
        "NAME",
        "hostnameOverride",
        "The name of the Node; default: the host name.",
    )
    .beside_file(),
    Flag::new(
        "kubeconfig",
        "FILE",
        "clientConnection.kubeconfig",
        "The kubeconfig for the Kubernetes API.",
    ),
    Flag::new(
        "kube-api-content-type",
        "TYPE",
        "clientConnection.contentType",
        "The content type for the Kubernetes API: application/vnd.kubernetes.protobuf or \
         application/json.",
    ),
    Flag::new(
        "master",
        "URL",
        "",
        "The address of the Kubernetes API; overrides the one in the kubeconfig.",
    )
    .beside_file(),
    Flag::new(
        "bind-address",
        "ADDRESS",
        "bindAddress",
        "The node's primary address; overrides the one in the Node. Nothing listens on it.",
    ),
    Flag::new(
        "healthz-bind-address",
        "ADDRESS[:PORT]",
        "healthzBindAddress",
        "The address for /healthz and /livez; default: 0.0.0.0:10256. Empty: no server.",
    ),
    Flag::new(
        "healthz-port",
        "PORT",
        "healthzBindAddress",
        "Deprecated: 0 turns /healthz off; another port applies to a --healthz-bind-address \
         without one.",
    ).checked(port)
    .apart(),
    Flag::new(
        "metrics-bind-address",
        "ADDRESS[:PORT]",
        "metricsBindAddress",
        "The address for /metrics; default: 127.0.0.1:10249. Empty: no server.",
    ),
    Flag::new(
        "metrics-port",
        "PORT",
        "metricsBindAddress",
        "Deprecated: 0 turns /metrics off; another port applies to a --metrics-bind-address \
         without one.",
    ).checked(port)
    .apart(),
    Flag::new(
        "bind-address-hard-fail",
        "",
        "bindAddressHardFail",
        "Exit if the port for /healthz or /metrics cannot be bound, instead of retrying.",
    ),
    Flag::new(
        "proxy-mode",
        "MODE",
        "mode",
        "nftables; shunt accepts iptables and ipvs, and programs nftables.",
    ),
    Flag::new(
        "masquerade-all",
        "",
        "nftables.masqueradeAll",
        "Masquerade all traffic to ClusterIPs.",
    ),
    Flag::new(
        "iptables-masquerade-bit",
        "BIT",
        "iptables.masqueradeBit",
        "The masquerade bit of the packet mark, unless --proxy-mode=nftables; default: 14.",
    ),
    Flag::new(
        "iptables-sync-period",
        "DURATION",
        "nftables.syncPeriod",
        "A change that waits twice as long makes the agent unhealthy; default: 30s.",
    ).checked(period)
    .apart(),
    Flag::new(
        "iptables-min-sync-period",
        "DURATION",
        "nftables.minSyncPeriod",
        "The minimum time between two commits; default: 0s.",
    )
    .apart(),
    Flag::new(
        "ipvs-sync-period",
        "DURATION",
        "nftables.syncPeriod",
        "--iptables-sync-period for --proxy-mode=ipvs.",
    ).checked(period)
    .apart(),
    Flag::new(
        "ipvs-min-sync-period",
        "DURATION",
        "nftables.minSyncPeriod",
        "--iptables-min-sync-period for --proxy-mode=ipvs.",
    )
    .apart(),
    Flag::new(
        "detect-local-mode",
        "MODE",
        "detectLocalMode",
        "How to detect traffic of local pods: ClusterCIDR, NodeCIDR, BridgeInterface or \
         InterfaceNamePrefix.",
    ),
    Flag::new(
        "cluster-cidr",
        "CIDRS",
        "clusterCIDR",
        "The addresses of pods: a prefix, or one per family separated by a comma.",
    ),
    Flag::new(
        "pod-bridge-interface",
        "NAME",
        "detectLocal.bridgeInterface",
        "With --detect-local-mode=BridgeInterface: the bridge.",
    ),
    Flag::new(
        "pod-interface-name-prefix",
        "PREFIX",
        "detectLocal.interfaceNamePrefix",
        "With --detect-local-mode=InterfaceNamePrefix: the prefix.",
    ),
    Flag::new(
        "nodeport-addresses",
        "CIDRS",
        "nodePortAddresses",
        "The addresses of NodePorts: CIDRs, `primary`, `localhost` and `all`, separated by commas. \
         Default: `all`; with --proxy-mode=nftables `primary`.",
    ),
    Flag::new(
        "iptables-localhost-nodeports",
        "",
        "iptables.localhostNodePorts",
        "Without --proxy-mode=nftables: NodePorts of TCP on 127.0.0.1, if --nodeport-addresses \
         contain it; default: true.",
    ),
    Flag::new(
        "oom-score-adj",
        "SCORE",
        "oomScoreAdj",
        "The OOM score of the agent, -1000 to 1000; default: -999.",
    ),
    Flag::new(
        "conntrack-max-per-core",
        "COUNT",
        "conntrack.maxPerCore",
        "Maximum number of tracked connections per CPU, 1048576 in total; default: 32768. 0 leaves \
         it unchanged.",
    ),
    Flag::new(
        "conntrack-min",
        "COUNT",
        "conntrack.min",
        "Minimum for the limit of tracked connections; default: 131072.",
    ),
    Flag::new(
        "conntrack-tcp-timeout-established",
        "DURATION",
        "conntrack.tcpEstablishedTimeout",
        "Timeout of idle TCP connections; default: 24h. 0s leaves it unchanged.",
    ),
    Flag::new(
        "conntrack-tcp-timeout-close-wait",
        "DURATION",
        "conntrack.tcpCloseWaitTimeout",
        "Timeout of TCP connections in CLOSE_WAIT; default: 1h. 0s leaves it unchanged.",
    ),
    Flag::new(
        "conntrack-tcp-be-liberal",
        "",
        "conntrack.tcpBeLiberal",
        "Also track TCP packets outside the window.",
    ),
    Flag::new(
        "conntrack-udp-timeout",
        "DURATION",
        "conntrack.udpTimeout",
        "Timeout of UDP flows without an answer; 0s leaves it unchanged.",
    ),
    Flag::new(
        "conntrack-udp-timeout-stream",
        "DURATION",
        "conntrack.udpStreamTimeout",
        "Timeout of UDP flows with answers; 0s leaves it unchanged.",
    ),
    Flag::new(
        "reset-gone-endpoints",
        "",
        "shunt.resetGoneEndpoints",
        "Reset established TCP connections to an endpoint that was terminating and is gone from \
         every EndpointSlice, so that clients reconnect at once.",
    ),
    Flag::new(
        "load-balancing",
        "random|source-hash|source-and-port-hash",
        "shunt.loadBalancing",
        "Choose endpoints at random, or by a hash of the client, so that every node chooses the same \
         one; an annotation of a Service overrides it; default: random.",
    ).checked(|word| word.parse::<Balancing>().map(drop)),
];
