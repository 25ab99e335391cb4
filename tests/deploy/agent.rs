//! What the DaemonSet hands to the agent, handed to the agent.

use std::fs;
use std::process::{Command, Output};

use anyhow::{Context, Result, ensure};
use shunt_testbed::Netns;
use tempfile::TempDir;

use crate::manifests::{check_pod, containers, pods};
use crate::{RENDERED, SHUNT, objects, read, repository, texts};

fn succeeded(output: &Output) -> Result<String> {
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.success(), "{}\n{log}", output.status);
    Ok(log)
}

#[test]
fn the_agent_takes_the_arguments() -> Result<()> {
    for (path, pod) in pods()?.into_iter().chain([("the Job", check_pod()?)]) {
        for container in containers(&pod) {
            let arguments = texts(&container["args"]);
            // An argument that is not known is an error before the help is printed.
            let output = Command::new(SHUNT).args(&arguments).arg("--help").output()?;
            succeeded(&output).with_context(|| format!("{path}: {arguments:?}"))?;
        }
    }
    Ok(())
}

#[test]
fn the_agent_takes_the_configuration() -> Result<()> {
    let mut configurations = 0;
    let folder = TempDir::new()?;
    for path in RENDERED {
        for object in objects(path)? {
            let Some(config) = object["data"]["config.conf"].as_str() else { continue };
            configurations += 1;
            let file = folder.path().join("config.conf");
            fs::write(&file, config)?;
            let mut render = Command::new(SHUNT);
            render.arg("render").arg("--config").arg(&file).arg("--manifests");
            let log =
                succeeded(&render.arg(repository("examples/demo")).output()?).context(path)?;
            assert!(!log.contains("WARN") && !log.contains("ERROR"), "{path}: {log}");
        }
    }
    assert_eq!(configurations, 8, "all but the ones for monitoring, kubeadm and EKS have one");
    Ok(())
}

/// Runs an agent as root with one capability, as a container and systemd do, or with none.
fn with_capability(ns: &Netns, capability: &str, arguments: &[&str]) -> Result<Output> {
    let mut program = ns.command("setpriv");
    program.arg(format!("--bounding-set=-all{capability}"));
    program.args(["--inh-caps=-all", "--no-new-privs", SHUNT]);
    Ok(program.args(arguments).output()?)
}

/// Asserts that NET_ADMIN is enough, and needed.
fn assert_programs(arguments: &[&str]) -> Result<()> {
    let ns = Netns::new()?;
    let output = with_capability(&ns, "", arguments)?;
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && log.contains("NET_ADMIN"), "{log}");
    let log = succeeded(&with_capability(&ns, ",+net_admin", arguments)?)?;
    assert!(!log.contains("WARN") && !log.contains("ERROR"), "{log}");
    let rules = ns.output("nft", &["list", "ruleset"])?;
    assert!(rules.contains("table ip shunt") && rules.contains("table ip6 shunt"), "{rules}");
    let output = with_capability(&ns, "", &["cleanup"])?;
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && log.contains("NET_ADMIN"), "{log}");
    Ok(())
}

#[test]
fn the_unit_starts_an_agent_that_works() -> Result<()> {
    let unit = read("deploy/systemd/shunt.service")?;
    let line = |key: &str| {
        let mut lines = unit.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        lines.next().with_context(|| format!("no {key}"))
    };
    assert_eq!(line("CapabilityBoundingSet")?, "CAP_NET_ADMIN");
    let folder = TempDir::new()?;
    fs::create_dir(folder.path().join("manifests"))?;
    fs::copy(repository("deploy/systemd/config.yaml"), folder.path().join("config.yaml"))?;
    for file in fs::read_dir(repository("examples/demo"))? {
        let file = file?;
        fs::copy(file.path(), folder.path().join("manifests").join(file.file_name()))?;
    }
    let etc = folder.path().display().to_string();
    let command = line("ExecStart")?.replace("/etc/shunt", &etc);
    let arguments = command.strip_prefix("/usr/local/bin/shunt ").context("another program")?;
    assert_programs(&[&arguments.split_whitespace().collect::<Vec<_>>()[..], &["--once"]].concat())
}
