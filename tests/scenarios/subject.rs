//! What a scenario runs on: shunt with manifests, shunt with kube-apiserver, kube-proxy.

use std::path::PathBuf;
use std::{env, fs};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Map, Value, json};
use shunt_fake_apiserver::{Gate, Key, Kubeconfig, Kubernetes};
use shunt_testbed::{Agent, ManifestDir, Program, TempDir, Topology};

use crate::language::Scenario;

pub(crate) const SHUNT: &str = env!("CARGO_BIN_EXE_shunt");

/// What programs the node, and where its objects come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Manifests,
    KubeApiserver,
    KubeProxy,
}

/// The objects, and how to start what follows them.
pub(crate) struct Source<'a> {
    objects: Objects<'a>,
    /// The folder of the configuration.
    folder: TempDir,
}

enum Objects<'a> {
    Manifests(ManifestDir),
    Api { kubernetes: &'a Kubernetes, _gate: Box<Gate>, kubeconfig: Kubeconfig },
}

/// What programs the node.
pub(crate) enum Process {
    Shunt(Agent),
    KubeProxy(Program),
}

impl<'a> Source<'a> {
    pub(crate) fn new(lab: &Topology, kubernetes: Option<&'a Kubernetes>) -> Result<Self> {
        let objects = match kubernetes {
            None => Objects::Manifests(ManifestDir::new()?),
            Some(kubernetes) => {
                let (gate, kubeconfig) = kubernetes.reach(&lab.node)?;
                Objects::Api { kubernetes, _gate: Box::new(gate), kubeconfig }
            }
        };
        Ok(Self { objects, folder: TempDir::new()? })
    }

    /// Makes or replaces an object.
    pub(crate) fn put(&self, object: &Value) -> Result<()> {
        match &self.objects {
            Objects::Manifests(folder) => folder.write(&file(&Key::of(object)?), object),
            Objects::Api { kubernetes, .. } => kubernetes.put(&object.to_string()),
        }
    }

    pub(crate) fn delete(&self, key: &Key) -> Result<()> {
        match &self.objects {
            Objects::Manifests(folder) => folder.remove(&file(key)),
            Objects::Api { kubernetes, .. } => kubernetes.delete(key),
        }
    }

    /// Puts paths in place of `$manifests`, `$config` and `$fixtures`.
    pub(crate) fn with_paths(&self, text: &str) -> String {
        let fixtures = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures");
        let text = text.replace("$fixtures", fixtures);
        let text = text.replace("$config", &self.config().display().to_string());
        match &self.objects {
            Objects::Manifests(it) => text.replace("$manifests", &it.path().display().to_string()),
            Objects::Api { .. } => text,
        }
    }

    fn config(&self) -> PathBuf {
        self.folder.path().join("config.yaml")
    }

    /// Writes the configuration: these fields, and defaults of scenarios where they say nothing.
    pub(crate) fn configure(&self, fields: &Map<String, Value>) -> Result<()> {
        let mut config = Map::from_iter([
            ("mode".to_owned(), json!("nftables")),
            ("detectLocalMode".to_owned(), json!("ClusterCIDR")),
            ("clusterCIDR".to_owned(), json!("10.244.0.0/16,fd00:244::/48")),
        ]);
        config.extend(fields.clone());
        config.retain(|_, value| !value.is_null());
        if let Objects::Api { kubeconfig, .. } = &self.objects {
            let path = kubeconfig.path().display().to_string();
            config.insert("clientConnection".to_owned(), json!({"kubeconfig": path}));
        }
        // Flags count without a file only.
        if config.is_empty() {
            return Ok(());
        }
        config.insert("apiVersion".to_owned(), json!("kubeproxy.config.k8s.io/v1alpha1"));
        config.insert("kind".to_owned(), json!("KubeProxyConfiguration"));
        let new = self.folder.path().join("new");
        fs::write(&new, Value::Object(config).to_string())?;
        Ok(fs::rename(new, self.config())?)
    }

    /// Starts shunt or kube-proxy and waits until it is ready.
    pub(crate) fn start(&self, kind: Kind, lab: &Topology, scenario: &Scenario) -> Result<Process> {
        if kind == Kind::KubeProxy {
            return self.start_kube_proxy(lab);
        }
        let mut agent = Agent::builder(SHUNT, &lab.node);
        if let Objects::Manifests(folder) = &self.objects {
            agent = agent.manifests(folder);
        }
        if self.config().exists() {
            agent = agent.arg("--config").arg(self.config().display().to_string());
        }
        if scenario.config.contains_key("hostnameOverride") {
            agent = agent.name_from_configuration();
        }
        if !scenario.kernel_refuses.is_empty() {
            let library = env::current_exe()?.with_file_name("libshunt_fault_preload.so");
            ensure!(library.is_file(), "{} is missing", library.display());
            let preload = format!("LD_PRELOAD={}", library.display());
            let refuse = format!("SHUNT_REFUSE={}", scenario.kernel_refuses.join(" "));
            agent = agent.wrapper(&["env", &preload, &refuse]);
        }
        for flag in &scenario.flags {
            agent = agent.arg(flag);
        }
        Ok(Process::Shunt(agent.start()?))
    }

    fn start_kube_proxy(&self, lab: &Topology) -> Result<Process> {
        let Objects::Api { kubernetes, .. } = &self.objects else {
            bail!("kube-proxy reads no manifests")
        };
        let text = fs::read_to_string(self.config())?;
        let mut config: Map<String, Value> = serde_json::from_str(&text)?;
        config.retain(|field, _| !["apiVersion", "kind"].contains(&field.as_str()));
        // A namespace cannot set these.
        config.insert("conntrack".to_owned(), json!({"maxPerCore": 0, "min": 0}));
        config.insert("logging".to_owned(), json!({"verbosity": 2}));
        let nftables = config.entry("nftables").or_insert_with(|| json!({}));
        nftables["minSyncPeriod"] = json!("1ms");
        nftables["syncPeriod"] = json!("1s");
        let settings: String =
            config.iter().map(|(field, value)| format!("{field}: {value}\n")).collect();
        let program = kubernetes.kube_proxy(&lab.node, &settings, self.folder.path())?;
        Kubernetes::wait_for_kube_proxy(&program, &lab.node)?;
        Ok(Process::KubeProxy(program))
    }
}

impl Process {
    pub(crate) fn shunt(&self) -> Result<&Agent> {
        match self {
            Self::Shunt(agent) => Ok(agent),
            Self::KubeProxy(_) => bail!("this step asks shunt: say why under not-kube-proxy"),
        }
    }

    /// The last lines of the log.
    pub(crate) fn log(&self) -> String {
        let log = match self {
            Self::Shunt(agent) => agent.log(),
            Self::KubeProxy(program) => program.log(),
        };
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(60)..].join("\n")
    }

    /// Ends it, at once or in its own time.
    pub(crate) fn end(self, kill: bool) -> Result<()> {
        match self {
            Self::Shunt(agent) if kill => agent.kill(),
            Self::Shunt(agent) => agent.stop(),
            Self::KubeProxy(_) => Ok(()),
        }
    }
}

fn file(key: &Key) -> String {
    format!("{}.{}.{}.yaml", key.kind, key.namespace, key.name)
}

/// Returns the object that a scenario names: `Service/web`, or `Service/namespace/web`.
pub(crate) fn key(text: &str) -> Result<Key> {
    let parts: Vec<&str> = text.split('/').collect();
    let (kind, namespace, name) = match parts[..] {
        [kind, name] => (kind, None, name),
        [kind, namespace, name] => (kind, Some(namespace), name),
        _ => bail!("{text:?} names no object, such as Service/web"),
    };
    let known = shunt_fake_apiserver::Kind::ALL.into_iter().find(|known| known.as_str() == kind);
    let mut key = Key::new(known.with_context(|| format!("{kind:?} is no kind"))?, name);
    if let Some(namespace) = namespace {
        key.namespace = namespace.to_owned();
    }
    Ok(key)
}
