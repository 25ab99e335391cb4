//! The configuration in force: flags and configuration file combined.

use super::args::{ConfigurationFlags, Logging};
use super::{Failure, logging};
use crate::config::{self, Config, Loaded};
use crate::flows::sysctl;
use crate::source::spanned_yaml::{Diagnostic, Severity};

/// Reads the timeouts of TCP connections to Services: those of the sysctls of this network namespace
/// where nothing is configured. Returns true if they have changed.
pub(crate) fn read_timeouts(config: &mut Config) -> bool {
    let new = Some(sysctl::tcp_timeouts(&config.conntrack, sysctl::tcp_timeout));
    std::mem::replace(&mut config.options.tcp_timeouts, new) != new
}

/// Reads the configuration file, if there is one, starts the log in the configured format, and logs
/// the problems of the configuration.
pub(crate) fn effective(
    settings: &ConfigurationFlags,
    logging: &Logging,
) -> Result<Loaded, Failure> {
    match load_file(settings, logging) {
        Ok(loaded) => {
            logging::start(loaded.config.log_format, loaded.config.verbosity);
            loaded.problems.iter().for_each(Diagnostic::log);
            Ok(loaded)
        }
        Err(problems) => {
            logging::start_with(logging);
            Err(Failure::Configuration(logged(&problems)))
        }
    }
}

/// Logs the problems of a configuration that cannot be used, and counts them.
pub(super) fn logged(problems: &[Diagnostic]) -> String {
    problems.iter().for_each(Diagnostic::log);
    let errors = problems.iter().filter(|problem| problem.severity == Severity::Error).count();
    format!("{errors} invalid values, see above")
}

/// What a configuration yields, or all problems if one is an error.
pub(crate) type Loading = Result<Loaded, Vec<Diagnostic>>;

/// Reads the configuration file, if there is one, and combines it with the flags.
pub(crate) fn load_file(settings: &ConfigurationFlags, logging: &Logging) -> Loading {
    let content = settings.config.as_ref().map(|path| {
        std::fs::read(path).map_err(|error| {
            let reason = format!("cannot read {}: {error}", path.display());
            vec![Diagnostic::new(Severity::Error, "", reason)]
        })
    });
    load(settings, logging, content.transpose()?.as_deref())
}

/// Combines the flags and the content of the configuration file, if there is one.
pub(super) fn load(
    settings: &ConfigurationFlags,
    logging: &Logging,
    content: Option<&[u8]>,
) -> Loading {
    let mut flags = settings.given.flags.clone();
    flags.extend(&logging.flags);
    let mut loaded = config::load(settings.config.as_deref().zip(content), &flags)?;
    let config = &mut loaded.config;
    if config.node_name.is_empty() {
        config.node_name = host_name().ok_or_else(|| {
            let reason = "the host has no name: give --hostname-override";
            vec![Diagnostic::new(Severity::Error, "hostnameOverride", reason)]
        })?;
    }
    config.options.tcp_timeouts = Some(sysctl::tcp_timeouts(&config.conntrack, |_| None));
    Ok(loaded)
}

/// Returns the host's name in the form that Kubernetes uses as the default name of its Node.
fn host_name() -> Option<String> {
    let name = nix::unistd::gethostname().ok()?.to_string_lossy().trim().to_lowercase();
    Some(name).filter(|name| !name.is_empty())
}
