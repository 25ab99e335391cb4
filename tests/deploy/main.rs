//! What a cluster is given: every manifest has the fields that its kind has and no others, the agent
//! takes the arguments and the configuration that are handed to it, and can work with the rights that
//! it gets; alerts and dashboard ask for metrics that there are.

mod agent;
mod immutable;
mod kinds;
mod manifests;
mod monitoring;
mod pages;
mod promql;

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};

/// The agent's binary.
const SHUNT: &str = env!("CARGO_BIN_EXE_shunt");

/// What the chart and the kustomizations come to: see `cargo xtask chart`.
const RENDERED: [&str; 11] = [
    "deploy/kustomize/base/shunt.yaml",
    "deploy/kustomize/monitoring/monitoring.yaml",
    "tests/fixtures/chart/eks.yaml",
    "tests/fixtures/chart/everything.yaml",
    "tests/fixtures/chart/k3s.yaml",
    "tests/fixtures/chart/kind.yaml",
    "tests/fixtures/chart/kubeadm.yaml",
    "tests/fixtures/chart/kustomize-example.yaml",
    "tests/fixtures/chart/rke2.yaml",
    "tests/fixtures/chart/talos.yaml",
    "deploy/guides/check.yaml",
];

/// A file of the repository.
fn repository(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn read(path: &str) -> Result<String> {
    fs::read_to_string(repository(path)).with_context(|| format!("cannot read {path}"))
}
