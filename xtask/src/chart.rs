//! `cargo xtask chart`: what the chart and the kustomizations come to, rendered by the real programs
//! and kept in the repository, where tests look at it and people can apply it.
//!
//! helm is in no distribution's packages, so not everybody who runs the tests has it. Each rendering
//! therefore names a digest of itself and of all that it is made from: a test sees that the chart was
//! changed and not rendered again, or that a rendering was edited by hand, without rendering anything.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, bail, ensure};
use sha2::{Digest as _, Sha256};

use crate::command::{command, find, repository, run, stdout};

const CHART: &str = "deploy/chart";
const KUSTOMIZE: &str = "deploy/kustomize";

/// A file that is rendered, and the arguments of `helm template`, or the folder that `kubectl kustomize`
/// renders.
type Rendering = (&'static str, &'static [&'static str]);

const RENDERINGS: [Rendering; 12] = [
    ("deploy/kustomize/base/shunt.yaml", &["--set=apiServer.host=replace-me.invalid"]),
    (
        "deploy/kustomize/monitoring/monitoring.yaml",
        &[
            "--show-only=templates/monitoring.yaml",
            "--set=apiServer.host=replace-me.invalid",
            "--set=metrics.bindAddress=0.0.0.0",
            "--set=monitoring.serviceMonitor.enabled=true",
            "--set=monitoring.rules.enabled=true",
            "--set=monitoring.dashboard.enabled=true",
        ],
    ),
    (
        "deploy/guides/check.yaml",
        &["--set=apiServer.host=replace-me.invalid", "--set=check.jobNodes={node-to-check}"],
    ),
    // Names of nodes that are alike until after the longest name of a Job.
    (
        "tests/fixtures/chart/jobs.yaml",
        &[
            "--show-only=templates/check.yaml",
            "--set=apiServer.host=replace-me.invalid",
            "--set=check.jobNodes[0]=gpu-1.rack-12.row-3.hall-1.frankfurt-main-1.dc.example.com",
            "--set=check.jobNodes[1]=gpu-1.rack-12.row-3.hall-1.frankfurt-main-1.dc.example.org",
        ],
    ),
    ("tests/fixtures/chart/kubeadm.yaml", &["--values=deploy/values/kubeadm.yaml"]),
    ("tests/fixtures/chart/k3s.yaml", &["--values=deploy/values/k3s.yaml"]),
    ("tests/fixtures/chart/rke2.yaml", &["--values=deploy/values/rke2.yaml"]),
    ("tests/fixtures/chart/kind.yaml", &["--values=deploy/values/kind.yaml"]),
    ("tests/fixtures/chart/eks.yaml", &["--values=deploy/values/eks.yaml"]),
    ("tests/fixtures/chart/talos.yaml", &["--values=deploy/values/talos.yaml"]),
    (
        "tests/fixtures/chart/everything.yaml",
        &["--values=tests/fixtures/chart/everything.values.yaml"],
    ),
    // Last, because it is made from renderings above.
    ("tests/fixtures/chart/kustomize-example.yaml", &["deploy/kustomize/example"]),
];

/// The line of a rendering that has its digest.
const DIGEST: &str = "# sha256 of this and of what it is made from: ";

/// Lines that say that helm made an object, which it did not in the cluster.
const OF_HELM: [&str; 3] = ["# Source: ", "app.kubernetes.io/managed-by: ", "helm.sh/chart: "];

/// Values that the chart refuses, and a part of what it says then.
const REFUSALS: [(&[&str], &str); 9] = [
    (&[], "apiServer.host must be given"),
    (&["--set=apiServer.host=10.0.0.1:6443"], "without port and brackets"),
    (&["--set=apiServer.host=api.example.net:6443"], "without port and brackets"),
    (&["--set=apiServer.host=[fd00::1]"], "without port and brackets"),
    (&["--set=apiServer.host=kubernetes.default.svc"], "a name of the cluster's DNS"),
    (
        &["--set=apiServer.host=10.0.0.1", "--set=monitoring.serviceMonitor.enabled=true"],
        "needs a metrics.bindAddress that Prometheus can reach",
    ),
    (
        &["--set=existingConfigMap=kube-proxy", "--set=monitoring.serviceMonitor.enabled=true"],
        "into the ConfigMap kube-proxy",
    ),
    (
        &["--set=apiServer.host=10.0.0.1", "--set=existingKubeconfigConfigMap=kube-proxy"],
        "belongs to a configuration in existingConfigMap",
    ),
    (
        &["--set=apiServer.host=10.0.0.1", "--set=config.shunt.loadBalancing=maglev"],
        "loadBalancing",
    ),
];

/// The chart refuses what cannot work, and says why.
fn check_refusals() -> Result<()> {
    for (arguments, reason) in REFUSALS {
        let mut helm = command("helm");
        helm.args(["template", "shunt", CHART, "--namespace=kube-system"]).args(arguments);
        let output = helm.output().context("cannot run helm")?;
        let said = String::from_utf8_lossy(&output.stderr);
        if output.status.success() || !said.contains(reason) {
            bail!("the chart does not refuse {arguments:?} with {reason:?}, it prints: {said}");
        }
    }
    Ok(())
}

/// Render everything anew.
pub(crate) fn render() -> Result<()> {
    if let Some(missing) = missing() {
        bail!("`{missing}` not found: install it (no distribution packages both helm and kubectl)");
    }
    lint()?;
    check_refusals()?;
    for rendering in &RENDERINGS {
        let text = rendered(rendering)?;
        fs::write(repository().join(rendering.0), text)?;
        println!("wrote {}", rendering.0);
    }
    Ok(())
}

/// Where helm and kubectl are installed, check that they still come to the same; elsewhere the test of
/// the digests has to do.
pub(crate) fn check() -> Result<()> {
    if let Some(missing) = missing() {
        println!("`{missing}` not found: checking only the digests of the renderings");
        return Ok(());
    }
    lint()?;
    check_refusals()?;
    for rendering in &RENDERINGS {
        let fresh = rendered(rendering)? == read(rendering.0)?;
        ensure!(fresh, "{} is not up to date; run `cargo xtask chart`", rendering.0);
    }
    println!("the renderings of the chart and of the kustomizations are up to date");
    Ok(())
}

fn missing() -> Option<&'static str> {
    ["helm", "kubectl"].into_iter().find(|program| find(program).is_none())
}

fn lint() -> Result<()> {
    run(command("helm").args(["lint", "--strict", "--quiet", CHART]))
}

/// The folder of a kustomization.
fn kustomization((_, arguments): &Rendering) -> Option<&'static str> {
    arguments.first().copied().filter(|argument| !argument.starts_with("--"))
}

fn rendered(rendering: &Rendering) -> Result<String> {
    let (head, text) = match kustomization(rendering) {
        Some(folder) => (folder, stdout(command("kubectl").args(["kustomize", folder]))?),
        None => {
            let mut helm = command("helm");
            helm.args(["template", "shunt", CHART, "--namespace=kube-system"]).args(rendering.1);
            ("the chart", stdout(&mut helm)?)
        }
    };
    let body = without_traces_of_helm(&text);
    let digest = digest(rendering, &body)?;
    Ok(format!(
        "# Made from {head} by `cargo xtask chart`; change it there.\n{DIGEST}{digest}\n{body}"
    ))
}

/// Over the rendering, and over every file that it is made from.
fn digest(rendering: &Rendering, body: &str) -> Result<String> {
    let mut files = Vec::new();
    if kustomization(rendering).is_some() {
        collect(Path::new(KUSTOMIZE), &mut files)?;
    } else {
        collect(Path::new(CHART), &mut files)?;
        // helm renders no pages.
        files.retain(|file| !file.ends_with(".md"));
        let words = rendering.1.iter().map(|word| word.trim_start_matches("--values="));
        files.extend(words.map(str::to_owned));
    }
    let mut all = Sha256::new();
    for file in &files {
        let text = if file.starts_with("--") { String::new() } else { read(file)? };
        for part in [file.as_str(), &text] {
            all.update((part.len() as u64).to_be_bytes());
            all.update(part);
        }
    }
    all.update(body);
    Ok(all.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Leaves out what depends on helm: its comments and labels, and blank lines at the end of a document,
/// which not every version writes.
fn without_traces_of_helm(text: &str) -> String {
    let kept = text.lines().filter(|line| !OF_HELM.iter().any(|it| line.trim().starts_with(it)));
    let mut all = String::new();
    for line in kept.map(str::trim_end) {
        if line == "---" {
            end_document(&mut all);
        }
        all += line;
        all.push('\n');
    }
    end_document(&mut all);
    all
}

fn end_document(text: &mut String) {
    text.truncate(text.trim_end().len());
    if !text.is_empty() {
        text.push('\n');
    }
}

/// All files below a folder of the repository, in order.
fn collect(folder: &Path, files: &mut Vec<String>) -> Result<()> {
    let unreadable = || format!("cannot list {}", folder.display());
    let mut names = fs::read_dir(repository().join(folder))
        .with_context(unreadable)?
        .map(|entry| Ok(entry?.file_name()))
        .collect::<std::io::Result<Vec<_>>>()
        .with_context(unreadable)?;
    names.sort();
    for name in names {
        let path = folder.join(name);
        if repository().join(&path).is_dir() {
            collect(&path, files)?;
        } else {
            files.push(path.display().to_string());
        }
    }
    Ok(())
}

fn read(path: &str) -> Result<String> {
    fs::read_to_string(repository().join(path)).with_context(|| format!("cannot read {path}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rendering_is_that_of_the_chart_as_it_is() {
        for rendering in &RENDERINGS {
            let text = read(rendering.0).unwrap();
            let (_, rest) = text.split_once(DIGEST).expect(rendering.0);
            let (written, body) = rest.split_once('\n').expect(rendering.0);
            assert_eq!(
                written,
                digest(rendering, body).unwrap(),
                "{} does not belong to the chart or the kustomization as it is now: \
                 run `cargo xtask chart`, with helm and kubectl installed",
                rendering.0
            );
        }
    }

    #[test]
    fn what_helm_says_of_itself_is_left_out() {
        let text = "# Source: shunt/x.yaml\na:\n  helm.sh/chart: shunt-0.1.0\n  b: c  \n";
        assert_eq!(without_traces_of_helm(text), "a:\n  b: c\n");
        let text = "---\na: |\n  b\n\n  c\n\n---\nd: e\n\n";
        assert_eq!(without_traces_of_helm(text), "---\na: |\n  b\n\n  c\n---\nd: e\n");
    }
}
