//! All metrics. Names, labels and buckets of those of kube-proxy 1.36 in its nftables mode are from
//! `pkg/proxy/metrics/metrics.go`, those of requests to the API server from client-go, and those of
//! the process from Prometheus' client for Go.

use MetricKind::{Counter, Gauge, Histogram};

/// A metric.
pub(super) struct Row {
    pub(super) name: &'static str,
    pub(super) kind: MetricKind,
    /// The labels, with the values that have a sample from the start.
    labels: &'static [Label],
    pub(super) help: &'static str,
}

#[derive(Clone, Copy)]
pub(super) enum MetricKind {
    Counter,
    Gauge,
    /// With the function that makes the bounds of its buckets.
    Histogram(fn() -> Vec<f64>),
}

type Label = (&'static str, &'static [&'static str]);

/// The values of `ip_family`, in the order of `Family::ALL`.
pub(super) const FAMILIES: [&str; 2] = ["IPv4", "IPv6"];
const FAMILY: Label = ("ip_family", &FAMILIES);
/// A metric whose samples and labels come later, if at all.
const LATER: &[Label] = &[("", &[])];
/// The statuses of answers to probes.
const CODES: Label = ("code", &["200", "503"]);

impl MetricKind {
    pub(super) fn name(self) -> &'static str {
        match self {
            Counter => "counter",
            Gauge => "gauge",
            Histogram(_) => "histogram",
        }
    }
}

impl Row {
    /// Returns the labels of each sample from the start.
    pub(super) fn known_labels(&self) -> Vec<Vec<(&'static str, &'static str)>> {
        self.labels.iter().fold(vec![Vec::new()], |before, (name, values)| {
            let with = |labels: &Vec<_>| {
                let labels = labels.clone();
                values.iter().map(move |value| [labels.as_slice(), &[(*name, *value)]].concat())
            };
            before.iter().flat_map(with).collect()
        })
    }
}

const fn row(
    name: &'static str,
    kind: MetricKind,
    labels: &'static [Label],
    help: &'static str,
) -> Row {
    Row { name, kind, labels, help }
}

/// Returns bounds that grow by a factor, and infinity.
fn exponential(first: f64, factor: f64, count: i32) -> Vec<f64> {
    (0..count).map(|n| first * factor.powi(n)).chain([f64::INFINITY]).collect()
}

/// Returns kube-proxy's usual bounds: 1 ms, doubled up to 16 s.
fn latency() -> Vec<f64> {
    exponential(0.001, 2.0, 15)
}

/// Returns 0.25 and 0.5 s, every second up to a minute, every 5 s up to 115 s, and every 30 s up to
/// 5 min.
fn network_programming() -> Vec<f64> {
    let seconds = (1..60).chain((60..120).step_by(5)).chain((120..=300).step_by(30));
    [0.25, 0.5].into_iter().chain(seconds.map(f64::from)).chain([f64::INFINITY]).collect()
}

/// Returns the bounds of client-go, in seconds.
fn requests() -> Vec<f64> {
    vec![0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0, f64::INFINITY]
}

pub(super) static TABLE: [Row; 56] = [
    row("kubernetes_build_info", Gauge, LATER, "Always 1, with the version as labels"),
    row("kubernetes_healthcheck", Gauge, LATER, "Result of a health check"),
    row("kubernetes_healthchecks_total", Counter, LATER, "Results of health checks"),
    row(
        "kubeproxy_sync_proxy_rules_no_local_endpoints_total",
        Gauge,
        &[("traffic_policy", &["internal", "external"]), FAMILY],
        "Service ports with a Local traffic policy and endpoints, but none on this node",
    ),
    row(
        "kubeproxy_sync_proxy_rules_duration_seconds",
        Histogram(latency),
        &[FAMILY],
        "Duration of a sync",
    ),
    row(
        "kubeproxy_sync_full_proxy_rules_duration_seconds",
        Histogram(latency),
        &[FAMILY],
        "Duration of a sync that planned all Services again or read the tables from the kernel",
    ),
    row(
        "kubeproxy_sync_partial_proxy_rules_duration_seconds",
        Histogram(latency),
        &[FAMILY],
        "Duration of a sync that planned only changed Services",
    ),
    row(
        "kubeproxy_sync_proxy_rules_last_timestamp_seconds",
        Gauge,
        LATER,
        "Time of the last successful sync",
    ),
    row(
        "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds",
        Gauge,
        LATER,
        "Time of the last change reported by a source",
    ),
    row(
        "kubeproxy_network_programming_duration_seconds",
        Histogram(network_programming),
        &[FAMILY],
        "Time from the change of a Pod or Service to the commit of the EndpointSlice",
    ),
    row(
        "kubeproxy_sync_proxy_rules_endpoint_changes_total",
        Counter,
        &[],
        "Changes of EndpointSlices that a source reported",
    ),
    row(
        "kubeproxy_sync_proxy_rules_endpoint_changes_pending",
        Gauge,
        &[],
        "Changes of EndpointSlices that have not reached the kernel yet",
    ),
    row(
        "kubeproxy_sync_proxy_rules_service_changes_total",
        Counter,
        &[],
        "Changes of Services that a source reported",
    ),
    row(
        "kubeproxy_sync_proxy_rules_service_changes_pending",
        Gauge,
        &[],
        "Changes of Services that have not reached the kernel yet",
    ),
    row("kubeproxy_proxy_healthz_total", Counter, &[CODES], "Answers to /healthz by HTTP status"),
    row("kubeproxy_proxy_livez_total", Counter, &[CODES], "Answers to /livez by HTTP status"),
    row(
        "kubeproxy_sync_proxy_rules_nftables_sync_failures_total",
        Counter,
        &[FAMILY],
        "Failed syncs",
    ),
    row(
        "kubeproxy_sync_proxy_rules_nftables_cleanup_failures_total",
        Counter,
        &[FAMILY],
        "Failures to delete unused chains",
    ),
    row(
        "kubeproxy_conntrack_reconciler_sync_duration_seconds",
        Histogram(latency),
        &[FAMILY],
        "Duration of a sweep of stale flows",
    ),
    row(
        "kubeproxy_conntrack_reconciler_deleted_entries_total",
        Counter,
        &[FAMILY],
        "Deleted stale flows",
    ),
    row(
        "shunt_log_lines_lost_total",
        Counter,
        &[],
        "Log lines lost because nothing read standard error in time",
    ),
    row(
        "shunt_commit_duration_seconds",
        Histogram(|| exponential(0.000_1, 2.0, 17)),
        &[],
        "Time that the kernel takes for a transaction",
    ),
    row(
        "shunt_commit_bytes",
        Histogram(|| exponential(256.0, 4.0, 10)),
        &[],
        "Size of a transaction in bytes",
    ),
    row("shunt_commits_total", Counter, &[], "Transactions that the kernel committed"),
    row(
        "shunt_commit_failures_total",
        Counter,
        &[],
        "Transactions that the kernel refused, without generation conflicts",
    ),
    row(
        "shunt_generation_conflicts_total",
        Counter,
        &[],
        "Transactions repeated because another process had written to nf_tables",
    ),
    row(
        "shunt_drift_repairs_total",
        Counter,
        &[],
        "Repairs of tables that another process had modified",
    ),
    row(
        "shunt_event_to_kernel_seconds",
        Histogram(latency),
        &[],
        "Time from the event at a source to the commit",
    ),
    row("shunt_elements", Gauge, LATER, "Elements of a set or map, as committed"),
    row(
        "shunt_frontends",
        Gauge,
        &[FAMILY],
        "Frontends, as committed: pairs of address and port, and node ports",
    ),
    row(
        "shunt_gone_endpoints",
        Gauge,
        &[FAMILY],
        "Gone endpoints whose established connections are reset",
    ),
    row("shunt_services", Gauge, &[], "Services known to the agent"),
    row(
        "shunt_services_without_endpoints",
        Gauge,
        &[FAMILY],
        "Service ports that reject connections, because they have no endpoint",
    ),
    row("shunt_endpoint_slices", Gauge, &[], "EndpointSlices known to the agent"),
    row(
        "shunt_frontend_conflicts",
        Gauge,
        &[],
        "Frontends that a Service does not get, because another Service holds them",
    ),
    row(
        "shunt_quarantined_service_ports",
        Gauge,
        &[],
        "Service ports with a frontend that the kernel refuses",
    ),
    row(
        "shunt_unbound_ports",
        Gauge,
        &[("server", &["health", "metrics", "service-health"])],
        "Ports that a server cannot bind, usually because another process holds them",
    ),
    row("shunt_watch_restarts_total", Counter, LATER, "Restarted watches by resource"),
    row(
        "shunt_config_reloads_total",
        Counter,
        &[("result", &["success", "failure"])],
        "Changed configurations by result: success or failure",
    ),
    row(
        "shunt_config_last_reload_successful",
        Gauge,
        &[],
        "1 if the last written configuration is in effect, 0 if it is invalid",
    ),
    row("shunt_kube_proxy_leftovers", Gauge, LATER, "Leftovers of kube-proxy on this node by kind"),
    row(
        "shunt_node_ports_taken",
        Gauge,
        &[],
        "Node ports on which another process of the node listens",
    ),
    row(
        "shunt_loopback_node_ports",
        Gauge,
        &[("state", &["listening", "failed"])],
        "Node ports on loopback addresses by state: listening or failed",
    ),
    row(
        "shunt_loopback_connections_open",
        Gauge,
        &[],
        "Open connections to node ports on loopback addresses",
    ),
    row(
        "shunt_loopback_connections_total",
        Counter,
        &[("result", &["forwarded", "unreachable", "too-many"])],
        "Connections to node ports on loopback addresses by result: forwarded, or reset because the endpoint was unreachable or there were too many",
    ),
    row(
        "shunt_service_new_connections_total",
        Counter,
        LATER,
        "New connections to a Service port on this node since the start of the agent",
    ),
    row(
        "shunt_service_metrics_omitted",
        Gauge,
        LATER,
        "Service ports without metrics of their own, because of --service-metrics-limit",
    ),
    row(
        "rest_client_requests_total",
        Counter,
        LATER,
        "Requests to the API server, by HTTP status, method and host",
    ),
    row(
        "rest_client_request_duration_seconds",
        Histogram(requests),
        LATER,
        "Time until the API server began its answer, without watches",
    ),
    row(
        "process_start_time_seconds",
        Gauge,
        LATER,
        "Start time of the process since unix epoch in seconds",
    ),
    row("process_resident_memory_bytes", Gauge, LATER, "Resident memory size in bytes"),
    row("process_virtual_memory_bytes", Gauge, LATER, "Virtual memory size in bytes"),
    row(
        "process_virtual_memory_max_bytes",
        Gauge,
        LATER,
        "Maximum amount of virtual memory available in bytes",
    ),
    row("process_open_fds", Gauge, LATER, "Number of open file descriptors"),
    row("process_max_fds", Gauge, LATER, "Maximum number of open file descriptors"),
    row(
        "process_cpu_seconds_total",
        Counter,
        LATER,
        "Total user and system CPU time spent in seconds",
    ),
];
