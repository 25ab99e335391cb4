//! The agent's identity and rights: what `deploy/` gives its ServiceAccount.

use anyhow::{Context, Result};
use serde_json::Value;

use crate::object::parse;

/// The chart as rendered with its defaults.
const DEPLOYED: &str = include_str!("../../../../deploy/kustomize/base/shunt.yaml");

/// The name of role and binding in kube-apiserver.
const INSTALLED: &str = "shunt-in-tests";

/// What gives the agent's ServiceAccount its rights.
pub(crate) struct Role {
    /// The name by which the API server knows the ServiceAccount.
    pub(crate) user: String,
    /// Role and binding, with the collections that they belong in.
    pub(crate) objects: [(&'static str, Value); 2],
}

impl Role {
    /// Reads it from `deploy/`.
    pub(crate) fn deployed() -> Result<Self> {
        let mut objects = parse(DEPLOYED)?;
        let mut take = |kind: &str| {
            let position = objects.iter().position(|object| object["kind"] == kind);
            position.map(|at| objects.swap_remove(at)).with_context(|| format!("no {kind}"))
        };
        let (mut role, mut binding) = (take("ClusterRole")?, take("ClusterRoleBinding")?);
        // Under names of their own, so that tests can apply the manifests to the same server.
        role["metadata"]["name"] = INSTALLED.into();
        binding["metadata"]["name"] = INSTALLED.into();
        binding["roleRef"]["name"] = INSTALLED.into();
        let subject = &binding["subjects"][0];
        let field = |name: &str| subject[name].as_str().with_context(|| format!("no {name}"));
        let user = format!("system:serviceaccount:{}:{}", field("namespace")?, field("name")?);
        let objects = [
            ("/apis/rbac.authorization.k8s.io/v1/clusterroles", role),
            ("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", binding),
        ];
        Ok(Self { user, objects })
    }
}
