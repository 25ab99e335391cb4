//! The configuration: what a `KubeProxyConfiguration` file and kube-proxy's flags ask of us.
//!
//! Owns: the format `kubeproxy.config.k8s.io/v1alpha1` ([`raw`]), its defaults and validation, the
//! precedence between file and flags ([`load`]), and what of it has an effect.
//!
//! Pure. Must not know: files, the command line, or who uses the values.

mod duration;
mod effect;
mod effective;
mod file;
mod flags;
pub mod raw;

#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::conntrack::sysctl;
use crate::document::{FieldPath, Problem, Severity};

pub use crate::plan::{DetectLocal, NodePortAddresses};
pub use flags::Flags;

/// The configuration in force: defaults filled in, all values valid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// `hostnameOverride`: the name of our Node, if it is not the host's name.
    pub hostname_override: Option<String>,
    /// `clientConnection.kubeconfig`.
    pub kubeconfig: Option<PathBuf>,
    /// `bindAddress`: the node's address, if it is not to be taken from the Node.
    pub bind_address: Option<IpAddr>,
    /// `healthzBindAddress`; none means no health server.
    pub healthz_bind_address: Option<SocketAddr>,
    /// `metricsBindAddress`; none means no metrics server.
    pub metrics_bind_address: Option<SocketAddr>,
    /// `detectLocalMode`: how traffic of pods is told from other traffic.
    pub detect_local: DetectLocal,
    /// `nodePortAddresses`: where NodePorts are offered.
    pub node_port_addresses: NodePortAddresses,
    /// `nftables.masqueradeBit`: the bit of the packet mark, 0 to 31.
    pub masquerade_bit: u8,
    /// `nftables.masqueradeAll`: masquerade everything that goes to a ClusterIP.
    pub masquerade_all: bool,
    /// `nftables.syncPeriod`: what is late by twice this time counts as unhealthy.
    pub sync_period: Duration,
    /// `nftables.minSyncPeriod`: the least time between two commits.
    pub min_sync_period: Duration,
    /// `conntrack`: the sysctls that the section asks for. What it does not mention is left alone.
    pub conntrack: sysctl::Settings,
    /// `logging.format`.
    pub log_format: LogFormat,
    /// `logging.verbosity`.
    pub verbosity: u8,
}

/// How log lines are written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

/// A configuration that cannot be used: everything that is wrong with it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the configuration is not valid: {}", list(.0))]
pub struct Invalid(
    /// All problems; at least one is an error.
    pub Vec<Problem>,
);

fn list(problems: &[Problem]) -> String {
    let errors = problems.iter().filter(|problem| problem.severity == Severity::Error);
    errors.map(|error| format!("\n  {error}")).collect()
}

/// Makes the configuration out of a file (its name and content) and flags. With a file, only the
/// flags for the host's name and for logging count, as with kube-proxy.
///
/// What comes with a good configuration are warnings (fields that do not exist, say) and notes on
/// fields that have no effect.
pub fn load(
    file: Option<(&Path, &[u8])>,
    flags: &Flags,
) -> Result<(Config, Vec<Problem>), Invalid> {
    let mut problems = Vec::new();
    let config = match file {
        Some((path, bytes)) => {
            let path: Arc<Path> = path.into();
            file::read(&path, bytes, &mut problems).map(|(mut raw, document)| {
                flags.override_file(&mut raw, &mut problems);
                let mut found = Vec::new();
                let config = effective::effective(&raw, &mut found);
                problems.extend(found.into_iter().map(|problem: Problem| {
                    let line = document.line_of(&problem.field);
                    problem.in_file(&path, Some(line))
                }));
                config
            })
        }
        None => {
            let config =
                effective::effective(&flags.as_configuration(&mut problems), &mut problems);
            for problem in &mut problems {
                flags::name(&mut problem.field);
            }
            Some(config)
        }
    };
    let errors: HashSet<FieldPath> = problems
        .iter()
        .filter(|problem| problem.severity == Severity::Error)
        .map(|problem| problem.field.clone())
        .collect();
    // That a wrong value would have no effect anyway is no help.
    problems.retain(|p| p.severity == Severity::Error || !errors.contains(&p.field));
    problems.sort_by_key(|problem| problem.line);
    match config {
        Some(config) if errors.is_empty() => Ok((config, problems)),
        _ => Err(Invalid(problems)),
    }
}
