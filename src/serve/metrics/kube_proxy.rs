//! The metrics of kube-proxy 1.36 in its nftables mode, and its build information. Names, labels
//! and buckets are those of `pkg/proxy/metrics/metrics.go`.

use std::sync::atomic::AtomicU64;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family as Vector;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use shunt_core::model::{ChangeCounts, Family};

use super::vector::{Labels, PerFamily, Register, gauge, label, latency};
use super::{Metrics, Probe};
use crate::dataplane::{CommitStats, Snapshot};

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
        let mut new = Register { registry, families };
        let no_local: Vector<Labels<2>, Gauge> = new.add(
            "sync_proxy_rules_no_local_endpoints_total",
            "Service ports with a Local traffic policy and endpoints, but none on this node",
        );
        let no_local = |policy| {
            PerFamily::of(families, &no_local, |family| [("traffic_policy", policy), label(family)])
        };
        KubeProxy {
            families: families.to_vec(),
            sync: new.histograms("sync_proxy_rules_duration_seconds", "Time of a sync", latency),
            full_sync: new.histograms(
                "sync_full_proxy_rules_duration_seconds",
                "Time of a sync that planned all Services again or read the tables from the kernel",
                latency,
            ),
            partial_sync: new.histograms(
                "sync_partial_proxy_rules_duration_seconds",
                "Time of a sync that planned only changed Services",
                latency,
            ),
            last_sync: new
                .add("sync_proxy_rules_last_timestamp_seconds", "Time of the last successful sync"),
            last_queued: new.add(
                "sync_proxy_rules_last_queued_timestamp_seconds",
                "Time of the last change reported by a source",
            ),
            network_programming: new.histograms(
                "network_programming_duration_seconds",
                "Time from the change of a Pod or Service to the commit of the EndpointSlice",
                || Histogram::new(network_programming_buckets()),
            ),
            endpoint_changes: (
                new.add(
                    "sync_proxy_rules_endpoint_changes",
                    "Changes of EndpointSlices that a source reported",
                ),
                new.add(
                    "sync_proxy_rules_endpoint_changes_pending",
                    "Changes of EndpointSlices that the kernel does not have yet",
                ),
            ),
            service_changes: (
                new.add(
                    "sync_proxy_rules_service_changes",
                    "Changes of Services that a source reported",
                ),
                new.add(
                    "sync_proxy_rules_service_changes_pending",
                    "Changes of Services that the kernel does not have yet",
                ),
            ),
            no_local_internal: no_local("internal"),
            no_local_external: no_local("external"),
            healthz: new.at_zero(
                "proxy_healthz",
                "Answers to /healthz by HTTP status",
                "code",
                &CODES,
            ),
            livez: new.at_zero("proxy_livez", "Answers to /livez by HTTP status", "code", &CODES),
            sync_failures: new
                .per_family("sync_proxy_rules_nftables_sync_failures", "Failed syncs"),
            cleanup_failures: new.per_family(
                "sync_proxy_rules_nftables_cleanup_failures",
                "Failures to delete unused chains",
            ),
            conntrack_sweep: new.histograms(
                "conntrack_reconciler_sync_duration_seconds",
                "Time of a sweep of stale flows",
                latency,
            ),
            conntrack_deleted: new
                .per_family("conntrack_reconciler_deleted_entries", "Deleted stale flows"),
        }
    }

    /// Observes the sync for each family, since it covers all of them.
    fn observe(&self, stats: &CommitStats) {
        let kind = if stats.full { &self.full_sync } else { &self.partial_sync };
        for histogram in self.sync.iter().chain(kind.iter()) {
            histogram.observe(stats.took.as_secs_f64());
        }
    }

    fn stamp(&self, vector: &Vector<Labels<1>, Timestamp>) {
        let now = SystemTime::now();
        let seconds = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        for family in &self.families {
            vector.get_or_create(&[label(*family)]).set(seconds);
        }
    }
}

impl Metrics {
    /// Counts changes from a source, which wait for the next sync.
    pub fn changes_noticed(&self, changes: ChangeCounts) {
        let it = &self.0.kube_proxy;
        it.stamp(&it.last_queued);
        for ((total, pending), count) in
            [(&it.service_changes, changes.services), (&it.endpoint_changes, changes.slices)]
        {
            total.inc_by(count as u64);
            pending.inc_by(gauge(count));
        }
    }

    /// Removes changes that are in the kernel now from the waiting ones.
    pub fn changes_synced(&self, changes: ChangeCounts) {
        self.0.kube_proxy.service_changes.1.dec_by(gauge(changes.services));
        self.0.kube_proxy.endpoint_changes.1.dec_by(gauge(changes.slices));
    }

    /// Counts a successful sync and sets the gauges to the counts after it.
    pub fn sync_succeeded(&self, stats: &CommitStats, snapshot: &Snapshot) {
        let it = &self.0.kube_proxy;
        it.observe(stats);
        it.stamp(&it.last_sync);
        it.no_local_internal.set(snapshot.unserved.no_local_internal);
        it.no_local_external.set(snapshot.unserved.no_local_external);
        self.0.own.state(snapshot);
    }

    /// Counts a failed sync.
    pub fn sync_failed(&self, stats: &CommitStats) {
        self.0.kube_proxy.observe(stats);
        // A transaction covers both families.
        self.0.kube_proxy.sync_failures.iter().for_each(|failures| _ = failures.inc());
    }

    /// Counts a failure to delete unused chains.
    pub fn cleanup_failed(&self) {
        self.0.kube_proxy.cleanup_failures.iter().for_each(|failures| _ = failures.inc());
    }

    /// Observes the time from the trigger of an EndpointSlice to the commit. The trigger is the
    /// annotation `endpoints.kubernetes.io/last-change-trigger-time`.
    pub fn network_programmed(&self, family: Family, after: Duration) {
        if let Some(histogram) = self.0.kube_proxy.network_programming.get(family) {
            histogram.observe(after.as_secs_f64());
        }
    }

    /// Counts a sweep of stale flows.
    pub fn conntrack_swept(&self, family: Family, deleted: usize, took: Duration) {
        let it = &self.0.kube_proxy;
        if let (Some(sweeps), Some(entries)) =
            (it.conntrack_sweep.get(family), it.conntrack_deleted.get(family))
        {
            sweeps.observe(took.as_secs_f64());
            entries.inc_by(deleted as u64);
        }
    }

    /// Counts the answer to a probe by its HTTP status.
    pub fn probed(&self, probe: Probe, status: u16) {
        let vector = match probe {
            Probe::Healthz => &self.0.kube_proxy.healthz,
            Probe::Livez => &self.0.kube_proxy.livez,
        };
        vector.get_or_create(&[("code", CODES[usize::from(status != 200)])]).inc();
    }
}

/// The statuses of answers to probes.
const CODES: [&str; 2] = ["200", "503"];

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
