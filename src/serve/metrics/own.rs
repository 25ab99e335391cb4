//! The metrics that kube-proxy does not have, which begin with `shunt_`.

use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family as Vector;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use shunt_core::model::Family;

use super::vector::{
    Labels, PerFamily, counter, gauge, histogram, label, latency, plain_gauge, vector,
};
use super::{LoopbackConnection, Server, State};

#[derive(Debug)]
pub(super) struct Own {
    families: Vec<Family>,
    commit_duration: Histogram,
    commit_bytes: Histogram,
    commits: Counter,
    pub(super) commit_failures: Counter,
    pub(super) generation_conflicts: Counter,
    pub(super) drift_repairs: Counter,
    pub(super) event_to_kernel: Histogram,
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
    pub(super) node_ports_taken: Gauge,
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
        registry.register(
            "log_lines_lost",
            "Log lines lost because nothing read standard error in time",
            lost_log_lines,
        );
        let own = Own {
            families: families.to_vec(),
            commit_duration: histogram(
                registry,
                "commit_duration_seconds",
                "Time that the kernel takes for a transaction",
                Histogram::new(exponential_buckets(0.000_1, 2.0, 17)),
            ),
            commit_bytes: histogram(
                registry,
                "commit_bytes",
                "Size of a transaction in bytes",
                Histogram::new(exponential_buckets(256.0, 4.0, 10)),
            ),
            commits: counter(registry, "commits", "Transactions that the kernel committed"),
            commit_failures: counter(
                registry,
                "commit_failures",
                "Transactions that the kernel refused, without generation conflicts",
            ),
            generation_conflicts: counter(
                registry,
                "generation_conflicts",
                "Transactions repeated because another process had written to nf_tables",
            ),
            drift_repairs: counter(
                registry,
                "drift_repairs",
                "Repairs of tables that another process had modified",
            ),
            event_to_kernel: histogram(
                registry,
                "event_to_kernel_seconds",
                "Time from the event at a source to the commit",
                latency(),
            ),
            elements: vector(
                registry,
                "elements",
                "Elements of a set or map, as committed",
                Gauge::default,
            ),
            frontends: PerFamily::register(
                registry,
                families,
                "frontends",
                "Frontends, as committed: pairs of address and port, and node ports",
                Gauge::default,
            ),
            gone_endpoints: PerFamily::register(
                registry,
                families,
                "gone_endpoints",
                "Endpoints that terminated, and whose established connections are reset",
                Gauge::default,
            ),
            services: plain_gauge(registry, "services", "Services known to the agent"),
            without_endpoints: PerFamily::register(
                registry,
                families,
                "services_without_endpoints",
                "Service ports that reject connections, because they have no endpoint",
                Gauge::default,
            ),
            endpoint_slices: plain_gauge(
                registry,
                "endpoint_slices",
                "EndpointSlices known to the agent",
            ),
            frontend_conflicts: plain_gauge(
                registry,
                "frontend_conflicts",
                "Frontends that a Service does not get, because another Service holds them",
            ),
            quarantined_service_ports: plain_gauge(
                registry,
                "quarantined_service_ports",
                "Service ports with a frontend that the kernel refuses",
            ),
            unbound_ports: vector(
                registry,
                "unbound_ports",
                "Ports that a server cannot bind, usually because another process holds them",
                Gauge::default,
            ),
            watch_restarts: vector(
                registry,
                "watch_restarts",
                "Restarted watches by resource",
                Counter::default,
            ),
            config_reloads: vector(
                registry,
                "config_reloads",
                "Changed configurations by result: success or failure",
                Counter::default,
            ),
            config_last_reload_successful: plain_gauge(
                registry,
                "config_last_reload_successful",
                "1 if the last written configuration is in force, 0 if it is invalid",
            ),
            kube_proxy_leftovers: vector(
                registry,
                "kube_proxy_leftovers",
                "Leftovers of kube-proxy on this node by kind",
                Gauge::default,
            ),
            node_ports_taken: plain_gauge(
                registry,
                "node_ports_taken",
                "Node ports on which another process of the node listens",
            ),
            loopback_node_ports: vector(
                registry,
                "loopback_node_ports",
                "Node ports on loopback addresses by state: listening or failed",
                Gauge::default,
            ),
            loopback_connections: plain_gauge(
                registry,
                "loopback_connections_open",
                "Open connections to node ports on loopback addresses",
            ),
            loopback_connected: vector(
                registry,
                "loopback_connections",
                "Connections to node ports on loopback addresses by result: forwarded, or reset \
                 because the endpoint was unreachable or there were too many",
                Counter::default,
            ),
        };
        for result in ["success", "failure"] {
            drop(own.config_reloads.get_or_create(&[("result", result)]));
        }
        for server in Server::ALL {
            own.unbound_ports(server, 0);
        }
        own.loopback_node_ports(0, 0);
        for result in LoopbackConnection::ALL {
            drop(own.loopback_connected.get_or_create(&[("result", result.name())]));
        }
        // The configuration of the start is valid.
        own.config_last_reload_successful.set(1);
        own
    }

    pub(super) fn committed(&self, bytes: usize, took: Duration) {
        self.commits.inc();
        self.commit_duration.observe(took.as_secs_f64());
        self.commit_bytes.observe(bytes as f64);
    }

    pub(super) fn state(&self, state: &State) {
        self.endpoint_slices.set(gauge(state.endpoint_slices));
        self.frontend_conflicts.set(gauge(state.frontend_conflicts));
        self.quarantined_service_ports.set(gauge(state.quarantined_service_ports));
        self.frontends.set(state.frontends);
        self.gone_endpoints.set(state.gone_endpoints);
        self.without_endpoints.set(state.without_endpoints);
        for (map, counts) in &state.elements {
            for family in &self.families {
                let labels = [label(*family), ("map", map)];
                self.elements.get_or_create(&labels).set(gauge(counts[*family as usize]));
            }
        }
        // Last: a client that sees it change finds all other values with the next scrape.
        self.services.set(gauge(state.services));
    }

    pub(super) fn kube_proxy_found(&self, counts: &[(&'static str, usize)]) {
        for (kind, count) in counts {
            self.kube_proxy_leftovers.get_or_create(&[("kind", kind)]).set(gauge(*count));
        }
    }

    pub(super) fn unbound_ports(&self, server: Server, count: usize) {
        self.unbound_ports.get_or_create(&[("server", server.name())]).set(gauge(count));
    }

    pub(super) fn loopback_node_ports(&self, listening: usize, failed: usize) {
        for (state, count) in [("listening", listening), ("failed", failed)] {
            self.loopback_node_ports.get_or_create(&[("state", state)]).set(gauge(count));
        }
    }

    pub(super) fn loopback_connections(&self, open: usize) {
        self.loopback_connections.set(gauge(open));
    }

    pub(super) fn loopback_connected(&self, result: LoopbackConnection) {
        self.loopback_connected.get_or_create(&[("result", result.name())]).inc();
    }

    pub(super) fn watches(&self, resource: &'static str) {
        drop(self.watch_restarts.get_or_create(&[("resource", resource)]));
    }

    pub(super) fn watch_restarted(&self, resource: &'static str) {
        self.watch_restarts.get_or_create(&[("resource", resource)]).inc();
    }

    pub(super) fn config_reloaded(&self, success: bool) {
        let result = if success { "success" } else { "failure" };
        self.config_reloads.get_or_create(&[("result", result)]).inc();
        self.config_last_reload_successful.set(success.into());
    }
}
