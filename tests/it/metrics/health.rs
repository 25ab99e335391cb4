//! `/healthz` and `/livez`, as load balancers and probes see them.

use std::fs;

use anyhow::{Result, bail};
use nix::sys::ptrace;
use nix::unistd::Pid;
use shunt_testbed::{Agent, HEALTH_PORT, HttpAnswer, METRICS_PORT, Occupier, eventually};

use crate::world::{CLUSTER_CIDR, World, http_service, manifest, status_json, status_text, web};

/// An answer's body with `T` in place of each time.
fn timeless(answer: &HttpAnswer) -> String {
    let mut parts = answer.body.split('"').map(|part| {
        let is_time = part.len() >= 20 && part.ends_with('Z') && part.as_bytes()[10] == b'T';
        if is_time { "T" } else { part }
    });
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| text + "\"" + part)
}

/// As kube-proxy, which has no proxier for a family that is switched off.
#[test]
fn a_node_without_ipv6_says_nothing_of_it() -> Result<()> {
    let world = World::empty()?;
    world.lab.node.sysctl(&[("net/ipv6/conf/all/disable_ipv6", "1")])?;
    let agent = world.plain_agent().start()?;
    let livez = timeless(&agent.http_get(HEALTH_PORT, "/livez")?);
    let status = r#""status":{"IPv4":{"lastUpdated":"T","healthy":true}}"#;
    assert!(livez.contains(status) && !livez.contains("IPv6"), "{livez}");
    let name = "kubeproxy_sync_proxy_rules_duration_seconds_count";
    // The first sync is counted a moment after the agent is ready.
    let scraped = agent.wait_for_sample(name, &[("ip_family", "IPv4")], |_| true)?;
    assert_eq!(scraped.value(name, &[("ip_family", "IPv6")]), None);
    agent.stop()
}

#[test]
fn tables_that_cannot_be_written_make_it_unhealthy_once_they_are_late() -> Result<()> {
    let world = World::empty()?;
    let config = "nftables: {syncPeriod: 500ms}\n";
    let agent = world.plain_agent().config(config)?.arg("--own-tables=false").start()?;
    // That the tables are not as planned is late by itself, without any change that waits.
    let occupier = Occupier::enter(&world.lab.node.ns)?;
    let late = |answer: &HttpAnswer| (answer.status == 503).then(|| timeless(answer));
    let expected = r#"{"lastUpdated":"T","currentTime":"T","nodeEligible":true,"healthy":false,"status":{"IPv4":{"lastUpdated":"T","healthy":false},"IPv6":{"lastUpdated":"T","healthy":false}}}"#;
    assert_eq!(agent.wait_for_answer(HEALTH_PORT, "/healthz", late)?, expected);
    agent.wait_for_answer(HEALTH_PORT, "/livez", late)?;
    let told = status_text(&world.lab.node)?;
    assert!(told.starts_with("PROBLEM  the last sync failed "), "{told}");
    world.manifests.write("web.yaml", http_service("web", &["10.96.0.10"]))?;
    let pending = "kubeproxy_sync_proxy_rules_service_changes_pending";
    let scraped = agent.wait_for_sample(pending, &[], |it| it == 1.0)?;
    // The metrics server only says that it is there.
    assert_eq!(agent.http_get(METRICS_PORT, "/healthz")?.status, 200);

    let value = |name, labels: &[_]| scraped.value(name, labels).unwrap_or_default();
    for family in ["IPv4", "IPv6"] {
        let name = "kubeproxy_sync_proxy_rules_nftables_sync_failures_total";
        assert!(value(name, &[("ip_family", family)]) >= 1.0, "{family}");
    }
    assert_eq!(value("shunt_services", &[]), 0.0);

    drop(occupier);
    // The next change is a reason to try again at once.
    world.manifests.write("other.yaml", http_service("other", &["10.96.0.11"]))?;
    agent
        .wait_for_answer(HEALTH_PORT, "/healthz", |answer| (answer.status == 200).then_some(()))?;
    let scraped = agent.wait_for_sample("shunt_services", &[], |it| it == 2.0)?;
    assert_eq!(scraped.value(pending, &[]), Some(0.0));
    agent.stop()
}

/// A thread of the agent that hangs, until this is dropped.
struct Hung(Pid);

impl Hung {
    fn thread(agent: &Agent, name: &str) -> Result<Hung> {
        for task in fs::read_dir(format!("/proc/{}/task", agent.pid()))? {
            let task = task?;
            if fs::read_to_string(task.path().join("comm"))?.trim() != name {
                continue;
            }
            let hung = Hung(Pid::from_raw(task.file_name().to_string_lossy().parse()?));
            ptrace::attach(hung.0)?;
            eventually(format_args!("the thread {name} does not stop"), || {
                let stat = fs::read_to_string(task.path().join("stat"))?;
                Ok(stat.contains(") t ").then_some(()))
            })?;
            return Ok(hung);
        }
        bail!("no thread {name}")
    }
}

impl Drop for Hung {
    fn drop(&mut self) {
        let _ = ptrace::detach(self.0, None);
    }
}

#[test]
fn sweep_that_hangs_makes_it_unhealthy_once_it_is_late() -> Result<()> {
    let world = World::with_web()?;
    let config = format!("{CLUSTER_CIDR}nftables: {{syncPeriod: 500ms}}\n");
    let agent = world.agent(&config)?.start()?;
    let hung = Hung::thread(&agent, "conntrack")?;
    // The client's flows to the other endpoints are stale.
    world.manifests.write("web.yaml", manifest(&web(), "web", &[&world.lab.pod1]))?;
    for probe in ["/livez", "/healthz"] {
        let late = |answer: &HttpAnswer| (answer.status == 503).then_some(());
        agent.wait_for_answer(HEALTH_PORT, probe, late)?;
    }
    let status = status_json(&world.lab.node)?;
    let problems = status["problems"].to_string();
    assert!(problems.contains("the thread \\\"conntrack\\\" hangs"), "{status:#}");
    drop(hung);
    for probe in ["/livez", "/healthz"] {
        let live = |answer: &HttpAnswer| (answer.status == 200).then_some(());
        agent.wait_for_answer(HEALTH_PORT, probe, live)?;
    }
    agent.stop()
}
