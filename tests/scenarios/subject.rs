//! What a scenario runs on: shunt with manifests, shunt with kube-apiserver, kube-proxy.

use std::path::PathBuf;
use std::{env, fs};

use anyhow::{Context, Result, bail};
use serde_json::{Map, Value, json};
use shunt_fake_apiserver::{Api, Gate, Key, Kubeconfig, Kubernetes, Standin, kubernetes};
use shunt_testbed::{Agent, ManifestDir, Program, TempDir, Topology};

use crate::language::Scenario;

pub(crate) const SHUNT: &str = env!("CARGO_BIN_EXE_shunt");

/// What programs the node, and where its objects come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Manifests,
    Standin,
    KubeApiserver,
    KubeProxy,
}

/// The objects, and how to start what follows them.
pub(crate) struct Source {
    objects: Objects,
    /// The folder of the configuration.
    folder: TempDir,
}

enum Objects {
    Manifests(ManifestDir),
    Api { api: Api, gate: Box<Gate>, kubeconfig: Kubeconfig },
}

/// What programs the node.
pub(crate) enum Process {
    Shunt(Agent),
    KubeProxy(Program),
}

impl Source {
    pub(crate) fn new(lab: &Topology, kind: Kind) -> Result<Self> {
        let api = match kind {
            Kind::Manifests => None,
            Kind::Standin => Some(Api::Standin(Box::new(Standin::start()?))),
            Kind::KubeApiserver | Kind::KubeProxy => Some(Api::Kubernetes(kubernetes()?)),
        };
        let objects = match api {
            None => Objects::Manifests(ManifestDir::new()?),
            Some(api) => {
                let (gate, kubeconfig) = api.reach(&lab.node)?;
                Objects::Api { api, gate: Box::new(gate), kubeconfig }
            }
        };
        Ok(Self { objects, folder: TempDir::new()? })
    }

    /// The API server, and the way to it.
    pub(crate) fn api(&self) -> Result<(&Api, &Gate)> {
        match &self.objects {
            Objects::Manifests(_) => bail!("the objects are in manifests: say `api: both`"),
            Objects::Api { api, gate, .. } => Ok((api, gate)),
        }
    }

    /// Makes or replaces an object.
    pub(crate) fn put(&self, object: &Value) -> Result<()> {
        match &self.objects {
            Objects::Manifests(folder) => folder.write(&file(&Key::of(object)?), object),
            Objects::Api { api, .. } => api.put(object),
        }
    }

    pub(crate) fn delete(&self, key: &Key) -> Result<()> {
        match &self.objects {
            Objects::Manifests(folder) => folder.remove(&file(key)),
            Objects::Api { api, .. } => api.delete(key),
        }
    }

    /// Puts paths in place of their names.
    pub(crate) fn with_paths(&self, text: &str) -> String {
        let preload = env::current_exe().unwrap_or_default();
        let folder = self.folder.path().to_owned();
        let mut paths = vec![
            ("$shunt", SHUNT.into()),
            ("$config", self.config()),
            ("$folder", folder),
            ("$fixtures", concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures").into()),
            ("$preload", preload.with_file_name("libshunt_fault_preload.so")),
        ];
        paths.push(match &self.objects {
            Objects::Manifests(it) => ("$manifests", it.path().to_owned()),
            Objects::Api { kubeconfig, .. } => ("$kubeconfig", kubeconfig.path()),
        });
        if let Ok((_, gate)) = self.api() {
            paths.push(("$api", gate.address().to_string().into()));
        }
        let fill = |text: String, (name, path): (_, PathBuf)| {
            text.replace(name, &path.display().to_string())
        };
        paths.into_iter().fold(text.to_owned(), fill)
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

    /// Starts shunt, or kube-proxy and waits until that is ready.
    pub(crate) fn spawn(&self, kind: Kind, lab: &Topology, scenario: &Scenario) -> Result<Process> {
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
        let prelude = format!("{}\nexec \"$@\"", self.with_paths(&scenario.prelude));
        if !scenario.prelude.is_empty() {
            agent = agent.wrapper(&["sh", "-c", &prelude, "sh"]);
        }
        for flag in &scenario.flags {
            agent = agent.arg(flag);
        }
        Ok(Process::Shunt(agent.spawn()?))
    }

    fn start_kube_proxy(&self, lab: &Topology) -> Result<Process> {
        let Objects::Api { api: Api::Kubernetes(kubernetes), .. } = &self.objects else {
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
