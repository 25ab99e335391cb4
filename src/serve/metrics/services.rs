//! New connections per Service port. Each scrape reads them from the kernel.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

/// The labels of a Service port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServicePort<'a> {
    /// The namespace of the Service.
    pub namespace: &'a str,
    /// The name of the Service.
    pub service: &'a str,
    /// The name of the port; empty if it has none.
    pub port: &'a str,
    /// The transport protocol, such as `TCP`.
    pub protocol: &'a str,
}

/// A reader of the new connections of Service ports.
pub trait ServiceConnections: Send {
    /// Reads the numbers. Returns `None` if that is not possible.
    fn read(&mut self) -> Option<Extent>;

    /// Calls `each` with every Service port and its number of new connections as of the last
    /// reading, which never decreases.
    fn each(&self, each: &mut dyn FnMut(ServicePort<'_>, u64));
}

/// The extent of a reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// The number of Service ports.
    pub ports: usize,
    /// The number of Service ports that are left out.
    pub omitted: usize,
}

/// Registers the metrics of a reader.
pub(super) fn register(reader: Box<dyn ServiceConnections>, registry: &mut Registry) {
    registry.register_collector(Box::new(Services(Mutex::new(reader))));
}

struct Services(Mutex<Box<dyn ServiceConnections>>);

impl fmt::Debug for Services {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Services")
    }
}

impl Collector for Services {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let mut reader = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(Extent { ports, omitted }) = reader.read() else { return Ok(()) };
        // A metric without members has no head either.
        if ports > 0 {
            let mut connections = encoder.encode_descriptor(
                "shunt_service_new_connections",
                "New connections to a Service port on this node since the start of the agent",
                None,
                MetricType::Counter,
            )?;
            let mut result = Ok(());
            reader.each(&mut |of, count| {
                let labels = [
                    ("namespace", of.namespace),
                    ("service", of.service),
                    ("port", of.port),
                    ("protocol", of.protocol),
                ];
                if result.is_ok() {
                    let encoder = connections.encode_family(&labels);
                    result = encoder.and_then(|encoder| ConstCounter::new(count).encode(encoder));
                }
            });
            result?;
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
