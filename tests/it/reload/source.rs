//! Where objects come from, and whose they are, while the agent runs.

use anyhow::Result;
use shunt_fake_apiserver::{Gate, Kubeconfig, Standin};
use shunt_testbed::{Agent, Node, Protocol, Service};

use super::configured::Configured;
use crate::world::{SHUNT, http_slices};

/// A server with a Service of this ClusterIP, and a way to it from the node.
fn server(world: &Configured, name: &str, ip: &str) -> Result<(Standin, Gate, Kubeconfig)> {
    let api = Standin::start_plain()?;
    let service = Service::new(name).cluster_ips(&[ip]).port("http", Protocol::Tcp, 80);
    let node = Node::of(&world.lab.node);
    api.put(&format!("{node}{service}{}", http_slices(name, &[&world.lab.pod1])))?;
    let (gate, kubeconfig) = api.reach(&world.lab.node)?;
    Ok((api, gate, kubeconfig))
}

#[test]
fn another_kubeconfig_leads_to_another_server() -> Result<()> {
    let world = Configured::new("")?;
    let (first, second) =
        (server(&world, "one", "10.96.0.30")?, server(&world, "two", "10.96.0.31")?);
    let settings = |kubeconfig: &Kubeconfig| {
        format!("clientConnection: {{kubeconfig: {}}}\n", kubeconfig.path().display())
    };
    world.config.write(&settings(&first.2))?;
    let agent = Agent::builder(SHUNT, &world.lab.node)
        .arg(format!("--config={}", world.config.path().display()))
        .start()?;
    let client = world.lab.from(&world.lab.client);
    client.tcp("10.96.0.30:80").eventually().reaches(&["pod-1"]);

    world.config.write("clientConnection: {kubeconfig: /no/such/file}\n")?;
    agent.wait_for_log(&["ERROR", "the previous one stays", "/no/such/file"])?;
    client.tcp("10.96.0.30:80").reaches(&["pod-1"]);

    world.config.write(&settings(&second.2))?;
    client.tcp("10.96.0.31:80").eventually().reaches(&["pod-1"]);
    client.tcp("10.96.0.30:80").eventually().unhandled();
    agent.stop()
}
