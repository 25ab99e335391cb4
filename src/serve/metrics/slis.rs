//! `/metrics/slis`: the metrics of Kubernetes' component-base about health checks. kube-proxy's
//! metrics server has one check, which always succeeds.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family as Vector;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::vector::{Labels, Register};
use super::{Metrics, process};

#[derive(Debug)]
pub(super) struct Slis {
    pub(super) registry: Registry,
    healthcheck: Vector<Labels<2>, Gauge>,
    healthchecks: Vector<Labels<3>, Counter>,
}

impl Slis {
    pub(super) fn new() -> Slis {
        let mut registry = Registry::default();
        let kubernetes = registry.sub_registry_with_prefix("kubernetes");
        let mut new = Register { registry: kubernetes, families: &[] };
        let healthcheck = new.add("healthcheck", "Result of a health check");
        let healthchecks = new.add("healthchecks", "Results of health checks");
        process::register(&mut registry, false);
        Slis { registry, healthcheck, healthchecks }
    }
}

impl Metrics {
    /// Counts a health check of the metrics server.
    pub fn pinged(&self) {
        let [name, kind] = [("name", "ping"), ("type", "healthz")];
        let Slis { healthcheck, healthchecks, .. } = &self.0.slis;
        healthcheck.get_or_create(&[name, kind]).set(1);
        healthchecks.get_or_create(&[name, kind, ("status", "success")]).inc();
    }
}
