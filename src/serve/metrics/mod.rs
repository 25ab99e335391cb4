//! Prometheus metrics: those of kube-proxy's nftables mode under the same names, and shunt's own,
//! which begin with `shunt_`.
//!
//! Owns: the [table](table::TABLE) of names, types, labels and buckets, the handle [`Metrics`] with
//! which the agent counts, and the text format. A published name stays: dashboards and alerts use it.
//!
//! Must not know: HTTP, the source of objects. Callers report events to it, with the values of the
//! dataplane.

mod process;
mod table;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use shunt_core::model::{ChangeCounts, Family, Protocol};
use shunt_core::plan::Set;

use self::table::{MetricKind, Row, TABLE};
use crate::dataplane::{CommitStats, Snapshot};
use crate::serve::lock;

/// The labels of a sample, in the order of its row.
type Labels<'a> = &'a [(&'a str, &'a str)];

/// The start of the names of Kubernetes' component-base about health checks. They have a page of
/// their own, `/metrics/slis`. kube-proxy's metrics server has one check, which always succeeds.
const SLIS: &str = "kubernetes_healthcheck";
const START_TIME: &str = "process_start_time_seconds";

/// A gauge by its name and labels.
pub type Gauge = (&'static str, &'static [(&'static str, &'static str)]);

/// A part of the number in a gauge. Its drop subtracts it.
pub struct Counted(Metrics, Gauge);

impl Drop for Counted {
    fn drop(&mut self) {
        let Counted(metrics, (name, labels)) = self;
        metrics.add(name, labels, -1.0);
    }
}

/// The new connections of Service ports.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServiceConnections {
    /// The Service ports, as `namespace/name:port`, each with its protocol and the number of its new
    /// connections, which never decreases.
    pub ports: Vec<(Box<str>, Protocol, u64)>,
    /// The number of Service ports that are left out.
    pub omitted: usize,
}

/// Reads the new connections. Returns `None` if that is not possible.
pub type ReadConnections = Box<dyn FnMut() -> Option<ServiceConnections> + Send>;

/// A handle to all metrics. Clones are cheap and share the values. Every method may be called from
/// any thread, and waits for other callers at most.
#[derive(Clone)]
pub struct Metrics(Arc<MetricsInner>);

struct MetricsInner {
    families: Vec<Family>,
    samples: Mutex<Samples>,
    services: Option<Mutex<ReadConnections>>,
    lost_log_lines: fn() -> u64,
}

/// The samples by the name of the metric, and by their labels in the text format.
#[derive(Clone, Default)]
struct Samples(BTreeMap<&'static str, BTreeMap<String, Sample>>);

#[derive(Clone)]
struct Sample {
    /// The value, or the sum of a histogram.
    value: f64,
    /// The bounds of a histogram, with the number of values up to each.
    buckets: Vec<(f64, u64)>,
}

/// Returns the seconds since the Unix epoch.
fn seconds_now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

fn family_label(family: Family) -> (&'static str, &'static str) {
    ("ip_family", table::FAMILIES[family as usize])
}

impl Metrics {
    /// Makes all metrics, at zero, for a node with these families. With those of Service ports, if
    /// there is a reader for them.
    #[must_use]
    pub fn new(
        families: &[Family],
        services: Option<ReadConnections>,
        lost_log_lines: fn() -> u64,
    ) -> Metrics {
        let mut samples = Samples::default();
        for row in &TABLE {
            for labels in row.known_labels() {
                let is_of =
                    |it: &Family| families.contains(it) || !labels.contains(&family_label(*it));
                if Family::ALL.iter().all(is_of) {
                    samples.at(row.name, &labels);
                }
            }
        }
        // As Go names them.
        let architecture = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        };
        let build_info = [
            // The Kubernetes version whose kube-proxy shunt stands in for.
            ("major", "1"),
            ("minor", "36"),
            // Alerts compare the part before the plus sign over all components of a cluster.
            ("git_version", concat!("v1.36.2+shunt-", env!("CARGO_PKG_VERSION"))),
            ("git_commit", ""),
            ("git_tree_state", ""),
            ("build_date", ""),
            ("go_version", ""),
            ("compiler", "rustc"),
            ("platform", &format!("{}/{architecture}", std::env::consts::OS)),
        ];
        samples.set("kubernetes_build_info", &build_info, 1.0);
        // The configuration of the start is valid.
        samples.set("shunt_config_last_reload_successful", &[], 1.0);
        samples.set(START_TIME, &[], seconds_now());
        let (samples, services) = (Mutex::new(samples), services.map(Mutex::new));
        Metrics(Arc::new(MetricsInner {
            families: families.to_vec(),
            samples,
            services,
            lost_log_lines,
        }))
    }

    /// Adds to a counter or gauge.
    pub fn add(&self, name: &'static str, labels: Labels<'_>, number: f64) {
        lock(&self.0.samples).at(name, labels).value += number;
    }

    /// Sets a gauge.
    pub fn set(&self, name: &'static str, labels: Labels<'_>, value: f64) {
        lock(&self.0.samples).set(name, labels, value);
    }

    /// Adds one to a gauge, until the drop of what this returns.
    #[must_use]
    pub fn count(&self, (name, labels): Gauge) -> Counted {
        self.add(name, labels, 1.0);
        Counted(self.clone(), (name, labels))
    }

    /// Returns the number in a gauge.
    pub(super) fn counted(&self, (name, labels): Gauge) -> usize {
        lock(&self.0.samples).at(name, labels).value as usize
    }

    /// Adds a value to a histogram.
    pub fn observe(&self, name: &'static str, labels: Labels<'_>, value: f64) {
        let mut samples = lock(&self.0.samples);
        let sample = samples.at(name, labels);
        sample.value += value;
        let above = sample.buckets.iter_mut().filter(|(bound, _)| value <= *bound);
        above.for_each(|(_, count)| *count += 1);
    }

    /// Sets a gauge to the current time.
    fn stamp(&self, name: &'static str) {
        for family in &self.0.families {
            self.set(name, &[family_label(*family)], seconds_now());
        }
    }

    /// Counts changes from a source, which wait for the next sync.
    pub fn changes_noticed(&self, changes: ChangeCounts) {
        self.stamp("kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds");
        let (services, slices) = (changes.services as f64, changes.slices as f64);
        self.add("kubeproxy_sync_proxy_rules_service_changes_total", &[], services);
        self.add("kubeproxy_sync_proxy_rules_service_changes_pending", &[], services);
        self.add("kubeproxy_sync_proxy_rules_endpoint_changes_total", &[], slices);
        self.add("kubeproxy_sync_proxy_rules_endpoint_changes_pending", &[], slices);
    }

    /// Removes changes that are in the kernel now from the waiting ones.
    pub fn changes_synced(&self, changes: ChangeCounts) {
        let (services, slices) = (changes.services as f64, changes.slices as f64);
        self.add("kubeproxy_sync_proxy_rules_service_changes_pending", &[], -services);
        self.add("kubeproxy_sync_proxy_rules_endpoint_changes_pending", &[], -slices);
    }

    /// Counts transactions: the committed ones with their sizes and the time of the kernel, and those
    /// that the kernel refused or that were repeated.
    pub fn committed(&self, stats: &CommitStats) {
        for commit in &stats.commits {
            self.add("shunt_commits_total", &[], 1.0);
            self.observe("shunt_commit_duration_seconds", &[], commit.took.as_secs_f64());
            self.observe("shunt_commit_bytes", &[], commit.bytes as f64);
        }
        self.add("shunt_generation_conflicts_total", &[], stats.overtaken as f64);
        self.add("shunt_commit_failures_total", &[], stats.refused as f64);
    }

    /// Observes the sync for each family, since it covers all of them.
    fn synced(&self, stats: &CommitStats) {
        let kind = match stats.full {
            true => "kubeproxy_sync_full_proxy_rules_duration_seconds",
            false => "kubeproxy_sync_partial_proxy_rules_duration_seconds",
        };
        for family in &self.0.families {
            for name in ["kubeproxy_sync_proxy_rules_duration_seconds", kind] {
                self.observe(name, &[family_label(*family)], stats.took.as_secs_f64());
            }
        }
    }

    /// Counts a successful sync and sets the gauges to the counts after it.
    pub fn sync_succeeded(&self, stats: &CommitStats, snapshot: &Snapshot) {
        let Snapshot { store, unserved, elements, .. } = snapshot;
        self.synced(stats);
        self.stamp("kubeproxy_sync_proxy_rules_last_timestamp_seconds");
        for family in &self.0.families {
            let label = family_label(*family);
            for (policy, counts) in
                [("internal", unserved.no_local_internal), ("external", unserved.no_local_external)]
            {
                self.set(
                    "kubeproxy_sync_proxy_rules_no_local_endpoints_total",
                    &[("traffic_policy", policy), label],
                    counts[*family as usize] as f64,
                );
            }
            for (name, counts) in [
                ("shunt_frontends", snapshot.frontends),
                ("shunt_gone_endpoints", snapshot.gone_endpoints),
                ("shunt_services_without_endpoints", unserved.without_endpoints),
            ] {
                self.set(name, &[label], counts[*family as usize] as f64);
            }
            for set in Set::ALL.into_iter().filter(|set| *set != Set::Affinity) {
                let count = elements[*family as usize][set as usize] as f64;
                self.set("shunt_elements", &[label, ("map", set.name())], count);
            }
        }
        for (name, count) in [
            ("shunt_endpoint_slices", store.slice_count()),
            ("shunt_frontend_conflicts", snapshot.conflicts.len()),
            ("shunt_quarantined_service_ports", snapshot.quarantined_service_ports),
            // Last: a client that sees it change finds all other values with the next scrape.
            ("shunt_services", store.service_count()),
        ] {
            self.set(name, &[], count as f64);
        }
    }

    /// Counts a failed sync.
    pub fn sync_failed(&self, stats: &CommitStats) {
        self.synced(stats);
        self.failed("kubeproxy_sync_proxy_rules_nftables_sync_failures_total");
    }

    /// Counts a failed transaction, which covers both families.
    pub fn failed(&self, name: &'static str) {
        for family in &self.0.families {
            self.add(name, &[family_label(*family)], 1.0);
        }
    }

    /// Observes the time from the trigger of an EndpointSlice to the commit. The trigger is the
    /// annotation `endpoints.kubernetes.io/last-change-trigger-time`.
    pub fn network_programmed(&self, family: Family, after: Duration) {
        if self.0.families.contains(&family) {
            let name = "kubeproxy_network_programming_duration_seconds";
            self.observe(name, &[family_label(family)], after.as_secs_f64());
        }
    }

    /// Counts a sweep of stale flows.
    pub fn conntrack_swept(&self, family: Family, deleted: usize, took: Duration) {
        if self.0.families.contains(&family) {
            let label = [family_label(family)];
            let took = took.as_secs_f64();
            self.observe("kubeproxy_conntrack_reconciler_sync_duration_seconds", &label, took);
            let name = "kubeproxy_conntrack_reconciler_deleted_entries_total";
            self.add(name, &label, deleted as f64);
        }
    }

    /// Counts a request to the API server at `host`, as client-go does. `status` is `None` without an
    /// answer; `took` is the time until the answer began, `None` for a watch.
    pub fn api_asked(&self, method: &str, host: &str, status: Option<u16>, took: Option<Duration>) {
        let code = status.map_or("<error>".to_owned(), |status| status.to_string());
        let labels = [("code", code.as_str()), ("host", host), ("method", method)];
        self.add("rest_client_requests_total", &labels, 1.0);
        if let Some(took) = took {
            let labels = [("host", host), ("verb", method)];
            let name = "rest_client_request_duration_seconds";
            self.observe(name, &labels, took.as_secs_f64());
        }
    }

    /// Counts a changed configuration by its success.
    pub fn config_reloaded(&self, success: bool) {
        let result = if success { "success" } else { "failure" };
        self.add("shunt_config_reloads_total", &[("result", result)], 1.0);
        self.set("shunt_config_last_reload_successful", &[], success.into());
    }

    /// Counts a health check of the metrics server.
    pub fn pinged(&self) {
        let [name, kind] = [("name", "ping"), ("type", "healthz")];
        self.set("kubernetes_healthcheck", &[name, kind], 1.0);
        self.add("kubernetes_healthchecks_total", &[name, kind, ("status", "success")], 1.0);
    }

    /// Writes all metrics. What is not counted by events is read now.
    #[must_use]
    pub fn exposition(&self) -> String {
        // Others can count while the numbers of a large cluster are read and written.
        let mut samples = lock(&self.0.samples).clone();
        samples.set("shunt_log_lines_lost_total", &[], (self.0.lost_log_lines)() as f64);
        process::values().iter().for_each(|(name, value)| samples.set(name, &[], *value));
        let read = self.0.services.as_ref().and_then(|read| lock(read)());
        if let Some(ServiceConnections { ports, omitted }) = read {
            for (label, protocol, count) in ports {
                let (namespace, rest) = label.split_once('/').unwrap_or_default();
                let (service, port) = rest.split_once(':').unwrap_or((rest, ""));
                let labels = [
                    ("namespace", namespace),
                    ("service", service),
                    ("port", port),
                    ("protocol", &protocol.to_string().to_uppercase()),
                ];
                samples.set("shunt_service_new_connections_total", &labels, count as f64);
            }
            samples.set("shunt_service_metrics_omitted", &[], omitted as f64);
        }
        samples.text(|name| !name.starts_with(SLIS))
    }

    /// Writes the metrics of `/metrics/slis`.
    #[must_use]
    pub fn slis(&self) -> String {
        lock(&self.0.samples).text(|name| name.starts_with(SLIS) || name == START_TIME)
    }
}

impl Samples {
    fn at(&mut self, name: &'static str, labels: Labels<'_>) -> &mut Sample {
        let escaped =
            |text: &str| text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        let labels = labels.iter().map(|(label, value)| format!("{label}=\"{}\"", escaped(value)));
        let samples = self.0.entry(name).or_default();
        samples.entry(labels.collect::<Vec<_>>().join(",")).or_insert_with(|| {
            let row = TABLE.iter().find(|row| row.name == name);
            debug_assert!(row.is_some(), "{name} has no row in the table");
            let bounds = match row.map(|row| row.kind) {
                Some(MetricKind::Histogram(bounds)) => bounds(),
                _ => Vec::new(),
            };
            Sample { value: 0.0, buckets: bounds.into_iter().map(|bound| (bound, 0)).collect() }
        })
    }

    fn set(&mut self, name: &'static str, labels: Labels<'_>, value: f64) {
        self.at(name, labels).value = value;
    }

    /// Writes metrics in the text format 0.0.4 of Prometheus, the only one of kube-proxy.
    fn text(&self, is_wanted: impl Fn(&str) -> bool) -> String {
        let mut text = String::new();
        for Row { name, kind, help, .. } in TABLE.iter().filter(|row| is_wanted(row.name)) {
            let Some(samples) = self.0.get(name) else { continue };
            text += &format!("# HELP {name} {help}.\n# TYPE {name} {}\n", kind.name());
            for (labels, Sample { value, buckets }) in samples {
                let braced = match labels.as_str() {
                    "" => String::new(),
                    labels => format!("{{{labels}}}"),
                };
                let Some((_, count)) = buckets.last() else {
                    text += &format!("{name}{braced} {value}\n");
                    continue;
                };
                let comma = if labels.is_empty() { "" } else { "," };
                for (bound, count) in buckets {
                    let bound = bound.to_string().replace("inf", "+Inf");
                    text += &format!("{name}_bucket{{le=\"{bound}\"{comma}{labels}}} {count}\n");
                }
                text += &format!("{name}_sum{braced} {value}\n{name}_count{braced} {count}\n");
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_has_labels_and_bounds_as_go_writes_them() {
        let mut samples = Samples::default();
        samples.set("shunt_watch_restarts_total", &[("resource", "a\"b\\c\nd")], 1.5);
        samples.at("shunt_commit_bytes", &[]);
        let text = samples.text(|_| true);
        let expected = "# HELP shunt_commit_bytes Size of a transaction in bytes.\n\
                        # TYPE shunt_commit_bytes histogram\n\
                        shunt_commit_bytes_bucket{le=\"256\"} 0\n";
        assert!(text.starts_with(expected), "{text}");
        assert!(text.contains("_bucket{le=\"+Inf\"} 0\nshunt_commit_bytes_sum 0\n"), "{text}");
        let expected = "shunt_watch_restarts_total{resource=\"a\\\"b\\\\c\\nd\"} 1.5\n";
        assert!(text.ends_with(expected), "{text}");
    }
}
