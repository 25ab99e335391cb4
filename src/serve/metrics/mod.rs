//! Prometheus metrics: those of kube-proxy's nftables mode under the same names, and shunt's own,
//! which begin with `shunt_`.
//!
//! Owns: names, types, labels and buckets, the handle [`Metrics`] with which the agent counts, and
//! the two text formats. A published name stays: dashboards and alerts use it.
//!
//! Must not know: HTTP, nf_tables, the source of objects. Callers report events to it.

mod exposition;
mod kube_proxy;
mod own;
mod process;
mod rest_client;
mod services;
mod slis;
mod vector;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use prometheus_client::registry::Registry;
use shunt_core::model::Family;

use self::kube_proxy::KubeProxy;
use self::own::Own;
use self::rest_client::RestClient;
use self::slis::Slis;

pub use self::exposition::Format;
pub use self::services::{Extent, ServiceConnections, ServicePort};
pub use prometheus_client::metrics::counter::Counter;

/// A handle to all metrics. Clones are cheap and share the values. Every method may be called from
/// any thread, and waits for other callers at most.
#[derive(Debug, Clone)]
pub struct Metrics(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    registry: Registry,
    kube_proxy: KubeProxy,
    own: Own,
    rest_client: RestClient,
    slis: Slis,
}

/// A sync: the agent plans the changes, compares them with the record and commits the difference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sync {
    /// From the start of planning to the end of the commit.
    pub took: Duration,
    /// True if the agent planned all Services again, or read its tables from the kernel.
    pub full: bool,
}

/// A number for each family, in the order of [`Family::ALL`].
pub type PerFamily = [usize; 2];

/// The counts after a sync.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct State {
    /// Services in the model.
    pub services: usize,
    /// EndpointSlices in the model.
    pub endpoint_slices: usize,
    /// Frontends in the kernel.
    pub frontends: PerFamily,
    /// Elements in the kernel, with the name of the set or map.
    pub elements: Vec<(&'static str, PerFamily)>,
    /// Gone endpoints to which connections are reset.
    pub gone_endpoints: PerFamily,
    /// Frontends that a Service does not get, because another Service holds them.
    pub frontend_conflicts: usize,
    /// Service ports with a frontend that the kernel refuses.
    pub quarantined_service_ports: usize,
    /// Service ports that reject connections because they have no endpoint.
    pub without_endpoints: PerFamily,
    /// Service ports with `internalTrafficPolicy: Local` that have endpoints, but none here.
    pub no_local_internal: PerFamily,
    /// Service ports with `externalTrafficPolicy: Local` that have endpoints, but none here.
    pub no_local_external: PerFamily,
}

/// The number of objects that a source reported as changed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Changes {
    /// Services that are new, changed or deleted.
    pub services: usize,
    /// EndpointSlices that are new, changed or deleted.
    pub endpoint_slices: usize,
}

/// The paths of the health server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Probe {
    /// `/healthz`.
    Healthz,
    /// `/livez`.
    Livez,
}

impl Metrics {
    /// Registers all metrics, at zero, for a node with these families.
    #[must_use]
    pub fn new(families: &[Family]) -> Metrics {
        Metrics::with(families, None, Counter::default())
    }

    /// Registers all metrics, with those of Service ports if there is a reader for them, and with
    /// the counter of lost log lines.
    #[must_use]
    pub fn with(
        families: &[Family],
        services: Option<Box<dyn ServiceConnections>>,
        lost_log_lines: Counter,
    ) -> Metrics {
        let mut registry = Registry::default();
        let kube_proxy = KubeProxy::register(families, &mut registry);
        let own = Own::register(families, lost_log_lines, &mut registry);
        let rest_client = RestClient::register(&mut registry);
        process::register(&mut registry);
        if let Some(reader) = services {
            services::register(reader, &mut registry);
        }
        Metrics(Arc::new(Inner { registry, kube_proxy, own, rest_client, slis: Slis::new() }))
    }

    /// Writes all metrics in a text format.
    #[must_use]
    pub fn exposition(&self, format: Format) -> String {
        format.encode(&self.0.registry)
    }

    /// Writes the metrics of `/metrics/slis` in a text format.
    #[must_use]
    pub fn slis(&self, format: Format) -> String {
        format.encode(&self.0.slis.registry)
    }

    /// Counts changes from a source, which wait for the next sync.
    pub fn changes_noticed(&self, changes: Changes) {
        self.0.kube_proxy.changes_noticed(changes, SystemTime::now());
    }

    /// Removes changes that are in the kernel now from those that wait.
    pub fn changes_synced(&self, changes: Changes) {
        self.0.kube_proxy.changes_synced(changes);
    }

    /// Counts a successful sync and sets the gauges to the counts after it.
    pub fn sync_succeeded(&self, sync: Sync, state: &State) {
        self.0.kube_proxy.sync_succeeded(sync, state, SystemTime::now());
        self.0.own.state(state);
    }

    /// Counts a failed sync.
    pub fn sync_failed(&self, sync: Sync) {
        self.0.kube_proxy.sync_failed(sync);
    }

    /// Counts a failure to delete unused chains.
    pub fn cleanup_failed(&self) {
        self.0.kube_proxy.cleanup_failed();
    }

    /// Counts a transaction with its size and the time of the kernel.
    pub fn committed(&self, bytes: usize, took: Duration) {
        self.0.own.committed(bytes, took);
    }

    /// Counts transactions that the kernel refused.
    pub fn commits_refused(&self, count: u64) {
        self.0.own.commit_failures.inc_by(count);
    }

    /// Counts transactions that were repeated because another process had written to nf_tables.
    pub fn generation_conflicts(&self, count: u64) {
        self.0.own.generation_conflicts.inc_by(count);
    }

    /// Observes the time from the event at a source to the commit.
    pub fn event_committed(&self, after: Duration) {
        self.0.own.event_to_kernel.observe(after.as_secs_f64());
    }

    /// Observes the time from the trigger of an EndpointSlice to the commit. The trigger is the
    /// annotation `endpoints.kubernetes.io/last-change-trigger-time`.
    pub fn network_programmed(&self, family: Family, after: Duration) {
        self.0.kube_proxy.network_programmed(family, after);
    }

    /// Counts a sweep of stale flows.
    pub fn conntrack_swept(&self, family: Family, deleted: usize, took: Duration) {
        self.0.kube_proxy.conntrack_swept(family, deleted, took);
    }

    /// Counts the answer to a probe by its HTTP status.
    pub fn probed(&self, probe: Probe, status: u16) {
        self.0.kube_proxy.probed(probe, status);
    }

    /// Counts a health check of the metrics server.
    pub fn pinged(&self) {
        self.0.slis.pinged();
    }

    /// Counts a repair of drift.
    pub fn drift_repaired(&self) {
        self.0.own.drift_repairs.inc();
    }

    /// Sets the counts of leftovers of kube-proxy, by kind.
    pub fn kube_proxy_found(&self, counts: &[(&'static str, usize)]) {
        self.0.own.kube_proxy_found(counts);
    }

    /// Sets the number of node ports on which other processes listen.
    pub fn node_ports_taken(&self, count: usize) {
        self.0.own.node_ports_taken.set(vector::gauge(count));
    }

    /// Sets the number of ports that a server cannot bind.
    pub fn unbound_ports(&self, server: Server, count: usize) {
        self.0.own.unbound_ports(server, count);
    }

    /// Sets the numbers of node ports on loopback addresses by state.
    pub fn loopback_node_ports(&self, listening: usize, failed: usize) {
        self.0.own.loopback_node_ports(listening, failed);
    }

    /// Sets the number of open connections to node ports on loopback addresses.
    pub fn loopback_connections(&self, open: usize) {
        self.0.own.loopback_connections(open);
    }

    /// Counts a connection to a node port on a loopback address.
    pub fn loopback_connected(&self, result: LoopbackConnection) {
        self.0.own.loopback_connected(result);
    }

    /// Exports the restarts of a resource's watch from zero on, so that a rate has the first restart.
    pub fn watches(&self, resource: &'static str) {
        self.0.own.watches(resource);
    }

    /// Counts a restarted watch by the plural name of the resource, such as `services`.
    pub fn watch_restarted(&self, resource: &'static str) {
        self.0.own.watch_restarted(resource);
    }

    /// Counts a request to the API server at `host`. `status` is `None` without an answer; `took`
    /// is the time until the answer began, `None` for a watch.
    pub fn api_asked(&self, method: &str, host: &str, status: Option<u16>, took: Option<Duration>) {
        self.0.rest_client.asked(method, host, status, took);
    }

    /// Counts a changed configuration by its success.
    pub fn config_reloaded(&self, success: bool) {
        self.0.own.config_reloaded(success);
    }
}

/// The outcome of a connection to a node port on a loopback address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoopbackConnection {
    /// An endpoint accepted it.
    Forwarded,
    /// The endpoint did not accept it, so the client got a reset.
    Unreachable,
    /// There were too many connections, so the client got a reset.
    TooMany,
}

impl LoopbackConnection {
    const ALL: [LoopbackConnection; 3] = [
        LoopbackConnection::Forwarded,
        LoopbackConnection::Unreachable,
        LoopbackConnection::TooMany,
    ];

    fn name(self) -> &'static str {
        match self {
            LoopbackConnection::Forwarded => "forwarded",
            LoopbackConnection::Unreachable => "unreachable",
            LoopbackConnection::TooMany => "too-many",
        }
    }
}

/// A server of the agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Server {
    /// `/healthz` and `/livez`.
    Health,
    /// `/metrics`.
    Metrics,
    /// All listeners of `healthCheckNodePort`.
    ServiceHealth,
}

impl Server {
    /// All servers, each of which has a value from the start.
    pub const ALL: [Server; 3] = [Server::Health, Server::Metrics, Server::ServiceHealth];

    fn name(self) -> &'static str {
        match self {
            Server::Health => "health",
            Server::Metrics => "metrics",
            Server::ServiceHealth => "service-health",
        }
    }
}
