//! The flags with an effect.

use shunt_core::model::Balancing;

use super::{Flag, duration, list, number, period, switch, text};

pub(super) const FLAGS: &[Flag] = &[
    Flag::new(
        "hostname-override",
        "NAME",
        "hostnameOverride",
        // As for kube-proxy, an empty name does not override that of a file.
        |draft, value| match value {
            "" => Ok(()),
            _ => text(&mut draft.configuration.hostname_override, value),
        },
        "The name of the Node; default: the host name.",
    )
    .beside_file(),
    Flag::new(
        "kubeconfig",
        "FILE",
        "clientConnection.kubeconfig",
        |draft, value| text(&mut draft.configuration.client_connection.kubeconfig, value),
        "The kubeconfig for the Kubernetes API.",
    ),
    Flag::new(
        "kube-api-content-type",
        "TYPE",
        "clientConnection.contentType",
        |draft, value| text(&mut draft.configuration.client_connection.content_type, value),
        "The content type for the Kubernetes API: application/vnd.kubernetes.protobuf or \
         application/json.",
    ),
    Flag::new(
        "master",
        "URL",
        "",
        |draft, value| text(&mut draft.master, value),
        "The address of the Kubernetes API; overrides that of the kubeconfig.",
    )
    .beside_file(),
    Flag::new(
        "bind-address",
        "ADDRESS",
        "bindAddress",
        |draft, value| text(&mut draft.configuration.bind_address, value),
        "The node's primary address; overrides that of the Node. Nothing listens on it.",
    ),
    Flag::new(
        "healthz-bind-address",
        "ADDRESS[:PORT]",
        "healthzBindAddress",
        |draft, value| text(&mut draft.configuration.healthz_bind_address, value),
        "The address for /healthz and /livez; default: 0.0.0.0:10256. Empty: no server.",
    ),
    Flag::new(
        "healthz-port",
        "PORT",
        "healthzBindAddress",
        |draft, value| number(&mut draft.healthz_port, value),
        "Deprecated: 0 turns /healthz off; another port applies to a --healthz-bind-address \
         without one.",
    ),
    Flag::new(
        "metrics-bind-address",
        "ADDRESS[:PORT]",
        "metricsBindAddress",
        |draft, value| text(&mut draft.configuration.metrics_bind_address, value),
        "The address for /metrics; default: 127.0.0.1:10249. Empty: no server.",
    ),
    Flag::new(
        "metrics-port",
        "PORT",
        "metricsBindAddress",
        |draft, value| number(&mut draft.metrics_port, value),
        "Deprecated: 0 turns /metrics off; another port applies to a --metrics-bind-address \
         without one.",
    ),
    Flag::new(
        "bind-address-hard-fail",
        "",
        "bindAddressHardFail",
        |draft, value| switch(&mut draft.configuration.bind_address_hard_fail, value),
        "Exit if the port for /healthz or /metrics cannot be bound, instead of retrying.",
    ),
    Flag::new(
        "proxy-mode",
        "MODE",
        "mode",
        |draft, value| text(&mut draft.configuration.mode, value),
        "nftables; shunt accepts iptables and ipvs, and programs nftables.",
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
        "The masquerade bit of the packet mark, unless --proxy-mode=nftables; default: 14.",
    ),
    Flag::new(
        "iptables-sync-period",
        "DURATION",
        "nftables.syncPeriod",
        |draft, value| period(&mut draft.iptables.sync, value),
        "A change that waits twice as long makes the agent unhealthy; default: 30s.",
    ),
    Flag::new(
        "iptables-min-sync-period",
        "DURATION",
        "nftables.minSyncPeriod",
        |draft, value| duration(&mut draft.iptables.min_sync, value),
        "The minimum time between two commits; default: 0s.",
    ),
    Flag::new(
        "ipvs-sync-period",
        "DURATION",
        "nftables.syncPeriod",
        |draft, value| period(&mut draft.ipvs.sync, value),
        "--iptables-sync-period for --proxy-mode=ipvs.",
    ),
    Flag::new(
        "ipvs-min-sync-period",
        "DURATION",
        "nftables.minSyncPeriod",
        |draft, value| duration(&mut draft.ipvs.min_sync, value),
        "--iptables-min-sync-period for --proxy-mode=ipvs.",
    ),
    Flag::new(
        "detect-local-mode",
        "MODE",
        "detectLocalMode",
        |draft, value| text(&mut draft.configuration.detect_local_mode, value),
        "How to detect traffic of local pods: ClusterCIDR, NodeCIDR, BridgeInterface or \
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
        "The addresses of NodePorts: CIDRs, `primary`, `localhost` and `all`, separated by commas. \
         Default: `all`; with --proxy-mode=nftables `primary`.",
    ),
    Flag::new(
        "iptables-localhost-nodeports",
        "",
        "iptables.localhostNodePorts",
        |draft, value| {
            draft.configuration.iptables.localhost_node_ports = Some(super::parse_bool(value)?);
            Ok(())
        },
        "Without --proxy-mode=nftables: NodePorts of TCP on 127.0.0.1, if --nodeport-addresses \
         contain it; default: true.",
    ),
    Flag::new(
        "oom-score-adj",
        "SCORE",
        "oomScoreAdj",
        |draft, value| number(&mut draft.configuration.oom_score_adj, value),
        "The OOM score of the agent, -1000 to 1000; default: -999.",
    ),
    Flag::new(
        "conntrack-max-per-core",
        "COUNT",
        "conntrack.maxPerCore",
        |draft, value| number(&mut draft.configuration.conntrack.max_per_core, value),
        "Maximum number of tracked connections per CPU, 1048576 in total; default: 32768. 0 leaves \
         it unchanged.",
    ),
    Flag::new(
        "conntrack-min",
        "COUNT",
        "conntrack.min",
        |draft, value| number(&mut draft.configuration.conntrack.min, value),
        "Minimum for the limit of tracked connections; default: 131072.",
    ),
    Flag::new(
        "conntrack-tcp-timeout-established",
        "DURATION",
        "conntrack.tcpEstablishedTimeout",
        |draft, value| duration(&mut draft.configuration.conntrack.tcp_established_timeout, value),
        "Timeout of idle TCP connections; default: 24h. 0s leaves it unchanged.",
    ),
    Flag::new(
        "conntrack-tcp-timeout-close-wait",
        "DURATION",
        "conntrack.tcpCloseWaitTimeout",
        |draft, value| duration(&mut draft.configuration.conntrack.tcp_close_wait_timeout, value),
        "Timeout of TCP connections in CLOSE_WAIT; default: 1h. 0s leaves it unchanged.",
    ),
    Flag::new(
        "conntrack-tcp-be-liberal",
        "",
        "conntrack.tcpBeLiberal",
        |draft, value| switch(&mut draft.configuration.conntrack.tcp_be_liberal, value),
        "Also track TCP packets outside the window.",
    ),
    Flag::new(
        "conntrack-udp-timeout",
        "DURATION",
        "conntrack.udpTimeout",
        |draft, value| duration(&mut draft.configuration.conntrack.udp_timeout, value),
        "Timeout of UDP flows without an answer; 0s leaves it unchanged.",
    ),
    Flag::new(
        "conntrack-udp-timeout-stream",
        "DURATION",
        "conntrack.udpStreamTimeout",
        |draft, value| duration(&mut draft.configuration.conntrack.udp_stream_timeout, value),
        "Timeout of UDP flows with answers; 0s leaves it unchanged.",
    ),
    Flag::new(
        "reset-gone-endpoints",
        "",
        "shunt.resetGoneEndpoints",
        |draft, value| switch(&mut draft.configuration.shunt.reset_gone_endpoints, value),
        "Reset established TCP connections to an endpoint that was terminating and is gone from \
         every EndpointSlice, so that clients reconnect at once.",
    )
    .own(),
    Flag::new(
        "load-balancing",
        "random|source-hash|source-and-port-hash",
        "shunt.loadBalancing",
        |draft, value| {
            value.parse::<Balancing>()?;
            text(&mut draft.configuration.shunt.load_balancing, value)
        },
        "Choose endpoints at random, or by a hash of the client, so that every node chooses the same \
         one; an annotation of a Service overrides it; default: random.",
    )
    .own(),
];
