//! What kube-proxy's IPVS mode leaves, on a kernel that has IPVS.

use std::process::Command;

use anyhow::{Result, ensure};
use shunt_testbed::Netns;

use crate::Test;
use crate::node::agent_binary;

pub(crate) const TESTS: [Test; 2] = [
    ("ipvs::services_of_another_program_stay", of_another_program),
    ("ipvs::cleanup_removes_services_and_interface_of_kube_proxy", of_kube_proxy),
];

/// A namespace with services of IPVS. The size of connection tracking's table, with which the kernel was
/// booted, is refused in other namespaces than the first one.
fn with_services(ports: &[u16]) -> Result<Netns> {
    let modprobe = Command::new("modprobe").args(["--all", "ip_vs", "ip_vs_rr"]).status()?;
    ensure!(modprobe.success(), "this kernel has no IPVS");
    let ns = Netns::new()?;
    for port in ports {
        ns.output("ipvsadm", &["-A", "-t", &format!("10.96.0.1:{port}"), "-s", "rr"])?;
    }
    Ok(ns)
}

fn services(ns: &Netns) -> Result<usize> {
    Ok(ns.output("ipvsadm", &["-Sn"])?.lines().count())
}

fn cleanup(ns: &Netns) -> Result<String> {
    let mut cleanup = Command::new(agent_binary()?);
    let output = cleanup.args(["cleanup", "--kube-proxy", "--netns"]).arg(ns.path()).output()?;
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.success(), "{log}");
    Ok(log)
}

fn of_kube_proxy() -> Result<()> {
    let ns = with_services(&[80, 443])?;
    ns.ip("link add kube-ipvs0 type dummy\naddr add 10.96.0.1/32 dev kube-ipvs0")?;
    ensure!(services(&ns)? == 2, "the services are not there");
    let log = cleanup(&ns)?;
    ensure!(log.contains("ipvs_interface: true, ipvs_services: 2"), "{log}");
    ensure!(services(&ns)? == 0, "services are left\n{log}");
    let links = ns.output("ip", &["link"])?;
    ensure!(!links.contains("kube-ipvs0"), "{links}\n{log}");
    let log = cleanup(&ns)?;
    ensure!(log.contains("nothing to remove"), "{log}");
    Ok(())
}

fn of_another_program() -> Result<()> {
    let ns = with_services(&[80])?;
    let log = cleanup(&ns)?;
    ensure!(log.contains("nothing to remove"), "{log}");
    ensure!(services(&ns)? == 1, "the service is gone\n{log}");
    Ok(())
}
