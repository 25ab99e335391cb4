//! Cases for the configuration, written as files and flags.

use ipnet::IpNet;

use super::*;
use crate::source::kubernetes::ContentType;

mod documents;
mod node_ports;

pub(super) const HEAD: &str =
    "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n";

fn of_file(rest: &str) -> Result<Loaded, Vec<Diagnostic>> {
    let text = format!("{HEAD}{rest}");
    load(Some((Path::new("config.conf"), text.as_bytes())), &Flags::default())
}

pub(super) fn good(rest: &str) -> Config {
    let Loaded { config, full, problems } = of_file(rest).unwrap();
    assert_eq!(texts(&problems), [""; 0], "{rest}");
    assert_round_trip(&config, &full);
    config
}

/// The configuration in force, written to a file, is that configuration.
fn assert_round_trip(config: &Config, full: &Configuration) {
    let json = serde_json::to_string(full).unwrap();
    let file = (Path::new("written.json"), json.as_bytes());
    let again = load(Some(file), &Flags::default()).unwrap();
    // What has no effect is noted, and a listener that is off cannot be said in a file.
    let warnings = again.problems.iter().filter(|problem| problem.severity != Severity::Note);
    assert_eq!(warnings.map(ToString::to_string).collect::<Vec<_>>(), [""; 0]);
    assert_eq!((&again.config, &again.full), (config, full));
}

fn flags(given: &[(&str, &str)]) -> Flags {
    let mut flags = Flags::default();
    for (name, value) in given {
        flags.push(Flag::named(name).unwrap(), *value);
    }
    flags
}

pub(super) fn texts(problems: &[Diagnostic]) -> Vec<String> {
    problems.iter().map(ToString::to_string).collect()
}

fn nets(texts: &[&str]) -> Vec<IpNet> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

/// A node that reboots after it has left kube-proxy has the values that it had before.
#[test]
fn sysctls_that_are_not_mentioned_are_kube_proxys() {
    let conntrack = |section: &str| good(&format!("conntrack: {{{section}}}")).conntrack;
    let kube_proxys = sysctl::Settings {
        max_per_core: 32_768,
        min: 131_072,
        tcp_established_timeout: Duration::from_secs(86_400),
        tcp_close_wait_timeout: Duration::from_secs(3_600),
        tcp_be_liberal: false,
        udp_timeout: Duration::ZERO,
        udp_stream_timeout: Duration::ZERO,
    };
    assert_eq!(good("").conntrack, kube_proxys);
    let null = "maxPerCore: null, min: null, tcpEstablishedTimeout: null, udpTimeout: null";
    assert_eq!(conntrack(null), kube_proxys);
    let sized = conntrack("maxPerCore: 65536");
    assert_eq!((sized.max_per_core, sized.min), (65_536, 131_072));
    let zero = "maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s";
    let untouched = sysctl::Settings {
        max_per_core: 0,
        min: 0,
        tcp_established_timeout: Duration::ZERO,
        tcp_close_wait_timeout: Duration::ZERO,
        ..kube_proxys
    };
    assert_eq!(conntrack(zero), untouched);
    let timed = conntrack("udpStreamTimeout: 3m, tcpBeLiberal: true");
    assert_eq!(timed.udp_stream_timeout, Duration::from_secs(180));
    assert!(timed.tcp_be_liberal);
}

fn defaults() -> Config {
    Config {
        options: Options {
            ignore_external_ips: false,
            node_address: None,
            detect_local: DetectLocal::Off,
            node_port_addresses: NodePortAddresses::Cidrs(nets(&[
                "0.0.0.0/0",
                "::/0",
                "127.0.0.0/8",
            ])),
            loopback_node_ports: LoopbackNodePorts { v4: true, v6: false },
            masquerade_bit: 14,
            masquerade_all: false,
            reset_gone_endpoints: false,
            balancing: shunt_core::model::Balancing::Random,
            ..Options::default()
        },
        hostname_override: None,
        kubeconfig: None,
        content_type: ContentType::default(),
        master: None,
        healthz_bind_address: Some("0.0.0.0:10256".parse().unwrap()),
        metrics_bind_address: Some("127.0.0.1:10249".parse().unwrap()),
        bind_address_hard_fail: false,
        sync_period: Duration::from_secs(30),
        min_sync_period: Duration::ZERO,
        conntrack: sysctl::Settings::default(),
        oom_score_adj: -999,
        log_format: LogFormat::Text,
        verbosity: 0,
    }
}

fn every_address() -> NodePortAddresses {
    NodePortAddresses::Cidrs(nets(&["0.0.0.0/0", "::/0"]))
}

/// With every address but loopback.
fn without_loopback() -> Config {
    Config {
        options: Options {
            node_port_addresses: every_address(),
            loopback_node_ports: LoopbackNodePorts::default(),
            ..defaults().options
        },
        ..defaults()
    }
}

/// With mode nftables.
fn nftables_defaults() -> Config {
    Config {
        options: Options {
            node_port_addresses: NodePortAddresses::Primary,
            ..without_loopback().options
        },
        ..without_loopback()
    }
}

#[test]
fn nothing_means_the_defaults() {
    let Loaded { config, full, problems } = load(None, &Flags::default()).unwrap();
    assert_eq!((&config, problems), (&defaults(), Vec::new()));
    assert_round_trip(&config, &full);
    assert_eq!(good(""), defaults());
}

#[test]
fn fields_are_honoured() {
    for (rest, expected) in [
        (
            "hostnameOverride: ' Node-1 '",
            Config { hostname_override: Some("node-1".into()), ..defaults() },
        ),
        (
            "bindAddress: '::'",
            Config {
                healthz_bind_address: Some("[::]:10256".parse().unwrap()),
                metrics_bind_address: Some("[::1]:10249".parse().unwrap()),
                ..defaults()
            },
        ),
        (
            "healthzBindAddress: 127.0.0.1",
            Config { healthz_bind_address: Some("127.0.0.1:10256".parse().unwrap()), ..defaults() },
        ),
        (
            "healthzBindAddress: '[::1]:99'",
            Config { healthz_bind_address: Some("[::1]:99".parse().unwrap()), ..defaults() },
        ),
        (
            "mode: nftables\nnftables: {masqueradeBit: 0, masqueradeAll: true, syncPeriod: 1m, minSyncPeriod: 5s}",
            Config {
                options: Options {
                    masquerade_bit: 0,
                    masquerade_all: true,
                    ..nftables_defaults().options
                },
                sync_period: Duration::from_secs(60),
                min_sync_period: Duration::from_secs(5),
                ..nftables_defaults()
            },
        ),
        // What the file asked of iptables mode.
        (
            "iptables: {masqueradeBit: 15, masqueradeAll: true, syncPeriod: 1m, minSyncPeriod: 2s}",
            Config {
                options: Options { masquerade_bit: 15, masquerade_all: true, ..defaults().options },
                sync_period: Duration::from_secs(60),
                min_sync_period: Duration::from_secs(2),
                ..defaults()
            },
        ),
        (
            "iptables: {syncPeriod: 1m}\nnftables: {syncPeriod: 2m}",
            Config { sync_period: Duration::from_secs(120), ..defaults() },
        ),
        ("ipvs: {syncPeriod: 1m}", defaults()),
        ("mode: nftables\niptables: {masqueradeBit: 14, syncPeriod: 1m}", nftables_defaults()),
        ("oomScoreAdj: -5", Config { oom_score_adj: -5, ..defaults() }),
        ("healthzBindAddress: ''\nmetricsBindAddress: ''", defaults()),
        (
            "bindAddress: 192.0.2.1",
            Config {
                options: Options {
                    node_address: Some("192.0.2.1".parse().unwrap()),
                    ..defaults().options
                },
                ..defaults()
            },
        ),
        (
            "clusterCIDR: '10.0.0.0/8, fd00::/8'",
            Config {
                options: Options {
                    detect_local: DetectLocal::ClusterCidr(nets(&["10.0.0.0/8", "fd00::/8"])),
                    ..defaults().options
                },
                ..defaults()
            },
        ),
        (
            "detectLocalMode: NodeCIDR",
            Config {
                options: Options { detect_local: DetectLocal::NodeCidr, ..defaults().options },
                ..defaults()
            },
        ),
        (
            "detectLocalMode: BridgeInterface\ndetectLocal: {bridgeInterface: cni0}",
            Config {
                options: Options {
                    detect_local: DetectLocal::BridgeInterface("cni0".into()),
                    ..defaults().options
                },
                ..defaults()
            },
        ),
        (
            "detectLocalMode: InterfaceNamePrefix\ndetectLocal: {interfaceNamePrefix: veth}",
            Config {
                options: Options {
                    detect_local: DetectLocal::InterfaceNamePrefix("veth".into()),
                    ..defaults().options
                },
                ..defaults()
            },
        ),
        ("nodePortAddresses: [primary]", nftables_defaults()),
        ("mode: nftables", nftables_defaults()),
        ("mode: nftables\nnodePortAddresses: ['0.0.0.0/0', '::/0']", without_loopback()),
        ("mode: nftables\nnodePortAddresses: [all]", without_loopback()),
        ("iptables: {localhostNodePorts: null}", defaults()),
        ("iptables: {localhostNodePorts: false}", without_loopback()),
        (
            "nodePortAddresses: [10.0.0.0/8, '::/0']",
            Config {
                options: Options {
                    node_port_addresses: NodePortAddresses::Cidrs(nets(&["10.0.0.0/8", "::/0"])),
                    ..without_loopback().options
                },
                ..without_loopback()
            },
        ),
        (
            "nodePortAddresses: ['fd00::/8']",
            Config {
                options: Options {
                    node_port_addresses: NodePortAddresses::Cidrs(nets(&[
                        "fd00::/8",
                        "0.0.0.0/0",
                        "127.0.0.0/8",
                    ])),
                    ..defaults().options
                },
                ..defaults()
            },
        ),
        (
            "mode: nftables\nnodePortAddresses: [primary, localhost]",
            Config {
                options: Options {
                    node_port_addresses: NodePortAddresses::PrimaryAnd(nets(&[
                        "127.0.0.0/8",
                        "::1/128",
                    ])),
                    loopback_node_ports: LoopbackNodePorts { v4: true, v6: true },
                    ..defaults().options
                },
                ..defaults()
            },
        ),
        (
            "featureGates: {AllowServiceExternalIPs: false}",
            Config {
                options: Options { ignore_external_ips: true, ..defaults().options },
                ..defaults()
            },
        ),
        (
            "logging: {format: json, verbosity: 4}",
            Config { log_format: LogFormat::Json, verbosity: 4, ..defaults() },
        ),
    ] {
        assert_eq!(good(rest), expected, "{rest}");
    }
}

#[test]
fn what_has_no_effect_is_noted() {
    let Loaded { config, problems, .. } = of_file(
        "mode: ipvs
portRange: 1-2
ipvs:
  strictARP: true
  scheduler: ''
  syncPeriod: 1m
featureGates: {AllowServiceExternalIPs: true, KubeProxyIPVS: false, NativeHistograms: false, Zzz: true}
hostnameOveride: x
nftables: {masqueradeBits: 3}
zzz: {a: [1]}
logging: {flushFrequency: 5000000000, vmodule: [{filePattern: a, verbosity: 2}], options: {text: {infoBufferSize: 4Mi}}}
iptables: {syncPeriod: -1s}
detectLocalMode: NodeCIDR
clusterCIDR: 10.0.0.0
",
    )
    .unwrap();
    let expected = Config {
        options: Options { detect_local: DetectLocal::NodeCidr, ..without_loopback().options },
        sync_period: Duration::from_secs(60),
        ..without_loopback()
    };
    assert_eq!(config, expected);
    assert_eq!(
        texts(&problems),
        [
            "config.conf:3: mode = ipvs: shunt programs nftables in every mode; write nftables, \
             and nodePortAddresses: [0.0.0.0/0, '::/0'] to keep node ports on every local address; \
             with mode nftables they are on the primary addresses only; see \
             docs/from-kube-proxy.md for what changes",
            "config.conf:4: portRange = 1-2: has no effect: Kubernetes no longer uses it",
            "config.conf:6: ipvs.strictARP = true: has no effect: shunt programs nftables in every mode",
            "config.conf:9: featureGates = KubeProxyIPVS=false: has no effect; kube-proxy's default is true",
            "config.conf:9: featureGates = Zzz=true: has no effect: unknown feature gate",
            "config.conf:10: hostnameOveride = x: unknown field, ignored; did you mean hostnameOverride?",
            "config.conf:11: nftables.masqueradeBits = 3: unknown field, ignored; did you mean nftables.masqueradeBit?",
            "config.conf:12: zzz = a mapping of 1: unknown field, ignored",
            "config.conf:13: logging.flushFrequency = 5000000000: has no effect: log lines are written at once",
            "config.conf:13: logging.options.text.infoBufferSize = 4Mi: has no effect: these log formats have no options",
            "config.conf:13: logging.vmodule = a list of 1: has no effect: patterns name source files of kube-proxy; use -v",
            "config.conf:14: iptables.syncPeriod = -1s: negative duration; write a positive one",
            "config.conf:16: clusterCIDR = 10.0.0.0: has no length; write 10.0.0.0/32",
        ]
    );
}

#[test]
fn all_errors_are_named_at_once() {
    let problems = of_file(
        "bindAddress: 10.0.0
healthzBindAddress: localhost:1
mode: userspace
nftables: {masqueradeBit: 32, syncPeriod: 1s, minSyncPeriod: 2s}
iptables: {masqueradeBit: -1, masqueradeAll: 'yes', minSyncPeriod: -1s}
portRange: 1-2
nodePortAddresses: [primary, 10.0.0.0]
detectLocalMode: BridgeInterface
oomScoreAdj: 2000
conntrack: {min: -1, udpTimeout: soon}
configSyncPeriod: [1]
detectLocal: [cni0]
logging: {format: xml, vmodule: [{filePattern: 'a=b'}], verbosity: -1}
metricsBindAddress: 127.0.0.1:0
clientConnection: {burst: -1}
",
    )
    .unwrap_err();
    let texts = texts(&problems);
    for (line, expected) in [
        (3, "bindAddress = 10.0.0: not an IP address"),
        (
            4,
            "healthzBindAddress = localhost:1: not an address to listen on; write one such as 0.0.0.0:10256",
        ),
        (5, "mode = userspace: unknown mode"),
        (6, "nftables.masqueradeBit = 32: not a bit of the mark; write 0 to 31"),
        (6, "nftables.minSyncPeriod = 2s: longer than nftables.syncPeriod"),
        (7, "iptables.masqueradeBit = -1"),
        (7, "iptables.masqueradeAll = yes: must be true or false, not text"),
        (7, "iptables.minSyncPeriod = -1s: negative duration"),
        (9, "nodePortAddresses[1] = 10.0.0.0: has no length; write 10.0.0.0/32"),
        (14, "detectLocal.bridgeInterface: required by this detectLocalMode"),
        (11, "oomScoreAdj = 2000: out of range"),
        (12, "conntrack.min = -1: negative"),
        (12, "conntrack.udpTimeout = soon: not a duration such as 30s or 1h2m3s"),
        (13, "configSyncPeriod = a list of 1: "),
        (14, "detectLocal = a list of 1: must be a mapping, not a list"),
        (15, "logging.format = xml: unknown format; write text or json"),
        (15, "logging.vmodule: only valid with format text"),
        (15, "logging.vmodule[0].filePattern = a=b: not a pattern"),
        (15, "logging.verbosity = -1: negative; write 0 or more"),
        (16, "metricsBindAddress = 127.0.0.1:0: has port 0"),
        (17, "clientConnection.burst = -1: negative"),
    ] {
        let expected = format!("config.conf:{line}: {expected}");
        assert!(texts.iter().any(|text| text.starts_with(&expected)), "{expected}\n{texts:#?}");
    }
    let errors = problems.iter().filter(|p| p.severity == Severity::Error).count();
    assert_eq!(errors, 21, "{texts:#?}");
}

#[test]
fn prefixes_of_pods() {
    for (written, expected) in [
        ("10.0.0.0/8,10.1.0.0/16", "two prefixes of one family; write at most one of each"),
        ("10.0.0.0/8,fd00::", "has no length; write fd00::/128"),
        ("10.0.0.0/33", "\"33\" is not a prefix length from 0 to 32"),
    ] {
        let problems = of_file(&format!("clusterCIDR: '{written}'")).unwrap_err();
        assert!(problems[0].to_string().ends_with(expected), "{}", problems[0]);
    }
}

#[test]
fn short_unknown_field_resembles_no_other() {
    let text = format!("{HEAD}foo: 1\n");
    let loaded = load(Some((Path::new("f"), text.as_bytes())), &Flags::default()).unwrap();
    assert_eq!(texts(&loaded.problems), ["f:3: foo = 1: unknown field, ignored"]);
}

#[test]
fn wrong_flags_are_named() {
    let wrong = flags(&[
        ("cluster-cidr", "x"),
        ("nodeport-addresses", "y"),
        ("iptables-sync-period", "z"),
        ("iptables-masquerade-bit", "32"),
        ("bind-address", "node-1"),
    ]);
    let problems = load(None, &wrong).unwrap_err();
    assert_eq!(
        texts(&problems),
        [
            "--iptables-sync-period = z: not a duration such as 30s or 1h2m3s",
            "--bind-address = node-1: not an IP address",
            "--cluster-cidr = x: not a prefix such as 10.0.0.0/8 or fd00::/8",
            "--nodeport-addresses = y: not a prefix such as 10.0.0.0/8 or fd00::/8",
            "--iptables-masquerade-bit = 32: not a bit of the mark; write 0 to 31",
        ]
    );
}

#[test]
fn times_of_ipvs_count_in_its_mode() {
    let mut given =
        vec![("iptables-sync-period", "1m"), ("ipvs-sync-period", "2m"), ("proxy-mode", "ipvs")];
    let period = |given: &[(&str, &str)]| load(None, &flags(given)).unwrap().config.sync_period;
    assert_eq!(period(&given), Duration::from_secs(120));
    given.pop();
    assert_eq!(period(&given), Duration::from_secs(60));
}

#[test]
fn deprecated_ports() {
    for (given, healthz) in [
        (&[("healthz-port", "0")][..], None),
        // The default has a port, so it stays: kube-proxy's way.
        (&[("healthz-port", "99")], Some("0.0.0.0:10256")),
        (&[("healthz-port", "99"), ("healthz-bind-address", "::1")], Some("[::1]:99")),
        (&[("healthz-port", "99"), ("healthz-bind-address", "127.0.0.1:8")], Some("127.0.0.1:8")),
    ] {
        let config = load(None, &flags(given)).unwrap().config;
        let expected = healthz.map(|address| address.parse().unwrap());
        assert_eq!(config.healthz_bind_address, expected, "{given:?}");
    }
}

#[test]
fn flags_without_effect_are_noted_at_once() {
    let given = flags(&[
        ("profiling", "true"),
        ("ipvs-scheduler", "rr"),
        ("logtostderr", "true"),
        ("cluster-cidr", "10.0.0.0/8"),
    ]);
    assert_eq!(
        texts(&load(None, &given).unwrap().problems),
        [
            "flags accepted without effect: --profiling (shunt serves no profiles; use perf), \
             --logtostderr (all logs go to stderr)",
            "--ipvs-scheduler = rr: has no effect in this mode; write shunt.loadBalancing"
        ]
    );
}

#[test]
fn feature_gate_is_honoured_as_a_flag_and_others_are_named() {
    let gates = "AllowServiceExternalIPs=false,AllAlpha=true,NFTablesNetlink=true";
    let Loaded { config, problems, .. } = load(None, &flags(&[("feature-gates", gates)])).unwrap();
    assert!(config.options.ignore_external_ips);
    assert_eq!(
        texts(&problems),
        ["--feature-gates = AllAlpha=true: has no effect; kube-proxy's default is false"]
    );
}

/// Every field of the table has a value.
#[test]
fn the_table_of_fields_is_complete() {
    let full = load(None, &flags(&[("vmodule", "a=1")])).unwrap().full;
    let mut paths = Vec::new();
    leaves(&serde_json::to_value(&full).unwrap(), "", &mut paths);
    let mut known: Vec<&str> = FIELDS.iter().map(|field| field.path).collect();
    paths.sort();
    known.sort();
    assert_eq!(paths, known);
    let named = |flag: &&Flag| !flag.field.is_empty();
    for flag in Flag::all().filter(named) {
        let known = known.iter().any(|path| path.starts_with(flag.field));
        assert!(known, "--{} stands for {}", flag.name, flag.field);
    }
}

fn leaves(value: &serde_json::Value, path: &str, paths: &mut Vec<String>) {
    match value {
        serde_json::Value::Object(fields) if path != "featureGates" => {
            for (name, value) in fields {
                let dot = if path.is_empty() { "" } else { "." };
                leaves(value, &format!("{path}{dot}{name}"), paths);
            }
        }
        _ => paths.push(path.to_owned()),
    }
}
