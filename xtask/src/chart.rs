//! `cargo xtask chart`: what the chart and the kustomizations come to, rendered by the real programs
//! and kept in the repository, where tests look at it and people can apply it.
//!
//! helm is in no distribution's packages, so not everybody who runs the tests has it. Each rendering
//! therefore names a digest of itself and of all that it is made from: a test sees that the chart was
//! changed and not rendered again, or that a rendering was edited by hand, without rendering anything.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, bail};

use crate::command::{command, find, repository, run, stdout};
use crate::digest::sha256;

const CHART: &str = "deploy/chart";
const KUSTOMIZE: &str = "deploy/kustomize";

/// A file that is rendered.
struct Rendering {
    output: &'static str,
    by: Renderer,
}

/// The program that renders, and from what.
enum Renderer {
    /// `helm template` with these files of values and arguments.
    Helm { values: &'static [&'static str], arguments: &'static [&'static str] },
    /// `kubectl kustomize` of this folder.
    Kustomize(&'static str),
}

const RENDERINGS: [Rendering; 12] = [
    Rendering {
        output: "deploy/kustomize/base/shunt.yaml",
        by: Renderer::Helm { values: &[], arguments: &["--set=apiServer.host=replace-me.invalid"] },
    },
    Rendering {
        output: "deploy/kustomize/monitoring/monitoring.yaml",
        by: Renderer::Helm {
            values: &[],
            arguments: &[
                "--show-only=templates/monitoring.yaml",
                "--set=apiServer.host=replace-me.invalid",
                "--set=metrics.bindAddress=0.0.0.0",
                "--set=monitoring.serviceMonitor.enabled=true",
                "--set=monitoring.rules.enabled=true",
                "--set=monitoring.dashboard.enabled=true",
            ],
        },
    },
    Rendering {
        output: "deploy/guides/check.yaml",
        by: Renderer::Helm {
            values: &[],
            arguments: &[
                "--set=apiServer.host=replace-me.invalid",
                "--set=check.jobNodes={node-to-check}",
            ],
        },
    },
    // Names of nodes that are alike until after the longest name of a Job.
    Rendering {
        output: "tests/fixtures/chart/jobs.yaml",
        by: Renderer::Helm {
            values: &[],
            arguments: &[
                "--show-only=templates/check.yaml",
                "--set=apiServer.host=replace-me.invalid",
                "--set=check.jobNodes[0]=gpu-1.rack-12.row-3.hall-1.frankfurt-main-1.dc.example.com",
                "--set=check.jobNodes[1]=gpu-1.rack-12.row-3.hall-1.frankfurt-main-1.dc.example.org",
            ],
        },
    },
    Rendering {
        output: "tests/fixtures/chart/kubeadm.yaml",
        by: Renderer::Helm { values: &["deploy/values/kubeadm.yaml"], arguments: &[] },
    },
    Rendering {
        output: "tests/fixtures/chart/k3s.yaml",
        by: Renderer::Helm { values: &["deploy/values/k3s.yaml"], arguments: &[] },
    },
    Rendering {
        output: "tests/fixtures/chart/rke2.yaml",
        by: Renderer::Helm { values: &["deploy/values/rke2.yaml"], arguments: &[] },
    },
    Rendering {
        output: "tests/fixtures/chart/kind.yaml",
        by: Renderer::Helm { values: &["deploy/values/kind.yaml"], arguments: &[] },
    },
    Rendering {
        output: "tests/fixtures/chart/eks.yaml",
        by: Renderer::Helm { values: &["deploy/values/eks.yaml"], arguments: &[] },
    },
    Rendering {
        output: "tests/fixtures/chart/talos.yaml",
        by: Renderer::Helm { values: &["deploy/values/talos.yaml"], arguments: &[] },
    },
    Rendering {
        output: "tests/fixtures/chart/everything.yaml",
        by: Renderer::Helm {
            values: &["tests/fixtures/chart/everything.values.yaml"],
            arguments: &[],
        },
    },
    // Last, because it is made from renderings above.
    Rendering {
        output: "tests/fixtures/chart/kustomize-example.yaml",
        by: Renderer::Kustomize("deploy/kustomize/example"),
    },
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
        "takes a metrics.bindAddress that Prometheus can reach",
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
            bail!("the chart does not refuse {arguments:?} with {reason:?}: {said}");
        }
    }
    Ok(())
}

/// Render everything anew.
pub(crate) fn render() -> Result<()> {
    for program in ["helm", "kubectl"] {
        if find(program).is_none() {
            bail!("there is no `{program}` here; install it, no distribution's packages have both");
        }
    }
    lint()?;
    check_refusals()?;
    for rendering in &RENDERINGS {
        let text = rendering.render()?;
        fs::write(repository().join(rendering.output), text)
            .with_context(|| format!("cannot write {}", rendering.output))?;
        println!("wrote {}", rendering.output);
    }
    Ok(())
}

/// Where helm and kubectl are installed, check that they still come to the same; elsewhere the test of
/// the digests has to do.
pub(crate) fn check() -> Result<()> {
    if let Some(missing) = ["helm", "kubectl"].into_iter().find(|program| find(program).is_none()) {
        println!("there is no `{missing}` here: only the digests of the renderings are checked");
        return Ok(());
    }
    lint()?;
    check_refusals()?;
    for rendering in &RENDERINGS {
        if rendering.render()? != read(rendering.output)? {
            bail!("{} is not up to date; run `cargo xtask chart`", rendering.output);
        }
    }
    println!("the renderings of the chart and of the kustomizations are up to date");
    Ok(())
}

fn lint() -> Result<()> {
    run(command("helm").args(["lint", "--strict", "--quiet", CHART]))
}

impl Rendering {
    fn render(&self) -> Result<String> {
        let (head, text) = match &self.by {
            Renderer::Helm { values, arguments } => {
                let mut helm = command("helm");
                helm.args(["template", "shunt", CHART, "--namespace=kube-system"]);
                helm.args(values.iter().map(|file| format!("--values={file}"))).args(*arguments);
                ("the chart", stdout(&mut helm)?)
            }
            Renderer::Kustomize(folder) => {
                (*folder, stdout(command("kubectl").args(["kustomize", folder]))?)
            }
        };
        let body = without_traces_of_helm(&text);
        let digest = self.digest(&body)?;
        Ok(format!(
            "# Made from {head} by `cargo xtask chart`; change it there.\n{DIGEST}{digest}\n{body}"
        ))
    }

    /// Over the rendering, and over every file that it is made from.
    fn digest(&self, body: &str) -> Result<String> {
        let mut files = Vec::new();
        match &self.by {
            Renderer::Helm { values, arguments } => {
                collect(Path::new(CHART), &mut files)?;
                files.extend(values.iter().map(|file| (*file).to_owned()));
                files.extend(arguments.iter().map(|argument| (*argument).to_owned()));
            }
            Renderer::Kustomize(_) => collect(Path::new(KUSTOMIZE), &mut files)?,
        }
        let mut all = Vec::new();
        for file in &files {
            let text = if file.starts_with("--") { String::new() } else { read(file)? };
            for part in [file.as_str(), &text] {
                all.extend((part.len() as u64).to_be_bytes());
                all.extend(part.as_bytes());
            }
        }
        all.extend(body.as_bytes());
        Ok(sha256(&all))
    }
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
            let text = read(rendering.output).unwrap();
            let (_, rest) = text.split_once(DIGEST).expect(rendering.output);
            let (digest, body) = rest.split_once('\n').expect(rendering.output);
            assert_eq!(
                digest,
                rendering.digest(body).unwrap(),
                "{} does not belong to the chart or the kustomization as it is now: \
                 run `cargo xtask chart`, with helm and kubectl installed",
                rendering.output
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
