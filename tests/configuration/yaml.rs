//! YAML as kube-proxy reads it: YAML 1.1 by go-yaml v2, strictly first and then leniently.
//!
//! `yaml.txt` has a file a line, and what becomes of it: the value of a field, `leniently` if strict decoding
//! has failed, or `rejected`. The values are those of kube-proxy 1.36; where `KUBEBUILDER_ASSETS` names a
//! folder with kube-proxy, they are compared with what it makes of the same file.

use std::path::PathBuf;
use std::process::Command;
use std::{env, fs};

use serde_json::Value;
use shunt_testbed::record_not_run;
use tempfile::tempdir;

use crate::written::{run, written_by};

const HEAD: &str = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n\
                    mode: nftables\n";

/// Compares what a program makes of each file; its log has one of these texts if it decodes leniently.
fn compare(program: impl Fn() -> Command, warnings: &[&str]) {
    let scratch = tempdir().unwrap();
    let file = scratch.path().join("config.yaml");
    let config = format!("--config={}", file.display());
    let mut wrong = Vec::new();
    let cases = include_str!("yaml.txt").lines().filter(|line| !line.starts_with('#'));
    for (text, expected) in cases.map(|line| line.split_once(" => ").unwrap()) {
        fs::write(&file, format!("{HEAD}{}\n", text.replace("\\n", "\n"))).unwrap();
        let (written, log) = written_by(program(), &[&config]);
        let path = expected.split(' ').next().unwrap();
        let value = |written: Value| written.pointer(path).unwrap_or(&Value::Null).to_string();
        let is_lenient = warnings.iter().any(|warning| log.contains(warning));
        let leniently = if is_lenient { " leniently" } else { "" };
        let found = written.map(|written| format!("{path} {}{leniently}", value(written)));
        if found.as_deref().unwrap_or("rejected") != expected {
            wrong.push(format!("{text:?}: {found:?}, not {expected}\n{log}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn files_mean_what_they_mean_to_kube_proxy() {
    compare(run, &["is repeated in line", "unknown field, ignored"]);
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
    compare(|| Command::new(&kube_proxy), &["lenient decoding"]);
}
