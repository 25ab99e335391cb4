//! Which configurations have node ports on loopback addresses.

use anyhow::Result;
use shunt_testbed::Protocol;

use super::{BOTH, PODS, V4, V6, has_thread, wait_for, wait_for_metric};
use crate::reload::configured::{Configured, NODE_PORT, WEB_PODS};
use crate::world::{World, status_json};

/// Configurations, and whether 127.0.0.1 and ::1 have node ports.
const CONFIGURATIONS: &[(&str, bool, bool)] = &[
    ("", true, false),
    ("mode: iptables\n", true, false),
    ("mode: iptables\niptables: {localhostNodePorts: null}\n", true, false),
    ("iptables: {localhostNodePorts: false}\n", false, false),
    ("nodePortAddresses: [192.0.2.0/24, '::/0']\n", false, false),
    ("nodePortAddresses: ['2001:db8:2::/64']\n", true, false),
    ("nodePortAddresses: [primary]\n", false, false),
    ("mode: ipvs\n", false, false),
    ("mode: nftables\n", false, false),
    ("mode: nftables\nnodePortAddresses: [all]\n", false, false),
    ("mode: nftables\nnodePortAddresses: [0.0.0.0/0, 127.0.0.1/32, '::/0']\n", true, false),
    ("mode: nftables\nnodePortAddresses: [primary, '::1/128']\n", false, true),
    ("mode: nftables\nnodePortAddresses: [localhost]\n", true, true),
    (BOTH, true, true),
];

#[test]
fn configuration_decides_for_each_family() -> Result<()> {
    let world = World::with_web()?;
    for (config, v4, v6) in CONFIGURATIONS {
        let agent = world.agent(config)?.start()?;
        let node = world.lab.from(&world.lab.node);
        for (address, is_offered) in [(V4, v4), (V6, v6)] {
            match is_offered {
                true => drop(node.tcp(address).eventually().reaches(&PODS)),
                false => node.tcp(address).refused(),
            }
        }
        let expected: Vec<&str> =
            [("127.0.0.1", v4), ("::1", v6)].iter().filter(|it| *it.1).map(|it| it.0).collect();
        let status = status_json(&world.lab.node)?;
        assert_eq!(status["nodePorts"]["loopback"], serde_json::json!(expected), "{config}");
        assert_eq!(has_thread(&agent)?, *v4 || *v6, "{config}");
        agent.stop()?;
    }
    Ok(())
}

#[test]
fn other_addresses_and_protocols_are_refused() -> Result<()> {
    let world = World::with_web()?;
    let _agent = world.agent(BOTH)?.start()?;
    let node = world.lab.from(&world.lab.node);
    node.tcp(V4).eventually().reaches(&PODS);
    node.tcp("127.0.0.2:30080").refused();
    for address in [V4, V6] {
        node.probe(Protocol::Udp, address).refused();
    }
    // The primary addresses stay.
    world.lab.from(&world.lab.client).tcp("192.0.2.10:30080").reaches(&PODS);
    world.lab.from(&world.lab.client).tcp("192.0.2.11:30080").refused();
    Ok(())
}

#[test]
fn changed_configuration_applies_to_new_connections() -> Result<()> {
    let world = Configured::new("mode: nftables\n")?;
    let agent = world.agent().start()?;
    let to = format!("127.0.0.1:{NODE_PORT}");
    let node = world.lab.from(&world.lab.node);
    node.tcp(&to).refused();
    for _ in 0..2 {
        world.config.write(BOTH)?;
        node.tcp(&to).eventually().reaches(&WEB_PODS);
        let mut connection = node.connect(&to)?;
        world.config.write("mode: nftables\n")?;
        node.tcp(&to).eventually().refused();
        assert_eq!(connection.echo("still there")?, "still there");
        assert!(has_thread(&agent)?);
        drop(connection);
        wait_for("the end of the thread", || Ok((!has_thread(&agent)?).then_some(())))?;
    }
    agent.stop()
}

#[test]
fn last_node_port_ends_the_thread() -> Result<()> {
    let world = World::with_web()?;
    let agent = world.agent(BOTH)?.start()?;
    let labels = [("state", "listening")];
    wait_for_metric(&world, "shunt_loopback_node_ports", &labels, 2.0)?;
    assert!(has_thread(&agent)?);
    world.manifests.remove("web.yaml")?;
    wait_for_metric(&world, "shunt_loopback_node_ports", &labels, 0.0)?;
    wait_for("the end of the thread", || Ok((!has_thread(&agent)?).then_some(())))?;
    agent.stop()
}
