//! The guides, followed with kubectl against the real kube-apiserver: it takes every manifest, and each
//! command does what its guide says. There are no kubelets, so no pod runs.
//!
//! Scripts come out of the guides as they are written there; only the placeholders are replaced.
//! `KUBEBUILDER_ASSETS` names the folder with kube-apiserver, etcd and kubectl.

mod manifests;
mod moves;
mod nodes;

use std::process::ExitCode;

use anyhow::{Context, Result};
use shunt_testbed::{read, repository};

/// What the guides for all platforms share.
const SHARED: &str = "deploy/guides/node-by-node.md";

fn main() -> ExitCode {
    shunt_fake_apiserver::run_real(
        &["kubectl"],
        &[],
        &[
            ("manifests", manifests::manifests),
            ("kubeadm_there_and_back", moves::kubeadm),
            ("eks_there_and_back", moves::eks),
            ("talos_there_and_back", moves::talos),
            ("quick_start", moves::quick_start),
            ("commands_on_nodes", nodes::commands_on_nodes),
            ("verification", nodes::verification),
        ],
    )
}

/// Returns the script of a guide that begins with a line: from that line to the end of its block,
/// without the indentation.
fn script(guide: &str, beginning: &str) -> Result<String> {
    let text = read(guide)?;
    let mut lines = text
        .lines()
        .skip_while(|line| !(line.starts_with("    ") && line.trim_start().starts_with(beginning)));
    let first = lines.next().with_context(|| format!("{guide}: no script with {beginning:?}"))?;
    let indentation = first.len() - first.trim_start().len();
    let block = lines.take_while(|line| {
        !line.trim().is_empty() && line.len() - line.trim_start().len() >= indentation
    });
    Ok(std::iter::once(first).chain(block).fold(String::new(), |script, line| {
        script + line.get(indentation..).unwrap_or_default() + "\n"
    }))
}
