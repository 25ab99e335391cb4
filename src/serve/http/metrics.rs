//! The metrics server, with the pages of kube-proxy's `metricsBindAddress` except profiles.

use std::convert::Infallible;
use std::sync::Arc;

use hyper::header::{ACCEPT, HeaderMap};
use serde_json::json;
use tokio::sync::watch;

use super::connections::Connections;
use super::protocol::{Answer, Handler, JSON, PLAIN_TEXT, Page, SharedPage};
use super::server::{OnPort, Server, Unbound};
use crate::config::{Config, Configuration};
use crate::serve::metrics::{Format, Metrics};

const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

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
    connections: Connections,
    on_port: OnPort,
) -> Result<Infallible, Unbound> {
    let (purpose, field) = ("metrics", "metricsBindAddress");
    let address = |config: &Config| config.metrics_bind_address;
    let server = Server { purpose, field, address, connections, on_port };
    server.serve(config, handler(metrics, configz)).await
}

fn handler(metrics: Metrics, configz: watch::Receiver<Configuration>) -> Handler {
    let all = metrics.clone();
    let all = Exposition::new(move |format| all.exposition(format));
    let own = metrics.clone();
    let own = Exposition::new(move |format| own.slis(format));
    Arc::new(move |path, headers| {
        let answer = match path {
            "/metrics" => return Some(all.get(headers)),
            "/metrics/slis" => return Some(own.get(headers)),
            // The health of this server only; the health server has that of the dataplane.
            "/healthz" | "/healthz/ping" => {
                metrics.pinged();
                Answer::ok(PLAIN_TEXT, "ok".to_owned())
            }
            "/configz" => Answer::ok(JSON, json!({ GROUP: &*configz.borrow() }).to_string()),
            "/proxyMode" => Answer::ok(PLAIN_TEXT, "nftables".to_owned()),
            _ => return None,
        };
        Some(answer.into())
    })
}

/// A page of metrics in both formats.
struct Exposition {
    text: SharedPage,
    open_metrics: SharedPage,
}

impl Exposition {
    fn new(encode: impl Fn(Format) -> String + Clone + Send + Sync + 'static) -> Exposition {
        let page = |format, content_type| {
            let encode = encode.clone();
            SharedPage::new(move || Answer::ok(content_type, encode(format)))
        };
        Exposition {
            text: page(Format::Text, TEXT),
            open_metrics: page(Format::OpenMetrics, OPEN_METRICS),
        }
    }

    fn get(&self, headers: &HeaderMap) -> Page {
        let accepts = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
        match negotiate(accepts.flat_map(|value| value.split(','))) {
            Format::Text => self.text.get(),
            Format::OpenMetrics => self.open_metrics.get(),
        }
    }
}

/// Chooses the format by the parts of an `Accept` header: the text format, as kube-proxy does,
/// unless the client accepts OpenMetrics and no text.
fn negotiate<'a>(accepts: impl Iterator<Item = &'a str>) -> Format {
    let (mut takes_open_metrics, mut takes_text) = (false, false);
    for accept in accepts {
        let mut parts = accept.split(';').map(str::trim);
        let media = parts.next().unwrap_or_default().to_ascii_lowercase();
        let parameters: Vec<(&str, &str)> = parts.filter_map(|part| part.split_once('=')).collect();
        let value = |name: &str| {
            let found = parameters.iter().find(|(key, _)| key.trim().eq_ignore_ascii_case(name));
            found.map(|(_, value)| value.trim().trim_matches('"'))
        };
        let quality: f64 = value("q").and_then(|q| q.parse().ok()).unwrap_or(1.0);
        let takes = match (&*media, value("version")) {
            ("application/openmetrics-text", None | Some("1.0.0" | "0.0.1")) => {
                &mut takes_open_metrics
            }
            ("text/plain", None | Some("0.0.4")) | ("text/*" | "*/*", _) => &mut takes_text,
            _ => continue,
        };
        *takes |= quality > 0.0;
    }
    if takes_open_metrics && !takes_text { Format::OpenMetrics } else { Format::Text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_get_the_format_that_they_ask_for() {
        // What Prometheus 3 and 2 send.
        let prometheus_3 = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,\
            application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=1.0.0;\
            escaping=allow-utf-8;q=0.3,text/plain;version=0.0.4;q=0.2,*/*;q=0.1";
        let prometheus_2 = "application/openmetrics-text; version=1.0.0,\
            application/openmetrics-text; version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        for (accept, expected) in [
            (prometheus_3, Format::Text),
            (prometheus_2, Format::Text),
            ("application/openmetrics-text", Format::OpenMetrics),
            ("application/openmetrics-text;version=1.0.0,text/plain;q=0", Format::OpenMetrics),
            ("", Format::Text),
            ("*/*", Format::Text),
            ("text/plain;version=0.0.4;q=1,*/*;q=0.1", Format::Text),
            ("text/plain, application/openmetrics-text;q=0.5", Format::Text),
            ("application/openmetrics-text;version=2.0.0", Format::Text),
            ("application/openmetrics-text;q=0", Format::Text),
            (
                "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily",
                Format::Text,
            ),
        ] {
            assert_eq!(negotiate(accept.split(',')), expected, "{accept}");
        }
    }
}
