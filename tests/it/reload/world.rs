//! The testbed, a Service on the node's pods, and a configuration file that can be changed.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use shunt_testbed::{
    Agent, AgentBuilder, Echo, EndpointSlice, Exposition, Host, ManifestDir, Node, Protocol,
    Service, Topology,
};
use tempfile::TempDir;

pub(crate) const SHUNT: &str = env!("CARGO_BIN_EXE_shunt");
pub(crate) const HEALTH: u16 = 10_256;
pub(crate) const METRICS: u16 = 10_249;

/// The Service `web`: its ClusterIP and its node port, on port 80 of both pods of the node.
pub(crate) const WEB: &str = "10.96.0.10:80";
pub(crate) const WEB_PODS: [&str; 2] = ["pod-1", "pod-2"];
pub(crate) const NODE_PORT: u16 = 30_080;

/// How long what follows a change may take.
const PATIENCE: Duration = Duration::from_secs(30);

const HEAD: &str = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n";

pub(crate) struct World {
    pub(crate) lab: Topology,
    pub(crate) manifests: ManifestDir,
    pub(crate) config: ConfigFile,
    _servers: Vec<Echo>,
}

impl World {
    /// With a configuration of these settings.
    pub(crate) fn new(settings: &str) -> Result<World> {
        let lab = Topology::new()?;
        let pods = [&lab.pod1, &lab.pod2, &lab.pod3];
        let servers = pods.iter().map(|pod| Echo::on(pod, 8080)).collect::<Result<_>>()?;
        let manifests = ManifestDir::new()?;
        manifests.write("node.yaml", Node::of(&lab.node))?;
        let web = Service::new("web").cluster_ips(&["10.96.0.10", "fd00:96::10"]);
        let web = web.node_port("http", Protocol::Tcp, 80, NODE_PORT);
        manifests.write("web.yaml", format!("{web}{}", slices("web", &[&lab.pod1, &lab.pod2])))?;
        Ok(World { lab, manifests, config: ConfigFile::new(settings)?, _servers: servers })
    }

    /// The agent on the manifests and with the configuration file.
    pub(crate) fn agent(&self) -> AgentBuilder {
        Agent::builder(SHUNT, &self.lab.node)
            .manifests(&self.manifests)
            .arg("--config")
            .arg(self.config.path().display().to_string())
    }

    /// The rules of the node.
    pub(crate) fn rules(&self) -> Result<String> {
        self.lab.node.output("nft", &["list", "ruleset"])
    }

    /// Waits until the rules contain that text, or do not.
    pub(crate) fn wait_for_rules(&self, text: &str, there: bool) -> Result<()> {
        wait_until(&format!("rules with {text}: {there}"), || {
            Ok(self.rules()?.contains(text) == there)
        })
    }

    /// What `shunt status` tells.
    pub(crate) fn status(&self) -> Result<String> {
        let output =
            Command::new(SHUNT).args(["status", "--netns"]).arg(self.lab.node.path()).output()?;
        ensure!(!output.stdout.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Adds a Service `NAME` on the first pod.
    pub(crate) fn add(&self, name: &str, ip: &str) -> Result<()> {
        let service = Service::new(name).cluster_ips(&[ip]).port("http", Protocol::Tcp, 80);
        self.manifests
            .write(&format!("{name}.yaml"), format!("{service}{}", slices(name, &[&self.lab.pod1])))
    }
}

/// The slices of a Service on these pods.
pub(crate) fn slices(service: &str, pods: &[&Host]) -> String {
    let slice = |slice: EndpointSlice| slice.port("http", Protocol::Tcp, 8080).hosts(pods);
    format!("{}{}", slice(EndpointSlice::v4(service)), slice(EndpointSlice::v6(service)))
}

/// A configuration in a directory of its own.
pub(crate) struct ConfigFile(TempDir);

impl ConfigFile {
    fn new(settings: &str) -> Result<ConfigFile> {
        let file = ConfigFile(tempfile::tempdir()?);
        file.write(settings)?;
        Ok(file)
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.0.path().join("config.conf")
    }

    /// Writes the file in place.
    pub(crate) fn write(&self, settings: &str) -> Result<()> {
        Ok(fs::write(self.path(), format!("{HEAD}{settings}"))?)
    }

    /// Puts another file in its place.
    pub(crate) fn replace(&self, settings: &str) -> Result<()> {
        let new = self.0.path().join("new");
        fs::write(&new, format!("{HEAD}{settings}"))?;
        Ok(fs::rename(new, self.path())?)
    }

    /// Has the file lead through `..data`, as in a mounted ConfigMap, and puts another version in
    /// its place as the kubelet does.
    pub(crate) fn mount(&self, version: u32, settings: &str) -> Result<()> {
        use std::os::unix::fs::symlink;
        let directory = self.0.path();
        let versioned = directory.join(format!("..{version}"));
        fs::create_dir(&versioned)?;
        fs::write(versioned.join("config.conf"), format!("{HEAD}{settings}"))?;
        symlink(format!("..{version}"), directory.join("..data_tmp"))?;
        fs::rename(directory.join("..data_tmp"), directory.join("..data"))?;
        if self.path().symlink_metadata().is_ok_and(|metadata| !metadata.is_symlink()) {
            fs::remove_file(self.path())?;
            symlink("..data/config.conf", self.path())?;
        } else {
            fs::remove_dir_all(directory.join(format!("..{}", version - 1)))?;
        }
        Ok(())
    }

    pub(crate) fn remove(&self) -> Result<()> {
        Ok(fs::remove_file(self.path())?)
    }
}

/// Waits until something is so.
pub(crate) fn wait_until(what: &str, mut is_so: impl FnMut() -> Result<bool>) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    while !is_so()? {
        if Instant::now() > deadline {
            bail!("not within {PATIENCE:?}: {what}");
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}

/// How many changed configurations were taken, how many refused, and whether the last one was taken.
pub(crate) fn reloads(agent: &Agent) -> Result<(f64, f64, bool)> {
    let scraped = Exposition::parse(&agent.http_get(METRICS, "/metrics")?.body)?;
    let count = |result| {
        scraped.value("shunt_config_reloads_total", &[("result", result)]).unwrap_or_default()
    };
    let last = scraped.value("shunt_config_last_reload_successful", &[]).context("no metric")?;
    Ok((count("success"), count("failure"), last == 1.0))
}
