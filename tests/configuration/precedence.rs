//! Which of a flag and a file counts, flag by flag, and what is said about it.

use std::fs;

use shunt::config::Flag;
use tempfile::tempdir;

use crate::written::{run, written};

const HEAD: &str = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n";

/// A flag, a value other than the default, and what the field says then.
const CASES: [(&str, &str, &str); 49] = [
    ("hostname-override", "node-7", "\"node-7\""),
    ("kubeconfig", "/k", "\"/k\""),
    ("bind-address", "192.0.2.1", "\"192.0.2.1\""),
    ("healthz-bind-address", "127.0.0.1:1", "\"127.0.0.1:1\""),
    ("healthz-port", "0", "\"\""),
    ("metrics-bind-address", "::1", "\"[::1]:10249\""),
    ("metrics-port", "0", "\"\""),
    ("bind-address-hard-fail", "true", "true"),
    ("masquerade-all", "true", "true"),
    ("iptables-masquerade-bit", "3", "3"),
    ("iptables-sync-period", "1m", "\"1m\""),
    ("iptables-min-sync-period", "1s", "\"1s\""),
    ("detect-local-mode", "NodeCIDR", "\"NodeCIDR\""),
    ("cluster-cidr", "10.0.0.0/8", "\"10.0.0.0/8\""),
    ("pod-bridge-interface", "cni0", "\"cni0\""),
    ("pod-interface-name-prefix", "veth", "\"veth\""),
    ("nodeport-addresses", "10.0.0.0/8", "[\"10.0.0.0/8\"]"),
    ("oom-score-adj", "-998", "-998"),
    ("conntrack-max-per-core", "1", "1"),
    ("conntrack-min", "1", "1"),
    ("conntrack-tcp-timeout-established", "1h", "\"1h\""),
    ("conntrack-tcp-timeout-close-wait", "2h", "\"2h\""),
    ("conntrack-tcp-be-liberal", "true", "true"),
    ("conntrack-udp-timeout", "10s", "\"10s\""),
    ("conntrack-udp-timeout-stream", "10s", "\"10s\""),
    ("reset-gone-endpoints", "true", "true"),
    ("load-balancing", "source-hash", "\"source-hash\""),
    ("feature-gates", "A=true", "{\"A\":true}"),
    ("kube-api-content-type", "application/json", "\"application/json\""),
    ("kube-api-burst", "7", "7"),
    ("kube-api-qps", "7", "7"),
    ("config-sync-period", "1m", "\"1m\""),
    ("profiling", "true", "true"),
    ("show-hidden-metrics-for-version", "1.35", "\"1.35\""),
    ("iptables-localhost-nodeports", "false", "false"),
    ("ipvs-scheduler", "rr", "\"rr\""),
    ("ipvs-exclude-cidrs", "10.0.0.0/8", "[\"10.0.0.0/8\"]"),
    ("ipvs-strict-arp", "true", "true"),
    ("ipvs-tcp-timeout", "1s", "\"1s\""),
    ("ipvs-tcpfin-timeout", "1s", "\"1s\""),
    ("ipvs-udp-timeout", "1s", "\"1s\""),
    ("logging-format", "json", "\"json\""),
    ("v", "3", "3"),
    ("vmodule", "a=1", "[{\"filePattern\":\"a\",\"verbosity\":1}]"),
    ("log-flush-frequency", "1s", "\"1s\""),
    ("log-text-split-stream", "true", "true"),
    ("log-json-split-stream", "true", "true"),
    ("log-text-info-buffer-size", "4Mi", "\"4Mi\""),
    ("log-json-info-buffer-size", "4Mi", "\"4Mi\""),
];

/// Flags whose value is not to be seen in a field of their own.
const ELSEWHERE: [&str; 17] = [
    "master",
    "proxy-mode",
    "ipvs-sync-period",
    "ipvs-min-sync-period",
    "boot-id-file",
    "machine-id-file",
    "add-dir-header",
    "alsologtostderr",
    "log-backtrace-at",
    "log-dir",
    "log-file",
    "log-file-max-size",
    "logtostderr",
    "one-output",
    "skip-headers",
    "skip-log-headers",
    "stderrthreshold",
];

#[test]
fn every_flag_sets_its_field_unless_a_file_is_given() {
    let scratch = tempdir().unwrap();
    let file = scratch.path().join("config.yaml");
    fs::write(&file, HEAD).unwrap();
    let config = format!("--config={}", file.display());
    let (default, _) = written(&[]);
    for (name, value, expected) in CASES {
        let flag = Flag::named(name).expect(name);
        let pointer = format!("/{}", flag.field.replace('.', "/"));
        let field = |full: &serde_json::Value| full.pointer(&pointer).map(ToString::to_string);
        let given = format!("--{name}={value}");

        let (alone, _) = written(&[&given]);
        assert_eq!(field(&alone).as_deref(), Some(expected), "{given} alone");
        let (beside, log) = written(&[&given, &config]);
        let warned = log.contains("has no effect with --config") && log.contains(flag.field);
        if flag.counts_beside_file() {
            assert_eq!(field(&beside).as_deref(), Some(expected), "{given} beside a file");
            assert!(!warned, "{given}: {log}");
        } else {
            assert_eq!(field(&beside), field(&default), "{given} beside a file");
            assert!(warned && log.contains(&format!("--{name}")), "{given}: {log}");
        }
    }
    let known = |flag: &&Flag| CASES.iter().any(|(name, ..)| *name == flag.name);
    let mut others: Vec<&str> =
        Flag::all().filter(|flag| !known(flag)).map(|flag| flag.name).collect();
    let mut expected = ELSEWHERE;
    others.sort();
    expected.sort();
    assert_eq!(others, expected);
}

#[test]
fn wrong_use_and_wrong_configuration_have_exit_codes_of_their_own() {
    for (arguments, code, said) in [
        (&["--no-such-flag"][..], 2, "unexpected argument"),
        (&["--cluster-cdr=10.0.0.0/8"], 2, "a similar argument exists: '--cluster-cidr'"),
        (&["--oom-score-adj=low"], 2, "not a number"),
        (&["--oom-score-adj=2000"], 64, "out of range; write -1000 to 1000"),
        (&["--cluster-cidr=x", "--bind-address=y"], 64, "2 invalid values"),
        (&["--config=/no/such/file"], 64, "cannot read"),
    ] {
        let output = run(arguments);
        let log = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {log}");
        assert!(log.contains(said), "{arguments:?}: {log}");
    }
}
