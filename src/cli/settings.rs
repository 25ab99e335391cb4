//! What the flags and the configuration file together ask for.

use std::path::Path;

use anyhow::Context;

use super::args::{Logging, Settings};
use super::{Failure, logging};
use crate::config::raw::Configuration;
use crate::config::{self, Config, Loaded};
use crate::document::{Problem, Severity};
use crate::plan::Options;

/// What the agent needs to know.
#[derive(Debug)]
pub(super) struct Effective {
    pub(super) config: Config,
    /// The same as a file would say it.
    pub(super) full: Configuration,
    pub(super) node_name: String,
}

impl Effective {
    /// What of it is about planning.
    pub(super) fn options(&self) -> Options {
        Options {
            masquerade_bit: self.config.masquerade_bit,
            masquerade_all: self.config.masquerade_all,
            detect_local: self.config.detect_local.clone(),
            node_port_addresses: self.config.node_port_addresses.clone(),
            node_address: self.config.bind_address,
        }
    }

    /// What `/configz` shows: all of it as JSON.
    pub(super) fn configz(&self) -> String {
        serde_json::json!({ GROUP: self.full }).to_string()
    }
}

/// The group of a KubeProxyConfiguration, under which kube-proxy shows it.
const GROUP: &str = "kubeproxy.config.k8s.io";

/// Reads the configuration file, if there is one, starts logging as it and the flags say, and
/// reports what is wrong with it.
pub(super) fn effective(settings: &Settings, logging: &Logging) -> Result<Effective, Failure> {
    let mut flags = settings.flags.clone();
    flags.extend(&logging.flags);
    let loaded = match &settings.config {
        None => config::load(None, &flags),
        Some(path) => match read(path) {
            Ok(bytes) => config::load(Some((path, &bytes)), &flags),
            Err(failure) => {
                logging::start_with(logging);
                return Err(failure);
            }
        },
    };
    let Loaded { config, full, problems } = loaded.map_err(|invalid| {
        logging::start_with(logging);
        invalid.0.iter().for_each(Problem::log);
        let count = invalid.0.iter().filter(|p| p.severity == Severity::Error).count();
        Failure::Configuration(format!("{count} of its values are wrong, see above"))
    })?;
    logging::start(config.log_format, config.verbosity);
    problems.iter().for_each(Problem::log);
    let node_name = match &config.hostname_override {
        Some(name) => name.clone(),
        None => host_name()?,
    };
    Ok(Effective { config, full, node_name })
}

fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    std::fs::read(path).map_err(|error| {
        Failure::Configuration(format!("{} cannot be read: {error}", path.display()))
    })
}

/// The host's name as Kubernetes names its Node by default.
fn host_name() -> anyhow::Result<String> {
    let name = nix::unistd::gethostname().context("the host has no name")?;
    let name = name.to_string_lossy().trim().to_lowercase();
    anyhow::ensure!(!name.is_empty(), "the host has no name: give --hostname-override");
    Ok(name)
}
