//! Alerts and dashboard: they ask for metrics that the agent exports, by labels that these have.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::manifests::daemon_sets;
use crate::{RENDERED, items, objects, read};

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

/// Words of PromQL in our queries that are neither metrics nor labels. One that is not here is as likely a
/// mistake.
const PROMQL: [&str; 21] = [
    "absent",
    "and",
    "bool",
    "by",
    "count",
    "histogram_quantile",
    "ignoring",
    "increase",
    "label_values",
    "max",
    "min",
    "offset",
    "on",
    "or",
    "rate",
    "sum",
    "time",
    "topk",
    "unless",
    "vector",
    "without",
];

/// Checks that a query names only metrics that there are, and labels that one of them has; returns these.
fn check(query: &str) -> Result<BTreeSet<&str>> {
    for pair in ["()", "[]", "{}"] {
        let [opened, closed] = [0, 1].map(|at| query.matches(&pair[at..=at]).count());
        ensure!(opened == closed, "{pair} do not fit");
    }
    // Every second part is a text.
    let parts = query.split('"').step_by(2);
    let words =
        parts.flat_map(|part| part.split(|c: char| !c.is_alphanumeric() && !"_$".contains(c)));
    let is_name = |word: &&str| word.starts_with(|c: char| c.is_ascii_alphabetic());
    let words = words.filter(is_name).filter(|word| !PROMQL.contains(word));
    let series = series()?;
    let (metrics, labels): (BTreeSet<&str>, BTreeSet<&str>) =
        words.partition(|word| series.contains_key(*word));
    ensure!(!metrics.is_empty(), "no metric");
    let known: BTreeSet<&str> = metrics.iter().flat_map(|metric| series[*metric].clone()).collect();
    ensure!(labels.is_subset(&known), "neither metrics nor their labels: {:?}", &labels - &known);
    Ok(labels)
}

#[test]
fn mistakes_in_queries_are_found() {
    assert!(
        check(r#"sum by (instance) (rate(up{job="x y"}[5m])) > 1 or time() - up > 60"#).is_ok()
    );
    for query in
        ["sum(up", "rat(up[5m])", "up{nod=\"x\"}", "sum by (nod) (up)", "shunt_no", "time()"]
    {
        assert!(check(query).is_err(), "{query}");
    }
}

/// The texts between `start` and `end`.
fn between<'a>(text: &'a str, start: &'a str, end: &'a str) -> impl Iterator<Item = &'a str> {
    text.split(start).skip(1).filter_map(move |part| Some(part.split_once(end)?.0.trim()))
}

#[test]
fn alerts_ask_for_metrics_that_there_are() -> Result<()> {
    let file = objects(ALERTS)?;
    let rules = items(&file[0]["groups"]).flat_map(|group| items(&group["rules"]));
    let runbook = read("docs/runbook.md")?;
    let mut seen = BTreeSet::new();
    for rule in rules {
        let text = |field: &str| rule[field].as_str().with_context(|| format!("{rule}: {field}"));
        let (alert, expr) = (text("alert")?, text("expr")?);
        assert!(alert.starts_with("Shunt") && seen.insert(alert), "{alert}");
        check(expr).with_context(|| format!("{alert}: {expr}"))?;
        if !rule["for"].is_null() {
            let minutes = text("for")?.strip_suffix('m').and_then(|n| n.parse::<u32>().ok());
            assert!(minutes.is_some(), "{rule}");
        }
        let severity = rule["labels"]["severity"].as_str();
        assert!(matches!(severity, Some("critical" | "warning")), "{alert}");
        let keys =
            |value: &Value| value.as_object().map(|it| it.keys().cloned().collect::<Vec<_>>());
        let mut fields = keys(rule).context("no rule")?;
        fields.retain(|field| field != "for");
        assert_eq!(fields, ["alert", "annotations", "expr", "labels"]);
        let annotations = &rule["annotations"];
        assert_eq!(keys(annotations).context("none")?, ["description", "runbook_url", "summary"]);
        let section = format!("docs/runbook.md#{}", alert.to_lowercase());
        assert!(
            annotations["runbook_url"].as_str().is_some_and(|it| it.ends_with(&section)),
            "{alert}"
        );
        assert!(runbook.contains(&format!("\n### {alert}\n")), "{alert}");
        for text in
            ["description", "summary"].map(|it| annotations[it].as_str().unwrap_or_default())
        {
            for action in between(text, "{{", "}}") {
                let known = action == "$value"
                    || action.starts_with("$value | humanize")
                    || action.strip_prefix("$labels.").is_some_and(|l| rule_has(expr, l));
                assert!(known, "{alert}: {action}");
            }
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
    let mut ids = BTreeSet::new();
    let mut queries = 0;
    let mut taken = BTreeSet::new();
    for panel in items(&dashboard["panels"]) {
        let title = panel["title"].as_str().context("a panel without title")?.to_owned();
        assert!(ids.insert(panel["id"].as_u64()), "{title}: its id is taken");
        let at = |field: &str| panel["gridPos"][field].as_u64().context(field.to_owned());
        for x in at("x")?..at("x")? + at("w")? {
            for y in at("y")?..at("y")? + at("h")? {
                assert!(x < 24 && taken.insert((x, y)), "{title} lies on another panel");
            }
        }
        for target in items(&panel["targets"]) {
            assert_eq!(target["datasource"]["uid"], "${datasource}", "{title}");
            let query = target["expr"].as_str().context(title.clone())?;
            let known = check(query).with_context(|| format!("{title}: {query}"))?;
            let legend = target["legendFormat"].as_str().unwrap_or_default();
            for label in between(legend, "{{", "}}") {
                assert!(known.contains(label), "{title}: {label}");
            }
            queries += 1;
        }
    }
    assert!(queries >= 20);
    let mut variables = Vec::new();
    for variable in items(&dashboard["templating"]["list"]) {
        variables.push(variable["name"].as_str().unwrap_or_default().to_owned());
        if let Some(query) = variable["query"]["query"].as_str() {
            check(query).with_context(|| query.to_owned())?;
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
        for object in objects(path)? {
            if object["kind"] == "PrometheusRule" {
                let groups = items(&object["spec"]["groups"]);
                found.0 += groups.map(|group| items(&group["rules"]).count()).sum::<usize>();
            } else if let Some(text) = object["data"]["shunt.json"].as_str() {
                assert_eq!(serde_json::from_str::<Value>(text)?, dashboard, "{path}");
                found.1 += 1;
            }
        }
        assert_eq!(found, (count, 1), "{path}");
    }
    Ok(())
}

#[test]
fn prometheus_finds_the_agents() -> Result<()> {
    let daemon_sets = daemon_sets()?;
    let has = |labels: &Value, selector: &Value| {
        selector.as_object().is_some_and(|it| it.iter().all(|(key, value)| labels[key] == *value))
    };
    let mut monitors = 0;
    for path in RENDERED {
        let objects = objects(path)?;
        let of = |kind: &str| objects.iter().find(|object| object["kind"] == kind);
        let Some((service, monitor)) = of("Service").zip(of("ServiceMonitor")) else { continue };
        monitors += 1;
        let (labels, spec) = (&service["metadata"]["labels"], &monitor["spec"]);
        assert!(has(labels, &spec["selector"]["matchLabels"]), "{path}");
        // The alerts and the dashboard ask for this job.
        assert_eq!(labels[spec["jobLabel"].as_str().context(path)?], "shunt", "{path}");
        let port = &service["spec"]["ports"][0];
        assert_eq!(port["name"], spec["endpoints"][0]["port"], "{path}");
        // The monitoring of a kustomization watches the agents of its base.
        let of = if path.contains("kustomize/monitoring") { RENDERED[0] } else { path };
        let (_, daemon_set) = daemon_sets.iter().find(|(path, _)| *path == of).context(path)?;
        let template = &daemon_set["spec"]["template"];
        assert!(has(&template["metadata"]["labels"], &service["spec"]["selector"]), "{path}");
        let mut ports = items(&template["spec"]["containers"][0]["ports"]);
        let metrics = ports.find(|port| port["name"] == "metrics").context(path)?;
        assert_eq!(metrics["containerPort"], port["port"], "{path}");
    }
    assert_eq!(monitors, 3);
    Ok(())
}
