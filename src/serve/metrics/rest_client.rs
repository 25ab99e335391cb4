//! The metrics of requests to the API server, as client-go exports them.

use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family as Vector;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use super::Metrics;
use super::vector::Register;

/// The buckets of client-go, in seconds.
const BUCKETS: [f64; 12] = [0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0];
/// The label `code` of client-go for requests without an answer.
const NO_ANSWER: &str = "<error>";

type Labels<const N: usize> = [(&'static str, String); N];

#[derive(Debug)]
pub(super) struct RestClient {
    requests: Vector<Labels<3>, Counter>,
    latency: Vector<Labels<2>, Histogram>,
}

impl RestClient {
    pub(super) fn register(registry: &mut Registry) -> RestClient {
        let registry = registry.sub_registry_with_prefix("rest_client");
        let mut new = Register { registry, families: &[] };
        RestClient {
            requests: new
                .add("requests", "Requests to the API server, by HTTP status, method and host"),
            latency: new.made(
                "request_duration_seconds",
                "Time until the API server began its answer, without watches",
                Vector::new_with_constructor(|| Histogram::new(BUCKETS)),
            ),
        }
    }
}

impl Metrics {
    /// Counts a request to the API server at `host`. `status` is `None` without an answer; `took`
    /// is the time until the answer began, `None` for a watch.
    pub fn api_asked(&self, method: &str, host: &str, status: Option<u16>, took: Option<Duration>) {
        let RestClient { requests, latency } = &self.0.rest_client;
        let code = status.map_or(NO_ANSWER.to_owned(), |status| status.to_string());
        let labels = [("code", code), ("host", host.to_owned()), ("method", method.to_owned())];
        requests.get_or_create(&labels).inc();
        if let Some(took) = took {
            let labels = [("host", host.to_owned()), ("verb", method.to_owned())];
            latency.get_or_create(&labels).observe(took.as_secs_f64());
        }
    }
}
