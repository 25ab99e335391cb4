//! `shunt history -o json`, from which other commands know what the rules said at a time.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use shunt_testbed::eventually;

use crate::world::{SHUNT, World, http_service, http_slices, run_shunt};

#[test]
fn an_export_tells_what_the_rules_said_at_a_time() -> Result<()> {
    let world = World::new()?;
    let service = http_service("web", &["10.96.0.10", "fd00:96::10"]);
    let both = http_slices("web", &[&world.lab.pod1, &world.lab.pod2]);
    world.manifests.write("web.yaml", format!("{service}{both}"))?;
    let _agent = world.start()?;
    let history = |more: &[&str]| -> Result<Value> {
        let words: Vec<&str> = ["history", "-o", "json"].iter().chain(more).copied().collect();
        let output = run_shunt(&world.lab.node, &words)?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Ok(serde_json::from_slice(&output.stdout)?)
    };
    let since = eventually("a first sync", || {
        Ok(history(&[])?["since"]
            .as_str()
            .filter(|since| !since.starts_with("1970"))
            .map(str::to_owned))
    })?;
    let slices = http_slices("web", &[&world.lab.pod1]);
    world.manifests.write("web.yaml", format!("{service}{slices}"))?;
    let has_changed = |history: &Value| history.to_string().contains(" removed");
    eventually("one left", || Ok(Some(history(&[])?).filter(has_changed).map(drop)))?;
    world.manifests.remove("web.yaml")?;
    let is_gone = |history: &Value| history.to_string().contains("the Service is gone");
    let all = eventually("it left", || Ok(Some(history(&[])?).filter(is_gone)))?;
    let left = |all: &Value| -> Option<String> {
        let changes = all["changes"].as_array()?;
        let left = changes.iter().find(|change| change["what"] == "10.244.0.12 removed")?;
        Some(left["at"].as_str()?.to_owned())
    };
    let left = left(&all).context("nobody left")?;

    // Without the agent and without its namespace, as on another machine.
    let file = world.manifests.path().with_extension("json");
    std::fs::write(&file, all.to_string())?;
    let explain = |file: &std::path::Path, service: &str, at: &str| -> Result<Value> {
        let words = ["explain", "-o", "json", service, "--at", at, "--manifests"];
        let output = Command::new(SHUNT).args(words).arg(file).output()?;
        let text = String::from_utf8_lossy(&output.stderr);
        serde_json::from_slice(&output.stdout).with_context(|| text.into_owned())
    };
    let used = |explained: &Value| -> usize {
        let frontends = explained["frontends"].as_array().into_iter().flatten();
        let endpoints = frontends.flat_map(|it| it["endpoints"].as_array().into_iter().flatten());
        endpoints.filter(|endpoint| endpoint["used"] == true).count()
    };
    assert_eq!(used(&explain(&file, "default/web", &since)?), 4);
    assert_eq!(used(&explain(&file, "default/web", &left)?), 2);
    assert_eq!(used(&explain(&file, "default/web", "0s")?), 0);
    let early = explain(&file, "default/web", "2020-01-01T00:00:00Z").unwrap_err().to_string();
    assert!(early.contains("the history begins at"), "{early}");

    std::fs::remove_file(&file)?;
    Ok(())
}
