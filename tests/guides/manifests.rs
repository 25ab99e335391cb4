//! The manifests that people apply.

use anyhow::Result;
use shunt_fake_apiserver::{Kubernetes, Shell};

use crate::{read, repository};

/// The kinds of the Prometheus operator, which a cluster may have; `tests/deploy` looks at their fields.
const OPERATOR: &str = include_str!("operator.yaml");

/// All that is rendered, and the examples: the API server refuses unknown fields too.
const MANIFESTS: [&str; 11] = [
    "deploy/guides/check.yaml",
    "deploy/kustomize/base/shunt.yaml",
    "tests/fixtures/chart/eks.yaml",
    "tests/fixtures/chart/everything.yaml",
    "tests/fixtures/chart/jobs.yaml",
    "tests/fixtures/chart/k3s.yaml",
    "tests/fixtures/chart/kind.yaml",
    "tests/fixtures/chart/kubeadm.yaml",
    "tests/fixtures/chart/rke2.yaml",
    "tests/fixtures/chart/talos.yaml",
    "examples/services",
];

pub(crate) fn manifests(kubernetes: &Kubernetes) -> Result<()> {
    let shell = Shell::new(kubernetes)?;
    shell.write("operator.yaml", OPERATOR)?;
    shell.run(
        "kubectl apply -f operator.yaml
         kubectl wait --for=condition=Established --timeout=60s -f operator.yaml
         kubectl create namespace examples
         kubectl create namespace monitoring",
    )?;
    for path in MANIFESTS {
        let path = repository(path);
        let path = path.display();
        let applied = shell.run(&format!(
            "kubectl apply --server-side --dry-run=server --validate=strict -R -f '{path}'"
        ))?;
        assert!(applied.lines().count() >= 2, "{path}: {applied}");
    }
    let example = repository("deploy/kustomize/example");
    let applied = shell.run(&format!(
        "kubectl apply --server-side --dry-run=server --validate=strict -k '{}'",
        example.display()
    ))?;
    let objects = read("tests/fixtures/chart/kustomize-example.yaml")?.matches("\nkind: ").count();
    assert_eq!(applied.lines().count(), objects, "{applied}");
    Ok(())
}
