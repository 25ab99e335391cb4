//! Rules outlive the agent: they stay when it ends, however it ends, and a start that finds them
//! right writes nothing.

use std::time::Duration;

use anyhow::{Result, ensure};
use shunt_testbed::{Protocol, Traffic};

use crate::world::{CLUSTER_CIDR, World, manifest, run_shunt, web};

/// Rules of somebody else, with a name like ours.
const FOREIGN: &str = "
    add table inet shunt-foreign
    add chain inet shunt-foreign c { type filter hook forward priority 10; }
    add rule inet shunt-foreign c counter
    add table ip kept
    add set ip kept s { type ipv4_addr; }
    add element ip kept s { 192.0.2.99 }
    add table arp shunt
    add chain arp shunt c { type filter hook input priority 0; }
";

fn foreign_tables(world: &World) -> Result<String> {
    // `--stateless` leaves out the packet counter.
    let list = |family: &str, name: &str| {
        world.lab.node.output("nft", &["--stateless", "list", "table", family, name])
    };
    Ok([list("inet", "shunt-foreign")?, list("ip", "kept")?, list("arp", "shunt")?].concat())
}

fn cleanup(world: &World, flags: &[&str]) -> Result<()> {
    let output = run_shunt(&world.lab.node, &[&["cleanup"], flags].concat())?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

fn assert_web_is_gone(world: &World) {
    for to in ["10.96.0.10:80", "[fd00:96::10]:80", "203.0.113.10:80"] {
        world.lab.from(&world.lab.client).tcp(to).unhandled();
    }
}

#[test]
fn restart_writes_nothing_to_shared_tables() -> Result<()> {
    let world = World::with_web()?;
    let start = || world.agent(CLUSTER_CIDR)?.arg("--own-tables=false").start();
    start()?.stop()?;
    let generation = world.lab.node.nft_generation()?;
    for _ in 0..3 {
        let agent = start()?;
        world.assert_web_works();
        agent.stop()?;
        start()?.kill()?;
    }
    let output = world.agent(CLUSTER_CIDR)?.once()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(world.lab.node.nft_generation()?, generation);
    Ok(())
}

/// A restart writes only the message that takes ownership of each table, where the kernel has that.
#[test]
fn restart_writes_no_rule_and_no_element() -> Result<()> {
    let world = World::with_web()?;
    world.agent(CLUSTER_CIDR)?.start()?.stop()?;
    let owned = world.tables_are_owned()?;
    for _ in 0..2 {
        let generation = world.lab.node.nft_generation()?;
        // Commits are logged at DEBUG.
        let agent = world.agent(CLUSTER_CIDR)?.arg("-v=4").start()?;
        assert_eq!(world.lab.node.nft_generation()?, generation + u32::from(owned));
        if owned {
            let line = agent.wait_for_log(&[" committed "])?;
            assert!(line.contains("added=0 deleted=0 messages=2"), "{line}");
        }
        world.assert_web_works();
        agent.kill()?;
    }
    Ok(())
}

#[test]
fn a_second_agent_waits_and_takes_over_at_once() -> Result<()> {
    let world = World::with_web()?;
    let first = world.start()?;
    let second = world.agent(CLUSTER_CIDR)?.arg("-v=4").spawn()?;
    second.wait_for_log(&["another shunt (process", "waiting until it ends"])?;
    let once = world.agent(CLUSTER_CIDR)?.once()?;
    assert_eq!(once.status.code(), Some(1));
    let told = String::from_utf8_lossy(&once.stderr).into_owned();
    assert!(told.contains("another shunt (process"), "{told}");
    // The first one is the one that acts.
    assert!(first.is_running() && !second.log().contains("committed"));
    first.kill()?;
    second.wait_ready()?;
    second.wait_for_log(&["committed"])?;
    world.assert_web_works();
    Ok(())
}

#[test]
fn a_stopped_agent_leaves_its_rules() -> Result<()> {
    let world = World::with_web()?;
    world.start()?.stop()?;
    world.assert_web_works();
    Ok(())
}

#[test]
fn a_killed_agent_leaves_its_rules() -> Result<()> {
    let world = World::with_web()?;
    world.start()?.kill()?;
    world.assert_web_works();
    Ok(())
}

#[test]
fn what_changed_between_two_runs_is_applied_and_nothing_else() -> Result<()> {
    let world = World::with_web()?;
    world.agent(CLUSTER_CIDR)?.start()?.stop()?;
    let generation = world.lab.node.nft_generation()?;
    world.manifests.write("web.yaml", manifest(&web(), "web", &[&world.lab.pod2]))?;
    let agent = world.agent(CLUSTER_CIDR)?.start()?;
    world.lab.from(&world.lab.client).tcp("10.96.0.10:80").reaches(&["pod-2"]);
    assert_eq!(world.lab.node.nft_generation()?, generation + 1);
    agent.stop()
}

/// The balancers of policy Local mark what the node sends.
#[test]
fn a_restart_with_another_configuration_leaves_no_rule_of_the_former() -> Result<()> {
    let world = World::with_web()?;
    let local = web().spec("externalTrafficPolicy: Local");
    world.manifests.write("web.yaml", manifest(&local, "web", &[&world.lab.pod3]))?;
    world.start()?.stop()?;
    let config = format!("{CLUSTER_CIDR}nftables: {{masqueradeBit: 5}}\n");
    world.agent(&config)?.start()?.stop()?;
    let rules = world.rules()?;
    let former = format!("{:08x}", 1 << 14);
    assert!(!rules.contains(&former), "marks of the former configuration:\n{rules}");
    for vip in ["203.0.113.10:80", "[2001:db8:113::10]:80"] {
        world.lab.from(&world.lab.node).tcp(vip).reaches(&["pod-3"]).source_masqueraded();
    }
    Ok(())
}

#[test]
fn an_unchanged_file_is_no_change() -> Result<()> {
    let world = World::with_web()?;
    let _agent = world.agent(CLUSTER_CIDR)?.start()?;
    let generation = world.lab.node.nft_generation()?;
    let pods = [&world.lab.pod1, &world.lab.pod2, &world.lab.pod3];
    world.manifests.write("web.yaml", manifest(&web(), "web", &pods))?;
    // Applied after the file above, and with it if that were a change.
    let marker = crate::world::cluster_ip_service("marker", &["10.96.0.99"]);
    world.manifests.write("zz-marker.yaml", manifest(&marker, "marker", &pods[..1]))?;
    world.lab.from(&world.lab.client).tcp("10.96.0.99:80").eventually().reaches(&["pod-1"]);
    // Two when the agent saw the Service before its slices were read; never one for `web`.
    assert!(world.lab.node.nft_generation()? <= generation + 1);
    Ok(())
}

#[test]
fn once_programs_and_ends() -> Result<()> {
    let world = World::with_web()?;
    let output = world.agent(CLUSTER_CIDR)?.once()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    world.assert_web_works();
    Ok(())
}

#[test]
fn cleanup_removes_our_rules_and_no_others() -> Result<()> {
    let world = World::with_web()?;
    world.lab.node.nft(FOREIGN)?;
    let foreign = foreign_tables(&world)?;
    world.start()?.stop()?;
    assert_eq!(foreign_tables(&world)?, foreign, "running the agent changed foreign tables");
    let generation = world.lab.node.nft_generation()?;
    cleanup(&world, &[])?;
    assert_eq!(world.lab.node.nft_generation()?, generation + 1, "one transaction");
    assert_eq!(foreign_tables(&world)?, foreign);
    let tables = world.lab.node.output("nft", &["list", "tables"])?;
    assert_eq!(tables.lines().count(), 3, "ours are gone:\n{tables}");
    assert_web_is_gone(&world);

    // Nothing is left to remove, and that is no failure.
    cleanup(&world, &[])?;
    assert_eq!(world.lab.node.nft_generation()?, generation + 1);

    // And back.
    let agent = world.start()?;
    world.assert_web_works();
    agent.stop()
}

#[test]
fn nft_prints_the_rules() -> Result<()> {
    let world = World::with_web()?;
    let _agent = world.start()?;
    let rules = world.rules()?;
    for part in ["table ip shunt {", "table ip6 shunt {", "default/web:tcp", "10.244.0.11"] {
        assert!(rules.contains(part), "no {part:?} in\n{rules}");
    }
    world.lab.node.output("nft", &["-j", "list", "ruleset"])?;
    Ok(())
}

#[test]
fn what_kube_proxy_left_is_removed_beside_a_running_agent() -> Result<()> {
    let world = World::with_web()?;
    // Left by a kube-proxy that knew of no endpoint yet.
    world.lab.node.nft(
        "table ip kube-proxy {
            chain filter-prerouting-pre-dnat {
                type filter hook prerouting priority -110
                ip daddr 10.96.0.10 tcp dport 80 reject
            }
        }",
    )?;
    let agent = world.start()?;
    let client = || world.lab.from(&world.lab.client);
    client().tcp("10.96.0.10:80").refused();
    cleanup(&world, &["--kube-proxy", "--keep-own"])?;
    client().tcp("10.96.0.10:80").reaches(&["pod-1", "pod-2", "pod-3"]);
    // The running agent goes on with what is its own.
    world.manifests.write("web.yaml", manifest(&web(), "web", &[&world.lab.pod2]))?;
    client().tcp("10.96.0.10:80").eventually().reaches(&["pod-2"]);
    agent.stop()
}

/// The tables of layout 1, with filter chains: `shunt render` of the last agent that made them, without
/// the rules of IPv6 at which nft 1.0.6 aborts.
const LAYOUT_1: &str = include_str!("../../fixtures/layout-1.nft");

#[test]
fn tables_of_the_layout_before_are_replaced_under_traffic_and_affinity_stays() -> Result<()> {
    let world = World::new()?;
    let node = &world.lab.node;
    let pods = [&world.lab.pod1, &world.lab.pod2, &world.lab.pod3];
    let sticky = web().spec("sessionAffinity: ClientIP");
    world.manifests.write("web.yaml", manifest(&sticky, "web", &pods))?;
    node.nft(LAYOUT_1)?;
    // A client of its own, and one whose endpoint does not exist any more.
    node.nft(
        "add element ip shunt affinity {
            192.0.2.100 . 10.96.0.10 . tcp . 80 timeout 3h : 10.244.0.12 . 8080,
            192.0.2.99 . 10.96.0.10 . tcp . 80 timeout 3h : 10.244.9.9 . 8080
        }",
    )?;
    let flows = [
        (&world.lab.client, Protocol::Tcp, "203.0.113.10:80"),
        (&world.lab.client, Protocol::Udp, "10.96.0.10:80"),
        (&world.lab.pod2, Protocol::Tcp, "[fd00:96::10]:80"),
        // Not from the node: its own raw socket would get what is not translated, and nobody refuses it.
        (&world.lab.client, Protocol::Sctp, "192.0.2.10:30080"),
        (&world.lab.node, Protocol::Udp, "192.0.2.10:30080"),
    ];
    let traffic = Traffic::start(flows, Duration::from_micros(200))?;
    traffic.more(50)?;
    let agent = world.start()?;
    traffic.more(200)?;
    traffic.stop().all_but_one_untranslated()?;

    for family in ["ip", "ip6"] {
        let table = node.output("nft", &["list", "table", family, "shunt"])?;
        assert!(table.contains("shunt layout 3"), "{table}");
        assert_eq!(table.matches("type filter").count(), 1, "{table}");
    }
    let affinity = node.output("nft", &["list", "map", "ip", "shunt", "affinity"])?;
    assert!(!affinity.contains("10.244.9.9"), "{affinity}");
    world.lab.from(&world.lab.client).tcp("10.96.0.10:80").times(20).reaches(&["pod-2"]);
    agent.stop()
}
