//! What a scenario runs on: shunt with manifests, shunt with kube-apiserver, kube-proxy.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Map, Value, json};
use shunt_fake_apiserver::{Gate, Key, Kubeconfig, Kubernetes, Program, TOKEN};
use shunt_testbed::{Agent, HEALTH_PORT, ManifestDir, Scratch, Topology, http_get, patience};

use crate::language::Scenario;

/// How long kube-proxy may take to start.
const PATIENCE: Duration = Duration::from_secs(60);

/// What programs the node, and where its objects come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Manifests,
    KubeApiserver,
    KubeProxy,
}

/// The objects, and how to start what follows them.
pub(crate) enum Source<'a> {
    Manifests(ManifestDir),
    Api { kubernetes: &'a Kubernetes, _gate: Box<Gate>, kubeconfig: Kubeconfig },
}

/// What programs the node.
pub(crate) enum Process {
    Shunt(Agent),
    KubeProxy { program: Program, _folder: Scratch },
}

impl<'a> Source<'a> {
    pub(crate) fn new(lab: &Topology, kubernetes: Option<&'a Kubernetes>) -> Result<Self> {
        let Some(kubernetes) = kubernetes else { return Ok(Self::Manifests(ManifestDir::new()?)) };
        let gate = Gate::open(&lab.node, kubernetes.connector())?;
        let kubeconfig = Kubeconfig::new(&format!("https://{}", gate.address()))?
            .authority(&kubernetes.authority().pem())?
            .token_file(TOKEN)?;
        Ok(Self::Api { kubernetes, _gate: Box::new(gate), kubeconfig })
    }

    /// Makes or replaces an object.
    pub(crate) fn put(&self, object: &Value) -> Result<()> {
        match self {
            Self::Manifests(folder) => folder.write(&file(&Key::of(object)?), object),
            Self::Api { kubernetes, .. } => kubernetes.put(&object.to_string()),
        }
    }

    pub(crate) fn delete(&self, key: &Key) -> Result<()> {
        match self {
            Self::Manifests(folder) => folder.remove(&file(key)),
            Self::Api { kubernetes, .. } => kubernetes.delete(key),
        }
    }

    /// Starts shunt or kube-proxy and waits until it is ready.
    pub(crate) fn start(&self, kind: Kind, lab: &Topology, scenario: &Scenario) -> Result<Process> {
        let mut config = Map::from_iter([
            ("mode".to_owned(), json!("nftables")),
            ("detectLocalMode".to_owned(), json!("ClusterCIDR")),
            ("clusterCIDR".to_owned(), json!("10.244.0.0/16,fd00:244::/48")),
        ]);
        config.extend(scenario.config.clone());
        config.retain(|_, value| !value.is_null());
        if let Self::Api { kubeconfig, .. } = self {
            let path = kubeconfig.path().display().to_string();
            config.insert("clientConnection".to_owned(), json!({"kubeconfig": path}));
        }
        if kind == Kind::KubeProxy {
            return self.start_kube_proxy(lab, config);
        }
        let mut agent = Agent::builder(env!("CARGO_BIN_EXE_shunt"), &lab.node);
        if let Self::Manifests(folder) = self {
            agent = agent.manifests(folder);
        }
        let settings: String =
            config.iter().map(|(name, value)| format!("{name}: {value}\n")).collect();
        // Flags count without a file only.
        if !settings.is_empty() {
            agent = agent.config(&settings)?;
        }
        for flag in &scenario.flags {
            agent = agent.arg(flag);
        }
        Ok(Process::Shunt(agent.start()?))
    }

    fn start_kube_proxy(&self, lab: &Topology, mut config: Map<String, Value>) -> Result<Process> {
        let Self::Api { kubernetes, .. } = self else { bail!("kube-proxy reads no manifests") };
        config.insert("apiVersion".to_owned(), json!("kubeproxy.config.k8s.io/v1alpha1"));
        config.insert("kind".to_owned(), json!("KubeProxyConfiguration"));
        // A namespace cannot set these.
        config.insert("conntrack".to_owned(), json!({"maxPerCore": 0, "min": 0}));
        let nftables = config.entry("nftables").or_insert_with(|| json!({}));
        nftables["minSyncPeriod"] = json!("1ms");
        nftables["syncPeriod"] = json!("1s");
        let folder = Scratch::new()?;
        let file = folder.path().join("config.yaml");
        std::fs::write(&file, Value::Object(config).to_string())?;
        let args = [
            format!("--config={}", file.display()),
            format!("--hostname-override={}", lab.node.name),
            "-v=2".to_owned(),
        ];
        let binary = kubernetes.assets().join("kube-proxy");
        let program = Program::start(&lab.node, &binary, &args, folder.path())?;
        let start = Instant::now();
        let address = ([127, 0, 0, 1], HEALTH_PORT).into();
        while !http_get(&lab.node, address, "/healthz").is_ok_and(|answer| answer.status == 200) {
            ensure!(
                start.elapsed() < patience(PATIENCE) && !program.has_ended(),
                "kube-proxy does not start:\n{}",
                program.log()?
            );
            thread::sleep(Duration::from_millis(10));
        }
        Ok(Process::KubeProxy { program, _folder: folder })
    }
}

impl Process {
    pub(crate) fn shunt(&self) -> Result<&Agent> {
        match self {
            Self::Shunt(agent) => Ok(agent),
            Self::KubeProxy { .. } => bail!("this step asks shunt: say why under not-kube-proxy"),
        }
    }

    /// The last lines of the log.
    pub(crate) fn log(&self) -> String {
        let log = match self {
            Self::Shunt(agent) => agent.log(),
            Self::KubeProxy { program, .. } => program.log().unwrap_or_default(),
        };
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(60)..].join("\n")
    }

    /// Ends it, at once or in its own time.
    pub(crate) fn end(self, kill: bool) -> Result<()> {
        match self {
            Self::Shunt(agent) if kill => agent.kill(),
            Self::Shunt(agent) => agent.stop(),
            Self::KubeProxy { .. } => Ok(()),
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
