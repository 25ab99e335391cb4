//! The manifests of one version on a cluster that has those of the other, with the real kube-apiserver.

use std::fmt::Write as _;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use shunt::source::spanned_yaml;
use shunt_fake_apiserver::{Kubernetes, Shell, kubernetes};

use crate::world::{Version, previous};

/// What helm makes of the chart, by the ways to install it.
const RENDERED: [&str; 4] = [
    "deploy/kustomize/base/shunt.yaml",
    "tests/fixtures/chart/k3s.yaml",
    "tests/fixtures/chart/kubeadm.yaml",
    "tests/fixtures/chart/rke2.yaml",
];

/// A ConfigMap that the chart uses and that is not of the chart, as kubeadm makes it.
const OF_KUBEADM: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: kube-proxy, \
    namespace: kube-system}\ndata: {config.conf: 'mode: nftables'}\n";

/// Returns why this machine cannot run the tests.
pub(crate) fn ready() -> Result<(), String> {
    previous().and_then(|_| Kubernetes::installed_with(&["kubectl"])).map(drop)
}

/// The parts of all objects of a file that a user writes.
fn written(shell: &Shell<'_>, file: &str) -> Result<Value> {
    let objects = shell.run(&format!("kubectl get -o json -f {file}"))?;
    let mut objects: Value = serde_json::from_str(&objects)?;
    for object in objects["items"].as_array_mut().context("no objects")? {
        let fields = object.as_object_mut().context("no object")?;
        fields.remove("status");
        let metadata = fields["metadata"].take();
        // What the API server, kubectl and controllers write stays out.
        fields.insert("name".to_owned(), metadata["name"].clone());
        fields.insert("labels".to_owned(), metadata["labels"].clone());
    }
    Ok(objects["items"].take())
}

/// Each way to apply manifests works in both directions, and gives the same objects as on an empty
/// cluster. Objects of kubeadm are untouched.
pub(crate) fn applied() -> Result<()> {
    let kubernetes = kubernetes()?;
    let shell = Shell::new(&kubernetes)?;
    let kubectl = |words: &str| shell.run(&format!("kubectl {words}"));
    shell.write("kubeadm.yaml", OF_KUBEADM)?;
    kubectl("create -f kubeadm.yaml")?;
    let before = kubectl("get -o json -f kubeadm.yaml")?;
    for path in RENDERED {
        let (previous, current) = (Version::Previous.read(path)?, Version::Current.read(path)?);
        shell.write("previous.yaml", &previous)?;
        shell.write("current.yaml", &current)?;
        // kubectl removes no object that the new manifests lack. helm does.
        for (from, to) in [(&previous, &current), (&current, &previous)] {
            let (from, to) = (names(from)?, names(to)?);
            let left: Vec<&String> = from.iter().filter(|name| !to.contains(name)).collect();
            ensure!(left.is_empty(), "{path}: `kubectl apply` would leave {left:?}");
        }
        let mut fresh = [Value::Null, Value::Null];
        for (file, content) in ["previous.yaml", "current.yaml"].into_iter().zip(&mut fresh) {
            kubectl(&format!("apply --server-side --validate=strict -f {file}"))?;
            *content = written(&shell, file)?;
            kubectl(&format!("delete -f {file}"))?;
        }
        for way in ["apply --server-side", "apply", "replace"] {
            kubectl(&if way == "replace" {
                "create -f previous.yaml".to_owned()
            } else {
                format!("{way} -f previous.yaml")
            })?;
            for (file, content) in [("current.yaml", &fresh[1]), ("previous.yaml", &fresh[0])] {
                kubectl(&format!("{way} -f {file}")).with_context(|| path.to_owned())?;
                assert_eq!(written(&shell, file)?, *content, "{path}: {way} {file}");
            }
            kubectl("delete -f previous.yaml")?;
        }
    }
    assert_eq!(kubectl("get -o json -f kubeadm.yaml")?, before);
    kubectl("delete -f kubeadm.yaml").map(drop)
}

/// The kinds and names of all objects of a text.
fn names(text: &str) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for object in spanned_yaml::documents(text.as_bytes())? {
        let object = object?;
        let object = object.value();
        let mut name = String::new();
        for value in [&object["kind"], &object["metadata"]["name"]] {
            write!(name, "{} ", value.as_str().context("an object without a name")?)?;
        }
        names.push(name);
    }
    Ok(names)
}
