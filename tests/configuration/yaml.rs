//! YAML as kube-proxy reads it: YAML 1.1 by go-yaml v2, strictly first and then leniently.
//!
//! The values are those of kube-proxy 1.36; where `KUBEBUILDER_ASSETS` names a folder with kube-proxy,
//! they are compared with what it makes of the same file.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use serde_json::Value;
use shunt_testbed::record_not_run;
use tempfile::tempdir;

use crate::written::run;

const HEAD: &str = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n\
                    mode: nftables\n";

/// What becomes of a file.
#[derive(Clone, Copy, Debug)]
enum Expected {
    /// The field has this value (JSON).
    Is(&'static str),
    /// So it has, with a warning: strict decoding has failed.
    Lenient(&'static str),
    /// It is rejected.
    Rejected,
}
use Expected::{Is, Lenient, Rejected};

const PROFILING: &str = "/enableProfiling";
const SCORE: &str = "/oomScoreAdj";
const NAME: &str = "/hostnameOverride";
const QPS: &str = "/clientConnection/qps";
const BIT: &str = "/nftables/masqueradeBit";
const GATES: &str = "/featureGates";
const CIDR: &str = "/clusterCIDR";

const TABLE: &[(&str, &str, Expected)] = &[
    // Booleans of YAML 1.1.
    ("enableProfiling: true", PROFILING, Is("true")),
    ("enableProfiling: TRUE", PROFILING, Is("true")),
    ("enableProfiling: tRUE", PROFILING, Rejected),
    ("enableProfiling: yes", PROFILING, Is("true")),
    ("enableProfiling: Yes", PROFILING, Is("true")),
    ("enableProfiling: YES", PROFILING, Is("true")),
    ("enableProfiling: y", PROFILING, Is("true")),
    ("enableProfiling: Y", PROFILING, Is("true")),
    ("enableProfiling: on", PROFILING, Is("true")),
    ("enableProfiling: oN", PROFILING, Rejected),
    ("enableProfiling: no", PROFILING, Is("false")),
    ("enableProfiling: n", PROFILING, Is("false")),
    ("enableProfiling: N", PROFILING, Is("false")),
    ("enableProfiling: Off", PROFILING, Is("false")),
    ("enableProfiling: t", PROFILING, Rejected),
    ("enableProfiling: 1", PROFILING, Rejected),
    ("enableProfiling: 'true'", PROFILING, Rejected),
    ("enableProfiling: 'yes'", PROFILING, Rejected),
    ("enableProfiling: !!bool 'yes'", PROFILING, Is("true")),
    ("enableProfiling: !!str true", PROFILING, Rejected),
    ("enableProfiling: null", PROFILING, Is("false")),
    ("enableProfiling: ~", PROFILING, Is("false")),
    // Whole numbers.
    ("oomScoreAdj: 010", SCORE, Is("8")),
    ("oomScoreAdj: -010", SCORE, Is("-8")),
    ("oomScoreAdj: 0o10", SCORE, Is("8")),
    ("oomScoreAdj: 0O10", SCORE, Is("8")),
    ("oomScoreAdj: 08", SCORE, Is("8")),
    ("oomScoreAdj: 0x10", SCORE, Is("16")),
    ("oomScoreAdj: -0x10", SCORE, Is("-16")),
    ("oomScoreAdj: +0x1", SCORE, Is("1")),
    ("oomScoreAdj: 0x_1f", SCORE, Is("31")),
    ("oomScoreAdj: 0x", SCORE, Rejected),
    ("oomScoreAdj: 0b11", SCORE, Is("3")),
    ("oomScoreAdj: -0b11", SCORE, Is("-3")),
    ("oomScoreAdj: 0b12", SCORE, Rejected),
    ("oomScoreAdj: 1_0", SCORE, Is("10")),
    ("oomScoreAdj: 1__0", SCORE, Is("10")),
    ("oomScoreAdj: 5_", SCORE, Is("5")),
    ("oomScoreAdj: _1", SCORE, Rejected),
    ("oomScoreAdj: +5", SCORE, Is("5")),
    ("oomScoreAdj: +", SCORE, Rejected),
    ("oomScoreAdj: -0", SCORE, Is("0")),
    ("oomScoreAdj: 1e2", SCORE, Is("100")),
    ("oomScoreAdj: 1E2", SCORE, Is("100")),
    ("oomScoreAdj: 1e", SCORE, Rejected),
    ("oomScoreAdj: 1.0", SCORE, Is("1")),
    ("oomScoreAdj: 1.", SCORE, Is("1")),
    ("oomScoreAdj: 1_0.0", SCORE, Is("10")),
    ("oomScoreAdj: 1.5", SCORE, Rejected),
    ("oomScoreAdj: 1:30", SCORE, Rejected),
    ("oomScoreAdj: '5'", SCORE, Rejected),
    ("oomScoreAdj: !!int '5'", SCORE, Is("5")),
    ("oomScoreAdj: !!float 5", SCORE, Is("5")),
    ("oomScoreAdj: !!str 5", SCORE, Rejected),
    ("oomScoreAdj: !foo 5", SCORE, Rejected),
    ("oomScoreAdj: 99999999999", SCORE, Rejected),
    ("oomScoreAdj: 100000000000000000000", SCORE, Rejected),
    // Other numbers.
    ("clientConnection: {qps: 5.5}", QPS, Is("5.5")),
    ("clientConnection: {qps: .5}", QPS, Is("0.5")),
    ("clientConnection: {qps: 08.5}", QPS, Is("8.5")),
    ("clientConnection: {qps: 1_0.5}", QPS, Is("10.5")),
    ("clientConnection: {qps: 5e-1}", QPS, Is("0.5")),
    ("clientConnection: {qps: .inf}", QPS, Rejected),
    ("clientConnection: {qps: .NaN}", QPS, Rejected),
    ("clientConnection: {qps: 1e400}", QPS, Rejected),
    // Text.
    ("hostnameOverride: yes", NAME, Rejected),
    ("hostnameOverride: y", NAME, Rejected),
    ("hostnameOverride: 1", NAME, Rejected),
    ("hostnameOverride: 010", NAME, Rejected),
    ("hostnameOverride: 1_000", NAME, Rejected),
    ("hostnameOverride: 1e3", NAME, Rejected),
    ("hostnameOverride: .inf", NAME, Rejected),
    ("hostnameOverride: {}", NAME, Rejected),
    ("hostnameOverride: 1e3x", NAME, Is("\"1e3x\"")),
    ("hostnameOverride: 012a", NAME, Is("\"012a\"")),
    ("hostnameOverride: 1.2.3", NAME, Is("\"1.2.3\"")),
    ("hostnameOverride: 1:30", NAME, Is("\"1:30\"")),
    ("hostnameOverride: 2001-01-01", NAME, Is("\"2001-01-01\"")),
    ("hostnameOverride: 0o8", NAME, Is("\"0o8\"")),
    ("hostnameOverride: !x y", NAME, Is("\"y\"")),
    ("hostnameOverride: !!binary bm9kZQ==", NAME, Is("\"node\"")),
    ("hostnameOverride: ~", NAME, Is("\"\"")),
    // Keys.
    ("featureGates: {yes: true}", GATES, Is("{\"true\":true}")),
    ("featureGates: {1_0: on}", GATES, Is("{\"10\":true}")),
    ("featureGates: {0o7: true}", GATES, Is("{\"7\":true}")),
    ("featureGates: {010: true}", GATES, Is("{\"8\":true}")),
    ("featureGates: {1e3: true}", GATES, Is("{\"1000\":true}")),
    ("featureGates: {1.50: true}", GATES, Is("{\"1.5\":true}")),
    ("featureGates: {~: true}", GATES, Rejected),
    ("? [a]\n: b", GATES, Rejected),
    // Merge keys: what comes later counts, and of a list what comes first.
    ("nftables: {<<: {masqueradeBit: 7}}", BIT, Is("7")),
    ("nftables: {!!merge <<: {masqueradeBit: 7}}", BIT, Is("7")),
    ("iptables: &a {masqueradeBit: 5}\nnftables:\n  <<: *a", BIT, Is("5")),
    ("iptables: &a {masqueradeBit: 5}\nnftables:\n  <<: *a\n  masqueradeBit: 3", BIT, Lenient("3")),
    ("iptables: &a {masqueradeBit: 5}\nnftables:\n  masqueradeBit: 3\n  <<: *a", BIT, Lenient("5")),
    (
        "iptables: &a {masqueradeBit: 5}\nnftables:\n  <<: [*a, {masqueradeBit: 7}]",
        BIT,
        Lenient("5"),
    ),
    ("<<: {nftables: {masqueradeBit: 7}}", BIT, Is("7")),
    ("nftables: {'<<': {masqueradeBit: 7}}", BIT, Lenient("14")),
    ("nftables: {<<: 5}", BIT, Rejected),
    ("nftables: {<<: [5]}", BIT, Rejected),
    ("nftables: {<<: [[{masqueradeBit: 7}]]}", BIT, Rejected),
    ("nftables:\n  <<:", BIT, Rejected),
    // Fields that are unknown, that come twice, or in another case.
    ("nftables: {masqueradeBit: 1, masqueradeBit: 2}", BIT, Lenient("2")),
    ("nftables: {masqueradeBit: 1}\nnftables: {masqueradeAll: true}", BIT, Lenient("14")),
    ("nftables: {foo: 2}", BIT, Lenient("14")),
    ("nftables: {MasqueradeBit: 2}", BIT, Lenient("14")),
    ("b: &b {masqueradeBit: 9}\nnftables:\n  <<: *b", BIT, Lenient("9")),
    // Aliases, and what is no YAML.
    ("iptables: &a {masqueradeBit: 5}\nnftables: *a", BIT, Is("5")),
    ("b: &x\n  c: *x", BIT, Rejected),
    ("b: *x", BIT, Rejected),
    ("b: [", BIT, Rejected),
    // Addresses and prefixes may begin with zeros, which mean nothing.
    ("bindAddress: 010.0.0.1", "/bindAddress", Is("\"010.0.0.1\"")),
    ("bindAddress: 10.0.0.08", "/bindAddress", Is("\"10.0.0.08\"")),
    ("bindAddress: '::ffff:10.0.0.1'", "/bindAddress", Is("\"::ffff:10.0.0.1\"")),
    ("bindAddress: ' 10.0.0.1'", "/bindAddress", Rejected),
    ("bindAddress: fe80::1%eth0", "/bindAddress", Rejected),
    ("bindAddress: 10.0.0", "/bindAddress", Rejected),
    ("bindAddress: 10.0.0.1/8", "/bindAddress", Rejected),
    ("healthzBindAddress: 010.0.0.1:1", "/healthzBindAddress", Is("\"010.0.0.1:1\"")),
    ("healthzBindAddress: 10.0.0.1:010256", "/healthzBindAddress", Is("\"10.0.0.1:010256\"")),
    ("healthzBindAddress: 10.0.0.1", "/healthzBindAddress", Is("\"10.0.0.1:10256\"")),
    (
        "healthzBindAddress: '[::ffff:10.0.0.1]:1'",
        "/healthzBindAddress",
        Is("\"[::ffff:10.0.0.1]:1\""),
    ),
    ("healthzBindAddress: :10256", "/healthzBindAddress", Rejected),
    ("healthzBindAddress: 10.0.0.1:0", "/healthzBindAddress", Rejected),
    ("healthzBindAddress: 10.0.0.1:http", "/healthzBindAddress", Rejected),
    ("healthzBindAddress: localhost:1", "/healthzBindAddress", Rejected),
    ("clusterCIDR: 010.244.0.0/16", CIDR, Is("\"010.244.0.0/16\"")),
    ("clusterCIDR: 10.244.0.0/016", CIDR, Is("\"10.244.0.0/016\"")),
    ("clusterCIDR: 10.244.1.2/16", CIDR, Is("\"10.244.1.2/16\"")),
    ("clusterCIDR: 10.0.0.0/+8", CIDR, Rejected),
    ("clusterCIDR: 10.0.0.0", CIDR, Rejected),
    ("clusterCIDR: 10.0.0.0/8,10.1.0.0/16", CIDR, Rejected),
    ("nodePortAddresses: [010.0.0.0/8]", "/nodePortAddresses", Is("[\"010.0.0.0/8\"]")),
    ("nodePortAddresses: [10.0.0.1/08]", "/nodePortAddresses", Is("[\"10.0.0.1/08\"]")),
    ("nodePortAddresses: [10.0.0.1]", "/nodePortAddresses", Rejected),
];

/// What a program makes of the file: the configuration that it writes, and what it logs.
fn outcome(
    text: &str,
    program: impl Fn(&[&str]) -> std::process::Output,
) -> (Option<Value>, String) {
    let scratch = tempdir().unwrap();
    let (file, to) = (scratch.path().join("config.yaml"), scratch.path().join("written.yaml"));
    fs::write(&file, format!("{HEAD}{text}\n")).unwrap();
    let (config, write) =
        (format!("--config={}", file.display()), format!("--write-config-to={}", to.display()));
    let output = program(&[&config, &write]);
    let log = String::from_utf8(output.stderr).unwrap();
    let written = output.status.success().then(|| {
        let written = fs::read_to_string(&to).unwrap();
        let documents = shunt::source::spanned_yaml::parse(written.as_bytes()).unwrap();
        documents[0].value()
    });
    (written, log)
}

/// Compares; `is_lenient` tells from a log whether there was a warning.
fn compare(program: impl Fn(&[&str]) -> std::process::Output, is_lenient: impl Fn(&str) -> bool) {
    let mut wrong = Vec::new();
    for (text, path, expected) in TABLE {
        let (written, log) = outcome(text, &program);
        let found = written.as_ref().map(|written| {
            let value = written.pointer(path).unwrap_or(&Value::Null);
            (value.to_string(), is_lenient(&log))
        });
        let expected = match expected {
            Is(value) => Some(((*value).to_owned(), false)),
            Lenient(value) => Some(((*value).to_owned(), true)),
            Rejected => None,
        };
        if found != expected {
            wrong.push(format!("{text:?}: {found:?}, not {expected:?}\n{log}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn files_mean_what_they_mean_to_kube_proxy() {
    compare(run, |log| {
        let warnings = ["is repeated in line", "unknown field, ignored"];
        warnings.iter().any(|warning| log.contains(warning))
    });
}

/// Where it is installed.
#[test]
fn kube_proxy_itself_agrees() {
    let assets = env::var_os("KUBEBUILDER_ASSETS").map(PathBuf::from);
    let Some(kube_proxy) = assets.map(|assets| assets.join("kube-proxy")).filter(|f| f.is_file())
    else {
        let reason = "KUBEBUILDER_ASSETS names no folder with kube-proxy";
        return record_not_run("configuration", 1, reason).unwrap();
    };
    compare(|arguments| start(&kube_proxy, arguments), |log| log.contains("lenient decoding"));
}

fn start(program: &Path, arguments: &[&str]) -> std::process::Output {
    Command::new(program).args(arguments).output().unwrap()
}
