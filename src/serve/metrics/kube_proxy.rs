//! The metrics of kube-proxy 1.36 in its nftables mode, and its build information. Names, labels
//! and buckets are those of `pkg/proxy/metrics/metrics.go`.

use std::sync::atomic::AtomicU64;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family as Vector;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use shunt_core::model::Family;

use super::vector::{Labels, PerFamily, counter, gauge, label, latency, plain_gauge, vector};
use super::{Changes, Probe, State, Sync};

/// Seconds since the Unix epoch.
type Timestamp = Gauge<f64, AtomicU64>;

/// The Kubernetes version whose kube-proxy shunt stands in for.
const KUBERNETES: (&str, &str, &str) = ("1", "36", "v1.36.2");

#[derive(Debug)]
pub(super) struct KubeProxy {
    families: Vec<Family>,
    sync: PerFamily<Histogram>,
    full_sync: PerFamily<Histogram>,
    partial_sync: PerFamily<Histogram>,
    /// Vectors, so that nothing is exported before the first sync.
    last_sync: Vector<Labels<1>, Timestamp>,
    last_queued: Vector<Labels<1>, Timestamp>,
    network_programming: PerFamily<Histogram>,
    endpoint_changes: (Counter, Gauge),
    service_changes: (Counter, Gauge),
    no_local_internal: PerFamily<Gauge>,
    no_local_external: PerFamily<Gauge>,
    healthz: Vector<Labels<1>, Counter>,
    livez: Vector<Labels<1>, Counter>,
    sync_failures: PerFamily<Counter>,
    cleanup_failures: PerFamily<Counter>,
    conntrack_sweep: PerFamily<Histogram>,
    conntrack_deleted: PerFamily<Counter>,
}

impl KubeProxy {
    pub(super) fn register(families: &[Family], registry: &mut Registry) -> KubeProxy {
        build_info(registry);
        let registry = registry.sub_registry_with_prefix("kubeproxy");
        let no_local: Vector<Labels<2>, Gauge> = vector(
            registry,
            "sync_proxy_rules_no_local_endpoints_total",
            "Service ports with a Local traffic policy and endpoints, but none on this node",
            Gauge::default,
        );
        let no_local = |policy| {
            PerFamily::of(families, &no_local, |family| [("traffic_policy", policy), label(family)])
        };
        let (no_local_internal, no_local_external) = (no_local("internal"), no_local("external"));
        let mut latencies =
            |name: &str, help: &str| PerFamily::register(registry, families, name, help, latency);
        let sync = latencies("sync_proxy_rules_duration_seconds", "Time of a sync");
        let full_sync = latencies(
            "sync_full_proxy_rules_duration_seconds",
            "Time of a sync that planned all Services again or read the tables from the kernel",
        );
        let partial_sync = latencies(
            "sync_partial_proxy_rules_duration_seconds",
            "Time of a sync that planned only changed Services",
        );
        let conntrack_sweep = latencies(
            "conntrack_reconciler_sync_duration_seconds",
            "Time of a sweep of stale flows",
        );
        let mut counters = |name: &str, help: &str| {
            PerFamily::register(registry, families, name, help, Counter::default)
        };
        let sync_failures = counters("sync_proxy_rules_nftables_sync_failures", "Failed syncs");
        let cleanup_failures = counters(
            "sync_proxy_rules_nftables_cleanup_failures",
            "Failures to delete unused chains",
        );
        let conntrack_deleted =
            counters("conntrack_reconciler_deleted_entries", "Deleted stale flows");
        let mut changes = |what: &str, help: &str| {
            (
                counter(
                    registry,
                    &format!("sync_proxy_rules_{what}_changes"),
                    &format!("Changes of {help} that a source reported"),
                ),
                plain_gauge(
                    registry,
                    &format!("sync_proxy_rules_{what}_changes_pending"),
                    &format!("Changes of {help} that the kernel does not have yet"),
                ),
            )
        };
        let endpoint_changes = changes("endpoint", "EndpointSlices");
        let service_changes = changes("service", "Services");
        let healthz = probes(registry, "proxy_healthz", "Answers to /healthz by HTTP status");
        let livez = probes(registry, "proxy_livez", "Answers to /livez by HTTP status");
        KubeProxy {
            families: families.to_vec(),
            sync,
            full_sync,
            partial_sync,
            last_sync: vector(
                registry,
                "sync_proxy_rules_last_timestamp_seconds",
                "Time of the last successful sync",
                Timestamp::default,
            ),
            last_queued: vector(
                registry,
                "sync_proxy_rules_last_queued_timestamp_seconds",
                "Time of the last change reported by a source",
                Timestamp::default,
            ),
            network_programming: PerFamily::register(
                registry,
                families,
                "network_programming_duration_seconds",
                "Time from the change of a Pod or Service to the commit of the EndpointSlice",
                || Histogram::new(network_programming_buckets()),
            ),
            endpoint_changes,
            service_changes,
            no_local_internal,
            no_local_external,
            healthz,
            livez,
            sync_failures,
            cleanup_failures,
            conntrack_sweep,
            conntrack_deleted,
        }
    }

    pub(super) fn changes_noticed(&self, changes: Changes, now: SystemTime) {
        self.stamp(&self.last_queued, now);
        for ((total, pending), count) in [
            (&self.service_changes, changes.services),
            (&self.endpoint_changes, changes.endpoint_slices),
        ] {
            total.inc_by(count as u64);
            pending.inc_by(gauge(count));
        }
    }

    pub(super) fn changes_synced(&self, changes: Changes) {
        self.service_changes.1.dec_by(gauge(changes.services));
        self.endpoint_changes.1.dec_by(gauge(changes.endpoint_slices));
    }

    pub(super) fn sync_succeeded(&self, sync: Sync, state: &State, now: SystemTime) {
        self.observe(sync);
        self.stamp(&self.last_sync, now);
        self.no_local_internal.set(state.no_local_internal);
        self.no_local_external.set(state.no_local_external);
    }

    pub(super) fn sync_failed(&self, sync: Sync) {
        self.observe(sync);
        // A transaction covers both families.
        for failures in self.sync_failures.iter() {
            failures.inc();
        }
    }

    pub(super) fn cleanup_failed(&self) {
        for failures in self.cleanup_failures.iter() {
            failures.inc();
        }
    }

    pub(super) fn network_programmed(&self, family: Family, after: Duration) {
        if let Some(histogram) = self.network_programming.get(family) {
            histogram.observe(after.as_secs_f64());
        }
    }

    pub(super) fn conntrack_swept(&self, family: Family, deleted: usize, took: Duration) {
        if let Some(histogram) = self.conntrack_sweep.get(family) {
            histogram.observe(took.as_secs_f64());
        }
        if let Some(counter) = self.conntrack_deleted.get(family) {
            counter.inc_by(deleted as u64);
        }
    }

    pub(super) fn probed(&self, probe: Probe, status: u16) {
        let vector = match probe {
            Probe::Healthz => &self.healthz,
            Probe::Livez => &self.livez,
        };
        vector.get_or_create(&[("code", if status == 200 { "200" } else { "503" })]).inc();
    }

    /// Observes the sync for each family, since it covers all of them.
    fn observe(&self, sync: Sync) {
        let kind = if sync.full { &self.full_sync } else { &self.partial_sync };
        for histogram in self.sync.iter().chain(kind.iter()) {
            histogram.observe(sync.took.as_secs_f64());
        }
    }

    fn stamp(&self, vector: &Vector<Labels<1>, Timestamp>, now: SystemTime) {
        let seconds = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        for family in &self.families {
            vector.get_or_create(&[label(*family)]).set(seconds);
        }
    }
}

/// Registers counters by HTTP status, both at zero.
fn probes(registry: &mut Registry, name: &str, help: &str) -> Vector<Labels<1>, Counter> {
    let vector = vector(registry, name, help, Counter::default);
    for code in ["200", "503"] {
        drop(vector.get_or_create(&[("code", code)]));
    }
    vector
}

/// Returns 0.25 and 0.5 s, every second up to a minute, every 5 s up to 115 s, and every 30 s up to
/// 5 min.
fn network_programming_buckets() -> impl Iterator<Item = f64> {
    let seconds = (1..60).chain((60..120).step_by(5)).chain((120..=300).step_by(30));
    [0.25, 0.5].into_iter().chain(seconds.map(f64::from))
}

/// Registers `kubernetes_build_info`. The version is that of kube-proxy, with shunt's behind the
/// plus sign: alerts compare the first part over all components of a cluster.
fn build_info(registry: &mut Registry) {
    let (major, minor, version) = KUBERNETES;
    let git_version = format!("{version}+shunt-{}", env!("CARGO_PKG_VERSION"));
    // As Go names them.
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    let labels = [
        ("major", major.to_owned()),
        ("minor", minor.to_owned()),
        ("git_version", git_version),
        ("git_commit", String::new()),
        ("git_tree_state", String::new()),
        ("build_date", String::new()),
        ("go_version", String::new()),
        ("compiler", "rustc".to_owned()),
        ("platform", format!("{}/{architecture}", std::env::consts::OS)),
    ];
    let info = Vector::<[(&str, String); 9], Gauge>::default();
    info.get_or_create(&labels).set(1);
    let help = "Always 1, with the version as labels";
    registry.register("kubernetes_build_info", help, info);
}
