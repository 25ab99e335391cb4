//! The agent's identity and rights: what `deploy/` gives its ServiceAccount.

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::object::parse;

/// The chart as rendered with its defaults.
const DEPLOYED: &str = include_str!("../../../../deploy/kustomize/base/shunt.yaml");

/// The name of role and binding in kube-apiserver.
const INSTALLED: &str = "shunt-in-tests";

/// The ClusterRole of the chart, and the user whom it is bound to.
#[derive(Clone, Debug)]
pub(crate) struct Role {
    /// The name by which the API server knows the agent's ServiceAccount.
    pub(crate) user: String,
    role: Value,
    binding: Value,
    rules: Vec<Rule>,
}

#[derive(Clone, Debug)]
struct Rule {
    groups: Vec<String>,
    resources: Vec<String>,
    verbs: Vec<String>,
}

impl Role {
    /// Reads the role from `deploy/`.
    pub(crate) fn deployed() -> Result<Self> {
        Self::read(DEPLOYED).context("cannot read the ClusterRole of deploy/")
    }

    fn read(manifest: &str) -> Result<Self> {
        let mut objects = parse(manifest)?;
        let mut take = |kind: &str| {
            let position = objects.iter().position(|object| object["kind"] == kind);
            position.map(|at| objects.swap_remove(at)).with_context(|| format!("no {kind}"))
        };
        let (mut role, mut binding) = (take("ClusterRole")?, take("ClusterRoleBinding")?);
        // Under names of their own, so that tests can apply the manifests to the same server.
        role["metadata"]["name"] = INSTALLED.into();
        binding["metadata"]["name"] = INSTALLED.into();
        binding["roleRef"]["name"] = INSTALLED.into();
        let rules = role["rules"].as_array().context("a role without rules")?;
        let rules = rules.iter().map(rule).collect::<Result<_>>()?;
        let subject = &binding["subjects"][0];
        let field = |name: &str| subject[name].as_str().with_context(|| format!("no {name}"));
        let user = format!("system:serviceaccount:{}:{}", field("namespace")?, field("name")?);
        Ok(Self { user, role, binding, rules })
    }

    /// Whether a rule allows `verb` for `resource` of the API group `group`.
    pub(crate) fn allows(&self, verb: &str, group: &str, resource: &str) -> bool {
        let has = |list: &[String], word: &str| list.iter().any(|item| item == word);
        self.rules.iter().any(|rule| {
            has(&rule.groups, group) && has(&rule.resources, resource) && has(&rule.verbs, verb)
        })
    }

    /// The objects that give the user the rights, with the collections that they belong in.
    pub(crate) fn objects(&self) -> [(&'static str, &Value); 2] {
        [
            ("/apis/rbac.authorization.k8s.io/v1/clusterroles", &self.role),
            ("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", &self.binding),
        ]
    }
}

fn rule(value: &Value) -> Result<Rule> {
    let fields = value.as_object().context("a rule is no object")?;
    let list = |name: &str| -> Result<Vec<String>> {
        let items = fields.get(name).and_then(Value::as_array);
        let items = items.with_context(|| format!("a rule without {name}: {value}"))?;
        let text = |item: &Value| item.as_str().map(str::to_owned).context("no string");
        let items: Vec<String> = items.iter().map(text).collect::<Result<_>>()?;
        if items.iter().any(|item| item == "*") {
            bail!("the stand-in knows no \"*\": {value}");
        }
        Ok(items)
    };
    if fields.len() != 3 {
        bail!("the stand-in knows apiGroups, resources and verbs only: {value}");
    }
    Ok(Rule { groups: list("apiGroups")?, resources: list("resources")?, verbs: list("verbs")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn role(rule: &str) -> Result<Role> {
        Role::read(&format!(
            "---\nkind: ClusterRole\nrules: [{rule}]\n---\nkind: ClusterRoleBinding\n\
             subjects: [{{kind: ServiceAccount, name: a, namespace: b}}]\n"
        ))
    }

    #[test]
    fn a_rule_allows_its_verbs_for_its_resources_of_its_groups() {
        let role = role("{apiGroups: [g], resources: [things], verbs: [list]}").unwrap();
        assert_eq!(role.user, "system:serviceaccount:b:a");
        assert!(role.allows("list", "g", "things"));
        for (verb, group, resource) in
            [("watch", "g", "things"), ("list", "", "things"), ("list", "g", "things/status")]
        {
            assert!(!role.allows(verb, group, resource), "{verb} {resource} of {group:?}");
        }
    }

    #[test]
    fn a_rule_that_the_stand_in_would_misread_is_an_error() {
        for rule in [
            "{apiGroups: [g], resources: [things], verbs: ['*']}",
            "{apiGroups: [g], resources: [things], verbs: [get], resourceNames: [a]}",
            "{nonResourceURLs: [/metrics], verbs: [get]}",
        ] {
            role(rule).expect_err(rule);
        }
    }

    #[test]
    fn the_role_of_the_chart_is_known() {
        let role = Role::deployed().unwrap();
        assert!(role.allows("watch", "discovery.k8s.io", "endpointslices"));
        assert!(!role.allows("create", "", "services"));
    }
}
