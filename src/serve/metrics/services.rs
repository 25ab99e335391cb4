//! New connections per Service port. Each scrape reads them from the kernel.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use shunt_core::model::Protocol;

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

/// Registers the metrics of a reader.
pub(super) fn register(reader: ReadConnections, registry: &mut Registry) {
    registry.register_collector(Box::new(Services(Mutex::new(reader))));
}

struct Services(Mutex<ReadConnections>);

impl fmt::Debug for Services {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Services")
    }
}

impl Collector for Services {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let read = (self.0.lock().unwrap_or_else(PoisonError::into_inner))();
        let Some(ServiceConnections { ports, omitted }) = read else { return Ok(()) };
        // A metric without members has no head either.
        if !ports.is_empty() {
            let mut connections = encoder.encode_descriptor(
                "shunt_service_new_connections",
                "New connections to a Service port on this node since the start of the agent",
                None,
                MetricType::Counter,
            )?;
            for (label, protocol, count) in ports {
                let (namespace, rest) = label.split_once('/').unwrap_or_default();
                let (service, port) = rest.split_once(':').unwrap_or((rest, ""));
                let labels = [
                    ("namespace", namespace),
                    ("service", service),
                    ("port", port),
                    ("protocol", &protocol.to_string().to_uppercase()),
                ];
                ConstCounter::new(count).encode(connections.encode_family(&labels)?)?;
            }
        }
        let gauge = ConstGauge::new(super::vector::gauge(omitted));
        gauge.encode(encoder.encode_descriptor(
            "shunt_service_metrics_omitted",
            "Service ports without metrics of their own, because of --service-metrics-limit",
            None,
            MetricType::Gauge,
        )?)
    }
}
