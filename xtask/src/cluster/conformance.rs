//! The page with the results of upstream's tests: what it had of the other proxy stays.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use serde_json::Value;

const PROXIES: [&str; 2] = ["shunt", "kube-proxy"];
const FACTS: [&str; 6] =
    ["date", "version", "Kubernetes and its tests", "kernel", "passed", "failed"];

const HEAD: &str = "\
# Upstream's tests

`cargo xtask cluster e2e` runs the specs of sig-network in Kubernetes' own `e2e.test`, unmodified, in a cluster of three
nodes with IPv4 and IPv6, and writes this page. [The list of specs that it leaves out](../tests/cluster/skip.txt) has a
reason for each. A spec that skips itself is not listed. Of one that ran again, the last outcome counts.

";

/// The cells of a table by the first one.
type Rows = BTreeMap<String, [String; 2]>;

/// Returns the page with the results in `report`, which ginkgo has written as JSON.
pub(super) fn merge(page: &str, proxy: &str, head: [String; 4], report: &str) -> Result<String> {
    let column = PROXIES.iter().position(|it| *it == proxy).context("an unknown proxy")?;
    let mut rows = rows(page);
    rows.values_mut().for_each(|cells| cells[column].clear());
    let (mut passed, mut failed) = (0, 0);
    for (spec, outcome) in outcomes(report)? {
        *if outcome == "passed" { &mut passed } else { &mut failed } += 1;
        rows.entry(spec).or_default()[column] = outcome;
    }
    let facts = head.into_iter().chain([passed.to_string(), failed.to_string()]);
    for (name, fact) in FACTS.iter().zip(facts) {
        rows.entry((*name).to_owned()).or_default()[column] = fact;
    }
    let line = |name: &str, [shunt, kube_proxy]: &[String; 2]| {
        format!("| {name} | {shunt} | {kube_proxy} |\n")
    };
    let mut text = HEAD.to_owned() + "| | shunt | kube-proxy |\n| --- | --- | --- |\n";
    for name in FACTS {
        text += &line(name, &rows.remove(name).unwrap_or_default());
    }
    text += "\n| spec | shunt | kube-proxy |\n| --- | --- | --- |\n";
    for (name, cells) in rows.iter().filter(|(_, cells)| cells.iter().any(|it| !it.is_empty())) {
        text += &line(name, cells);
    }
    Ok(text)
}

/// Reads the rows of a page.
fn rows(page: &str) -> Rows {
    let cells = |line: &str| -> Option<(String, [String; 2])> {
        let mut cells = line.strip_prefix("| ")?.strip_suffix('|')?.split('|').map(str::trim);
        let (name, shunt, kube_proxy) = (cells.next()?, cells.next()?, cells.next()?);
        let is_row = !["", "spec", "---"].contains(&name);
        is_row.then(|| (name.to_owned(), [shunt, kube_proxy].map(str::to_owned)))
    };
    page.lines().filter_map(cells).collect()
}

/// Returns the specs that ran. One that ran again after a failure has its last outcome.
fn outcomes(report: &str) -> Result<BTreeMap<String, String>> {
    let suites: Vec<Value> = serde_json::from_str(report).context("ginkgo's report is no JSON")?;
    let mut outcomes = BTreeMap::new();
    for suite in &suites {
        for spec in suite["SpecReports"].as_array().into_iter().flatten() {
            let state = spec["State"].as_str().unwrap_or_default();
            if spec["LeafNodeType"] != "It" || ["skipped", "pending"].contains(&state) {
                continue;
            }
            let containers = spec["ContainerHierarchyTexts"].as_array().into_iter().flatten();
            let words = containers.chain([&spec["LeafNodeText"]]).filter_map(Value::as_str);
            // A cell has no bars.
            let name = words.collect::<Vec<_>>().join(" ").replace('|', "/");
            outcomes.insert(name, state.to_owned());
        }
    }
    Ok(outcomes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: &str = r#"[{"SpecReports": [
        {"LeafNodeType": "BeforeSuite", "State": "passed", "LeafNodeText": ""},
        {"LeafNodeType": "It", "State": "passed", "ContainerHierarchyTexts": ["[sig-network] Services"],
         "LeafNodeText": "should serve"},
        {"LeafNodeType": "It", "State": "failed", "ContainerHierarchyTexts": [], "LeafNodeText": "a|b"},
        {"LeafNodeType": "It", "State": "skipped", "ContainerHierarchyTexts": [], "LeafNodeText": "sctp"}
    ]}]"#;

    fn head(date: &str) -> [String; 4] {
        [date, "1", "2", "3"].map(str::to_owned)
    }

    #[test]
    fn a_run_replaces_its_own_column_only() {
        let first = merge("", "kube-proxy", head("yesterday"), REPORT).unwrap();
        assert!(first.contains("| [sig-network] Services should serve |  | passed |\n"), "{first}");
        let again = r#"[{"SpecReports": [{"LeafNodeType": "It", "State": "passed",
            "ContainerHierarchyTexts": [], "LeafNodeText": "a|b"}]}]"#;
        let both = merge(&first, "shunt", head("today"), again).unwrap();
        for row in
            ["| date | today | yesterday |", "| passed | 1 | 1 |", "| a/b | passed | failed |"]
        {
            assert!(both.lines().any(|line| line == row), "{row}: {both}");
        }
        let last = merge(&both, "kube-proxy", head("today"), "[]").unwrap();
        assert!(!last.contains("should serve"), "{last}");
        assert_eq!(last, merge(&last, "kube-proxy", head("today"), "[]").unwrap());
    }
}
