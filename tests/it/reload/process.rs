//! A system that is read-only, and what the agent does instead of running.

use std::fs;
use std::process::Command;

use anyhow::Result;

use super::configured::{Configured, WEB, WEB_PODS};
use crate::world::SHUNT;

/// Makes /proc/sys what it is in a container, and runs the arguments.
const READ_ONLY: &str = "mount --bind /proc/sys /proc/sys && mount -o remount,bind,ro /proc/sys \
                         && exec \"$@\"";

/// A container that has the node's /proc/sys/net mounted needs no privilege but CAP_NET_ADMIN.
#[test]
fn sysctls_are_written_through_a_mounted_proc_sys_net() -> Result<()> {
    let world = Configured::new("conntrack: {udpTimeout: 31s, maxPerCore: 0}\n")?;
    let mounted = tempfile::tempdir()?;
    let mount = format!("mount --bind /proc/sys/net {:?} && {READ_ONLY}", mounted.path());
    let output = world
        .lab
        .node
        .command("unshare")
        .args(["--mount", "sh", "-c", &mount, "sh", "setpriv"])
        .args(["--inh-caps=-all", "--bounding-set=-all,+net_admin", "--no-new-privs", SHUNT, "run"])
        .arg("--once")
        .arg("--manifests")
        .arg(world.manifests.path())
        .arg("--config")
        .arg(world.config.path())
        .arg("--net-sysctls")
        .arg(mounted.path())
        .output()?;
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && !log.contains("WARN"), "{log}");
    world.lab.node.run(|| {
        for (file, value) in [
            ("udp_timeout", "31"),
            ("tcp_timeout_established", "86400"),
            ("tcp_timeout_close_wait", "3600"),
        ] {
            let file = format!("/proc/sys/net/netfilter/nf_conntrack_{file}");
            assert_eq!(fs::read_to_string(&file)?.trim(), value, "{file}\n{log}");
        }
        Ok(())
    })
}

/// In most containers /proc/sys cannot be written: that is said once, and the rest works.
#[test]
fn a_read_only_proc_sys_costs_sysctls_only() -> Result<()> {
    let world = Configured::new("conntrack: {udpTimeout: 31s, maxPerCore: 1000000}\n")?;
    let wrapper = ["unshare", "--mount", "sh", "-c", READ_ONLY, "sh"];
    let agent = world.agent().wrapper(&wrapper).start()?;
    agent.wait_for_log(&["WARN", "nf_conntrack_udp_timeout", "Read-only", "--net-sysctls"])?;
    world.lab.from(&world.lab.client).tcp(WEB).reaches(&WEB_PODS);
    world.add("more", "10.96.0.20")?;
    world.lab.from(&world.lab.client).tcp("10.96.0.20:80").eventually().reaches(&["pod-1"]);
    let said = agent.log().matches("cannot set conntrack sysctls").count();
    assert_eq!(said, 1, "{}", agent.log());
    agent.stop()
}

#[test]
fn cleanup_and_init_only_run_instead_of_the_agent() -> Result<()> {
    let world = Configured::new("conntrack: {udpTimeout: 31s}\n")?;
    world.agent().start()?.stop()?;
    assert!(world.rules()?.contains("table ip shunt"));
    let netns = world.lab.node.path();
    let config = world.config.path();
    let instead = |flag: &str| -> Result<String> {
        let output = Command::new(SHUNT)
            .args(["run", "--config"])
            .arg(&config)
            .arg("--netns")
            .arg(&netns)
            .arg(flag)
            .output()?;
        let log = String::from_utf8_lossy(&output.stderr).into_owned();
        anyhow::ensure!(output.status.success(), "{log}");
        Ok(log)
    };
    instead("--cleanup")?;
    assert!(!world.rules()?.contains("shunt"));
    world.lab.node.sysctl(&[("net/netfilter/nf_conntrack_udp_timeout", "30")])?;
    let log = instead("--init-only")?;
    assert!(log.contains("nf_conntrack_udp_timeout = 31"), "{log}");
    assert!(!world.rules()?.contains("shunt"));
    Ok(())
}
