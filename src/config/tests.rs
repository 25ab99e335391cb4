//! Cases for the configuration, written as files and flags.

use ipnet::IpNet;

use super::*;

const HEAD: &str = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n";

fn of_file(rest: &str) -> Result<(Config, Vec<Problem>), Invalid> {
    let text = format!("{HEAD}{rest}");
    load(Some((Path::new("config.conf"), text.as_bytes())), &Flags::default())
}

fn good(rest: &str) -> Config {
    let (config, problems) = of_file(rest).unwrap();
    assert_eq!(texts(&problems), [""; 0], "{rest}");
    config
}

fn texts(problems: &[Problem]) -> Vec<String> {
    problems.iter().map(ToString::to_string).collect()
}

fn nets(texts: &[&str]) -> Vec<IpNet> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

/// No sysctl is asked for.
fn untouched() -> sysctl::Settings {
    sysctl::Settings {
        max_per_core: 0,
        min: 0,
        tcp_established_timeout: Duration::ZERO,
        tcp_close_wait_timeout: Duration::ZERO,
        ..sysctl::Settings::default()
    }
}

#[test]
fn sysctls_are_set_where_the_section_asks_for_them() {
    let conntrack = |section: &str| good(&format!("conntrack: {{{section}}}")).conntrack;
    assert_eq!(conntrack("maxPerCore: null, min: null, udpTimeout: 0s"), untouched());
    let sized = conntrack("maxPerCore: 65536");
    assert_eq!((sized.max_per_core, sized.min), (65_536, 131_072));
    assert_eq!(conntrack("maxPerCore: 0").max_per_core, 0);
    let timed = conntrack("udpStreamTimeout: 3m, tcpBeLiberal: true");
    assert_eq!(timed.udp_stream_timeout, Duration::from_secs(180));
    assert!(timed.tcp_be_liberal);
}

fn defaults() -> Config {
    Config {
        hostname_override: None,
        kubeconfig: None,
        bind_address: None,
        healthz_bind_address: Some("0.0.0.0:10256".parse().unwrap()),
        metrics_bind_address: Some("127.0.0.1:10249".parse().unwrap()),
        detect_local: DetectLocal::Off,
        node_port_addresses: NodePortAddresses::Primary,
        masquerade_bit: 14,
        masquerade_all: false,
        sync_period: Duration::from_secs(30),
        min_sync_period: Duration::ZERO,
        conntrack: untouched(),
        log_format: LogFormat::Text,
        verbosity: 0,
    }
}

#[test]
fn nothing_means_the_defaults() {
    assert_eq!(load(None, &Flags::default()).unwrap(), (defaults(), Vec::new()));
    assert_eq!(good(""), defaults());
}

#[test]
fn the_file_that_kubeadm_writes_is_understood() {
    let bytes = include_bytes!("../../tests/fixtures/kubeadm-kube-proxy.yaml");
    let file = (Path::new("config.conf"), &bytes[..]);
    let (config, problems) = load(Some(file), &Flags::default()).unwrap();
    let expected = Config {
        kubeconfig: Some("/var/lib/kube-proxy/kubeconfig.conf".into()),
        detect_local: DetectLocal::ClusterCidr(nets(&["10.244.0.0/16"])),
        ..defaults()
    };
    assert_eq!(config, expected);
    assert_eq!(problems, []);
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
                masquerade_bit: 0,
                masquerade_all: true,
                sync_period: Duration::from_secs(60),
                min_sync_period: Duration::from_secs(5),
                ..defaults()
            },
        ),
        // What the file asked of iptables mode.
        (
            "iptables: {masqueradeBit: 15, masqueradeAll: true, syncPeriod: 0s}",
            Config { masquerade_bit: 15, masquerade_all: true, ..defaults() },
        ),
        ("mode: nftables\niptables: {masqueradeBit: 15}", defaults()),
        (
            "clusterCIDR: '10.0.0.0/8, fd00::/8'",
            Config {
                detect_local: DetectLocal::ClusterCidr(nets(&["10.0.0.0/8", "fd00::/8"])),
                ..defaults()
            },
        ),
        ("detectLocalMode: NodeCIDR", Config { detect_local: DetectLocal::NodeCidr, ..defaults() }),
        (
            "detectLocalMode: BridgeInterface\ndetectLocal: {bridgeInterface: cni0}",
            Config { detect_local: DetectLocal::BridgeInterface("cni0".into()), ..defaults() },
        ),
        (
            "detectLocalMode: InterfaceNamePrefix\ndetectLocal: {interfaceNamePrefix: veth}",
            Config { detect_local: DetectLocal::InterfaceNamePrefix("veth".into()), ..defaults() },
        ),
        ("nodePortAddresses: [primary]", defaults()),
        (
            "nodePortAddresses: [10.0.0.0/8, '::/0']",
            Config {
                node_port_addresses: NodePortAddresses::Cidrs(nets(&["10.0.0.0/8", "::/0"])),
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
    let (config, problems) = of_file(
        "mode: ipvs
oomScoreAdj: -999
ipvs:
  strictARP: true
  scheduler: ''
featureGates: {KubeProxyIPVS: true}
hostnameOveride: x
nftables: {masqueradeBits: 3}
zzz: {a: [1]}
",
    )
    .unwrap();
    assert_eq!(config, defaults());
    assert_eq!(
        texts(&problems),
        [
            "config.conf:3: mode = ipvs: shunt programs nftables, whatever the mode; write nftables",
            "config.conf:4: oomScoreAdj = -999: has no effect: the score of the process is left alone",
            "config.conf:6: ipvs.strictARP = true: has no effect: nftables is programmed, whatever the mode",
            "config.conf:8: featureGates = a mapping of 1: has no effect: there are no feature gates",
            "config.conf:9: hostnameOveride = x: there is no such field, it is ignored; did you mean hostnameOverride?",
            "config.conf:10: nftables.masqueradeBits = 3: there is no such field, it is ignored; did you mean nftables.masqueradeBit?",
            "config.conf:11: zzz = a mapping of 1: there is no such field, it is ignored",
        ]
    );
}

#[test]
fn all_errors_are_named_at_once() {
    let Invalid(problems) = of_file(
        "bindAddress: 10.0.0
healthzBindAddress: localhost:1
mode: userspace
nftables: {masqueradeBit: 32, syncPeriod: 1s, minSyncPeriod: 2s}
iptables: {masqueradeBit: -1, masqueradeAll: 'yes', minSyncPeriod: -1s}
clusterCIDR: 10.0.0.0/8,10.1.0.0/16
nodePortAddresses: [primary, 10.0.0.0]
detectLocalMode: BridgeInterface
oomScoreAdj: 2000
conntrack: {min: -1, udpTimeout: soon}
configSyncPeriod: [1]
logging: {format: xml}
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
        (5, "mode = userspace: not a mode"),
        (6, "nftables.masqueradeBit = 32: not a bit of the mark; write 0 to 31"),
        (6, "nftables.minSyncPeriod = 2s: longer than nftables.syncPeriod"),
        (7, "iptables.masqueradeBit = -1"),
        (7, "iptables.masqueradeAll = yes: must be true or false, not text"),
        (7, "iptables.minSyncPeriod = -1s: a negative duration"),
        (8, "clusterCIDR = 10.0.0.0/8,10.1.0.0/16: two prefixes of one family"),
        (9, "nodePortAddresses[0] = primary: stands alone"),
        (9, "nodePortAddresses[1] = 10.0.0.0: has no length; write 10.0.0.0/32"),
        (10, "detectLocal.bridgeInterface: is needed with this detectLocalMode"),
        (11, "oomScoreAdj = 2000: out of range"),
        (12, "conntrack.min = -1: negative"),
        (12, "conntrack.udpTimeout = soon: not a duration such as 30s or 1h2m3s"),
        (13, "configSyncPeriod = a list of 1: "),
        (14, "logging.format = xml: not a format; write text or json"),
    ] {
        let expected = format!("config.conf:{line}: {expected}");
        // What is missing has the line of the nearest thing around it.
        let expected =
            expected.replace("config.conf:10: detectLocal.", "config.conf:1: detectLocal.");
        assert!(texts.iter().any(|text| text.starts_with(&expected)), "{expected}\n{texts:#?}");
    }
    let errors = problems.iter().filter(|p| p.severity == Severity::Error).count();
    assert_eq!(errors, 17, "{texts:#?}");
    let message = Invalid(problems).to_string();
    assert!(message.starts_with("the configuration is not valid: \n  config.conf:"), "{message}");
}

#[test]
fn files_that_are_something_else() {
    for (text, expected) in [
        ("", "config.conf: the file is empty"),
        ("a: [", "config.conf:1: not YAML or JSON"),
        (
            "kind: KubeProxyConfiguration\napiVersion: v1\n",
            "config.conf:2: apiVersion = v1: must be kubeproxy.",
        ),
        ("- a\n", "config.conf:1: apiVersion: must be kubeproxy.config.k8s.io/v1alpha1"),
        (&format!("{HEAD}---\nx: 1\n"), "config.conf:4: a second document"),
    ] {
        let file = (Path::new("config.conf"), text.as_bytes());
        let Invalid(problems) = load(Some(file), &Flags::default()).unwrap_err();
        assert!(problems[0].to_string().starts_with(expected), "{}", problems[0]);
    }
}

#[test]
fn flags_alone() {
    let flags = Flags {
        hostname_override: Some("NODE-1".into()),
        healthz_bind_address: Some(String::new()),
        masquerade_all: Some(true),
        cluster_cidr: Some("10.0.0.0/8".into()),
        nodeport_addresses: vec!["192.168.0.0/16".into()],
        min_sync_period: Some("1s".into()),
        verbosity: Some(3),
        ..Flags::default()
    };
    let expected = Config {
        hostname_override: Some("node-1".into()),
        healthz_bind_address: None,
        masquerade_all: true,
        detect_local: DetectLocal::ClusterCidr(nets(&["10.0.0.0/8"])),
        node_port_addresses: NodePortAddresses::Cidrs(nets(&["192.168.0.0/16"])),
        min_sync_period: Duration::from_secs(1),
        verbosity: 3,
        ..defaults()
    };
    assert_eq!(load(None, &flags).unwrap(), (expected, Vec::new()));

    let flags = Flags {
        cluster_cidr: Some("x".into()),
        nodeport_addresses: vec!["y".into()],
        sync_period: Some("z".into()),
        ..Flags::default()
    };
    let Invalid(problems) = load(None, &flags).unwrap_err();
    assert_eq!(
        texts(&problems),
        [
            "--iptables-sync-period = z: not a duration such as 30s or 1h2m3s",
            "--cluster-cidr = x: not a prefix such as 10.0.0.0/8 or fd00::/8",
            "--nodeport-addresses = y: not a prefix such as 10.0.0.0/8 or fd00::/8",
        ]
    );
}

#[test]
fn beside_a_file_only_some_flags_count() {
    let flags = Flags {
        hostname_override: Some("other".into()),
        cluster_cidr: Some("10.0.0.0/8".into()),
        verbosity: Some(2),
        logging_format: Some(LogFormat::Json),
        ..Flags::default()
    };
    let text = format!("{HEAD}hostnameOverride: node-1\nlogging: {{verbosity: 9}}\n");
    let file = (Path::new("config.conf"), text.as_bytes());
    let (config, problems) = load(Some(file), &flags).unwrap();
    let expected = Config {
        hostname_override: Some("other".into()),
        verbosity: 2,
        log_format: LogFormat::Json,
        ..defaults()
    };
    assert_eq!(config, expected);
    assert_eq!(
        texts(&problems),
        ["--cluster-cidr: has no effect beside --config; write it into the file"]
    );
}

proptest::proptest! {
    #[test]
    fn mutated_files_never_crash(
        edits in proptest::collection::vec((proptest::prelude::any::<proptest::sample::Index>(), proptest::prelude::any::<u8>()), 1..20),
    ) {
        let mut bytes = include_bytes!("../../tests/fixtures/kubeadm-kube-proxy.yaml").to_vec();
        for (at, byte) in edits {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        let _ = load(Some((Path::new("config.conf"), &bytes)), &Flags::default());
    }
}
