//! The sources of objects for `shunt run`: manifests or an API server.

use std::collections::HashSet;
use std::future::Future;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow};
use hyper::{Method, StatusCode};
use shunt_core::model::{Change, Store};
use shunt_core::plan::Options;

use super::Reports;
use super::args::Run;
use crate::config::Config;
use crate::dataplane::Commands;
use crate::serve::events::{Notices, publish};
use crate::serve::status;
use crate::source::kubernetes::{Access, AccessError, ApiSource, Dialer, Incident};
use crate::source::manifests::{self, Watcher};
use crate::source::objects::Kind;

/// How long `--once` waits for the API server to list everything: longer than a busy server queues
/// a request.
const LISTING_TIMEOUT: Duration = Duration::from_secs(120);

/// A source of objects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ObjectSource {
    /// Files.
    Manifests(Vec<PathBuf>),
    /// An API server.
    Api(Access),
}

/// A running source. It ends only on a permanent error, or when the dataplane has ended.
pub(super) type Work = Pin<Box<dyn Future<Output = anyhow::Result<()>>>>;

impl ObjectSource {
    /// Returns the configured source: manifests, or the API server of a kubeconfig on the command
    /// line or in the configuration. The default is the API server of the surrounding cluster.
    /// `dialer` connects from the agent's original network namespace, if it works in another one.
    pub(super) fn chosen(
        arguments: &Run,
        config: &Config,
        dialer: Option<&Dialer>,
    ) -> Result<ObjectSource, AccessError> {
        if !arguments.manifests.is_empty() {
            return Ok(ObjectSource::Manifests(arguments.manifests.clone()));
        }
        let access = access(config, dialer.cloned());
        // Its problems fail the command before anything is started.
        access.check()?;
        Ok(ObjectSource::Api(access))
    }

    /// Returns the dialer of an API server's source.
    pub(super) fn dialer(&self) -> Option<&Dialer> {
        match self {
            ObjectSource::Manifests(_) => None,
            ObjectSource::Api(access) => access.dialer.as_ref(),
        }
    }

    /// Returns true if the source may define no Node for this node: manifests may, a cluster has
    /// one for each.
    pub(super) fn may_lack_a_node(&self) -> bool {
        matches!(self, ObjectSource::Manifests(_))
    }

    /// Returns the options of the plan for these objects.
    pub(super) fn options(&self, config: &Config) -> Options {
        Options { requires_node: !self.may_lack_a_node(), ..config.options.clone() }
    }

    /// Reads all objects once.
    pub(super) fn load(
        &self,
        node_name: &str,
        mut apply: impl FnMut(Vec<Change>),
    ) -> anyhow::Result<()> {
        match self {
            ObjectSource::Manifests(paths) => {
                let changes =
                    manifests::load(paths, node_name).context("cannot read the manifests")?;
                apply(changes);
                Ok(())
            }
            ObjectSource::Api(access) => runtime()?.block_on(async {
                let source =
                    ApiSource::new(access.clone(), node_name, |_| {}, Arc::new(|_, _, _, _| {}))?;
                let api_status = source.api_status.clone();
                let listing = source.run(|batch| {
                    let synced = batch.changes.contains(&Change::Synced);
                    apply(batch.changes);
                    if synced { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
                });
                tokio::time::timeout(LISTING_TIMEOUT, listing).await.map_err(|_| {
                    let trouble = api_status.trouble().map(|(reason, _)| reason);
                    let why =
                        trouble.unwrap_or_else(|| "the lists are not complete yet".to_owned());
                    anyhow!(
                        "the API server has not listed everything within {LISTING_TIMEOUT:?}: {why}"
                    )
                })
            }),
        }
    }

    /// Sends all objects and their changes to the dataplane, and Events to the API server, if there
    /// is one. Must be called within a tokio runtime. The caller polls the returned future; its
    /// drop stops the source.
    pub(super) fn follow(
        &self,
        node_name: &str,
        commands: &Commands,
        notices: &Notices,
        reports: &Reports,
    ) -> anyhow::Result<Work> {
        let Reports { metrics, known, .. } = reports;
        match self {
            ObjectSource::Manifests(paths) => {
                let watcher =
                    Watcher::new(paths, node_name).context("cannot watch the manifests")?;
                let paths = paths.clone();
                known.follow(node_name, move || status::SourceStatus::Manifests {
                    paths: paths.clone(),
                });
                let work = watcher.run(commands.sink());
                Ok(Box::pin(async { work.await.context("cannot watch the manifests any longer") }))
            }
            ObjectSource::Api(access) => {
                let counts = metrics.clone();
                let asked = move |method: &Method, host: &str, status: Option<StatusCode>, took| {
                    let status = status.map(|status| status.as_u16());
                    counts.api_asked(method.as_str(), host, status, took);
                };
                let metrics = metrics.clone();
                let count_restart = move |kind: Kind, count: f64| {
                    let resource = [("resource", kind.resource())];
                    metrics.add("shunt_watch_restarts_total", &resource, count);
                };
                // From zero on, so that a rate has the first restart.
                Kind::ALL.into_iter().for_each(|kind| count_restart(kind, 0.0));
                let history = reports.history.clone();
                let note = move |incident| match incident {
                    Incident::Restarted(kind) => count_restart(kind, 1.0),
                    Incident::Lost(text) | Incident::Back(text) => history.notice(None, text),
                };
                let source = ApiSource::new(access.clone(), node_name, note, Arc::new(asked))?;
                let server = access.server()?;
                let api_status = source.api_status.clone();
                known.follow(node_name, move || {
                    let trouble = api_status.trouble().map(|(reason, lasts)| status::Trouble {
                        reason,
                        seconds: lasts.as_secs_f64(),
                    });
                    status::SourceStatus::Api { server: server.clone(), trouble }
                });
                let known = known.clone();
                let nodes = move || endpoint_nodes(&known.snapshot().store);
                let (notices, connection) = (notices.clone(), source.connection.clone());
                let events =
                    publish(notices, connection, node_name.to_owned(), nodes, status::Time::now);
                let sink = commands.sink();
                Ok(Box::pin(async move {
                    // Both run until the process ends.
                    tokio::select! {
                        () = source.run(sink) => {}
                        () = events => {}
                    }
                    Ok(())
                }))
            }
        }
    }
}

/// Returns the access to the API server of a configuration.
pub(crate) fn access(config: &Config, dialer: Option<Dialer>) -> Access {
    Access {
        kubeconfig: config.kubeconfig.clone(),
        master: config.master.clone(),
        dialer,
        content_type: config.content_type,
    }
}

/// Returns the names of the nodes with endpoints.
pub(super) fn endpoint_nodes(store: &Store) -> HashSet<Arc<str>> {
    let slices = store.services().flat_map(|service| store.slices(&service.name));
    let nodes = slices.flat_map(|slice| &slice.endpoints).filter_map(|e| e.node.as_ref());
    // Most endpoints share a node with others.
    let nodes: HashSet<&Arc<str>> = nodes.collect();
    nodes.into_iter().cloned().collect()
}

/// Starts the runtime for requests, health checks and signals.
pub(crate) fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.context("cannot start the runtime for requests, health checks and signals")
}
