//! Reloads of the configuration while the agent runs: changed fields take effect in place, at once.

use std::io;
use std::path::PathBuf;

use anyhow::Context;
use tokio::sync::watch;

use super::args::Run;
use super::settings::{load, logged, read_timeouts};
use super::sources::ObjectSource;
use super::{Reports, logging, process};
use crate::config::{FIELDS, Loaded};
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

/// The configuration in force, and the means to replace it.
pub(super) struct Reload {
    pub(super) arguments: Run,
    /// All readers of a value see new ones.
    pub(super) loaded: watch::Sender<Loaded>,
    /// The source of objects.
    pub(super) objects: ObjectSource,
    /// Another source is still to be started.
    pub(super) awaits_source: bool,
    pub(super) commands: Commands,
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
        let found = load(&self.arguments.settings, &self.arguments.logging, Some(&content));
        self.seen = Some(content);
        let new = match found {
            Ok(found) => found,
            Err(problems) => {
                self.refuse(&logged(&problems));
                return false;
            }
        };
        match ObjectSource::chosen(&self.arguments, &new.config, self.objects.dialer()) {
            Ok(objects) => self.take(new, objects),
            Err(error) => {
                self.refuse(&error);
                false
            }
        }
    }

    /// Follows the sysctls of connection tracking, which any program may change.
    pub(super) fn follow_sysctls(&mut self) {
        if self.loaded.send_if_modified(|loaded| read_timeouts(&mut loaded.config)) {
            tracing::info!(
                "applied changed sysctls to the timeouts of TCP connections to Services"
            );
            self.configure(&self.objects);
        }
    }

    fn take(&mut self, mut new: Loaded, objects: ObjectSource) -> bool {
        read_timeouts(&mut new.config);
        logging::start(new.config.log_format, new.config.verbosity);
        new.problems.iter().for_each(Diagnostic::log);
        let old = self.loaded.send_replace(new.clone());
        let changed = changed_fields(&old, &new);
        if changed.is_empty() {
            tracing::info!("reloaded the configuration; nothing has changed");
        } else {
            self.apply(&old, &new, &objects);
            let changed = changed.join(", ");
            tracing::info!(changed, "applied the changed configuration");
            let text = format!("applied the changed configuration: {changed}");
            self.reports.history.notice(None, text);
        }
        self.reports.metrics.config_reloaded(true);
        self.reports.known.note(|status| status.refused_configuration = None);
        self.awaits_source |=
            objects != self.objects || old.config.node_name != new.config.node_name;
        self.objects = objects;
        self.awaits_source
    }

    fn apply(&self, old: &Loaded, new: &Loaded, objects: &ObjectSource) {
        if configure(old, objects) != configure(new, objects) {
            self.configure(objects);
        }
        if old.config.conntrack != new.config.conntrack {
            sysctl::apply(&new.config.conntrack, &self.arguments.net_sysctls);
        }
        if old.config.oom_score_adj != new.config.oom_score_adj {
            process::set_oom_score_adj(new.config.oom_score_adj);
        }
    }

    fn configure(&self, objects: &ObjectSource) {
        let configure = configure(&self.loaded.borrow(), objects);
        // The dataplane ends only with the process.
        let _ = self.commands.send(Command::Configure(configure));
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

/// Returns what the dataplane needs of the configuration.
fn configure(Loaded { config, .. }: &Loaded, objects: &ObjectSource) -> Configure {
    Configure {
        options: objects.options(config),
        node_name: config.node_name.clone(),
        min_period: config.min_sync_period,
    }
}

/// Returns the paths of the fields with a new value.
fn changed_fields(old: &Loaded, new: &Loaded) -> Vec<&'static str> {
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
            && let Err(error) = paths.wait().await.and_then(|()| paths.changes())
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
