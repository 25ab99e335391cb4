//! `shunt run`: the agent, or one of the tasks that kube-proxy does instead by a flag.

use std::path::Path;

use anyhow::Context;

use super::args::{Format, RunOrTask};
use super::cleanup;
use super::version::Build;
use crate::agent::args::{Run, Version};
use crate::agent::ending;
use crate::agent::settings::{effective, read_timeouts};
use crate::agent::{self, Failure, netns};
use crate::config::{Configuration, Loaded};
use crate::dataplane::Scope;
use crate::flows::{Conntrack, sysctl};

pub(super) fn run(arguments: &RunOrTask) -> Result<(), Failure> {
    let RunOrTask { once, run, .. } = arguments;
    if let Some(done) = print_version(run) {
        return done;
    }
    let is_agent =
        !(*once || arguments.cleanup || arguments.init_only || arguments.write_config_to.is_some());
    ending::end_when_asked(is_agent)?;
    ending::end_when_a_thread_panics();
    let mut settings = effective(&run.settings, &run.logging)?;
    let dialer = netns::enter_with_dialer(run.netns.as_deref())?;
    read_timeouts(&mut settings.config);
    match with_settings(arguments, &settings) {
        Some(done) => done,
        None => agent::run(run, *once, settings, dialer.as_ref()),
    }
}

/// Prints the version if `--version` is set.
pub(super) fn print_version(arguments: &Run) -> Option<Result<(), Failure>> {
    let text = match arguments.version? {
        Version::No => return None,
        Version::Short => format!("shunt {}\n", Build::default().version),
        Version::Raw => match super::written(Format::Json, &Build::default()) {
            Ok(text) => text,
            Err(error) => return Some(Err(error.into())),
        },
    };
    Some(super::print(&text).map_err(Failure::from))
}

/// Does the tasks that need a configuration, if a flag requests one of them. The thread must be in
/// the network namespace already.
fn with_settings(arguments: &RunOrTask, settings: &Loaded) -> Option<Result<(), Failure>> {
    if let Some(path) = &arguments.write_config_to {
        return Some(write_configuration(path, &settings.full));
    }
    if arguments.cleanup {
        return Some(cleanup::clean(Scope { own: true, kube_proxy: false }));
    }
    arguments.init_only.then(|| {
        // After a boot, the sysctls appear only with the module.
        if let Err(error) = Conntrack::open().and_then(|mut conntrack| conntrack.load()) {
            tracing::debug!(%error, "cannot load connection tracking");
        }
        sysctl::apply(&settings.config.conntrack, &arguments.run.net_sysctls);
        tracing::info!("set the sysctls (--init-only)");
        Ok(())
    })
}

fn write_configuration(path: &Path, full: &Configuration) -> Result<(), Failure> {
    // Its fields are in order, as kube-proxy writes them.
    let yaml = serde_saphyr::to_string(full).context("cannot write it as YAML")?;
    std::fs::write(path, yaml).with_context(|| format!("cannot write {}", path.display()))?;
    tracing::info!(file = %path.display(), "wrote the configuration");
    Ok(())
}
