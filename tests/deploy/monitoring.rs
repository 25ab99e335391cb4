//! Alerts and dashboard: they ask for metrics that the agent exports, by labels that these have.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};
use serde_json::Value;
use shunt::source::spanned_yaml;

use crate::kinds::{Object, RuleFile, objects, strict};
use crate::manifests::{agent, daemon_sets};
use crate::promql::names;
use crate::{RENDERED, read};

const ALERTS: &str = "deploy/chart/files/alerts.yaml";
const DASHBOARD: &str = "deploy/chart/files/dashboard.json";

/// Labels that Prometheus gives to whatever it scrapes; `node` comes from our ServiceMonitor.
const TARGET_LABELS: [&str; 4] = ["instance", "job", "node", "pod"];

/// Every name that can be asked for, with its labels: those of the agent, of which `tests/it/metrics`
/// proves that they are all, and the one that Prometheus makes for whatever it scrapes.
fn series() -> Result<BTreeMap<String, BTreeSet<&'static str>>> {
    let mut series = BTreeMap::from([("up".to_owned(), BTreeSet::from(TARGET_LABELS))]);
    for line in include_str!("../fixtures/metrics.txt").lines() {
        let (name, rest) = line.split_once(' ').with_context(|| line.to_owned())?;
        let (kind, rest) = rest.split_once(" {").with_context(|| line.to_owned())?;
        let (labels, _) = rest.split_once('}').with_context(|| line.to_owned())?;
        let labels = labels.split(',').filter(|label| !label.is_empty());
        let labels: BTreeSet<&str> = labels.chain(TARGET_LABELS).collect();
        if kind != "histogram" {
            series.insert(name.to_owned(), labels);
            continue;
        }
        for suffix in ["sum", "count"] {
            series.insert(format!("{name}_{suffix}"), labels.clone());
        }
        series.insert(format!("{name}_bucket"), labels.into_iter().chain(["le"]).collect());
    }
    Ok(series)
}

/// The query names only metrics that there are, and labels that one of them has.
fn check(place: &str, query: &str) -> Result<()> {
    let series = series()?;
    let names = names(query).with_context(|| format!("{place}: {query}"))?;
    assert!(!names.metrics.is_empty(), "{place}: no metric in {query}");
    let mut labels = BTreeSet::<&str>::new();
    for metric in &names.metrics {
        let of_metric = series.get(metric);
        labels.extend(of_metric.with_context(|| format!("{place}: there is no metric {metric}"))?);
    }
    for label in &names.labels {
        assert!(labels.contains(label.as_str()), "{place}: no metric has the label {label}");
    }
    Ok(())
}

/// The texts between `start` and `end`.
fn between<'a>(text: &'a str, start: &'a str, end: &'a str) -> impl Iterator<Item = &'a str> {
    text.split(start).skip(1).filter_map(move |part| Some(part.split_once(end)?.0.trim()))
}

#[test]
fn alerts_ask_for_metrics_that_there_are() -> Result<()> {
    let text = read(ALERTS)?;
    let [file] = &spanned_yaml::parse(text.as_bytes())?[..] else {
        anyhow::bail!("not one document in {ALERTS}");
    };
    let file: RuleFile = strict(file)?;
    let rules: Vec<_> = file.groups.iter().flat_map(|group| &group.rules).collect();
    let runbook = read("docs/runbook.md")?;
    let mut seen = BTreeSet::new();
    for rule in rules {
        assert!(rule.alert.starts_with("Shunt") && seen.insert(&rule.alert), "{}", rule.alert);
        check(&rule.alert, &rule.expr)?;
        if let Some(lasting) = &rule.lasting {
            let minutes = lasting.strip_suffix('m').and_then(|n| n.parse::<u32>().ok());
            assert!(minutes.is_some(), "{}: {lasting}", rule.alert);
        }
        let severity = rule.labels.get("severity").map(String::as_str);
        assert!(matches!(severity, Some("critical" | "warning")), "{}", rule.alert);
        let annotations: Vec<_> = rule.annotations.keys().collect();
        assert_eq!(annotations, ["description", "runbook_url", "summary"]);
        let section = format!("docs/runbook.md#{}", rule.alert.to_lowercase());
        assert!(rule.annotations["runbook_url"].ends_with(&section), "{}", rule.alert);
        assert!(runbook.contains(&format!("\n### {}\n", rule.alert)), "{}", rule.alert);
        let texts = rule.annotations.values();
        for action in texts.flat_map(|text| between(text, "{{", "}}")) {
            let known = action == "$value"
                || action.starts_with("$value | humanize")
                || action.strip_prefix("$labels.").is_some_and(|l| rule_has(&rule.expr, l));
            assert!(known, "{}: {action}", rule.alert);
        }
    }
    assert!(seen.len() >= 13);
    Ok(())
}

/// Each number that is above 0 only while something is wrong.
#[test]
fn each_metric_of_a_problem_has_an_alert() -> Result<()> {
    let text = read(ALERTS)?;
    for metric in [
        "shunt_commit_failures_total",
        "shunt_drift_repairs_total",
        "shunt_frontend_conflicts",
        "shunt_kube_proxy_leftovers",
        "shunt_node_ports_taken",
        "shunt_quarantined_service_ports",
        "shunt_service_metrics_omitted",
        "shunt_unbound_ports",
    ] {
        assert!(series()?.contains_key(metric), "there is no metric {metric}");
        let asked_for = text.lines().any(|line| line.contains("expr: ") && line.contains(metric));
        assert!(asked_for, "no alert asks for {metric}");
    }
    Ok(())
}

/// Whether the result of an alert's query has the label: aggregations keep only what they say.
fn rule_has(query: &str, label: &str) -> bool {
    match query.split_once(" by (").and_then(|(_, rest)| rest.split_once(')')) {
        Some((kept, _)) => kept.split(',').any(|kept| kept.trim() == label),
        None => {
            let dropped = query.split_once("without (").and_then(|(_, rest)| rest.split_once(')'));
            let dropped =
                dropped.is_some_and(|(list, _)| list.split(',').any(|l| l.trim() == label));
            !dropped && !query.starts_with("absent") && TARGET_LABELS.contains(&label)
        }
    }
}

#[test]
fn the_dashboard_asks_for_metrics_that_there_are() -> Result<()> {
    let dashboard: Value = serde_json::from_str(&read(DASHBOARD)?)?;
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let mut ids = BTreeSet::new();
    let mut queries = 0;
    let mut taken = BTreeSet::new();
    for panel in list(&dashboard["panels"]) {
        let title = panel["title"].as_str().context("a panel without title")?.to_owned();
        assert!(ids.insert(panel["id"].as_u64()), "{title}: its id is taken");
        let at = |field: &str| panel["gridPos"][field].as_u64().context(field.to_owned());
        for x in at("x")?..at("x")? + at("w")? {
            for y in at("y")?..at("y")? + at("h")? {
                assert!(x < 24 && taken.insert((x, y)), "{title} lies on another panel");
            }
        }
        for target in list(&panel["targets"]) {
            assert_eq!(target["datasource"]["uid"], "${datasource}", "{title}");
            let query = target["expr"].as_str().context(title.clone())?;
            check(&title, query)?;
            let legend = target["legendFormat"].as_str().unwrap_or_default();
            let known = names(query)?.labels;
            for label in between(legend, "{{", "}}") {
                assert!(known.contains(label), "{title}: {label}");
            }
            queries += 1;
        }
    }
    assert!(queries >= 20);
    let mut variables = Vec::new();
    for variable in list(&dashboard["templating"]["list"]) {
        variables.push(variable["name"].as_str().unwrap_or_default().to_owned());
        if let Some(query) = variable["query"]["query"].as_str() {
            check("variable", query)?;
        }
    }
    assert_eq!(variables, ["datasource", "instance"]);
    Ok(())
}

#[test]
fn what_is_rendered_has_the_alerts_and_the_dashboard_whole() -> Result<()> {
    let dashboard: Value = serde_json::from_str(&read(DASHBOARD)?)?;
    let alerts = read(ALERTS)?;
    let count = alerts.matches("- alert: ").count();
    for path in
        ["deploy/kustomize/monitoring/monitoring.yaml", "tests/fixtures/chart/everything.yaml"]
    {
        let mut found = (0, 0);
        for object in objects(&read(path)?)? {
            match object {
                Object::PrometheusRule(it) => {
                    found.0 += it.spec.groups.iter().map(|group| group.rules.len()).sum::<usize>();
                }
                Object::ConfigMap(map) => {
                    if let Some(text) = map.data.unwrap_or_default().get("shunt.json") {
                        assert_eq!(serde_json::from_str::<Value>(text)?, dashboard, "{path}");
                        found.1 += 1;
                    }
                }
                _ => {}
            }
        }
        assert_eq!(found, (count, 1), "{path}");
    }
    Ok(())
}

#[test]
fn prometheus_finds_the_agents() -> Result<()> {
    let daemon_sets = daemon_sets()?;
    for path in RENDERED {
        let mut service = None;
        let mut monitor = None;
        for object in objects(&read(path)?)? {
            match object {
                Object::Service(it) => service = Some(it),
                Object::ServiceMonitor(it) => monitor = Some(it),
                _ => {}
            }
        }
        let Some((service, monitor)) = service.zip(monitor) else { continue };
        let labels = service.metadata.labels.unwrap_or_default();
        for (key, value) in monitor.spec.selector.match_labels.iter().flatten() {
            assert_eq!(labels.get(key), Some(value), "{path}");
        }
        // The alerts and the dashboard ask for this job.
        let job = labels.get(&monitor.spec.job_label);
        assert_eq!(job.map(String::as_str), Some("shunt"), "{path}");
        let spec = service.spec.context(path)?;
        let ports = spec.ports.unwrap_or_default();
        let port = ports.first().and_then(|port| port.name.clone());
        assert_eq!(port.as_ref(), monitor.spec.endpoints.first().map(|e| &e.port), "{path}");
        // The monitoring of a kustomization watches the agents of its base.
        let of = if path.contains("kustomize/monitoring") { RENDERED[0] } else { path };
        let (_, daemon_set) = daemon_sets.iter().find(|(path, _)| *path == of).context(path)?;
        let template = daemon_set.spec.as_ref().and_then(|s| s.template.metadata.as_ref());
        let pod_labels = template.and_then(|m| m.labels.clone()).context(path)?;
        for (key, value) in spec.selector.iter().flatten() {
            assert_eq!(pod_labels.get(key), Some(value), "{path}");
        }
        let container_ports = agent(daemon_set)?.ports.clone().unwrap_or_default();
        let metrics = container_ports.iter().find(|p| p.name.as_deref() == Some("metrics"));
        assert_eq!(metrics.map(|p| p.container_port), ports.first().map(|p| p.port), "{path}");
    }
    Ok(())
}
