//! The configuration: what a `KubeProxyConfiguration` file and kube-proxy's flags ask of us.
//!
//! Owns: the format `kubeproxy.config.k8s.io/v1alpha1` ([`raw`]), its defaults and validation, the
//! precedence between file and flags ([`load`]), and what of it has an effect.
//!
//! Pure. Must not know: files, the command line, or who uses the values.

mod defaults;
mod duration;
mod effective;
mod fields;
mod file;
mod flags;
pub mod raw;
mod unused;

#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::conntrack::sysctl;
use crate::document::{FieldPath, Problem, Severity};

use flags::Draft;
use raw::Configuration;

pub use fields::{Effect, FIELDS, Field};
pub use flags::{Flag, Flags, parse_bool};
pub use shunt_core::plan::{DetectLocal, NodePortAddresses};

const API_VERSION: &str = "kubeproxy.config.k8s.io/v1alpha1";
/// The default of `oomScoreAdj`.
pub const OOM_SCORE_ADJ: i16 = -999;

const KIND: &str = "KubeProxyConfiguration";

/// The configuration in force: defaults filled in, all values valid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// `hostnameOverride`: the name of our Node, if it is not the host's name.
    pub hostname_override: Option<String>,
    /// `clientConnection.kubeconfig`.
    pub kubeconfig: Option<PathBuf>,
    /// `--master`: the address of the Kubernetes API, if it is not that in the kubeconfig.
    pub master: Option<String>,
    /// `bindAddress`: the node's address, if it is not to be taken from the Node.
    pub bind_address: Option<IpAddr>,
    /// `healthzBindAddress`; none means no health server.
    pub healthz_bind_address: Option<SocketAddr>,
    /// `metricsBindAddress`; none means no metrics server.
    pub metrics_bind_address: Option<SocketAddr>,
    /// `bindAddressHardFail`: a port for health or metrics that cannot be bound ends the agent.
    pub bind_address_hard_fail: bool,
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
    /// `conntrack`: the sysctls that the section asks for.
    pub conntrack: sysctl::Settings,
    /// `oomScoreAdj`, -1000 to 1000.
    pub oom_score_adj: i16,
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

/// A configuration that can be used.
#[derive(Debug, Clone, PartialEq)]
pub struct Loaded {
    /// The values in force.
    pub config: Config,
    /// The same as a file would say it, every field with its value.
    pub full: Configuration,
    /// Warnings (fields that do not exist, say) and notes on what has no effect.
    pub problems: Vec<Problem>,
}

/// Makes the configuration out of a file (its name and content) and flags. With a file, only some
/// flags count, as with kube-proxy: those with [`Flag::beside_file`].
///
/// # Errors
/// All that is wrong, if any of it is an error.
pub fn load(file: Option<(&Path, &[u8])>, flags: &Flags) -> Result<Loaded, Invalid> {
    let mut problems = Vec::new();
    let loaded = match file {
        Some((path, bytes)) => {
            let path: Arc<Path> = path.into();
            file::read(&path, bytes, &mut problems).map(|(raw, document)| {
                let draft = flags.beside(raw, &mut problems);
                let mut found = Vec::new();
                let loaded = complete(draft, &mut found);
                problems.extend(found.into_iter().map(|problem: Problem| {
                    let line = document.line_of(&problem.field);
                    problem.in_file(&path, Some(line))
                }));
                loaded
            })
        }
        None => {
            let draft = flags.alone(&mut problems);
            let loaded = complete(draft, &mut problems);
            problems.iter_mut().for_each(|problem| flags.rename(&mut problem.field));
            Some(loaded)
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
    match loaded {
        Some((config, full)) if errors.is_empty() => Ok(Loaded { config, full, problems }),
        _ => Err(Invalid(problems)),
    }
}

fn complete(draft: Draft, problems: &mut Vec<Problem>) -> (Config, Configuration) {
    let written = &draft.configuration;
    let full = defaults::fill(written);
    unused::check(written, problems);
    let mut config = effective::effective(written, &full, problems);
    config.master = draft.master.filter(|master| !master.is_empty());
    (config, full)
}
