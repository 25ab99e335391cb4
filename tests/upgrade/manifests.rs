//! The manifests of one version on a cluster that has those of the other, with the real kube-apiserver.

use std::fmt::Write as _;
use std::fs;
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use shunt::source::spanned_yaml;
use shunt_fake_apiserver::{Kubernetes, kubernetes};
use shunt_testbed::TempDir;

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

/// kubectl in a folder of its own.
struct Kubectl<'a> {
    kubernetes: &'a Kubernetes,
    folder: TempDir,
}

impl Kubectl<'_> {
    fn run(&self, words: &str) -> Result<String> {
        let mut command = self.kubernetes.admin_command("kubectl");
        command.args(words.split(' ')).current_dir(self.folder.path()).stdin(Stdio::null());
        let output = command.output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "kubectl {words}: {said}");
        Ok(String::from_utf8(output.stdout)?)
    }

    fn write(&self, name: &str, content: &str) -> Result<()> {
        Ok(fs::write(self.folder.path().join(name), content)?)
    }

    /// The parts of all objects of a file that a user writes.
    fn content(&self, file: &str) -> Result<Value> {
        let objects = self.run(&format!("get -o json -f {file}"))?;
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
}

/// Each way to apply manifests works in both directions, and gives the same objects as on an empty
/// cluster. Objects of kubeadm are untouched.
pub(crate) fn applied() -> Result<()> {
    let kubernetes = kubernetes()?;
    let kubectl = Kubectl { kubernetes: &kubernetes, folder: TempDir::new()? };
    kubectl.write("kubeadm.yaml", OF_KUBEADM)?;
    kubectl.run("create -f kubeadm.yaml")?;
    let before = kubectl.run("get -o json -f kubeadm.yaml")?;
    for path in RENDERED {
        let (previous, current) = (Version::Previous.read(path)?, Version::Current.read(path)?);
        kubectl.write("previous.yaml", &previous)?;
        kubectl.write("current.yaml", &current)?;
        // kubectl removes no object that the new manifests lack. helm does.
        for (from, to) in [(&previous, &current), (&current, &previous)] {
            let (from, to) = (names(from)?, names(to)?);
            let left: Vec<&String> = from.iter().filter(|name| !to.contains(name)).collect();
            ensure!(left.is_empty(), "{path}: `kubectl apply` would leave {left:?}");
        }
        let mut fresh = [Value::Null, Value::Null];
        for (file, content) in ["previous.yaml", "current.yaml"].into_iter().zip(&mut fresh) {
            kubectl.run(&format!("apply --server-side --validate=strict -f {file}"))?;
            *content = kubectl.content(file)?;
            kubectl.run(&format!("delete -f {file}"))?;
        }
        for way in ["apply --server-side", "apply", "replace"] {
            kubectl.run(&if way == "replace" {
                "create -f previous.yaml".to_owned()
            } else {
                format!("{way} -f previous.yaml")
            })?;
            for (file, content) in [("current.yaml", &fresh[1]), ("previous.yaml", &fresh[0])] {
                kubectl.run(&format!("{way} -f {file}")).with_context(|| path.to_owned())?;
                assert_eq!(kubectl.content(file)?, *content, "{path}: {way} {file}");
            }
            kubectl.run("delete -f previous.yaml")?;
        }
    }
    assert_eq!(kubectl.run("get -o json -f kubeadm.yaml")?, before);
    kubectl.run("delete -f kubeadm.yaml").map(drop)
}

/// The kinds and names of all objects of a text.
fn names(text: &str) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for object in spanned_yaml::parse(text.as_bytes())? {
        let object = object.value();
        let mut name = String::new();
        for value in [&object["kind"], &object["metadata"]["name"]] {
            write!(name, "{} ", value.as_str().context("an object without a name")?)?;
        }
        names.push(name);
    }
    Ok(names)
}
