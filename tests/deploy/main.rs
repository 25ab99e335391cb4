//! What a cluster is given: the agent takes the arguments and the configuration that are handed to it, and
//! can work with the rights that it gets; alerts and dashboard ask for metrics that there are.
//! `guides::manifests` proves by the real API server that each object has the fields of its kind.

mod agent;
mod manifests;
mod monitoring;
mod pages;

use anyhow::{Context, Result};
use serde_json::Value;
use shunt::source::spanned_yaml;
use shunt_testbed::{read, repository};

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

/// The objects of a file.
fn objects(path: &str) -> Result<Vec<Value>> {
    let text = read(path)?;
    let documents = spanned_yaml::documents(text.as_bytes())?.collect::<Result<Vec<_>, _>>();
    let documents = documents.with_context(|| path.to_owned())?;
    Ok(documents.iter().map(|document| document.value()).collect())
}

/// The items of a list, which may be missing.
fn items(list: &Value) -> impl DoubleEndedIterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

/// The texts in a list.
fn texts(list: &Value) -> Vec<&str> {
    items(list).filter_map(Value::as_str).collect()
}
