//! `shunt run --write-config-to`.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use tempfile::tempdir;

pub(crate) fn run(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_shunt")).arg("run").args(arguments).output().unwrap()
}

/// Writes the configuration in force and returns it.
pub(crate) fn written(arguments: &[&str]) -> (serde_json::Value, String) {
    let scratch = tempdir().unwrap();
    let file = scratch.path().join("written.yaml");
    let to = format!("--write-config-to={}", file.display());
    let output = run(&[arguments, &[&to]].concat());
    let log = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{arguments:?}: {log}");
    let text = fs::read_to_string(&file).unwrap();
    let documents = shunt::source::spanned_yaml::parse(text.as_bytes()).unwrap();
    (documents[0].value(), log)
}

/// What is written says of every field what is in force: read again, it says the same.
#[test]
fn what_is_written_is_what_is_in_force() {
    let kubeadm =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/kubeadm-kube-proxy.yaml");
    let kubeadm = format!("--config={}", kubeadm.display());
    for arguments in [
        &[][..],
        &["--proxy-mode=ipvs", "--ipvs-sync-period=1m", "--iptables-masquerade-bit=3"],
        &["--cluster-cidr=10.0.0.0/8", "--conntrack-min=7", "--hostname-override= NODE-1 "],
        &["--feature-gates=A=true", "--nodeport-addresses=10.0.0.0/8,fd00::/8", "-v=3"],
        &[&kubeadm, "--hostname-override=node-7"],
    ] {
        let (first, _) = written(arguments);
        let scratch = tempdir().unwrap();
        let file = scratch.path().join("config.yaml");
        fs::write(&file, first.to_string()).unwrap();
        let (second, _) = written(&["--config", file.to_str().unwrap()]);
        assert_eq!(first, second, "{arguments:?}");
    }
}
