//! The wiring of the agent: a source feeds the dataplane until a signal ends the process.
//!
//! Owns: the threads and channels, and what happens at the start, at a reload and at the end.
//!
//! Must not know: how commands ask and print.

pub mod args;
pub(crate) mod ending;
mod events;
mod exclusive;
mod failure;
pub(crate) mod health;
pub(crate) mod kernel_errors;
pub(crate) mod logging;
pub(crate) mod netns;
pub(crate) mod observe;
mod process;
mod reload;
pub(crate) mod settings;
pub(crate) mod sources;
mod surroundings;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use nfnetlink::nft::Socket;
use shunt_core::model::Family;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};

use self::args::{Run, ServiceMetrics};
use self::health::{families, health_source};
use self::kernel_errors::explain;
use self::observe::{
    Observer, log_node_ports, log_synced, report_conflict, report_oversized, report_refused, sweep,
};
use self::process::start_thread;
use self::reload::{ConfigurationFile, Occasion, Reload};
use self::sources::{ObjectSource, runtime};
use crate::config::{Config, Loaded};
use crate::dataplane::trace_table::remove_orphans;
use crate::dataplane::{self, Dataplane, Ownership, Pace, by_service};
use crate::flows::{self, Conntrack, Sweeps, sysctl};
use crate::serve::events::Recorder;
use crate::serve::history::ChangeHistory;
use crate::serve::http::{Http, ServiceHealths};
use crate::serve::loopback::Proxy;
use crate::serve::metrics::{Metrics, ReadConnections};
use crate::serve::presence::Presence;
use crate::serve::query::{self, Objects as Answer, Question};
use crate::serve::service_counters::ServiceCounters;
use crate::serve::status::{AgentState, AgentStatus, WithoutNode};
use crate::serve::unbound_ports::UnboundPorts;
use crate::source::interfaces::{Interfaces, interface_addresses};
use crate::source::kubernetes::Dialer;
use crate::taken_ports::{NodePorts, TakenPorts};

pub(crate) use failure::Failure;

/// The interval of looks at the sysctls whose values the tables have. A look reads ten small files.
const SYSCTL_PERIOD: Duration = Duration::from_secs(30);

/// Runs the agent in the network namespace of this thread, or programs the objects once.
/// `dialer` connects from the namespace in which the process was started.
pub(crate) fn run(
    arguments: &Run,
    is_once: bool,
    settings: Loaded,
    dialer: Option<&Dialer>,
) -> Result<(), Failure> {
    let config = &settings.config;
    let objects = ObjectSource::chosen(arguments, config, dialer)
        .map_err(|error| Failure::Configuration(error.to_string()))?;
    process::set_oom_score_adj(config.oom_score_adj);
    process::allow_files();
    let presence = match is_once {
        true => exclusive::try_hold()?,
        false => exclusive::hold()?,
    };
    let ownership = match (arguments.own_tables, is_once) {
        (false, _) => Ownership::Share,
        (true, true) => Ownership::Leave,
        (true, false) => Ownership::Own,
    };
    let mut dataplane =
        Dataplane::open(objects.options(config), &config.node_name, ownership).map_err(explain)?;
    match Socket::open().and_then(|mut socket| remove_orphans(&mut socket)) {
        Ok(0) => {}
        Ok(tables) => tracing::info!(tables, "removed the tables of a killed `shunt trace`"),
        // The tables only set the trace bit of packets, so the agent can run beside them.
        Err(error) => tracing::warn!(%error, "cannot remove the tables of a killed `shunt trace`"),
    }
    // Subscribed before the first listing, so that no change is lost between the two.
    let interfaces = Interfaces::subscribe().context("cannot watch the node's addresses")?;
    let addresses = interface_addresses().context("cannot list the node's addresses")?;
    dataplane.apply(addresses);
    if !objects.may_lack_a_node() {
        let known = dataplane.recall(&config.node_name).map_err(explain)?;
        dataplane.apply_all(known);
    }
    if is_once {
        // `--once` serves no status, but keeps the lock.
        drop(presence.listener);
        once(dataplane, &objects, config, &arguments.net_sysctls)
    } else {
        keep_running(dataplane, presence, interfaces, arguments, objects, settings)
    }
}

/// Programs the current objects once.
fn once(
    mut dataplane: Dataplane,
    objects: &ObjectSource,
    config: &Config,
    net_sysctls: &Path,
) -> Result<(), Failure> {
    objects.load(&config.node_name, |changes| dataplane.apply_all(changes))?;
    if dataplane.is_held() {
        return Err(anyhow!(
            "nothing was programmed: {}",
            WithoutNode::Held.describe(&config.node_name, dataplane.is_node_read())
        )
        .into());
    }
    let report = dataplane.sync().context("nothing was programmed")?;
    let snapshot = dataplane.snapshot();
    snapshot.conflicts.iter().for_each(report_conflict);
    snapshot.oversized.iter().for_each(report_oversized);
    for (quarantined, others) in by_service(snapshot.quarantined.iter()) {
        report_refused(quarantined, others, "fix the Service and run this again");
    }
    log_synced(report, dataplane.stats().took, &snapshot);
    if let Some(without) = WithoutNode::of(&snapshot) {
        let what = without.describe(&config.node_name, snapshot.store.is_node_read());
        tracing::error!(node = config.node_name, field = "hostnameOverride", "{what}");
    }
    log_node_ports(&snapshot);
    sysctl::apply(&config.conntrack, net_sysctls);
    let flows = dataplane.take_flows();
    if let (Ok(mut conntrack), Some(node_context)) = (Conntrack::open(), &snapshot.node_context) {
        let sweep = sweep(flows, node_context);
        for family in Family::ALL {
            let report = conntrack.sweep(family, &sweep, &mut |_| false);
            if let Some(trouble) = report.context("cannot delete stale flows")?.trouble() {
                tracing::warn!("{trouble}");
            }
        }
    }
    if report.is_some() {
        dataplane.remove_unused_chains(Instant::now(), |_| Duration::ZERO);
    }
    match snapshot.quarantined.len() {
        0 => Ok(()),
        count => Err(anyhow!(
            "the kernel refuses {count} frontends; everything else is \
                         programmed"
        )
        .into()),
    }
}

/// What many parts of the agent report to. Clones share it.
#[derive(Clone)]
struct Reports {
    events: Recorder,
    history: ChangeHistory,
    metrics: Metrics,
    known: AgentState,
}

fn keep_running(
    dataplane: Dataplane,
    presence: Presence,
    interfaces: Interfaces,
    arguments: &Run,
    objects: ObjectSource,
    settings: Loaded,
) -> Result<(), Failure> {
    let history = ChangeHistory::default();
    let (events, notices) = Recorder::new(history.clone());
    events.record(events::starting());
    let families = families();
    if !families.contains(&Family::V6) {
        tracing::info!(
            "this node has no IPv6: its kernel was built or booted without it, or a sysctl disables \
             it (net.ipv6.conf.all.disable_ipv6); Services are reachable by IPv4 only"
        );
    }
    let metrics = Metrics::new(&families, service_counters(arguments)?, logging::lost_lines);
    let known = AgentState::new(dataplane.snapshot());
    let reports = Reports {
        events,
        history: history.clone(),
        metrics: metrics.clone(),
        known: known.clone(),
    };
    let (loaded, loaded_seen) = watch::channel(settings);
    let (service_healths, service_healths_seen) = watch::channel(ServiceHealths::new());
    let unbound_ports = UnboundPorts::new(metrics.clone(), reports.events.clone());
    let proxy = Arc::new(Proxy::new(metrics.clone(), unbound_ports.clone()));
    let (loopback, loopback_changes) = mpsc::unbounded_channel();
    let sweeps = sweeper(metrics.clone())?;
    let unswept = sweeps.as_ref().map(Sweeps::unswept).unwrap_or_default();
    let mut observer = Observer {
        reports: reports.clone(),
        service_healths,
        loopback,
        sweeps,
        loaded: loaded_seen.clone(),
        has_set_sysctls: false,
        net_sysctls: arguments.net_sysctls.clone(),
        without_node: None,
    };
    let noticed = {
        let metrics = metrics.clone();
        move |changes| metrics.changes_noticed(changes)
    };
    let pace = Pace {
        min_period: loaded_seen.borrow().config.min_sync_period,
        check_period: arguments.drift_check_period,
    };
    let commands = dataplane::spawn(dataplane, pace, noticed, move |event| observer.observe(event))
        .context("cannot start a thread for the dataplane")?;
    // Keeps a sender, so that the thread runs as long as the process.
    std::mem::forget(commands.clone());
    let taken_node_ports = {
        let known = known.clone();
        move || {
            let snapshot = known.snapshot();
            let context = snapshot.node_context.as_ref();
            let addresses = context.map(|it| it.own_node_port_addresses()).unwrap_or_default();
            TakenPorts::of_now(&NodePorts::of(&snapshot.store), &addresses)
        }
    };
    start_thread("surroundings", {
        let period = arguments.kube_proxy_check_period;
        let (reports, taken_node_ports) = (reports.clone(), taken_node_ports.clone());
        move || surroundings::look(period, &reports, taken_node_ports)
    })?;
    let backlogs = (commands.backlog(), unswept.clone());
    let may_lack_a_node = objects.may_lack_a_node();
    let health_of = health_source(
        known.clone(),
        loaded_seen.clone(),
        backlogs,
        families.clone(),
        may_lack_a_node,
    );
    let status = {
        let (known, health_of, proxy) = (known.clone(), health_of.clone(), proxy.clone());
        let unbound_ports = unbound_ports.clone();
        move || {
            let health = health_of();
            AgentStatus {
                healthy: health.is_live(),
                waiting_seconds: health.waiting.map(|waiting| waiting.as_secs_f64()),
                unswept_seconds: health.unswept.map(|unswept| unswept.as_secs_f64()),
                sweep_trouble: unswept.trouble(),
                lost_log_lines: logging::lost_lines(),
                taken_node_ports: taken_node_ports(),
                unbound_ports: unbound_ports.all(),
                loopback: proxy.report(),
                ..known.report()
            }
        }
    };
    let answer = answers(known, history, status);
    start_thread("status", move || query::serve(&presence.listener, answer))?;
    let mut configuration = Reload {
        arguments: arguments.clone(),
        seen: loaded_seen.borrow().content.clone(),
        loaded,
        objects,
        awaits_source: false,
        commands,
        reports,
        unreadable: None,
    };

    let runtime = runtime()?;
    let result = runtime.block_on(async {
        let mut hang_up = signal(SignalKind::hangup()).context("cannot wait for signals")?;
        let follow = |Reload { loaded, objects, commands, reports, .. }: &Reload| {
            let node_name = loaded.borrow().config.node_name.clone();
            objects.follow(&node_name, commands, &notices, reports)
        };
        let mut source = follow(&configuration)?;
        let mut file = ConfigurationFile::new(arguments)?;
        let addresses = interfaces.follow(configuration.commands.sink());
        tokio::spawn(proxy.serve(families, loopback_changes));
        let http = Http::new(loaded_seen, health_of, service_healths_seen, metrics, unbound_ports);
        let servers = http.serve();
        tokio::pin!(addresses, servers);
        let mut sysctls = tokio::time::interval(SYSCTL_PERIOD);
        loop {
            let occasion = tokio::select! {
                _ = sysctls.tick() => {
                    configuration.follow_sysctls();
                    continue;
                }
                _ = hang_up.recv() => Occasion::Asked,
                () = file.changed() => Occasion::Noticed,
                unbound = &mut servers => return Err(unbound.into()),
                result = &mut addresses => {
                    result.context("cannot watch the node's addresses")?;
                    return Err(anyhow!("the source of addresses has ended, which is a bug").into());
                }
                result = &mut source => {
                    result?;
                    return Err(anyhow!("the source of objects has ended, which is a bug").into());
                }
            };
            if configuration.reload(occasion) {
                match follow(&configuration) {
                    Ok(other) => {
                        source = other;
                        configuration.awaits_source = false;
                    }
                    Err(error) => configuration.refuse(&format_args!(
                        "objects still come from the previous source: {error:#}"
                    )),
                }
            }
        }
    });
    // Does not wait for a DNS lookup in progress.
    runtime.shutdown_background();
    result
}

/// Returns the function that answers the commands on this node.
fn answers(
    known: AgentState,
    history: ChangeHistory,
    status: impl Fn() -> AgentStatus,
) -> impl Fn(&Question) -> serde_json::Result<Vec<u8>> {
    move |question| {
        let (snapshot, status) = (known.snapshot(), status());
        serde_json::to_vec(&Answer::of(&snapshot, status, &history, question))
    }
}

/// Returns the reader of the metrics of Service ports, if they are wanted.
fn service_counters(arguments: &Run) -> Result<Option<ReadConnections>, Failure> {
    match arguments.service_metrics {
        ServiceMetrics::Off => Ok(None),
        ServiceMetrics::Counters => {
            let mut counters =
                ServiceCounters::open(arguments.service_metrics_limit).map_err(explain)?;
            Ok(Some(Box::new(move || counters.read())))
        }
    }
}

/// Starts the thread that deletes stale flows. Without connection tracking, returns `None`.
fn sweeper(metrics: Metrics) -> Result<Option<Sweeps>, Failure> {
    let conntrack = match Conntrack::open() {
        Ok(conntrack) => conntrack,
        Err(error) => {
            tracing::warn!(
                "cannot delete stale flows: connection tracking is not available: {error}"
            );
            return Ok(None);
        }
    };
    let sweeps = flows::spawn(conntrack, move |report| {
        metrics.conntrack_swept(report.family, report.deleted, report.took);
        if report.deleted > 0 {
            tracing::info!(
                family = %report.family, deleted = report.deleted, took = ?report.took, "deleted stale flows"
            );
        }
    });
    Ok(Some(sweeps.context("cannot start a thread for connection tracking")?))
}
