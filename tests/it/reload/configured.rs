//! A node whose configuration file changes while the agent runs.

use std::fs;
use std::ops::Deref;
use std::path::PathBuf;

use anyhow::{Context, Result};
use shunt_testbed::{Agent, AgentBuilder, Protocol, eventually};
use tempfile::TempDir;

use crate::world::{World, http_service, http_slices};

/// The Service `web`: its ClusterIP and its node port, on port 80 of both pods of the node.
pub(crate) const WEB: &str = "10.96.0.10:80";
pub(crate) const WEB_PODS: [&str; 2] = ["pod-1", "pod-2"];
pub(crate) const NODE_PORT: u16 = 30_080;

const HEAD: &str = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n";

/// The world with a configuration file.
pub(crate) struct Configured {
    world: World,
    pub(crate) config: ConfigFile,
}

impl Deref for Configured {
    type Target = World;

    fn deref(&self) -> &World {
        &self.world
    }
}

impl Configured {
    /// With a configuration of these settings.
    pub(crate) fn new(settings: &str) -> Result<Self> {
        let world = World::new()?;
        let web = shunt_testbed::Service::new("web")
            .cluster_ips(&["10.96.0.10", "fd00:96::10"])
            .node_port("http", Protocol::Tcp, 80, NODE_PORT);
        let slices = http_slices("web", &[&world.lab.pod1, &world.lab.pod2]);
        world.manifests.write("web.yaml", format!("{web}{slices}"))?;
        Ok(Self { world, config: ConfigFile::new(settings)? })
    }

    /// The agent on the manifests and with the configuration file.
    pub(crate) fn agent(&self) -> AgentBuilder {
        self.plain_agent().arg("--config").arg(self.config.path().display().to_string())
    }

    /// Waits until the rules contain that text, or do not.
    pub(crate) fn wait_for_rules(&self, text: &str, there: bool) -> Result<()> {
        wait_until(&format!("rules with {text}: {there}"), || {
            Ok(self.rules()?.contains(text) == there)
        })
    }

    /// Adds a Service on the first pod.
    pub(crate) fn add(&self, name: &str, ip: &str) -> Result<()> {
        let slices = http_slices(name, &[&self.lab.pod1]);
        let content = format!("{}{slices}", http_service(name, &[ip]));
        self.manifests.write(&format!("{name}.yaml"), content)
    }
}

/// A configuration in a directory of its own.
pub(crate) struct ConfigFile(TempDir);

impl ConfigFile {
    pub(crate) fn new(settings: &str) -> Result<ConfigFile> {
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
    eventually(what, || Ok(is_so()?.then_some(())))
}

/// How many changed configurations were taken, how many refused, and whether the last one was taken.
pub(crate) fn reloads(agent: &Agent) -> Result<(f64, f64, bool)> {
    let scraped = agent.scrape()?;
    let count = |result| {
        scraped.value("shunt_config_reloads_total", &[("result", result)]).unwrap_or_default()
    };
    let last = scraped.value("shunt_config_last_reload_successful", &[]).context("no metric")?;
    Ok((count("success"), count("failure"), last == 1.0))
}
