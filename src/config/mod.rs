//! The configuration, from a `KubeProxyConfiguration` file and kube-proxy's flags.
//!
//! Owns: the format `kubeproxy.config.k8s.io/v1alpha1` ([`FIELDS`]), its defaults and validation, the
//! precedence between file and flags ([`load`]), and the effect of each field.
//!
//! Pure. Must not know: files, the command line, or users of the values.

mod configuration;
mod content_type;
mod defaults;
mod duration;
mod effective;
mod fields;
mod file;
mod flags;

#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use shunt_core::plan::Options;

use crate::flows::sysctl;
use crate::source::kubernetes::ContentType;
use crate::source::spanned_yaml::{Diagnostic, Diagnostics, Severity};

pub use configuration::Configuration;
pub use duration::GoDuration;
pub use fields::{Effect, FIELDS, Field, parse_bool};
pub use flags::{Flag, Flags};
pub use shunt_core::plan::{DetectLocal, NodePortAddresses};

const API_VERSION: &str = "kubeproxy.config.k8s.io/v1alpha1";
/// The default of `oomScoreAdj`, as kube-proxy's.
pub const OOM_SCORE_ADJ: i16 = -999;

const KIND: &str = "KubeProxyConfiguration";

/// The configuration in force: defaults filled in, all values valid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// What the plan depends on.
    pub options: Options,
    /// `hostnameOverride`, the name of the Node; empty for the host's name.
    pub node_name: String,
    /// `clientConnection.kubeconfig`; without one, the Pod's service account.
    pub kubeconfig: Option<PathBuf>,
    /// `clientConnection.acceptContentTypes`, by default `contentType`: protobuf or JSON.
    pub content_type: ContentType,
    /// `--master`: the address of the Kubernetes API, which overrides that of the kubeconfig.
    pub master: Option<String>,
    /// `healthzBindAddress`; `None` means no health server.
    pub healthz_bind_address: Option<SocketAddr>,
    /// `metricsBindAddress`; `None` means no metrics server.
    pub metrics_bind_address: Option<SocketAddr>,
    /// `bindAddressHardFail`: the agent exits if it cannot bind the port for health or metrics.
    pub bind_address_hard_fail: bool,
    /// `nftables.syncPeriod`: a change that waits twice as long makes the agent unhealthy.
    pub sync_period: Duration,
    /// `nftables.minSyncPeriod`: the minimum time between two commits.
    pub min_sync_period: Duration,
    /// `conntrack`: the values of its sysctls.
    pub conntrack: sysctl::ConntrackSettings,
    /// `oomScoreAdj`, -1000 to 1000.
    pub oom_score_adj: i16,
    /// `logging.format`; a change applies without a restart.
    pub log_format: LogFormat,
    /// `logging.verbosity`, in klog's levels.
    pub verbosity: u8,
}

/// The format of log lines.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

/// A valid configuration.
#[derive(Debug, Clone, PartialEq)]
pub struct Loaded {
    /// The values that the agent uses.
    pub config: Config,
    /// The same in the form of a file, with a value for every field.
    pub full: Configuration,
    /// Warnings, such as unknown fields, and notes on fields without effect.
    pub problems: Vec<Diagnostic>,
    /// The content of the file, if there is one.
    pub content: Option<Vec<u8>>,
}

/// Makes a configuration of a file (name and content) and flags. With a file, only some
/// flags count, as with kube-proxy.
///
/// # Errors
/// All problems, if one of them is an error.
pub fn load(file: Option<(&Path, &[u8])>, flags: &Flags) -> Result<Loaded, Vec<Diagnostic>> {
    let mut problems = Vec::new();
    let loaded = match file {
        Some((path, bytes)) => {
            let path: Arc<Path> = path.into();
            file::read(&path, bytes, &mut problems).map(|(raw, document)| {
                let written = flags.beside(raw, &mut problems);
                let (loaded, found) = complete(&written);
                problems.extend(found.into_iter().map(|problem| {
                    let line = document.line_of(&problem.field);
                    problem.in_file(&path, Some(line))
                }));
                loaded
            })
        }
        None => {
            let written = flags.alone(&mut problems);
            let (loaded, found) = complete(&written);
            problems.extend(found);
            problems.iter_mut().for_each(|problem| flags.rename(&mut problem.field));
            Some(loaded)
        }
    };
    problems.sort_by_key(|problem| problem.line);
    match loaded {
        Some((mut config, full)) if problems.iter().all(|it| it.severity != Severity::Error) => {
            config.master = flags.last("master").filter(|url| !url.is_empty()).map(str::to_owned);
            Ok(Loaded { config, full, problems, content: file.map(|(_, bytes)| bytes.to_vec()) })
        }
        _ => Err(problems),
    }
}

fn complete(written: &Configuration) -> ((Config, Configuration), Vec<Diagnostic>) {
    let full = defaults::fill(written);
    let mut problems = Diagnostics::default();
    let config = effective::effective(written, &full, &mut problems);
    ((config, full), problems.into_problems())
}
