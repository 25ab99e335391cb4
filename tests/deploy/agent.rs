//! What the DaemonSet hands to the agent, handed to the agent.

use std::fs;
use std::process::{Command, Output};

use anyhow::{Context, Result, ensure};
use shunt_testbed::Netns;
use tempfile::TempDir;

use crate::kinds::{Object, objects};
use crate::manifests::{check_pod, daemon_sets, pod};
use crate::{RENDERED, SHUNT, read, repository};

fn succeeded(output: &Output) -> Result<String> {
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.success(), "{}\n{log}", output.status);
    Ok(log)
}

#[test]
fn the_agent_takes_the_arguments() -> Result<()> {
    let mut pods = vec![("the Job", check_pod()?)];
    for (path, daemon_set) in daemon_sets()? {
        pods.push((path, pod(&daemon_set)?.clone()));
    }
    for (path, pod) in pods {
        for container in pod.containers.iter().chain(pod.init_containers.iter().flatten()) {
            let arguments = container.args.clone().context(path)?;
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
        for object in objects(&read(path)?)? {
            let Object::ConfigMap(map) = object else { continue };
            let Some(config) = map.data.unwrap_or_default().remove("config.conf") else { continue };
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

/// As the container does, with root's identity and one capability.
#[test]
fn the_agent_works_with_net_admin_alone() -> Result<()> {
    let ns = Netns::new()?;
    let output = ns
        .command("setpriv")
        .args(["--bounding-set=-all,+net_admin", "--inh-caps=-all", "--no-new-privs"])
        // As the kubelet leaves it: the value that the agent is to have is the one that it has.
        .args([SHUNT, "run", "--once", "--oom-score-adj=0", "--manifests"])
        .arg(repository("examples/demo"))
        .output()?;
    let log = succeeded(&output)?;
    assert!(!log.contains("WARN") && !log.contains("ERROR"), "{log}");
    let rules = ns.output("nft", &["list", "ruleset"])?;
    assert!(rules.contains("table ip shunt") && rules.contains("table ip6 shunt"), "{rules}");

    let output = ns
        .command("setpriv")
        .args(["--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"])
        .args([SHUNT, "cleanup"])
        .output()?;
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && log.contains("NET_ADMIN"), "{log}");
    Ok(())
}

/// As systemd does: root with one capability, in the folder of the unit.
#[test]
fn the_unit_starts_an_agent_that_works() -> Result<()> {
    let unit = read("deploy/systemd/shunt.service")?;
    let line = |key: &str| {
        let lines = unit.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        lines.map(str::to_owned).next().with_context(|| format!("no {key}"))
    };
    let folder = TempDir::new()?;
    let etc = folder.path().display().to_string();
    fs::create_dir(folder.path().join("manifests"))?;
    fs::copy(repository("deploy/systemd/config.yaml"), folder.path().join("config.yaml"))?;
    for file in fs::read_dir(repository("examples/demo"))? {
        let file = file?;
        fs::copy(file.path(), folder.path().join("manifests").join(file.file_name()))?;
    }

    let ns = Netns::new()?;
    let command = line("ExecStart")?.replace("/etc/shunt", &etc);
    let arguments = command
        .strip_prefix("/usr/local/bin/shunt ")
        .context("another program")?
        .split_whitespace();
    assert_eq!(line("CapabilityBoundingSet")?, "CAP_NET_ADMIN");
    let output = ns
        .command("setpriv")
        .args(["--bounding-set=-all,+net_admin", "--inh-caps=-all", "--no-new-privs", SHUNT])
        .args(arguments)
        .arg("--once")
        .output()?;
    let log = succeeded(&output)?;
    assert!(!log.contains("WARN") && !log.contains("ERROR"), "{log}");
    let rules = ns.output("nft", &["list", "ruleset"])?;
    assert!(rules.contains("table ip shunt") && rules.contains("table ip6 shunt"), "{rules}");
    Ok(())
}
