//! Prometheus metrics: those of kube-proxy's nftables mode under the same names, and shunt's own,
//! which begin with `shunt_`.
//!
//! Owns: names, types, labels and buckets, the handle [`Metrics`] with which the agent counts, and
//! the text format. A published name stays: dashboards and alerts use it.
//!
//! Must not know: HTTP, the source of objects. Callers report events to it, with the values of the
//! dataplane.

mod exposition;
mod kube_proxy;
mod own;
mod process;
mod rest_client;
mod services;
mod slis;
mod vector;

use std::sync::Arc;

use prometheus_client::registry::Registry;
use shunt_core::model::Family;

use self::exposition::exposition;
use self::kube_proxy::KubeProxy;
use self::own::Own;
use self::rest_client::RestClient;
use self::slis::Slis;

pub use self::services::{ReadConnections, ServiceConnections};
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
        services: Option<ReadConnections>,
        lost_log_lines: Counter,
    ) -> Metrics {
        let mut registry = Registry::default();
        let kube_proxy = KubeProxy::register(families, &mut registry);
        let own = Own::register(families, lost_log_lines, &mut registry);
        let rest_client = RestClient::register(&mut registry);
        process::register(&mut registry, true);
        if let Some(reader) = services {
            services::register(reader, &mut registry);
        }
        Metrics(Arc::new(Inner { registry, kube_proxy, own, rest_client, slis: Slis::new() }))
    }

    /// Writes all metrics.
    #[must_use]
    pub fn exposition(&self) -> String {
        exposition(&self.0.registry)
    }

    /// Writes the metrics of `/metrics/slis`.
    #[must_use]
    pub fn slis(&self) -> String {
        exposition(&self.0.slis.registry)
    }
}
