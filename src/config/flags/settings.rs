//! The flags that do something.

use super::{Flag, duration, list, number, period, switch, text};

pub(super) const FLAGS: &[Flag] = &[
    Flag::new(
        "hostname-override",
        "NAME",
        "hostnameOverride",
        // An empty one is as good as none, also beside a file that has one.
        |draft, value| match value {
            "" => Ok(()),
            _ => text(&mut draft.configuration.hostname_override, value),
        },
        "The name of our Node; the host's name if not given.",
    )
    .beside_file(),
    Flag::new(
        "kubeconfig",
        "FILE",
        "clientConnection.kubeconfig",
        |draft, value| text(&mut draft.configuration.client_connection.kubeconfig, value),
        "How to reach the Kubernetes API: a kubeconfig.",
    ),
    Flag::new(
        "master",
        "URL",
        "",
        |draft, value| text(&mut draft.master, value),
        "The address of the Kubernetes API, instead of that in the kubeconfig.",
    )
    .beside_file(),
    Flag::new(
        "bind-address",
        "ADDRESS",
        "bindAddress",
        |draft, value| text(&mut draft.configuration.bind_address, value),
        "The node's primary address, instead of that of its Node. Nothing listens on it.",
    ),
    Flag::new(
        "healthz-bind-address",
        "ADDRESS[:PORT]",
        "healthzBindAddress",
        |draft, value| text(&mut draft.configuration.healthz_bind_address, value),
        "Where to serve /healthz and /livez; 0.0.0.0:10256 if not given, nowhere if empty.",
    ),
    Flag::new(
        "healthz-port",
        "PORT",
        "healthzBindAddress",
        |draft, value| number(&mut draft.healthz_port, value),
        "Deprecated: 0 turns /healthz off; another port counts beside a --healthz-bind-address \
         that has none.",
    ),
    Flag::new(
        "metrics-bind-address",
        "ADDRESS[:PORT]",
        "metricsBindAddress",
        |draft, value| text(&mut draft.configuration.metrics_bind_address, value),
        "Where to serve /metrics; 127.0.0.1:10249 if not given, nowhere if empty.",
    ),
    Flag::new(
        "metrics-port",
        "PORT",
        "metricsBindAddress",
        |draft, value| number(&mut draft.metrics_port, value),
        "Deprecated: 0 turns /metrics off; another port counts beside a --metrics-bind-address \
         that has none.",
    ),
    Flag::new(
        "bind-address-hard-fail",
        "",
        "bindAddressHardFail",
        |draft, value| switch(&mut draft.configuration.bind_address_hard_fail, value),
        "Exit if the port for /healthz or /metrics cannot be bound, instead of trying again.",
    ),
    Flag::new(
        "proxy-mode",
        "MODE",
        "mode",
        |draft, value| text(&mut draft.configuration.mode, value),
        "nftables. iptables and ipvs are accepted, and nftables is programmed all the same.",
    ),
    Flag::new(
        "masquerade-all",
        "",
        "nftables.masqueradeAll",
        |draft, value| switch(&mut draft.configuration.nftables.masquerade_all, value),
        "Masquerade all traffic to ClusterIPs.",
    ),
    Flag::new(
        "iptables-masquerade-bit",
        "BIT",
        "iptables.masqueradeBit",
        |draft, value| number(&mut draft.configuration.iptables.masquerade_bit, value),
        "The bit of the packet mark that asks for masquerading, unless --proxy-mode=nftables.",
    ),
    Flag::new(
        "iptables-sync-period",
        "DURATION",
        "nftables.syncPeriod",
        |draft, value| period(&mut draft.iptables.sync, value),
        "What waits for twice this time makes the agent unhealthy; 30s if not given.",
    ),
    Flag::new(
        "iptables-min-sync-period",
        "DURATION",
        "nftables.minSyncPeriod",
        |draft, value| duration(&mut draft.iptables.min_sync, value),
        "The least time between two commits; none if not given.",
    ),
    Flag::new(
        "ipvs-sync-period",
        "DURATION",
        "nftables.syncPeriod",
        |draft, value| period(&mut draft.ipvs.sync, value),
        "Likewise, with --proxy-mode=ipvs.",
    ),
    Flag::new(
        "ipvs-min-sync-period",
        "DURATION",
        "nftables.minSyncPeriod",
        |draft, value| duration(&mut draft.ipvs.min_sync, value),
        "Likewise, with --proxy-mode=ipvs.",
    ),
    Flag::new(
        "detect-local-mode",
        "MODE",
        "detectLocalMode",
        |draft, value| text(&mut draft.configuration.detect_local_mode, value),
        "How to tell traffic of local pods: ClusterCIDR, NodeCIDR, BridgeInterface or \
         InterfaceNamePrefix.",
    ),
    Flag::new(
        "cluster-cidr",
        "CIDRS",
        "clusterCIDR",
        |draft, value| text(&mut draft.configuration.cluster_cidr, value),
        "The addresses of pods: a prefix, or one per family separated by a comma.",
    ),
    Flag::new(
        "pod-bridge-interface",
        "NAME",
        "detectLocal.bridgeInterface",
        |draft, value| text(&mut draft.configuration.detect_local.bridge_interface, value),
        "With --detect-local-mode=BridgeInterface: the bridge.",
    ),
    Flag::new(
        "pod-interface-name-prefix",
        "PREFIX",
        "detectLocal.interfaceNamePrefix",
        |draft, value| text(&mut draft.configuration.detect_local.interface_name_prefix, value),
        "With --detect-local-mode=InterfaceNamePrefix: the prefix.",
    ),
    Flag::new(
        "nodeport-addresses",
        "CIDRS",
        "nodePortAddresses",
        |draft, value| list(&mut draft.configuration.node_port_addresses, value),
        "Where NodePorts are offered: CIDRs separated by commas, or `primary`. Every local address \
         except loopback if not given, with --proxy-mode=nftables `primary`.",
    ),
    Flag::new(
        "oom-score-adj",
        "SCORE",
        "oomScoreAdj",
        |draft, value| number(&mut draft.configuration.oom_score_adj, value),
        "How readily the kernel kills the agent for its memory, -1000 to 1000; -999 if not given.",
    ),
    Flag::new(
        "conntrack-max-per-core",
        "COUNT",
        "conntrack.maxPerCore",
        |draft, value| number(&mut draft.configuration.conntrack.max_per_core, value),
        "Tracked connections per CPU, 1048576 in all at most; 0 leaves the limit alone. 32768 if not \
         given.",
    ),
    Flag::new(
        "conntrack-min",
        "COUNT",
        "conntrack.min",
        |draft, value| number(&mut draft.configuration.conntrack.min, value),
        "Tracked connections at least; 131072 if not given.",
    ),
    Flag::new(
        "conntrack-tcp-timeout-established",
        "DURATION",
        "conntrack.tcpEstablishedTimeout",
        |draft, value| duration(&mut draft.configuration.conntrack.tcp_established_timeout, value),
        "How long an idle TCP connection is tracked; 24h if not given, 0s leaves it alone.",
    ),
    Flag::new(
        "conntrack-tcp-timeout-close-wait",
        "DURATION",
        "conntrack.tcpCloseWaitTimeout",
        |draft, value| duration(&mut draft.configuration.conntrack.tcp_close_wait_timeout, value),
        "How long a TCP connection in CLOSE_WAIT is tracked; 1h if not given, 0s leaves it alone.",
    ),
    Flag::new(
        "conntrack-tcp-be-liberal",
        "",
        "conntrack.tcpBeLiberal",
        |draft, value| switch(&mut draft.configuration.conntrack.tcp_be_liberal, value),
        "Track TCP packets outside of the window, too.",
    ),
    Flag::new(
        "conntrack-udp-timeout",
        "DURATION",
        "conntrack.udpTimeout",
        |draft, value| duration(&mut draft.configuration.conntrack.udp_timeout, value),
        "How long a UDP flow without an answer is tracked; 0s leaves it alone.",
    ),
    Flag::new(
        "conntrack-udp-timeout-stream",
        "DURATION",
        "conntrack.udpStreamTimeout",
        |draft, value| duration(&mut draft.configuration.conntrack.udp_stream_timeout, value),
        "How long a UDP flow with answers is tracked; 0s leaves it alone.",
    ),
];
