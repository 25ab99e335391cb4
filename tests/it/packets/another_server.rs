//! A configuration that names another API server while the agent runs.

use anyhow::Result;
use shunt_fake_apiserver::{Gate, Kubeconfig, Standin};
use shunt_testbed::{Agent, Node};

use crate::world::{SHUNT, World, http_service, http_slices};

/// A server with a Service of this ClusterIP, and a way to it from the node.
fn server(world: &World, name: &str, ip: &str) -> Result<(Standin, Gate, Kubeconfig)> {
    let api = Standin::start_plain()?;
    let (node, service) = (Node::of(&world.lab.node), http_service(name, &[ip]));
    api.put(&format!("{node}{service}{}", http_slices(name, &[&world.lab.pod1])))?;
    let (gate, kubeconfig) = api.reach(&world.lab.node)?;
    Ok((api, gate, kubeconfig))
}

#[test]
fn another_kubeconfig_leads_to_another_server() -> Result<()> {
    let world = World::new()?;
    let (first, second) =
        (server(&world, "one", "10.96.0.30")?, server(&world, "two", "10.96.0.31")?);
    let file = world.manifests.path().join("config.conf");
    let write = |kubeconfig: &str| {
        let text = format!(
            "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n\
             mode: nftables\nclientConnection: {{kubeconfig: {kubeconfig}}}\n"
        );
        std::fs::write(&file, text)
    };
    write(&first.2.path().display().to_string())?;
    let agent = Agent::builder(SHUNT, &world.lab.node)
        .arg(format!("--config={}", file.display()))
        .start()?;
    let client = world.lab.from(&world.lab.client);
    client.tcp("10.96.0.30:80").eventually().reaches(&["pod-1"]);

    write("/no/such/file")?;
    agent.wait_for_log(&["ERROR", "the previous one stays", "/no/such/file"])?;
    client.tcp("10.96.0.30:80").reaches(&["pod-1"]);

    write(&second.2.path().display().to_string())?;
    client.tcp("10.96.0.31:80").eventually().reaches(&["pod-1"]);
    client.tcp("10.96.0.30:80").eventually().unhandled();
    agent.stop()
}
