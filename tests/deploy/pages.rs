//! Commands of the pages that install the chart: their files and values exist.

use std::fs;

use anyhow::{Context, Result};
use serde_json::Value;
use shunt::source::spanned_yaml;

use crate::kinds::strict;
use crate::{read, repository};

/// The folders with pages.
const FOLDERS: [&str; 4] = ["", "docs", "deploy", "deploy/guides"];
/// Values whose fields are free.
const FREE: [&str; 2] = ["nodeSelector", "podLabels"];

/// Returns the commands of helm in a page, each as one line.
fn commands_of_helm(text: &str) -> Vec<String> {
    let joined = text.replace("\\\n", " ");
    let lines = joined.lines().map(str::trim).filter(|line| line.starts_with("helm "));
    lines.map(str::to_owned).collect()
}

/// Returns true if the chart has a value with this path.
fn has_value(values: &Value, path: &str) -> bool {
    let (first, rest) = path.split_once('.').unwrap_or((path, ""));
    match values.get(first) {
        None => false,
        Some(_) if rest.is_empty() || FREE.contains(&first) => true,
        Some(value) => has_value(value, rest),
    }
}

#[test]
fn helm_gets_files_and_values_that_exist() -> Result<()> {
    let text = read("deploy/chart/values.yaml")?;
    let documents = spanned_yaml::parse(text.as_bytes())?;
    let values: Value = strict(documents.first().context("no values")?)?;
    let (mut commands, mut faults) = (0, Vec::new());
    for folder in FOLDERS {
        for entry in fs::read_dir(repository(folder))? {
            let path = entry?.path();
            if path.extension().is_none_or(|extension| extension != "md") {
                continue;
            }
            for command in commands_of_helm(&fs::read_to_string(&path)?) {
                commands += 1;
                let words: Vec<&str> = command.split_whitespace().collect();
                for pair in words.windows(2) {
                    let [option, value] = pair else { continue };
                    let value = value.trim_matches('\'');
                    let key = value.split('=').next().unwrap_or_default();
                    let is_fine = match *option {
                        "--values" => repository(value).is_file(),
                        "--set" => has_value(&values, key),
                        // A chart in a registry is not in the repository.
                        "shunt" | "shunt-check" if value.starts_with("oci://") => true,
                        "shunt" | "shunt-check" if value.contains('/') => {
                            repository(value).join("Chart.yaml").is_file()
                        }
                        _ => true,
                    };
                    if !is_fine {
                        faults.push(format!("{}: {option} {value}", path.display()));
                    }
                }
            }
        }
    }
    assert!(faults.is_empty(), "{faults:#?}");
    assert!(commands > 15, "{commands} commands");
    Ok(())
}

#[test]
fn quick_start_is_the_same_on_its_page_and_in_the_readme() -> Result<()> {
    let commands = |page| -> Result<Vec<String>> {
        let text = read(page)?;
        let lines = text.lines().skip_while(|line| !line.starts_with("    docker build "));
        Ok(lines.take_while(|line| line.starts_with("    ")).map(str::to_owned).collect())
    };
    let of_page = commands("docs/quick-start.md")?;
    assert_eq!(of_page.len(), 5, "{of_page:?}");
    assert_eq!(of_page, commands("README.md")?);
    let version = env!("CARGO_PKG_VERSION");
    assert!(of_page[0].contains(&format!("localhost/shunt:{version} ")), "{of_page:?}");
    Ok(())
}

/// A running agent programs missing rules again, and both helm and a changed label return before it ends.
#[test]
fn guides_wait_for_the_end_of_agents_before_they_remove_the_rules() -> Result<()> {
    let mut ways_back = 0;
    for entry in fs::read_dir(repository("deploy/guides"))? {
        let path = entry?.path();
        let text = fs::read_to_string(&path)?;
        let Some((_, back)) = text.split_once("\n## Back\n") else { continue };
        ways_back += 1;
        if !path.ends_with("verify-and-back.md") {
            assert!(back.contains("(verify-and-back.md#back)"), "{}", path.display());
            assert!(!back.contains("helm uninstall"), "{}", path.display());
            continue;
        }
        let steps = back.split("\n## ").next().unwrap_or_default().replace("\\\n", " ");
        let mut ends = steps
            .split("helm uninstall shunt")
            .skip(1)
            .chain(steps.split("kubectl label node NODE shunt-").skip(1));
        let waits = |after: &str| {
            let next = after.lines().nth(1).unwrap_or_default();
            next.contains(
                "kubectl -n kube-system wait --for=delete pod -l app.kubernetes.io/name=shunt",
            )
        };
        assert!(ends.all(waits), "{}: {steps}", path.display());
        assert!(steps.contains("shunt:0.1.0 cleanup"), "{}: {steps}", path.display());
    }
    assert_eq!(ways_back, 5);
    Ok(())
}

#[test]
fn value_that_does_not_exist_is_found() -> Result<()> {
    let values = serde_json::json!({"apiServer": {"host": ""}, "nodeSelector": {}});
    for (path, exists) in [
        ("apiServer.host", true),
        ("apiServer.name", false),
        ("nodeSelector.shunt", true),
        ("x", false),
    ] {
        assert_eq!(has_value(&values, path), exists, "{path}");
    }
    Ok(())
}
