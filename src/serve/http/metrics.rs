//! The metrics server, with the pages of kube-proxy's `metricsBindAddress` except profiles.

use std::convert::Infallible;
use std::sync::Arc;

use serde_json::json;
use tokio::sync::watch;

use super::protocol::{Handler, JSON, PLAIN_TEXT, SharedPage, ok};
use super::server::{Server, Servers};
use crate::config::{Config, Configuration};
use crate::serve::metrics::{Gauge, Metrics};

const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The API group of a KubeProxyConfiguration: its key in `/configz`.
const GROUP: &str = "kubeproxy.config.k8s.io";

/// Serves for ever, at `metricsBindAddress`. `configz` is the configuration in force with all fields.
///
/// # Errors
/// If the port cannot be bound and `bindAddressHardFail` is set.
pub async fn serve_metrics(
    config: watch::Receiver<Config>,
    metrics: Metrics,
    configz: watch::Receiver<Configuration>,
    servers: Servers,
) -> anyhow::Result<Infallible> {
    let (purpose, field) = ("metrics", "metricsBindAddress");
    let gauge: Gauge = ("shunt_unbound_ports", &[("server", "metrics")]);
    let address = |config: &Config| config.metrics_bind_address;
    let server = Server { purpose, field, address, gauge, servers };
    server.serve(config, handler(metrics, configz)).await
}

fn handler(metrics: Metrics, configz: watch::Receiver<Configuration>) -> Handler {
    let all = metrics.clone();
    let all = SharedPage::new(move || ok(TEXT, all.exposition()));
    Arc::new(move |path| {
        let answer = match path {
            "/metrics" => return Some(all.get()),
            "/metrics/slis" => ok(TEXT, metrics.slis()),
            // The health of this server only; the health server has that of the dataplane.
            "/healthz" | "/healthz/ping" => {
                metrics.pinged();
                ok(PLAIN_TEXT, "ok".to_owned())
            }
            "/configz" => ok(JSON, json!({ GROUP: &*configz.borrow() }).to_string()),
            "/proxyMode" => ok(PLAIN_TEXT, "nftables".to_owned()),
            _ => return None,
        };
        Some(answer.into())
    })
}
