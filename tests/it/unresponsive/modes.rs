//! What each mode does and does not.

use std::{env, fs};

use anyhow::{Result, ensure};
use shunt_testbed::{Agent, Scratch};

use super::scene::{Scene, connect_all, endpoint, kill, revive, times};
use crate::world::{CLUSTER_CIDR, World, run_shunt};

const VIP: &str = "10.96.0.10:80";

fn threads(agent: &Agent) -> Result<Vec<String>> {
    let tasks = fs::read_dir(format!("/proc/{}/task", agent.pid()))?;
    let name = |task: std::io::Result<fs::DirEntry>| {
        Ok(fs::read_to_string(task?.path().join("comm"))?.trim().to_owned())
    };
    tasks.map(name).collect()
}

fn has_tables(world: &World) -> Result<bool> {
    Ok(world.lab.node.output("nft", &["list", "tables"])?.contains("shunt-unresponsive"))
}

#[test]
fn off_has_no_table_and_no_thread() -> Result<()> {
    let scene = Scene::start(World::with_web()?, "off")?;
    assert!(!has_tables(&scene.world)?);
    assert!(!threads(&scene.agent)?.contains(&"unresponsive".to_owned()));
    assert_eq!(scene.status()?["mode"], "off");
    scene.agent.stop()?;

    // The default.
    let world = scene.world;
    let agent = world.agent(CLUSTER_CIDR)?.start()?;
    agent.wait_for_answer(shunt_testbed::HEALTH_PORT, "/healthz", |_| {
        has_tables(&world).ok().filter(|has| *has)
    })?;
    assert!(threads(&agent)?.contains(&"unresponsive".to_owned()));
    agent.stop()?;

    // On kernels before 5.12, the tables outlive the agent. No other mode leaves them.
    let scene = Scene::start(world, "off")?;
    assert!(!has_tables(&scene.world)?);
    Ok(())
}

/// What a person on the node sees, with nft as the witness.
#[test]
fn rule_is_listed_as_documented() -> Result<()> {
    let scene = Scene::start(World::with_web()?, "observe")?;
    let lab = &scene.world.lab;
    scene.wait("tables", |scene| has_tables(&scene.world))?;
    for (family, address) in [("ip", "ipv4_addr"), ("ip6", "ipv6_addr")] {
        let table = lab.node.output("nft", &["list", "table", family, "shunt-unresponsive"])?;
        let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        let listed = words(&table);
        for part in [
            "type filter hook prerouting priority",
            "type filter hook output priority",
            &format!("type {address} . inet_service size 4096"),
            &format!("@repeated-syns {{ {family} daddr . tcp dport timeout 5s }}"),
        ] {
            assert!(listed.contains(part), "{part}\n{table}");
        }
    }
    Ok(())
}

#[test]
fn cleanup_leaves_no_table() -> Result<()> {
    let world = World::with_web()?;
    let agent = world.agent(CLUSTER_CIDR)?.start()?;
    agent.wait_for_answer(shunt_testbed::HEALTH_PORT, "/healthz", |_| {
        has_tables(&world).ok().filter(|has| *has)
    })?;
    agent.stop()?;
    let output = run_shunt(&world.lab.node, &["cleanup"])?;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(world.rules()?, "");
    Ok(())
}

#[test]
fn observe_reports_and_changes_nothing() -> Result<()> {
    let scene = Scene::start(World::with_web()?, "observe")?;
    let lab = &scene.world.lab;
    connect_all(&times(12, &lab.pod2, VIP)?, super::scene::rescued())?;
    let rules = || lab.node.output("nft", &["list", "table", "ip", "shunt"]);
    let endpoints = || lab.node.output("nft", &["list", "map", "ip", "shunt", "endpoints"]);
    let before = endpoints()?;
    kill(&lab.pod3)?;
    scene.wait("found", |scene| {
        // One of three connections hangs.
        let calls = times(4, &lab.pod2, VIP)?;
        let _ = connect_all(&calls, std::time::Duration::from_millis(1_500));
        Ok(scene.in_state("unresponsive")? == [endpoint(&lab.pod3)])
    })?;
    assert_eq!(endpoints()?, before, "{}", rules()?);
    assert_eq!(scene.metric("shunt_endpoints_unresponsive")?, 1.0);
    assert_eq!(scene.metric("shunt_endpoint_ejections_total")?, 0.0);
    scene.agent.wait_for_log(&["endpoint does not answer", "10.244.1.21:8080"])?;
    let text = String::from_utf8(run_shunt(&lab.node, &["status"])?.stdout)?;
    assert!(text.contains("WARNING  endpoint 10.244.1.21:8080 has not answered for"), "{text}");

    revive(&lab.pod3)?;
    scene.wait_state("unresponsive", &[])?;
    scene.agent.wait_for_log(&["endpoint answers again", "10.244.1.21:8080"])?;
    assert_eq!(scene.metric("shunt_endpoints_unresponsive")?, 0.0);
    Ok(())
}

/// An agent with another mode restores at its start what the last one ejected.
#[test]
fn restart_restores_all_endpoints() -> Result<()> {
    for mode in ["off", "observe", "on"] {
        let scene = Scene::start(World::with_web()?, "on")?;
        let lab = &scene.world.lab;
        let before = lab.node.output("nft", &["list", "map", "ip", "shunt", "endpoints"])?;
        scene.warm_up(&times(12, &lab.pod2, VIP)?)?;
        kill(&lab.pod3)?;
        scene.connect_until_ejected(&times(12, &lab.pod2, VIP)?, &[endpoint(&lab.pod3)])?;
        scene.agent.stop()?;
        let scene = Scene::start(scene.world, mode)?;
        let lab = &scene.world.lab;
        let sorted = |list: &str| {
            let mut elements: Vec<String> =
                list.lines().map(|line| line.trim().trim_end_matches(',').to_owned()).collect();
            elements.sort_unstable();
            elements
        };
        let after = lab.node.output("nft", &["list", "map", "ip", "shunt", "endpoints"])?;
        let backends = |list: &str| {
            sorted(list).into_iter().filter(|line| line.contains("10.244.1.21")).count()
        };
        assert_eq!(backends(&after), backends(&before), "{mode}: {after}");
        assert_eq!(scene.in_state("ejected")?, []);
    }
    Ok(())
}

#[test]
fn another_process_may_flush_the_tables() -> Result<()> {
    let scene = Scene::start(World::with_web()?, "on")?;
    let lab = &scene.world.lab;
    scene.wait("tables", |scene| has_tables(&scene.world))?;
    lab.node.output("nft", &["flush", "ruleset"])?;
    // Owned tables stay; others come back.
    scene.wait("tables", |scene| {
        let rules = scene.world.rules()?;
        Ok(rules.contains("default/web:tcp") && rules.contains("repeated-syns"))
    })?;
    scene.warm_up(&times(12, &lab.pod2, VIP)?)?;
    kill(&lab.pod3)?;
    scene.connect_until_ejected(&times(12, &lab.pod2, VIP)?, &[endpoint(&lab.pod3)])?;
    Ok(())
}

/// The library lets netlink messages of the search fail (see `tests/support/fault_preload`).
#[test]
fn one_failure_forgets_nothing() -> Result<()> {
    let (world, scratch) = (World::with_web()?, Scratch::new()?);
    let failures = scratch.path().join("failures");
    let library = env::current_exe()?.with_file_name("libshunt_fault_preload.so");
    ensure!(
        library.is_file(),
        "{} is missing: run the test where cargo built it",
        library.display()
    );
    let preload = format!("LD_PRELOAD={}", library.display());
    let file = format!("SHUNT_FAIL_SENDTO={}", failures.display());
    let agent = world.agent(CLUSTER_CIDR)?.arg("--eject-unresponsive=on");
    let agent = agent.wrapper(&["env", &preload, &file]).start()?;
    let scene = Scene { world, agent };
    let lab = &scene.world.lab;
    let calls = times(12, &lab.pod2, VIP)?;
    scene.warm_up(&calls)?;
    kill(&lab.pod3)?;
    scene.connect_until_ejected(&calls, &[endpoint(&lab.pod3)])?;

    let warnings = || scene.agent.log().matches("cannot look for endpoints").count();
    fs::write(&failures, "1")?;
    scene.wait("a failure", |_| Ok(warnings() == 1))?;
    ensure!(fs::read(&failures)?.is_empty(), "something else failed");
    // The next attempt works: it notes SYNs again, and has forgotten nothing.
    scene.wait("tables", |scene| has_tables(&scene.world))?;
    revive(&lab.pod3)?;
    scene.wait_ejected(&[])?;
    scene.agent.wait_for_log(&["endpoint answers again", "10.244.1.21:8080"])?;
    assert_eq!((warnings(), scene.metric("shunt_endpoint_ejections_total")?), (1, 1.0));

    kill(&lab.pod3)?;
    scene.connect_until_ejected(&calls, &[endpoint(&lab.pod3)])?;
    fs::write(&failures, "12")?;
    scene.wait("nothing ejected, and why", |scene| {
        let text = String::from_utf8(run_shunt(&lab.node, &["status"])?.stdout)?;
        let says_why = text.contains("endpoints that do not answer are not found: ");
        Ok(says_why && scene.in_state("ejected")?.is_empty() && warnings() == 3)
    })?;
    ensure!(fs::read(&failures)?.is_empty(), "something else failed");
    scene.wait("it works again", |scene| Ok(scene.status()?["trouble"].is_null()))?;
    scene.connect_until_ejected(&calls, &[endpoint(&lab.pod3)])?;
    Ok(())
}
