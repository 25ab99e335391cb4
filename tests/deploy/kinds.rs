//! The kinds of objects that are deployed, with all fields that their API has.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, Service, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use shunt::source::spanned_yaml::{self, Document, typed_reporting_unknown};

/// An object that has only fields that its kind has, each of its type.
pub(crate) enum Object {
    DaemonSet(Box<DaemonSet>),
    Job(Box<Job>),
    ConfigMap(ConfigMap),
    Service(Box<Service>),
    ServiceAccount(ServiceAccount),
    ClusterRole(ClusterRole),
    ClusterRoleBinding(ClusterRoleBinding),
    ServiceMonitor(ServiceMonitor),
    PrometheusRule(PrometheusRule),
    Kustomization(Kustomization),
}

/// All objects of a text.
pub(crate) fn objects(text: &str) -> Result<Vec<Object>> {
    spanned_yaml::parse(text.as_bytes())?.iter().map(object).collect()
}

fn object(document: &Document<'_>) -> Result<Object> {
    let value = document.value();
    let text = |field| value[field].as_str();
    let kind = text("kind").context("an object without kind")?;
    let api = text("apiVersion").with_context(|| format!("{kind} without apiVersion"))?;
    Ok(match (api, kind) {
        ("apps/v1", "DaemonSet") => Object::DaemonSet(Box::new(strict(document)?)),
        ("batch/v1", "Job") => Object::Job(Box::new(strict(document)?)),
        ("v1", "ConfigMap") => Object::ConfigMap(strict(document)?),
        ("v1", "Service") => Object::Service(Box::new(strict(document)?)),
        ("v1", "ServiceAccount") => Object::ServiceAccount(strict(document)?),
        ("rbac.authorization.k8s.io/v1", "ClusterRole") => Object::ClusterRole(strict(document)?),
        ("rbac.authorization.k8s.io/v1", "ClusterRoleBinding") => {
            Object::ClusterRoleBinding(strict(document)?)
        }
        ("monitoring.coreos.com/v1", "ServiceMonitor") => Object::ServiceMonitor(strict(document)?),
        ("monitoring.coreos.com/v1", "PrometheusRule") => Object::PrometheusRule(strict(document)?),
        ("kustomize.config.k8s.io/v1beta1", "Kustomization")
        | ("kustomize.config.k8s.io/v1alpha1", "Component") => {
            Object::Kustomization(strict(document)?)
        }
        _ => bail!("no schema is known here for {kind} of {api}"),
    })
}

/// A document as a `T`, with no field that `T` does not have.
pub(crate) fn strict<T: DeserializeOwned>(document: &Document<'_>) -> Result<T> {
    let mut unknown = Vec::new();
    let value = typed_reporting_unknown(document.json(), |field| unknown.push(field.to_string()))?;
    ensure!(unknown.is_empty(), "fields that do not exist: {}", unknown.join(", "));
    Ok(value)
}

/// `ServiceMonitor` of `monitoring.coreos.com/v1`: of its many fields those that we use, as the CRD of
/// prometheus-operator 0.80 has them.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(dead_code, reason = "that the field is known and of its type is all that is asked")]
pub(crate) struct ServiceMonitor {
    api_version: String,
    kind: String,
    metadata: ObjectMeta,
    pub(crate) spec: ServiceMonitorSpec,
}

/// The `spec` of a [`ServiceMonitor`].
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ServiceMonitorSpec {
    pub(crate) job_label: String,
    pub(crate) selector: LabelSelector,
    pub(crate) endpoints: Vec<MonitorEndpoint>,
}

/// What a [`ServiceMonitor`] scrapes.
#[derive(Deserialize)]
#[expect(dead_code, reason = "that the field is known and of its type is all that is asked")]
pub(crate) struct MonitorEndpoint {
    /// The name of a port of the Service.
    pub(crate) port: String,
    interval: String,
    relabelings: Vec<Relabeling>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(dead_code, reason = "that the field is known and of its type is all that is asked")]
struct Relabeling {
    source_labels: Vec<String>,
    target_label: String,
}

/// `PrometheusRule` of `monitoring.coreos.com/v1`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(dead_code, reason = "that the field is known and of its type is all that is asked")]
pub(crate) struct PrometheusRule {
    api_version: String,
    kind: String,
    metadata: ObjectMeta,
    pub(crate) spec: RuleFile,
}

/// The `spec` of a [`PrometheusRule`], which is a rule file of Prometheus.
#[derive(Deserialize)]
pub(crate) struct RuleFile {
    pub(crate) groups: Vec<RuleGroup>,
}

/// Rules that are evaluated together.
#[derive(Deserialize)]
#[expect(dead_code, reason = "that the field is known and of its type is all that is asked")]
pub(crate) struct RuleGroup {
    name: String,
    pub(crate) rules: Vec<AlertRule>,
}

/// An alert.
#[derive(Deserialize)]
pub(crate) struct AlertRule {
    pub(crate) alert: String,
    pub(crate) expr: String,
    #[serde(default, rename = "for")]
    pub(crate) lasting: Option<String>,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) annotations: BTreeMap<String, String>,
}

/// `Kustomization` and `Component` of `kustomize.config.k8s.io`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(dead_code, reason = "that the field is known and of its type is all that is asked")]
pub(crate) struct Kustomization {
    api_version: String,
    kind: String,
    #[serde(default)]
    pub(crate) resources: Vec<String>,
    #[serde(default)]
    pub(crate) components: Vec<String>,
    #[serde(default)]
    images: Vec<Image>,
    #[serde(default)]
    pub(crate) patches: Vec<Patch>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(dead_code, reason = "that the field is known and of its type is all that is asked")]
struct Image {
    name: String,
    new_name: String,
    new_tag: String,
}

/// A change to objects of a [`Kustomization`].
#[derive(Deserialize)]
pub(crate) struct Patch {
    pub(crate) path: String,
}

#[test]
fn a_field_that_does_not_exist_and_one_of_another_type_are_found() {
    let of = |pod: &str| {
        let spec =
            format!("spec: {{selector: {{}}, template: {{spec: {{containers: [], {pod}}}}}}}");
        objects(&format!("apiVersion: apps/v1\nkind: DaemonSet\nmetadata: {{name: x}}\n{spec}\n"))
    };
    assert!(of("hostNetwork: true").is_ok());
    for (pod, field) in [
        ("hostNetwok: true", "spec.template.spec.hostNetwok"),
        ("hostNetwork: \"yes\"", "spec.template.spec.hostNetwork"),
        ("nodeSelector: {a: 1}", "spec.template.spec.nodeSelector"),
    ] {
        let error = of(pod).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(error.contains(field), "{pod}: {error}");
    }
    assert!(objects("apiVersion: apps/v1beta1\nkind: DaemonSet\n").is_err());
}
