//! Rules outlive the agent: they stay when it ends, however it ends, and a start that finds them
//! right writes nothing.

use std::time::Duration;

use anyhow::Result;
use shunt_testbed::{Protocol, Traffic};

use crate::world::{CLUSTER_CIDR, World, manifest, web};

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
