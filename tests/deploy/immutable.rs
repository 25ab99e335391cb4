//! Fields that the API server does not let anybody change: an upgrade of the chart would fail.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use crate::kinds::{Object, objects};
use crate::{RENDERED, read};

/// These fields of all renderings since version 0.1.0. To change one, say in CHANGELOG.md how an upgrade
/// goes then: the object must be deleted first.
const RECORDED: [&str; 3] = [
    "ClusterRoleBinding shunt roleRef rbac.authorization.k8s.io ClusterRole shunt",
    "ClusterRoleBinding shunt-check roleRef rbac.authorization.k8s.io ClusterRole shunt-check",
    "DaemonSet shunt selector app.kubernetes.io/instance=shunt app.kubernetes.io/name=shunt",
];

/// Jobs have no selector of ours, and are made anew for each check.
#[test]
fn immutable_fields_are_those_of_the_first_release() -> Result<()> {
    let mut found = BTreeSet::new();
    for path in RENDERED {
        for object in objects(&read(path)?).with_context(|| path.to_owned())? {
            let line = match object {
                Object::DaemonSet(daemon_set) => {
                    let name = daemon_set.metadata.name.context("no name")?;
                    let selector = daemon_set.spec.context("no spec")?.selector;
                    format!("DaemonSet {name} selector{}", labels(selector)?)
                }
                Object::ClusterRoleBinding(binding) => {
                    let name = binding.metadata.name.context("no name")?;
                    let role = binding.role_ref;
                    let (group, kind) = (role.api_group, role.kind);
                    format!("ClusterRoleBinding {name} roleRef {group} {kind} {}", role.name)
                }
                _ => continue,
            };
            found.insert(line);
        }
    }
    assert_eq!(found.iter().map(String::as_str).collect::<Vec<_>>(), RECORDED);
    Ok(())
}

fn labels(selector: LabelSelector) -> Result<String> {
    let LabelSelector { match_expressions, match_labels } = selector;
    anyhow::ensure!(match_expressions.is_none(), "expressions in a selector");
    let labels: BTreeMap<String, String> = match_labels.context("no labels")?;
    Ok(labels.iter().map(|(name, value)| format!(" {name}={value}")).collect())
}
