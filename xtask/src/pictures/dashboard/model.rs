//! A dashboard as Grafana reads it: the parts that a picture needs.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, bail};
use serde::Deserialize;

use super::unit::Unit;

#[derive(Deserialize)]
pub(super) struct Dashboard {
    pub(super) title: String,
    pub(super) panels: Vec<Panel>,
    templating: Templating,
}

#[derive(Deserialize)]
struct Templating {
    list: Vec<Variable>,
}

/// A variable that a reader of the dashboard sets.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Variable {
    pub(super) name: String,
    pub(super) label: String,
    #[serde(rename = "type")]
    kind: String,
    query: serde_json::Value,
    /// What a query gets if the reader chooses all values.
    all_value: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Kind {
    Row,
    Stat,
    Timeseries,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Panel {
    pub(super) title: String,
    #[serde(rename = "type")]
    pub(super) kind: Kind,
    #[serde(default)]
    pub(super) description: String,
    pub(super) grid_pos: GridPos,
    #[serde(default)]
    pub(super) targets: Vec<Target>,
    #[serde(default)]
    field_config: FieldConfig,
    #[serde(default)]
    options: Options,
}

/// A place, in columns and rows of the grid.
#[derive(Clone, Copy, Deserialize)]
pub(super) struct GridPos {
    pub(super) x: u32,
    pub(super) y: u32,
    pub(super) w: u32,
    pub(super) h: u32,
}

/// A query and the name of its series.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Target {
    pub(super) expr: String,
    pub(super) legend_format: String,
}

#[derive(Default, Deserialize)]
struct FieldConfig {
    defaults: Field,
}

#[derive(Default, Deserialize)]
struct Field {
    unit: Option<Unit>,
    decimals: Option<usize>,
    thresholds: Option<Thresholds>,
}

#[derive(Deserialize)]
struct Thresholds {
    steps: Vec<Step>,
}

#[derive(Deserialize)]
struct Step {
    color: String,
    value: Option<f64>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Options {
    color_mode: Option<ColorMode>,
}

/// What a threshold colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum ColorMode {
    Value,
    Background,
}

impl Dashboard {
    pub(super) fn parse(text: &[u8]) -> Result<Self> {
        serde_json::from_slice(text).context("no dashboard that a picture can be made of")
    }

    /// The variables whose values Prometheus has, with the selector and the label of the values.
    pub(super) fn asked(&self) -> Result<Vec<(&Variable, &str, &str)>> {
        let variables = self.templating.list.iter().filter(|it| it.kind == "query");
        let parts = variables.map(|variable| {
            let query = variable.query["query"].as_str().unwrap_or_default();
            let inner = query.strip_prefix("label_values(").and_then(|it| it.strip_suffix(')'));
            let parts = inner.and_then(|inner| inner.rsplit_once(','));
            let (selector, label) =
                parts.with_context(|| format!("variable {}: {query:?}", variable.name))?;
            Ok((variable, selector.trim(), label.trim()))
        });
        parts.collect()
    }

    /// Returns an expression as Grafana sends it if a reader chooses all values of all variables.
    /// `built_in` has the values of Grafana's own variables.
    pub(super) fn replace_variables(
        &self,
        expression: &str,
        built_in: &BTreeMap<&str, String>,
    ) -> Result<String> {
        let mut parts = expression.split('$');
        let mut text = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let (name, rest) = match part.strip_prefix('{') {
                Some(part) => part.split_once('}').context("a variable without end")?,
                None => {
                    let end = part.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
                    part.split_at(end.unwrap_or(part.len()))
                }
            };
            let variable = || self.templating.list.iter().find(|variable| variable.name == name);
            match built_in.get(name).or_else(|| variable()?.all_value.as_ref()) {
                Some(value) => text += value,
                None => bail!("a picture needs a value of ${name}"),
            }
            text += rest;
        }
        Ok(text)
    }
}

impl Panel {
    pub(super) fn unit(&self) -> Unit {
        self.field_config.defaults.unit.unwrap_or(Unit::Short)
    }

    pub(super) fn decimals(&self) -> Option<usize> {
        self.field_config.defaults.decimals
    }

    pub(super) fn color_mode(&self) -> ColorMode {
        self.options.color_mode.unwrap_or(ColorMode::Value)
    }

    /// Returns the name of the colour of a value.
    pub(super) fn colour(&self, value: f64) -> &str {
        let steps = self.field_config.defaults.thresholds.iter().flat_map(|it| &it.steps);
        let mut reached = steps.filter(|step| step.value.is_none_or(|least| value >= least));
        reached.next_back().map_or("green", |step| &step.color)
    }
}

impl Target {
    /// Returns the name of a series in the legend.
    pub(super) fn legend(&self, labels: &BTreeMap<String, String>) -> String {
        let mut parts = self.legend_format.split("{{");
        let mut text = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let (label, rest) = part.split_once("}}").unwrap_or((part, ""));
            text += labels.get(label.trim()).map_or("", String::as_str);
            text += rest;
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DASHBOARD: &str = r#"{
        "title": "t",
        "panels": [{
            "title": "p", "type": "stat", "gridPos": {"x": 0, "y": 1, "w": 4, "h": 4},
            "targets": [{"expr": "up", "legendFormat": "{{a}}, {{ b }}!"}],
            "fieldConfig": {"defaults": {"unit": "short", "thresholds": {"steps": [
                {"color": "green", "value": null}, {"color": "red", "value": 1}]}}},
            "options": {"colorMode": "background"}
        }],
        "templating": {"list": [
            {"name": "datasource", "label": "d", "type": "datasource", "query": "prometheus"},
            {"name": "node", "label": "n", "type": "query", "allValue": ".*",
             "query": {"query": "label_values(up{job=\"a,b\"}, node)"}}
        ]}
    }"#;

    #[test]
    fn variables_are_replaced_and_unknown_ones_are_an_error() {
        let dashboard = Dashboard::parse(DASHBOARD.as_bytes()).unwrap();
        let built_in = BTreeMap::from([("__rate_interval", "4s".to_owned())]);
        let replaced = |text| dashboard.replace_variables(text, &built_in);
        assert_eq!(
            replaced("rate(x{node=~\"$node\"}[$__rate_interval]) + ${__rate_interval}").unwrap(),
            "rate(x{node=~\".*\"}[4s]) + 4s"
        );
        assert_eq!(replaced("up").unwrap(), "up");
        let error = replaced("x[$__range]").unwrap_err().to_string();
        assert!(error.contains("$__range"), "{error}");
        let asked = dashboard.asked().unwrap();
        let asked: Vec<_> =
            asked.iter().map(|(it, select, by)| (&*it.name, *select, *by)).collect();
        assert_eq!(asked, [("node", "up{job=\"a,b\"}", "node")]);
    }

    #[test]
    fn threshold_and_legend_are_those_of_the_value_and_the_labels() {
        let dashboard = Dashboard::parse(DASHBOARD.as_bytes()).unwrap();
        let panel = &dashboard.panels[0];
        assert_eq!([0.0, 1.0, 2.0].map(|value| panel.colour(value)), ["green", "red", "red"]);
        assert_eq!(panel.color_mode(), ColorMode::Background);
        let labels = BTreeMap::from([("b".to_owned(), "x".to_owned())]);
        assert_eq!(panel.targets[0].legend(&labels), ", x!");
    }
}
