//! Commands of the pages that install the chart: their files and values exist.

use std::fs;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::{objects, read, repository};

/// The folders with pages.
const FOLDERS: [&str; 5] = ["", "docs", "deploy", "deploy/chart", "deploy/guides"];
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
    let values = objects("deploy/chart/values.yaml")?.remove(0);
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
                        // The page that all platforms share has a placeholder.
                        "--values" => value == "VALUES" || repository(value).is_file(),
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
    assert!(commands > 10, "{commands} commands");
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

/// Returns the paths of all values, and of sections whose fields are free.
fn paths(values: &Value, prefix: &str) -> Vec<String> {
    let fields = values.as_object().filter(|it| !it.is_empty() && !prefix.ends_with("labels"));
    let Some(fields) = fields.filter(|_| !["nodeSelector", "resources"].contains(&prefix)) else {
        return vec![prefix.to_owned()];
    };
    let path =
        |name: &String| format!("{prefix}{}{name}", if prefix.is_empty() { "" } else { "." });
    fields.iter().flat_map(|(name, value)| paths(value, &path(name))).collect()
}

#[test]
fn readme_of_the_chart_has_every_value() -> Result<()> {
    let values = objects("deploy/chart/values.yaml")?.remove(0);
    let readme = read("deploy/chart/README.md")?;
    let all = paths(&values, "");
    let missing: Vec<_> = all.iter().filter(|it| !readme.contains(&format!("`{it}`"))).collect();
    assert!(missing.is_empty() && all.len() > 30, "{missing:?} of {}", all.len());
    Ok(())
}

/// A running agent programs missing rules again, and both helm and a changed label return before it ends.
#[test]
fn guides_wait_for_the_end_of_agents_before_they_remove_the_rules() -> Result<()> {
    let mut ways_back = 0;
    for entry in fs::read_dir(repository("deploy/guides"))? {
        let path = entry?.path();
        let is_guide = path.extension().is_some_and(|it| it == "md");
        if !is_guide || path.ends_with("node-by-node.md") || path.ends_with("not-supported.md") {
            continue;
        }
        let text = fs::read_to_string(&path)?;
        assert!(text.contains("(node-by-node.md#back)"), "{}", path.display());
        assert!(!text.contains("helm uninstall"), "{}", path.display());
        ways_back += 1;
    }
    assert_eq!(ways_back, 4);
    let text = read("deploy/guides/node-by-node.md")?;
    let (_, steps) = text.split_once("\n## Back\n").context("no way back")?;
    let steps = steps.replace("\\\n", " ");
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
    assert!(ends.all(waits), "{steps}");
    assert!(steps.contains("shunt:0.1.0 cleanup"), "{steps}");
    Ok(())
}
