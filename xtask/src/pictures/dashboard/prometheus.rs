//! A Prometheus server that scrapes agents, and its answers.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use serde::Deserialize;
use serde_json::Value;
use shunt_testbed::{Host, METRICS_PORT, http_get};

/// The pause between two scrapes, in seconds.
pub(super) const SCRAPE_INTERVAL: u32 = 1;
const PORT: u16 = 9090;
/// How long the start may take, and the time between two questions about it.
const START: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(100);

/// A running server, which ends with this value.
pub(super) struct Prometheus {
    host: Host,
    folder: tempfile::TempDir,
    process: Child,
}

/// A time series of an answer.
#[derive(Debug, PartialEq)]
pub(super) struct Series {
    pub(super) labels: BTreeMap<String, String>,
    /// Seconds since 1970, and values.
    pub(super) points: Vec<(f64, f64)>,
}

/// The times that an answer covers, in seconds since 1970.
#[derive(Clone, Copy, Debug)]
pub(super) struct Range {
    pub(super) start: f64,
    pub(super) end: f64,
}

#[derive(Deserialize)]
struct Answer {
    error: Option<String>,
    #[serde(default)]
    data: Value,
}

#[derive(Deserialize)]
struct Matrix {
    result: Vec<Stream>,
}

#[derive(Deserialize)]
struct Stream {
    metric: BTreeMap<String, String>,
    values: Vec<(f64, String)>,
}

impl Prometheus {
    /// Starts the server on a host. It gives the agents the labels that they get from the chart's
    /// ServiceMonitor.
    pub(super) fn start(program: &Path, host: &Host, nodes: &[&Host]) -> Result<Self> {
        let folder = tempfile::tempdir().context("cannot make a folder for Prometheus")?;
        let at = |name: &str| folder.path().join(name);
        fs::write(at("prometheus.yml"), configuration(nodes))
            .context("cannot configure Prometheus")?;
        let log = File::create(at("log")).context("cannot write a log of Prometheus")?;
        let mut command = host.command(program);
        command
            .arg("--config.file")
            .arg(at("prometheus.yml"))
            .arg("--storage.tsdb.path")
            .arg(at("data"))
            .arg(format!("--web.listen-address=127.0.0.1:{PORT}"))
            .current_dir(folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        let process = command.spawn().context("cannot start Prometheus")?;
        let mut prometheus = Self { host: host.clone(), folder, process };
        let deadline = Instant::now() + START;
        // Targets are known some seconds after the server answers.
        while !prometheus.has_scraped(nodes.len()) {
            let ended = prometheus.process.try_wait().context("cannot watch Prometheus")?;
            if ended.is_some() || Instant::now() > deadline {
                let log = fs::read_to_string(prometheus.folder.path().join("log"));
                bail!("Prometheus does not scrape all agents:\n{}", log.unwrap_or_default());
            }
            thread::sleep(POLL);
        }
        Ok(prometheus)
    }

    fn has_scraped(&self, nodes: usize) -> bool {
        self.label_values("shunt_services", "instance").is_ok_and(|scraped| scraped.len() == nodes)
    }

    /// Returns the version of the server.
    pub(super) fn version(&self) -> Result<String> {
        let data = self.ask("/api/v1/status/buildinfo")?;
        let version = data["version"].as_str().context("Prometheus does not tell its version")?;
        Ok(version.split('+').next().unwrap_or(version).to_owned())
    }

    /// Returns the values of a label of the series that a selector has.
    pub(super) fn label_values(&self, selector: &str, label: &str) -> Result<Vec<String>> {
        let selector = encoded(selector);
        let data = self.ask(&format!("/api/v1/label/{label}/values?match%5B%5D={selector}"))?;
        Ok(serde_json::from_value(data)?)
    }

    /// Returns the series of an expression over a time, with a value for each scrape.
    pub(super) fn range(&self, expression: &str, range: Range) -> Result<Vec<Series>> {
        let (query, Range { start, end }) = (encoded(expression), range);
        let path = format!(
            "/api/v1/query_range?query={query}&start={start}&end={end}&step={SCRAPE_INTERVAL}"
        );
        series(self.ask(&path)?)
    }

    fn ask(&self, path: &str) -> Result<Value> {
        let (status, body) = self.get(path)?;
        let Ok(Answer { error, data }) = serde_json::from_str(&body) else {
            bail!("Prometheus answers {status} with {body:?}");
        };
        if let Some(error) = error {
            bail!("Prometheus refuses: {error}");
        }
        ensure!(status == 200, "Prometheus answers {status}");
        Ok(data)
    }

    fn get(&self, path: &str) -> Result<(u16, String)> {
        let answer = http_get(&self.host, SocketAddr::from((Ipv4Addr::LOCALHOST, PORT)), path)?;
        Ok((answer.status, answer.body))
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        // Its data are of no use to anyone.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn configuration(nodes: &[&Host]) -> String {
    let mut text = format!(
        "global: {{scrape_interval: {SCRAPE_INTERVAL}s, scrape_timeout: {SCRAPE_INTERVAL}s}}\n\
         scrape_configs:\n- job_name: shunt\n  static_configs:\n"
    );
    for node in nodes {
        let address = SocketAddr::from((node.ipv4[0], METRICS_PORT));
        // Writing to a String cannot fail.
        let labels = format!("{{node: {name}, instance: {name}}}", name = node.name);
        let _ = writeln!(text, "  - {{targets: [\"{address}\"], labels: {labels}}}");
    }
    text
}

fn series(data: Value) -> Result<Vec<Series>> {
    let Matrix { result } = serde_json::from_value(data)?;
    let mut all = Vec::new();
    for Stream { metric, values } in result {
        let value = |(time, value): (f64, String)| Ok((time, value.parse()?));
        let points = values.into_iter().map(value).collect::<Result<_>>()?;
        all.push(Series { labels: metric, points });
    }
    Ok(all)
}

/// Encodes a text for the query of a URL.
fn encoded(text: &str) -> String {
    let mut encoded = String::new();
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                encoded.push(char::from(byte));
            }
            // Writing to a String cannot fail.
            _ => drop(write!(encoded, "%{byte:02X}")),
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_are_encoded_for_a_url() {
        assert_eq!(encoded("up{a=~\".*\"} + µ"), "up%7Ba%3D~%22.%2A%22%7D%20%2B%20%C2%B5");
    }

    #[test]
    fn answer_has_labels_times_and_values_that_may_be_no_numbers() {
        let text = r#"{"resultType": "matrix", "result": [
            {"metric": {"node": "a"}, "values": [[1.5, "2"], [2.5, "NaN"], [3.5, "+Inf"]]}]}"#;
        let all = series(serde_json::from_str(text).unwrap()).unwrap();
        assert_eq!(all.len(), 1);
        assert_eq!(all[0].labels["node"], "a");
        assert_eq!(all[0].points[0], (1.5, 2.0));
        assert!(all[0].points[1].1.is_nan() && all[0].points[2].1.is_infinite());
    }
}
