//! `/metrics/slis`: the metrics of Kubernetes' component-base about health checks. kube-proxy's
//! metrics server has one check, which always succeeds.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family as Vector;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::process;
use super::vector::{Labels, vector};

#[derive(Debug)]
pub(super) struct Slis {
    pub(super) registry: Registry,
    healthcheck: Vector<Labels<2>, Gauge>,
    healthchecks: Vector<Labels<3>, Counter>,
}

impl Slis {
    pub(super) fn new() -> Slis {
        let mut registry = Registry::default();
        let registered = registry.sub_registry_with_prefix("kubernetes");
        let healthcheck =
            vector(registered, "healthcheck", "Result of a health check", Gauge::default);
        let healthchecks =
            vector(registered, "healthchecks", "Results of health checks", Counter::default);
        process::register_start_time(&mut registry);
        Slis { registry, healthcheck, healthchecks }
    }

    pub(super) fn pinged(&self) {
        let [name, kind] = [("name", "ping"), ("type", "healthz")];
        self.healthcheck.get_or_create(&[name, kind]).set(1);
        self.healthchecks.get_or_create(&[name, kind, ("status", "success")]).inc();
    }
}
