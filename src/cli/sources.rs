//! Where `shunt run` gets its objects from.

use std::future::Future;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow};
use shunt_core::model::Change;

use super::args::Run;
use super::process;
use crate::config::Config;
use crate::dataplane::Commands;
use crate::events::{Notices, publish};
use crate::metrics::Metrics;
use crate::source::kubernetes::{
    Access, AccessError, Connection, Dialer, ObservedRequest, RequestObserver, Source,
};
use crate::source::manifests::{self, Locations, Watcher};
use crate::source::objects::Kind;
use crate::status::{AgentState, Following};

/// How long `--once` waits for the API server to list everything.
const ONCE: Duration = Duration::from_secs(60);

/// A source of objects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Objects {
    /// Files.
    Manifests(Vec<PathBuf>),
    /// An API server.
    Api(Access),
}

/// A source at work. It ends only if it cannot go on, or if the dataplane is gone.
pub(super) type Work = Pin<Box<dyn Future<Output = anyhow::Result<()>>>>;

impl Objects {
    /// The source that was asked for: manifests, or a kubeconfig on the command line or in the
    /// configuration; without any, the API server of the cluster that we run in.
    /// `dialer` makes connections from where the agent was started, if it works elsewhere.
    pub(super) fn chosen(
        arguments: &Run,
        config: &Config,
        dialer: Option<&Dialer>,
    ) -> Result<Objects, AccessError> {
        if !arguments.manifests.is_empty() {
            return Ok(Objects::Manifests(arguments.manifests.clone()));
        }
        let access = Access {
            kubeconfig: config.kubeconfig.clone(),
            master: config.master.clone(),
            dialer: dialer.cloned(),
        };
        // What is wrong with it is better said before anything is started.
        access.check()?;
        Ok(Objects::Api(access))
    }

    /// What it was chosen with.
    pub(super) fn dialer(&self) -> Option<&Dialer> {
        match self {
            Objects::Manifests(_) => None,
            Objects::Api(access) => access.dialer.as_ref(),
        }
    }

    /// Whether nothing may ever be said about our Node. In a cluster, each node has one; manifests
    /// may do without.
    pub(super) fn may_lack_a_node(&self) -> bool {
        matches!(self, Objects::Manifests(_))
    }

    /// Reads everything once.
    pub(super) fn load(
        &self,
        node_name: &str,
        locations: &Locations,
        mut apply: impl FnMut(Vec<Change>),
    ) -> anyhow::Result<()> {
        match self {
            Objects::Manifests(paths) => {
                let round = manifests::load(paths, node_name, locations)
                    .context("cannot read the manifests")?;
                round.problems.iter().for_each(|problem| problem.log());
                apply(round.changes);
                Ok(())
            }
            Objects::Api(access) => runtime()?.block_on(async {
                let source = Source::new(access.clone(), node_name, |_| {}, Arc::new(|_| {}))?;
                let api_status = source.api_status();
                let listing = source.run(|batch| {
                    let synced = batch.changes.contains(&Change::Synced);
                    apply(batch.changes);
                    if synced { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
                });
                tokio::time::timeout(ONCE, listing).await.map_err(|_| {
                    let trouble = api_status.trouble().map(|(reason, _)| reason);
                    let why =
                        trouble.unwrap_or_else(|| "the lists are not complete yet".to_owned());
                    anyhow!("the API server has not listed everything within {ONCE:?}: {why}")
                })
            }),
        }
    }

    /// Sends what there is and what changes to the dataplane, and notices to an API server, where
    /// there is one. To be called where tokio runs; what
    /// comes back has to be polled, and stops the source when it is dropped.
    pub(super) fn follow(
        &self,
        node_name: &str,
        commands: &Commands,
        metrics: &Metrics,
        notices: &Notices,
        known: &AgentState,
        locations: &Locations,
    ) -> anyhow::Result<Work> {
        match self {
            Objects::Manifests(paths) => {
                let (watcher, stop) = Watcher::new(paths, node_name, locations)
                    .context("cannot watch the manifests")?;
                known.follow(node_name, Following::Manifests(paths.clone()));
                let (ended, end) = tokio::sync::oneshot::channel();
                let sink = commands.sink();
                process::start_thread("manifests", move || {
                    let _ = ended.send(watcher.run(sink));
                })?;
                Ok(Box::pin(async move {
                    let _stop = stop;
                    end.await
                        .context("the thread that watches the manifests has ended")?
                        .context("cannot watch the manifests any longer")
                }))
            }
            Objects::Api(access) => {
                let asked = count_requests(metrics.clone());
                let metrics = metrics.clone();
                let restarted = move |kind: Kind| metrics.watch_restarted(kind.resource());
                let source = Source::new(access.clone(), node_name, restarted, asked.clone())?;
                let server = access.server()?;
                known.follow(node_name, Following::Api { server, api_status: source.api_status() });
                let events = Connection::open(access.clone(), asked)?;
                let events = publish(notices.clone(), events, node_name.to_owned());
                locations.clear();
                let sink = commands.sink();
                Ok(Box::pin(async move {
                    // Both end only with the process.
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

/// Counts the requests to an API server.
fn count_requests(metrics: Metrics) -> RequestObserver {
    Arc::new(move |asked: &ObservedRequest<'_>| {
        let status = asked.status.map(|status| status.as_u16());
        metrics.api_asked(asked.method.as_str(), asked.host, status, asked.took);
    })
}

/// The runtime for all that waits: requests, health checks, signals.
pub(super) fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.context("cannot start the runtime for requests, health checks and signals")
}
