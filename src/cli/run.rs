//! `shunt run`: sources feed the dataplane, until a signal.

use std::ops::ControlFlow;
use std::sync::mpsc::Sender;
use std::time::{Duration, SystemTime};

use anyhow::{Context, anyhow};
use nix::errno::Errno;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use super::args::Run;
use super::settings::{Effective, effective};
use super::{Failure, netns};
use crate::dataplane::{self, Dataplane, Event};
use crate::document::{FieldPath, Problem, Severity};
use crate::model::{Change, Store};
use crate::nft;
use crate::plan::{Conflict, FrontendKey};
use crate::serve::{Health, serve_health};
use crate::source::interfaces::{Interfaces, interface_addresses};
use crate::source::manifests::{self, Watcher};

pub(super) fn run(arguments: &Run) -> Result<(), Failure> {
    let settings = effective(&arguments.settings, &arguments.logging)?;
    if arguments.manifests.is_empty() {
        return Err(anyhow!(
            "no source of objects: give --manifests PATH (a Kubernetes API as source is not there \
             yet)"
        )
        .into());
    }
    netns::enter(arguments.netns.as_deref())?;
    let mut dataplane = Dataplane::open(settings.options(), &settings.node_name)
        .map_err(|error| explain(&error))?;
    // Subscribed before the first look, so that no change falls between the two.
    let interfaces = Interfaces::subscribe().context("cannot follow the node's addresses")?;
    dataplane.apply(interface_addresses().context("cannot list the node's addresses")?);
    if arguments.once {
        once(dataplane, arguments, &settings)
    } else {
        keep_running(dataplane, interfaces, arguments, &settings)
    }
}

/// Programs what is there now.
fn once(mut dataplane: Dataplane, arguments: &Run, settings: &Effective) -> Result<(), Failure> {
    let round = manifests::load(&arguments.manifests, &settings.node_name)
        .context("cannot read the manifests")?;
    round.problems.iter().for_each(|problem| problem.log());
    round.changes.into_iter().for_each(|change| dataplane.apply(change));
    let started = std::time::Instant::now();
    let report = dataplane.sync().context("nothing was programmed")?;
    dataplane.conflicts().for_each(|conflict| report_conflict(conflict, dataplane.store()));
    log_synced(report, started.elapsed(), &dataplane);
    dataplane.tidy();
    Ok(())
}

fn keep_running(
    dataplane: Dataplane,
    interfaces: Interfaces,
    arguments: &Run,
    settings: &Effective,
) -> Result<(), Failure> {
    let watcher = Watcher::new(&arguments.manifests, &settings.node_name)
        .context("cannot watch the manifests")?;
    let (health, health_seen) = watch::channel(Health {
        last_updated: None,
        queued_since: None,
        patience: 2 * settings.config.sync_period,
        node_eligible: true,
    });
    let changes = dataplane::spawn(dataplane, settings.config.min_sync_period, move |event| {
        log(&event);
        health.send_modify(|health| update(health, &event));
    })
    .context("cannot start a thread for the dataplane")?;
    spawn("addresses", {
        let changes = changes.clone();
        move || follow_addresses(&interfaces, &changes)
    })?;
    let (ended, source_ended) = tokio::sync::oneshot::channel();
    spawn("manifests", move || {
        let result = watcher.run(|round| match changes.send(round.changes) {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        });
        // The other side is gone only when the process is ending.
        let _ = ended.send(result);
    })?;

    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime for health checks and signals")?;
    runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate()).context("cannot wait for signals")?;
        if let Some(address) = settings.config.healthz_bind_address {
            tokio::spawn(serve_health(address, health_seen));
        }
        tokio::select! {
            _ = terminate.recv() => {}
            result = tokio::signal::ctrl_c() => result.context("cannot wait for signals")?,
            result = source_ended => {
                result.context("the thread that watches the manifests is gone")?
                    .context("the manifests cannot be watched any more")?;
            }
        }
        tracing::info!("stopping; the rules stay (`shunt cleanup` removes them)");
        Ok(())
    })
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> anyhow::Result<()> {
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(body)
        .with_context(|| format!("cannot start the thread \"{name}\""))?;
    Ok(())
}

/// Follows the addresses of the node's interfaces until the dataplane is gone.
fn follow_addresses(interfaces: &Interfaces, changes: &Sender<Vec<Change>>) {
    loop {
        let addresses = interfaces.wait().and_then(|()| interface_addresses());
        match addresses {
            Ok(change) => {
                if changes.send(vec![change]).is_err() {
                    return;
                }
            }
            Err(error) => {
                tracing::error!(%error, "cannot follow the node's addresses; trying again");
                std::thread::sleep(Duration::from_secs(1));
            }
        }
    }
}

fn log(event: &Event<'_>) {
    match event {
        Event::Synced { wrote, took, dataplane } => log_synced(*wrote, *took, dataplane),
        Event::Failed { error, retry_in } => {
            tracing::error!(?retry_in, "nothing was programmed, what was there stays: {error}");
        }
        Event::Conflict { conflict, dataplane } => report_conflict(conflict, dataplane.store()),
    }
}

/// Says who goes without what, and where to mend it.
pub(super) fn report_conflict(conflict: &Conflict, store: &Store) {
    let Conflict { frontend, winner, loser } = conflict;
    let service = store.service(loser);
    let field = match frontend {
        FrontendKey::NodePort(..) => "spec.ports.nodePort",
        FrontendKey::Address(address, ..) => match service {
            Some(service) if service.cluster_ips.contains(address) => "spec.clusterIPs",
            Some(service) if service.external_ips.contains(address) => "spec.externalIPs",
            _ => "status.loadBalancer.ingress",
        },
    };
    let owner = match store.service(winner).and_then(|winner| winner.origin.as_ref()) {
        Some(origin) => format!("{winner} ({}:{})", origin.file.display(), origin.line),
        None => winner.to_string(),
    };
    let reason = format!(
        "{frontend} belongs to the older Service {owner} and is left out here until that one gives \
         it up; change one of them"
    );
    let mut problem = Problem::new(Severity::Warning, FieldPath::top(field), reason)
        .of_object(format_args!("Service {loser}"))
        .with_value(frontend);
    if let Some(origin) = service.and_then(|service| service.origin.as_ref()) {
        problem = problem.in_file(&origin.file, Some(origin.line));
    }
    problem.log();
}

fn log_synced(wrote: Option<dataplane::SyncReport>, took: Duration, dataplane: &Dataplane) {
    match wrote {
        Some(report) => tracing::info!(
            generation = report.generation,
            added = report.added,
            deleted = report.deleted,
            messages = report.messages,
            bytes = report.bytes,
            frontends = dataplane.frontend_count(),
            ?took,
            "committed"
        ),
        None => tracing::debug!(
            frontends = dataplane.frontend_count(),
            ?took,
            "the kernel holds what is planned, nothing was written"
        ),
    }
}

fn update(health: &mut Health, event: &Event<'_>) {
    match event {
        Event::Synced { dataplane, .. } => {
            health.last_updated = Some(SystemTime::now());
            health.queued_since = None;
            health.node_eligible = dataplane.store().node().is_none_or(|node| node.eligible);
        }
        Event::Failed { .. } => {
            health.queued_since.get_or_insert_with(SystemTime::now);
        }
        Event::Conflict { .. } => {}
    }
}

/// Says in one sentence what is missing, where it is one of the usual things.
pub(super) fn explain(error: &nft::Error) -> anyhow::Error {
    match error {
        nft::Error::Request { errno: Errno::EPERM | Errno::EACCES, .. } => anyhow!(
            "nf_tables may not be changed: CAP_NET_ADMIN is missing (run as root, or give the \
             container the capability NET_ADMIN)"
        ),
        nft::Error::Request { errno: Errno::EINVAL | Errno::EOPNOTSUPP, .. } => anyhow!(
            "the kernel has no nf_tables (CONFIG_NF_TABLES, module nf_tables): load the module or \
             use another kernel"
        ),
        nft::Error::Open(source) => anyhow!(
            "the kernel has no netlink for netfilter (CONFIG_NETFILTER_NETLINK, module nfnetlink): \
             {source}"
        ),
        other => anyhow!("nf_tables does not answer as it should: {other}"),
    }
}
