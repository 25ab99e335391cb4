//! Tests of `.github/workflows/release.yml`: steps of it, run here as a runner runs them.

use std::fs;
use std::path::Path;
use std::process::Command;

use clap::CommandFactory as _;
use serde_json::Value;

use super::source::VERSION;
use crate::command::{command, repository, run, stdout};

/// Returns the steps of the only job.
fn steps() -> Vec<Value> {
    let text = fs::read_to_string(repository().join(".github/workflows/release.yml")).unwrap();
    let workflow: Value = serde_saphyr::from_str(&text).unwrap();
    workflow["jobs"]["release"]["steps"].as_array().unwrap().clone()
}

/// Returns what a step runs.
fn script(name: &str) -> String {
    let step = steps().into_iter().find(|step| step["name"] == name);
    step.expect(name)["run"].as_str().unwrap().to_owned()
}

/// Returns the shell of GitHub's runners, which runs this in `folder`.
fn shell(script: &str, folder: &Path) -> Command {
    let mut shell = command("bash");
    shell.args(["--noprofile", "--norc", "-e", "-o", "pipefail", "-c", script]);
    shell.current_dir(folder);
    shell
}

fn git(folder: &Path, arguments: &[&str]) -> String {
    let mut git = command("git");
    git.args(["-c", "user.name=test", "-c", "user.email=test@example.net"]);
    stdout(git.args(arguments).current_dir(folder)).unwrap().trim().to_owned()
}

/// `gh release create --notes-from-tag` reads the tag of the checkout, not that of the server.
#[test]
fn the_checkout_has_the_commit_and_the_annotated_tag() {
    let folder = tempfile::tempdir().unwrap();
    let (remote, checkout) = (folder.path().join("shunt"), folder.path().join("checkout"));
    fs::create_dir_all(&remote).unwrap();
    fs::create_dir_all(&checkout).unwrap();
    git(&remote, &["init", "--quiet"]);
    git(&remote, &["commit", "--quiet", "--allow-empty", "--message=the commit"]);
    git(&remote, &["tag", "--annotate", "v9.9.9", "--message=What is new"]);
    let commit = git(&remote, &["rev-parse", "HEAD"]);
    git(&remote, &["commit", "--quiet", "--allow-empty", "--message=a later commit"]);

    let mut step = shell(&script("Check the source out"), &checkout);
    step.env("GITHUB_SERVER_URL", format!("file://{}", folder.path().display()));
    step.envs([("GITHUB_REPOSITORY", "shunt"), ("GITHUB_SHA", commit.as_str())]);
    run(step.envs([("TAG", "v9.9.9"), ("GH_TOKEN", "token")])).unwrap();
    assert_eq!(git(&checkout, &["rev-parse", "HEAD"]), commit);
    let notes = git(&checkout, &["tag", "--list", "v9.9.9", "--format=%(contents)"]);
    assert_eq!(notes, "What is new");
}

#[test]
fn the_build_is_a_command_of_xtask() {
    let line = script("Build").replace("${TAG#v}", VERSION).replace("$TAG", &format!("v{VERSION}"));
    let words = line.replace("$IMAGE", "ghcr.io/example/shunt").replace('"', "");
    let arguments = words.strip_prefix("cargo xtask ").unwrap().split_whitespace();
    let cli = crate::Cli::command().try_get_matches_from(["xtask"].into_iter().chain(arguments));
    cli.unwrap();
}
