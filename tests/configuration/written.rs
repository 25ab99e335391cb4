//! `shunt run --write-config-to`.

use std::fs;
use std::process::Command;

use serde_json::Value;
use tempfile::tempdir;

pub(crate) fn run() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_shunt"));
    command.arg("run");
    command
}

/// Returns the configuration that a program writes, unless it rejects its arguments, and its log.
pub(crate) fn written_by(mut program: Command, arguments: &[&str]) -> (Option<Value>, String) {
    let scratch = tempdir().unwrap();
    let file = scratch.path().join("written.yaml");
    let to = format!("--write-config-to={}", file.display());
    let output = program.args(arguments).arg(to).output().unwrap();
    let written = output.status.success().then(|| {
        let text = fs::read(&file).unwrap();
        shunt::source::spanned_yaml::documents(&text).unwrap().next().unwrap().unwrap().value()
    });
    (written, String::from_utf8(output.stderr).unwrap())
}

/// Writes the configuration in force and returns it.
pub(crate) fn written(arguments: &[&str]) -> (Value, String) {
    let (written, log) = written_by(run(), arguments);
    (written.expect(&log), log)
}

/// What is written says of every field what is in force: read again, it says the same.
#[test]
fn what_is_written_is_what_is_in_force() {
    let kubeadm =
        concat!("--config=", env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/kubeadm-kube-proxy.yaml");
    for arguments in [
        &[][..],
        &["--proxy-mode=ipvs", "--ipvs-sync-period=1m", "--iptables-masquerade-bit=3"],
        &["--cluster-cidr=10.0.0.0/8", "--conntrack-min=7", "--hostname-override= NODE-1 "],
        &["--feature-gates=A=true", "--nodeport-addresses=10.0.0.0/8,fd00::/8", "-v=3"],
        &[kubeadm, "--hostname-override=node-7"],
    ] {
        let (first, _) = written(arguments);
        let scratch = tempdir().unwrap();
        let file = scratch.path().join("config.yaml");
        fs::write(&file, first.to_string()).unwrap();
        let (second, _) = written(&["--config", file.to_str().unwrap()]);
        assert_eq!(first, second, "{arguments:?}");
    }
}
