//! Reloads of the configuration while the agent runs: changed fields take effect in place, at once.

use std::io;
use std::path::PathBuf;
use std::sync::PoisonError;

use anyhow::Context;
use tokio::sync::watch;

use super::args::Run;
use super::observe::PendingSysctls;
use super::settings::{Effective, load, logged};
use super::sources::Objects;
use super::{Reports, logging, process};
use crate::config::{Config, Configuration, FIELDS};
use crate::dataplane::{Command, Commands, Configure};
use crate::flows::sysctl;
use crate::source::file_watch::Paths;
use crate::source::spanned_yaml::Diagnostic;

/// The reason for a reload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Occasion {
    /// The file may have changed.
    Noticed,
    /// The agent received SIGHUP.
    Asked,
}

/// The effective configuration, and the means to replace it.
pub(super) struct Reload {
    pub(super) arguments: Run,
    pub(super) current: Effective,
    /// The source of objects.
    pub(super) objects: Objects,
    pub(super) commands: Commands,
    /// The configuration for the servers and the health.
    pub(super) config: watch::Sender<Config>,
    /// The same with all fields.
    pub(super) full: watch::Sender<Configuration>,
    pub(super) sysctls: PendingSysctls,
    pub(super) reports: Reports,
    /// The content of the file at the last reload, valid or not.
    pub(super) seen: Option<Vec<u8>>,
    /// Set if the file could not be read at the last reload.
    pub(super) unreadable: Option<Unreadable>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Unreadable {
    /// A new file may follow: an editor may move the old one aside first.
    NotSaid,
    Said,
}

impl Reload {
    /// Reads the configuration again and applies the changes; an invalid one changes nothing.
    /// Returns true if the source of objects or the name of the node has changed: then the caller
    /// must restart the source.
    pub(super) fn reload(&mut self, occasion: Occasion) -> bool {
        let Some(path) = &self.arguments.settings.config else {
            tracing::info!("SIGHUP has no effect: there is no --config to reload");
            return false;
        };
        let content = match std::fs::read(path) {
            Ok(content) => content,
            Err(error) => {
                self.say_unreadable(occasion, &error);
                return false;
            }
        };
        self.unreadable = None;
        if occasion == Occasion::Noticed && self.seen.as_ref() == Some(&content) {
            return false;
        }
        self.seen = Some(content.clone());
        let found = load(&self.arguments.settings, &self.arguments.logging, Some(content));
        let new = match found {
            Ok(found) => found,
            Err(problems) => {
                self.refuse(&logged(&problems));
                return false;
            }
        };
        match Objects::chosen(&self.arguments, &new.0.config, self.objects.dialer()) {
            Ok(objects) => self.take(new, objects),
            Err(error) => {
                self.refuse(&error);
                false
            }
        }
    }

    /// Follows the sysctls of connection tracking, which any program may change.
    pub(super) fn follow_sysctls(&mut self) {
        if self.current.read_timeouts() {
            tracing::info!(
                "applied changed sysctls to the timeouts of TCP connections to Services"
            );
            self.configure(&self.objects);
        }
    }

    fn take(
        &mut self,
        (mut new, problems): (Effective, Vec<Diagnostic>),
        objects: Objects,
    ) -> bool {
        new.read_timeouts();
        let old = std::mem::replace(&mut self.current, new);
        let new = &self.current;
        logging::start(new.config.log_format, new.config.verbosity);
        problems.iter().for_each(Diagnostic::log);
        let changed = changed_fields(&old, new);
        if changed.is_empty() {
            tracing::info!("reloaded the configuration; nothing has changed");
        } else {
            self.apply(&old, &objects);
            let changed = changed.join(", ");
            tracing::info!(changed, "applied the changed configuration");
            let text = format!("applied the changed configuration: {changed}");
            self.reports.history.notice(None, text);
        }
        self.reports.metrics.config_reloaded(true);
        self.reports.known.note(|status| status.refused_configuration = None);
        let other_source = objects != self.objects || old.node_name != new.node_name;
        self.objects = objects;
        other_source
    }

    /// Reports that a changed configuration is rejected: log, metric and status.
    pub(super) fn refuse(&self, error: &dyn std::fmt::Display) {
        tracing::error!(
            "rejected the changed configuration, the previous one stays in effect: {error}"
        );
        self.reports.metrics.config_reloaded(false);
        let text = format!("rejected the changed configuration: {error}");
        self.reports.history.notice(None, text);
        let refused = Some(error.to_string());
        self.reports.known.note(|status| status.refused_configuration = refused);
    }

    fn say_unreadable(&mut self, occasion: Occasion, error: &io::Error) {
        let is_gone = error.kind() == io::ErrorKind::NotFound && occasion == Occasion::Noticed;
        match self.unreadable {
            None if is_gone => self.unreadable = Some(Unreadable::NotSaid),
            Some(Unreadable::Said) if occasion == Occasion::Noticed => {}
            _ => {
                self.unreadable = Some(Unreadable::Said);
                self.refuse(&format_args!("cannot read the file: {error}"));
            }
        }
    }
}

impl Reload {
    fn apply(&self, old: &Effective, objects: &Objects) {
        let new = &self.current;
        if configure(old, objects) != configure(new, objects) {
            self.configure(objects);
        }
        self.config.send_replace(new.config.clone());
        self.full.send_replace(new.full.clone());
        if old.config.conntrack != new.config.conntrack {
            self.set_sysctls(&new.config.conntrack);
        }
        if old.config.oom_score_adj != new.config.oom_score_adj {
            process::set_oom_score_adj(new.config.oom_score_adj);
        }
    }

    fn configure(&self, objects: &Objects) {
        // The dataplane ends only with the process.
        let _ = self.commands.send(Command::Configure(configure(&self.current, objects)));
    }

    fn set_sysctls(&self, settings: &sysctl::Settings) {
        let mut pending = self.sysctls.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *pending {
            Some(pending) => pending.clone_from(settings),
            None => sysctl::apply(settings, &self.arguments.net_sysctls),
        }
    }
}

/// Returns what the dataplane needs of the configuration.
fn configure(settings: &Effective, objects: &Objects) -> Configure {
    Configure {
        options: objects.options(settings),
        node_name: settings.node_name.clone(),
        min_period: settings.config.min_sync_period,
    }
}

/// Returns the paths of the fields with a new value.
fn changed_fields(old: &Effective, new: &Effective) -> Vec<&'static str> {
    let has_changed = |path: &&str| old.full.get(path) != new.full.get(path);
    let mut changed: Vec<_> = FIELDS.iter().map(|field| field.path).filter(has_changed).collect();
    changed.sort_unstable();
    changed
}

/// The watch of the configuration file, if there is one.
pub(super) struct ConfigurationFile {
    watched: Option<Paths>,
    has_begun: bool,
}

impl ConfigurationFile {
    /// Prepares the watch.
    ///
    /// # Errors
    /// If the kernel refuses an inotify instance.
    pub(super) fn new(arguments: &Run) -> anyhow::Result<ConfigurationFile> {
        let watch = |path: &PathBuf| Paths::new(std::slice::from_ref(path), |_| false);
        let watched = arguments.settings.config.as_ref().map(watch).transpose();
        Ok(ConfigurationFile { watched: watched.context("--config")?, has_begun: false })
    }

    /// Waits until the file may have changed: not at all at first, since it was read before the watch
    /// began. Waits for ever without a file.
    pub(super) async fn changed(&mut self) {
        let Some(paths) = &mut self.watched else { return std::future::pending().await };
        if std::mem::replace(&mut self.has_begun, true)
            && let Err(error) = paths.wait().await
        {
            tracing::error!(
                "cannot watch the configuration file any longer: {error}; send SIGHUP to reload it"
            );
            self.watched = None;
            return;
        }
        paths.watch(0);
    }
}
