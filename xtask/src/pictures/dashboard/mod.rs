//! The picture of the Grafana dashboard: its panels, with what a Prometheus server answers to their
//! queries, after two minutes with agents, clients and changes.
//!
//! Each query must have an answer, so this is also a check of the dashboard.

mod cluster;
mod draw;
mod events;
mod lettering;
mod model;
mod prometheus;
mod standin;
mod unit;

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, bail, ensure};

use self::cluster::Cluster;
use self::draw::Picture;
use self::model::{Dashboard, Kind, Panel, Target};
use self::prometheus::{Prometheus, Range, SCRAPE_INTERVAL, Series};
use super::Programs;
use crate::command::repository_file;

const DASHBOARD: &str = "deploy/chart/files/dashboard.json";
/// The time that the picture shows, in seconds.
const SHOWN: u32 = 120;

/// Panels that show only zeros in this run, and the reason. All others must show something else.
const QUIET: [(&str, &str); 6] = [
    ("Agents that do not answer", "no agent ends"),
    ("Service ports in quarantine", "the kernel refuses no frontend"),
    ("Refused transactions", "the kernel refuses none"),
    ("Failures and conflicts", "the kernel refuses no transaction, and conflicts are rare"),
    ("Changes that wait", "few wait long enough for a scrape"),
    ("Service ports without metrics of their own", "there are few Service ports"),
];

/// A line of a panel.
#[derive(Debug)]
struct Line {
    name: String,
    /// Seconds since 1970, and values; gaps are no numbers.
    points: Vec<(f64, f64)>,
}

impl Line {
    fn numbers(&self) -> impl Iterator<Item = f64> {
        self.points.iter().map(|point| point.1).filter(|value| value.is_finite())
    }
}

/// Runs agents and Prometheus for two minutes, and draws the dashboard.
pub(super) fn draw(programs: &Programs) -> Result<String> {
    let dashboard = Dashboard::parse(&repository_file(DASHBOARD)?)?;
    let mut cluster = Cluster::start(programs)?;
    let prometheus = cluster.prometheus(&programs.prometheus)?;
    // A query that Prometheus refuses is known before two minutes are over.
    answers(&dashboard, &prometheus, last_minutes()?)?;
    println!("two minutes with two agents, clients and changes …");
    cluster.run(SHOWN + events::LEAD)?;
    let range = last_minutes()?;
    let panels = answers(&dashboard, &prometheus, range)?;
    for (panel, answers) in dashboard.panels.iter().zip(&panels) {
        check(panel, answers)?;
    }
    let picture = Picture {
        dashboard: &dashboard,
        panels: panels.into_iter().map(|answers| answers.into_iter().flatten().collect()).collect(),
        variables: variables(&dashboard, &prometheus)?,
        version: prometheus.version()?,
        range,
    };
    drop(prometheus);
    cluster.stop()?;
    picture.svg()
}

fn last_minutes() -> Result<Range> {
    // f64 has all seconds of the next centuries.
    let end = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs() as f64;
    Ok(Range { start: end - f64::from(SHOWN), end })
}

/// Returns the labels of the variables and the values that a reader may choose.
fn variables(dashboard: &Dashboard, prometheus: &Prometheus) -> Result<Vec<(String, String)>> {
    let mut all = Vec::new();
    for (variable, selector, label) in dashboard.asked()? {
        let name = &variable.name;
        let values = prometheus.label_values(selector, label).with_context(|| name.clone())?;
        ensure!(!values.is_empty(), "the variable {name} has no values: {selector}, {label}");
        all.push((variable.label.clone(), values.join(", ")));
    }
    Ok(all)
}

/// Returns the lines of each query of each panel.
fn answers(
    dashboard: &Dashboard,
    prometheus: &Prometheus,
    range: Range,
) -> Result<Vec<Vec<Vec<Line>>>> {
    // With panels this narrow, Grafana asks for a value of each scrape, and takes four scrapes for a
    // rate.
    let built_in = BTreeMap::from([
        ("__rate_interval", format!("{}s", 4 * SCRAPE_INTERVAL)),
        ("__interval", format!("{SCRAPE_INTERVAL}s")),
        ("__range", format!("{SHOWN}s")),
    ]);
    let answer = |panel: &Panel, target: &Target| {
        let what = || format!("panel {:?}: {}", panel.title, target.expr);
        let expression = dashboard.replace_variables(&target.expr, &built_in).with_context(what)?;
        let series = prometheus.range(&expression, range).with_context(what)?;
        let line =
            |Series { labels, points }: Series| Line { name: target.legend(&labels), points };
        Ok(series.into_iter().map(line).collect())
    };
    let of_panel =
        |panel: &Panel| panel.targets.iter().map(|target| answer(panel, target)).collect();
    dashboard.panels.iter().map(of_panel).collect()
}

/// Checks that each query of a panel has data, and that the panel shows something.
fn check(panel: &Panel, answers: &[Vec<Line>]) -> Result<()> {
    let title = &panel.title;
    for (target, lines) in panel.targets.iter().zip(answers) {
        let has_data = lines.iter().flat_map(Line::numbers).next().is_some();
        ensure!(has_data, "panel {title:?}: no data: {}", target.expr);
    }
    let is_quiet = QUIET.iter().any(|(quiet, _)| quiet == title);
    let mut numbers = answers.iter().flatten().flat_map(Line::numbers);
    if panel.kind != Kind::Row && !is_quiet && !numbers.any(|value| value != 0.0) {
        let all: Vec<&str> = panel.targets.iter().map(|target| &*target.expr).collect();
        bail!("panel {title:?} shows only zeros: {}", all.join("; "));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dashboard_can_be_drawn_and_has_the_quiet_panels() {
        let dashboard = Dashboard::parse(&repository_file(DASHBOARD).unwrap()).unwrap();
        assert!(!dashboard.asked().unwrap().is_empty());
        for (title, reason) in QUIET {
            assert!(dashboard.panels.iter().any(|panel| panel.title == title), "{title}: {reason}");
        }
    }

    #[test]
    fn panel_without_data_or_with_zeros_only_is_named_with_its_query() {
        let dashboard = Dashboard::parse(&repository_file(DASHBOARD).unwrap()).unwrap();
        let panel = |title| dashboard.panels.iter().find(|panel| panel.title == title).unwrap();
        let line = |value| vec![Line { name: String::new(), points: vec![(1.0, value)] }];
        let error = |answers: &[Vec<Line>]| {
            check(panel("Frontends"), answers).map_err(|error| error.to_string()).unwrap_err()
        };
        for answers in [vec![], line(f64::NAN)] {
            let error = error(&[answers]);
            assert!(error.contains("\"Frontends\": no data: max by"), "{error}");
        }
        let error = error(&[line(0.0)]);
        assert!(error.contains("\"Frontends\" shows only zeros: max by"), "{error}");
        check(panel("Frontends"), &[line(1.0)]).unwrap();
        check(panel(QUIET[0].0), &[line(0.0)]).unwrap();
    }
}
