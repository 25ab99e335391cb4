//! The effective configuration: flags and configuration file combined.

use anyhow::Context;
use shunt_core::plan::{Options, TcpTimeouts};

use super::args::{Logging, Settings};
use super::{Failure, logging};
use crate::config::{self, Config, Configuration, Loaded};
use crate::flows::sysctl;
use crate::source::spanned_yaml::{Diagnostic, Severity};

/// The effective configuration.
#[derive(Debug)]
pub(crate) struct Effective {
    pub(crate) config: Config,
    /// The same in the form of a file, with a value for every field.
    pub(crate) full: Configuration,
    pub(crate) node_name: String,
    /// The timeouts of TCP connections to Services: the kernel's own where nothing is configured.
    /// The agent follows the sysctls.
    pub(crate) tcp_timeouts: TcpTimeouts,
    /// The content of the configuration file, if there is one.
    pub(crate) content: Option<Vec<u8>>,
}

impl Effective {
    /// Returns the options of the plan, for objects of manifests.
    pub(crate) fn options(&self) -> Options {
        Options {
            masquerade_bit: self.config.masquerade_bit,
            masquerade_all: self.config.masquerade_all,
            detect_local: self.config.detect_local.clone(),
            node_port_addresses: self.config.node_port_addresses.clone(),
            loopback_node_ports: self.config.loopback_node_ports,
            node_address: self.config.bind_address,
            ignore_external_ips: self.config.ignore_external_ips,
            balancing: self.config.load_balancing,
            reset_gone_endpoints: self.config.reset_gone_endpoints,
            requires_node: false,
            tcp_timeouts: Some(self.tcp_timeouts),
            ipv4_only: false,
        }
    }
}

/// Reads the configuration file, if there is one, starts the log in the configured format, and logs
/// the problems of the configuration.
pub(crate) fn effective(settings: &Settings, logging: &Logging) -> Result<Effective, Failure> {
    let loaded = match &settings.config {
        None => load(settings, logging, None),
        Some(path) => match std::fs::read(path) {
            Ok(content) => load(settings, logging, Some(content)),
            Err(error) => {
                logging::start_with(logging);
                let reason = format!("cannot read {}: {error}", path.display());
                return Err(Failure::Configuration(reason));
            }
        },
    };
    let (effective, problems) = loaded.inspect_err(|_| logging::start_with(logging))?;
    logging::start(effective.config.log_format, effective.config.verbosity);
    problems.iter().for_each(Diagnostic::log);
    Ok(effective)
}

/// The reason why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unusable {
    /// Fields have invalid values.
    #[error("{} invalid values, see above", errors(.0).count())]
    Values(Vec<Diagnostic>),
    /// A value that the configuration leaves open cannot be determined.
    #[error("{0:#}")]
    Other(#[from] anyhow::Error),
}

fn errors(problems: &[Diagnostic]) -> impl Iterator<Item = &Diagnostic> {
    problems.iter().filter(|problem| problem.severity == Severity::Error)
}

impl From<Unusable> for Failure {
    /// Logs the problems on the way.
    fn from(unusable: Unusable) -> Failure {
        unusable.log();
        match unusable {
            Unusable::Values(_) => Failure::Configuration(unusable.to_string()),
            Unusable::Other(error) => Failure::Other(error),
        }
    }
}

impl Unusable {
    /// Logs each invalid value.
    pub(crate) fn log(&self) {
        if let Unusable::Values(problems) = self {
            problems.iter().for_each(Diagnostic::log);
        }
    }
}

/// Combines the flags and the content of the configuration file, if there is one. Returns the
/// warnings and notes about them, too.
pub(crate) fn load(
    settings: &Settings,
    logging: &Logging,
    content: Option<Vec<u8>>,
) -> Result<(Effective, Vec<Diagnostic>), Unusable> {
    let mut flags = settings.given.flags.clone();
    flags.extend(&logging.flags);
    let file = settings.config.as_deref().zip(content.as_deref());
    let Loaded { config, full, problems } =
        config::load(file, &flags).map_err(|invalid| Unusable::Values(invalid.0))?;
    let node_name = match &config.hostname_override {
        Some(name) => name.clone(),
        None => host_name()?,
    };
    let tcp_timeouts = sysctl::tcp_timeouts(&config.conntrack, |_| None);
    Ok((Effective { config, full, node_name, tcp_timeouts, content }, problems))
}

/// Returns the host's name in the form that Kubernetes uses as the default name of its Node.
fn host_name() -> anyhow::Result<String> {
    let name = nix::unistd::gethostname().context("the host has no name")?;
    let name = name.to_string_lossy().trim().to_lowercase();
    anyhow::ensure!(!name.is_empty(), "the host has no name: give --hostname-override");
    Ok(name)
}
