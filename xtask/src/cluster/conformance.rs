//! The results of upstream's tests: all of them as JSON, and a page with what a reader looks for. Results
//! of other proxies and families stay.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};
use serde_json::Value;

const HEAD: &str = "\
# Upstream's tests

`cargo xtask cluster e2e` runs the specs of sig-network in Kubernetes' own `e2e.test` (1.36.2), unmodified, in a cluster of
three nodes with IPv4 and IPv6 (dual), or one of them. It writes [all outcomes](conformance.json) and this page. [What it leaves
out](../tests/cluster/skip.txt) has a reason each. Of a spec that ran again, the last outcome counts.

";

/// The results of one proxy in clusters with the same families.
#[derive(Default, Serialize, Deserialize)]
pub(super) struct Results {
    pub(super) date: String,
    pub(super) version: String,
    pub(super) kernel: String,
    /// Requests during rolling updates: the failed ones, and all.
    #[serde(default)]
    pub(super) rolling_updates: [u64; 2],
    /// The outcomes, by spec.
    #[serde(default)]
    pub(super) specs: BTreeMap<String, String>,
}

/// The results by families and proxy.
type All = BTreeMap<String, Results>;

/// Puts the results of a run, which ginkgo has reported as JSON, in place of the subject's old ones; of
/// a run of some specs, only their outcomes. Returns all results as JSON, and the page.
pub(super) fn merge(
    old: &str,
    subject: &str,
    mut results: Results,
    report: &str,
    is_part: bool,
) -> Result<[String; 2]> {
    let mut all: All = match old {
        "" => All::new(),
        _ => serde_json::from_str(old).context("the results so far are no JSON")?,
    };
    let suites: Vec<Value> = serde_json::from_str(report).context("ginkgo's report is no JSON")?;
    let specs: Vec<&Value> =
        suites.iter().filter_map(|suite| suite["SpecReports"].as_array()).flatten().collect();
    results.specs = outcomes(&specs);
    results.rolling_updates = requests(&specs);
    match all.get_mut(subject).filter(|_| is_part) {
        Some(known) => known.specs.append(&mut results.specs),
        None => drop(all.insert(subject.to_owned(), results)),
    }
    Ok([serde_json::to_string_pretty(&all)? + "\n", page(&all)?])
}

/// Writes the page.
pub(super) fn page(all: &All) -> Result<String> {
    let subjects: Vec<&str> = all.keys().map(String::as_str).collect();
    let head = |first| {
        format!(
            "| {first} | {} |\n|{}\n",
            subjects.join(" | "),
            " --- |".repeat(subjects.len() + 1)
        )
    };
    let row = |text: &mut String, name: &str, cell: &dyn Fn(&Results) -> String| {
        let cells: Vec<String> = all.values().map(cell).collect();
        writeln!(text, "| {name} | {} |", cells.join(" | "))
    };
    let passed = |it: &Results| {
        let passed = it.specs.values().filter(|outcome| *outcome == "passed").count();
        format!("{passed} of {}", it.specs.len())
    };
    let mut text = HEAD.to_owned() + &head("");
    row(&mut text, "date", &|it| it.date.clone())?;
    row(&mut text, "version", &|it| it.version.clone())?;
    row(&mut text, "kernel", &|it| it.kernel.clone())?;
    row(&mut text, "passed", &passed)?;
    row(&mut text, "requests that failed during rolling updates", &|it| {
        let [failed, all] = it.rolling_updates;
        if all == 0 { String::new() } else { format!("{failed} of {all}") }
    })?;
    let specs: BTreeSet<&str> =
        all.values().flat_map(|it| it.specs.keys()).map(String::as_str).collect();
    let outcome = |it: &Results, spec: &str| it.specs.get(spec).cloned();
    let is_passed_everywhere = |spec: &&str| {
        all.values().all(|it| outcome(it, spec).is_none_or(|outcome| outcome == "passed"))
    };
    let others: Vec<&str> = specs.into_iter().filter(|spec| !is_passed_everywhere(spec)).collect();
    if others.is_empty() {
        return Ok(text + "\nEach spec passed wherever it ran.\n");
    }
    writeln!(text, "\nSpecs that did not pass everywhere:\n\n{}", head("spec").trim_end())?;
    for spec in others {
        row(&mut text, spec, &|it| outcome(it, spec).unwrap_or_else(|| "did not run".to_owned()))?;
    }
    Ok(text)
}

/// Returns the specs that ran. One that ran again after a failure has its last outcome.
fn outcomes(specs: &[&Value]) -> BTreeMap<String, String> {
    let mut outcomes = BTreeMap::new();
    for spec in specs {
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
    outcomes
}

/// Returns how many requests of the specs of rolling updates failed, and how many there were. They log both.
fn requests(specs: &[&Value]) -> [u64; 2] {
    let logs = specs.iter().filter_map(|spec| spec["CapturedGinkgoWriterOutput"].as_str());
    let lines: Vec<&str> = logs.flat_map(str::lines).collect();
    let sum = |words: &str| -> u64 {
        let numbers =
            lines.iter().filter_map(|line| line.split_once(words)?.1.trim().parse::<u64>().ok());
        numbers.sum()
    };
    [sum("] Network errors:") + sum("] HTTP errors:"), sum("] Load Balancer total HTTP requests:")]
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: &str = r#"[{"SpecReports": [
        {"LeafNodeType": "BeforeSuite", "State": "passed", "LeafNodeText": ""},
        {"LeafNodeType": "It", "State": "passed", "ContainerHierarchyTexts": ["[sig-network] Services"],
         "LeafNodeText": "should serve", "CapturedGinkgoWriterOutput":
         "I1126 10:00:00.1 7 a.go:1] Load Balancer total HTTP requests: 300\nI1126 a.go:2] Network errors: 2\nI1126 a.go:3] HTTP errors: 1\n"},
        {"LeafNodeType": "It", "State": "failed", "ContainerHierarchyTexts": [], "LeafNodeText": "a|b"},
        {"LeafNodeType": "It", "State": "skipped", "ContainerHierarchyTexts": [], "LeafNodeText": "sctp"}
    ]}]"#;

    fn head(date: &str) -> Results {
        Results { date: date.to_owned(), ..Results::default() }
    }

    #[test]
    fn a_run_replaces_its_own_results_only() {
        let [first, page] = merge("", "dual kube-proxy", head("yesterday"), REPORT, false).unwrap();
        assert!(page.contains("| a/b | failed |\n"), "{page}");
        let again = r#"[{"SpecReports": [
            {"LeafNodeType": "It", "State": "passed", "ContainerHierarchyTexts": [], "LeafNodeText": "a|b"},
            {"LeafNodeType": "It", "State": "passed", "LeafNodeText": "should serve",
             "ContainerHierarchyTexts": ["[sig-network] Services"]}]}]"#;
        let [both, page] = merge(&first, "dual shunt", head("today"), again, false).unwrap();
        for row in [
            "| date | yesterday | today |",
            "| passed | 1 of 2 | 2 of 2 |",
            "| requests that failed during rolling updates | 3 of 300 |  |",
            "| a/b | failed | passed |",
        ] {
            assert!(page.lines().any(|line| line == row), "{row}: {page}");
        }
        assert!(!page.contains("should serve"), "{page}");
        let [_, last] = merge(&both, "ipv4 shunt", head("today"), "[]", false).unwrap();
        assert!(last.contains("| a/b | failed | passed | did not run |\n"), "{last}");
        let part = r#"[{"SpecReports": [{"LeafNodeType": "It", "State": "passed", "LeafNodeText": "a|b"}]}]"#;
        let [_, last] = merge(&both, "dual kube-proxy", head("later"), part, true).unwrap();
        assert!(last.contains("| date | yesterday | today |\n| version |"), "{last}");
        assert!(last.contains("| passed | 2 of 2 | 2 of 2 |"), "{last}");
    }

    #[test]
    fn committed_page_is_what_the_committed_results_make() {
        let all = serde_json::from_str(include_str!("../../../docs/conformance.json")).unwrap();
        assert_eq!(include_str!("../../../docs/conformance.md"), page(&all).unwrap());
    }
}
