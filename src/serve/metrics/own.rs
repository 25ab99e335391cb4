//! The metrics that kube-proxy does not have, which begin with `shunt_`.

use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family as Vector;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use shunt_core::model::Family;
use shunt_core::plan::Set;

use super::Metrics;
use super::vector::{Labels, PerFamily, Register, gauge, label, latency};
use crate::dataplane::{CommitStats, Snapshot};

#[derive(Debug)]
pub(super) struct Own {
    families: Vec<Family>,
    commit_duration: Histogram,
    commit_bytes: Histogram,
    commits: Counter,
    commit_failures: Counter,
    generation_conflicts: Counter,
    drift_repairs: Counter,
    event_to_kernel: Histogram,
    elements: Vector<Labels<2>, Gauge>,
    frontends: PerFamily<Gauge>,
    gone_endpoints: PerFamily<Gauge>,
    services: Gauge,
    without_endpoints: PerFamily<Gauge>,
    endpoint_slices: Gauge,
    frontend_conflicts: Gauge,
    quarantined_service_ports: Gauge,
    unbound_ports: Vector<Labels<1>, Gauge>,
    watch_restarts: Vector<Labels<1>, Counter>,
    config_reloads: Vector<Labels<1>, Counter>,
    config_last_reload_successful: Gauge,
    kube_proxy_leftovers: Vector<Labels<1>, Gauge>,
    node_ports_taken: Gauge,
    loopback_node_ports: Vector<Labels<1>, Gauge>,
    loopback_connections: Gauge,
    loopback_connected: Vector<Labels<1>, Counter>,
}

impl Own {
    pub(super) fn register(
        families: &[Family],
        lost_log_lines: Counter,
        registry: &mut Registry,
    ) -> Own {
        let registry = registry.sub_registry_with_prefix("shunt");
        let mut new = Register { registry, families };
        new.made(
            "log_lines_lost",
            "Log lines lost because nothing read standard error in time",
            lost_log_lines,
        );
        let own = Own {
            families: families.to_vec(),
            commit_duration: new.made(
                "commit_duration_seconds",
                "Time that the kernel takes for a transaction",
                Histogram::new(exponential_buckets(0.000_1, 2.0, 17)),
            ),
            commit_bytes: new.made(
                "commit_bytes",
                "Size of a transaction in bytes",
                Histogram::new(exponential_buckets(256.0, 4.0, 10)),
            ),
            commits: new.add("commits", "Transactions that the kernel committed"),
            commit_failures: new.add(
                "commit_failures",
                "Transactions that the kernel refused, without generation conflicts",
            ),
            generation_conflicts: new.add(
                "generation_conflicts",
                "Transactions repeated because another process had written to nf_tables",
            ),
            drift_repairs: new
                .add("drift_repairs", "Repairs of tables that another process had modified"),
            event_to_kernel: new.made(
                "event_to_kernel_seconds",
                "Time from the event at a source to the commit",
                latency(),
            ),
            elements: new.add("elements", "Elements of a set or map, as committed"),
            frontends: new.per_family(
                "frontends",
                "Frontends, as committed: pairs of address and port, and node ports",
            ),
            gone_endpoints: new.per_family(
                "gone_endpoints",
                "Endpoints that terminated, and whose established connections are reset",
            ),
            services: new.add("services", "Services known to the agent"),
            without_endpoints: new.per_family(
                "services_without_endpoints",
                "Service ports that reject connections, because they have no endpoint",
            ),
            endpoint_slices: new.add("endpoint_slices", "EndpointSlices known to the agent"),
            frontend_conflicts: new.add(
                "frontend_conflicts",
                "Frontends that a Service does not get, because another Service holds them",
            ),
            quarantined_service_ports: new.add(
                "quarantined_service_ports",
                "Service ports with a frontend that the kernel refuses",
            ),
            unbound_ports: new.at_zero(
                "unbound_ports",
                "Ports that a server cannot bind, usually because another process holds them",
                "server",
                &["health", "metrics", "service-health"],
            ),
            watch_restarts: new.add("watch_restarts", "Restarted watches by resource"),
            config_reloads: new.at_zero(
                "config_reloads",
                "Changed configurations by result: success or failure",
                "result",
                &["success", "failure"],
            ),
            config_last_reload_successful: new.add(
                "config_last_reload_successful",
                "1 if the last written configuration is in force, 0 if it is invalid",
            ),
            kube_proxy_leftovers: new
                .add("kube_proxy_leftovers", "Leftovers of kube-proxy on this node by kind"),
            node_ports_taken: new
                .add("node_ports_taken", "Node ports on which another process of the node listens"),
            loopback_node_ports: new.at_zero(
                "loopback_node_ports",
                "Node ports on loopback addresses by state: listening or failed",
                "state",
                &["listening", "failed"],
            ),
            loopback_connections: new.add(
                "loopback_connections_open",
                "Open connections to node ports on loopback addresses",
            ),
            loopback_connected: new.at_zero(
                "loopback_connections",
                "Connections to node ports on loopback addresses by result: forwarded, or reset \
                 because the endpoint was unreachable or there were too many",
                "result",
                &["forwarded", "unreachable", "too-many"],
            ),
        };
        // The configuration of the start is valid.
        own.config_last_reload_successful.set(1);
        own
    }

    pub(super) fn state(&self, snapshot: &Snapshot) {
        self.endpoint_slices.set(gauge(snapshot.store.slice_count()));
        self.frontend_conflicts.set(gauge(snapshot.conflicts.len()));
        self.quarantined_service_ports.set(gauge(snapshot.quarantined_service_ports));
        self.frontends.set(snapshot.frontends);
        self.gone_endpoints.set(snapshot.gone_endpoints);
        self.without_endpoints.set(snapshot.unserved.without_endpoints);
        for set in Set::ALL.into_iter().filter(|set| *set != Set::Affinity) {
            for family in &self.families {
                let count = snapshot.elements[*family as usize][set as usize];
                let labels = [label(*family), ("map", set.name())];
                self.elements.get_or_create(&labels).set(gauge(count));
            }
        }
        // Last: a client that sees it change finds all other values with the next scrape.
        self.services.set(gauge(snapshot.store.service_count()));
    }
}

impl Metrics {
    /// Counts transactions: the committed ones with their sizes and the time of the kernel, and those
    /// that the kernel refused or that were repeated.
    pub fn committed(&self, stats: &CommitStats) {
        let own = &self.0.own;
        for commit in &stats.commits {
            own.commits.inc();
            own.commit_duration.observe(commit.took.as_secs_f64());
            own.commit_bytes.observe(commit.bytes as f64);
        }
        own.generation_conflicts.inc_by(stats.overtaken);
        own.commit_failures.inc_by(stats.refused);
    }

    /// Observes the time from the event at a source to the commit.
    pub fn event_committed(&self, after: Duration) {
        self.0.own.event_to_kernel.observe(after.as_secs_f64());
    }

    /// Counts a repair of drift.
    pub fn drift_repaired(&self) {
        self.0.own.drift_repairs.inc();
    }

    /// Sets the counts of leftovers of kube-proxy, by kind.
    pub fn kube_proxy_found(&self, counts: &[(&'static str, usize)]) {
        for (kind, count) in counts {
            self.0.own.kube_proxy_leftovers.get_or_create(&[("kind", kind)]).set(gauge(*count));
        }
    }

    /// Sets the number of node ports on which other processes listen.
    pub fn node_ports_taken(&self, count: usize) {
        self.0.own.node_ports_taken.set(gauge(count));
    }

    /// Sets the number of ports that a server cannot bind: `health`, `metrics` or `service-health`.
    pub fn unbound_ports(&self, server: &'static str, count: usize) {
        self.0.own.unbound_ports.get_or_create(&[("server", server)]).set(gauge(count));
    }

    /// Sets the numbers of node ports on loopback addresses by state.
    pub fn loopback_node_ports(&self, listening: usize, failed: usize) {
        for (state, count) in [("listening", listening), ("failed", failed)] {
            self.0.own.loopback_node_ports.get_or_create(&[("state", state)]).set(gauge(count));
        }
    }

    /// Sets the number of open connections to node ports on loopback addresses.
    pub fn loopback_connections(&self, open: usize) {
        self.0.own.loopback_connections.set(gauge(open));
    }

    /// Counts a connection to a node port on a loopback address by its result: `forwarded`, or reset
    /// because the endpoint was `unreachable` or there were `too-many`.
    pub fn loopback_connected(&self, result: &'static str) {
        self.0.own.loopback_connected.get_or_create(&[("result", result)]).inc();
    }

    /// Exports the restarts of a resource's watch from zero on, so that a rate has the first restart.
    pub fn watches(&self, resource: &'static str) {
        drop(self.0.own.watch_restarts.get_or_create(&[("resource", resource)]));
    }

    /// Counts a restarted watch by the plural name of the resource, such as `services`.
    pub fn watch_restarted(&self, resource: &'static str) {
        self.0.own.watch_restarts.get_or_create(&[("resource", resource)]).inc();
    }

    /// Counts a changed configuration by its success.
    pub fn config_reloaded(&self, success: bool) {
        let result = if success { "success" } else { "failure" };
        self.0.own.config_reloads.get_or_create(&[("result", result)]).inc();
        self.0.own.config_last_reload_successful.set(success.into());
    }
}
