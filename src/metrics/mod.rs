//! Numbers for Prometheus: those that kube-proxy exports in its mode nftables, under the same names,
//! and our own, which begin with `shunt_`.
//!
//! Owns: names, types, labels and buckets, the handle [`Metrics`] that the rest of the agent counts
//! with, and the two text formats. A name once published stays: dashboards and alerts are made of
//! them.
//!
//! Must not know: HTTP, nf_tables, where objects come from. It is told what happened.

mod exposition;
mod kube_proxy;
mod own;
mod process;
mod rest_client;
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

/// What the agent counts with. Clones are cheap and count together; every method may be called from
/// any thread and waits for nothing but another one that counts.
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

/// A sync: planning what changed, comparing it with what the kernel has, and committing the
/// difference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sync {
    /// How long it took.
    pub took: Duration,
    /// True if everything was planned again or read back from the kernel, not only what changed.
    pub full: bool,
}

/// A number for each family, in the order of [`Family::ALL`].
pub type PerFamily = [usize; 2];

/// What there is after a sync.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct State {
    /// Services that are known.
    pub services: usize,
    /// EndpointSlices that are known.
    pub endpoint_slices: usize,
    /// Frontends that the kernel has.
    pub frontends: PerFamily,
    /// Elements that the kernel has: the name of the set or map, and how many.
    pub elements: Vec<(&'static str, PerFamily)>,
    /// Frontends that a Service goes without because another one has them.
    pub frontend_conflicts: usize,
    /// Service ports that are left out because the kernel refuses them.
    pub quarantined_service_ports: usize,
    /// Service ports with `internalTrafficPolicy: Local` that have endpoints, but none here.
    pub no_local_internal: PerFamily,
    /// Service ports with `externalTrafficPolicy: Local` that have endpoints, but none here.
    pub no_local_external: PerFamily,
}

/// Changes of objects, as a source noticed them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Changes {
    /// Of Services.
    pub services: usize,
    /// Of EndpointSlices.
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
    /// Everything at zero, for a node that has these families.
    #[must_use]
    pub fn new(families: &[Family]) -> Metrics {
        let mut registry = Registry::default();
        let kube_proxy = KubeProxy::register(families, &mut registry);
        let own = Own::register(families, &mut registry);
        let rest_client = RestClient::register(&mut registry);
        process::register(&mut registry);
        Metrics(Arc::new(Inner { registry, kube_proxy, own, rest_client, slis: Slis::new() }))
    }

    /// All metrics in a text format.
    #[must_use]
    pub fn exposition(&self, format: Format) -> String {
        format.encode(&self.0.registry)
    }

    /// The metrics about health checks (`/metrics/slis`) in a text format.
    #[must_use]
    pub fn slis(&self, format: Format) -> String {
        format.encode(&self.0.slis.registry)
    }

    /// A source noticed changes; they wait for the next sync.
    pub fn changes_noticed(&self, changes: Changes) {
        self.0.kube_proxy.changes_noticed(changes, SystemTime::now());
    }

    /// Changes that were noticed before are in the kernel now.
    pub fn changes_synced(&self, changes: Changes) {
        self.0.kube_proxy.changes_synced(changes);
    }

    /// A sync brought the kernel up to date; that is how things are now.
    pub fn sync_succeeded(&self, sync: Sync, state: &State) {
        self.0.kube_proxy.sync_succeeded(sync, state, SystemTime::now());
        self.0.own.state(state);
    }

    /// A sync failed, and the kernel holds what it held before.
    pub fn sync_failed(&self, sync: Sync) {
        self.0.kube_proxy.sync_failed(sync);
    }

    /// Unused chains could not be deleted.
    pub fn cleanup_failed(&self) {
        self.0.kube_proxy.cleanup_failed();
    }

    /// The kernel took a transaction of so many bytes, within this time.
    pub fn committed(&self, bytes: usize, took: Duration) {
        self.0.own.committed(bytes, took);
    }

    /// The kernel refused transactions.
    pub fn commits_refused(&self, count: u64) {
        self.0.own.commit_failures.inc_by(count);
    }

    /// Transactions had to be made again because somebody else had written to nf_tables.
    pub fn generation_conflicts(&self, count: u64) {
        self.0.own.generation_conflicts.inc_by(count);
    }

    /// What a source noticed that long ago is in the kernel now.
    pub fn event_committed(&self, after: Duration) {
        self.0.own.event_to_kernel.observe(after.as_secs_f64());
    }

    /// An EndpointSlice of this family is in the kernel now, that long after what triggered it (the
    /// annotation `endpoints.kubernetes.io/last-change-trigger-time`).
    pub fn network_programmed(&self, family: Family, after: Duration) {
        self.0.kube_proxy.network_programmed(family, after);
    }

    /// Stale flows were looked for.
    pub fn conntrack_swept(&self, family: Family, deleted: usize, took: Duration) {
        self.0.kube_proxy.conntrack_swept(family, deleted, took);
    }

    /// A probe was answered with this status.
    pub fn probed(&self, probe: Probe, status: u16) {
        self.0.kube_proxy.probed(probe, status);
    }

    /// The metrics server was asked whether it is there.
    pub fn pinged(&self) {
        self.0.slis.pinged();
    }

    /// The kernel held something else than what was committed, and was repaired.
    pub fn drift_repaired(&self) {
        self.0.own.drift_repairs.inc();
    }

    /// So much was found of kube-proxy, by kind.
    pub fn kube_proxy_found(&self, counts: &[(&'static str, usize)]) {
        self.0.own.kube_proxy_found(counts);
    }

    /// A server, or all of its sort, cannot have so many ports.
    pub fn unbound_ports(&self, server: Server, count: usize) {
        self.0.own.unbound_ports(server, count);
    }

    /// The watch of a resource, by its plural name (`services`), was begun again.
    pub fn watch_restarted(&self, resource: &'static str) {
        self.0.own.watch_restarted(resource);
    }

    /// The API server at `host` was asked with this HTTP method. `status`: of its answer, if there
    /// was one; `took`: how long it took to begin, unless it was a watch.
    pub fn api_asked(&self, method: &str, host: &str, status: Option<u16>, took: Option<Duration>) {
        self.0.rest_client.asked(method, host, status, took);
    }

    /// A changed configuration was taken, or it was not because something in it is wrong.
    pub fn config_reloaded(&self, success: bool) {
        self.0.own.config_reloaded(success);
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
    /// All of them.
    pub const ALL: [Server; 3] = [Server::Health, Server::Metrics, Server::ServiceHealth];

    fn name(self) -> &'static str {
        match self {
            Server::Health => "health",
            Server::Metrics => "metrics",
            Server::ServiceHealth => "service-health",
        }
    }
}
