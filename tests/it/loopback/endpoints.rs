//! The endpoints that connections through the proxy get.

use anyhow::Result;
use nix::errno::Errno;
use shunt_testbed::{Host, Outcome};

use super::{BOTH, PATIENCE, PODS, RAW, V4, V6, raw_service};
use crate::world::{World, manifest, status_json, web};

fn write(world: &World, spec: &str, pods: &[&Host]) -> Result<()> {
    let service = web().spec(spec);
    world.manifests.write("web.yaml", manifest(&service, "web", pods))
}

/// KEP-6032; on its other addresses the node may use all endpoints.
#[test]
fn policy_local_restricts_the_node_to_its_own_endpoints() -> Result<()> {
    const LOCAL: &str = "externalTrafficPolicy: Local";
    let world = World::with_web()?;
    let (one, two, three) = (&world.lab.pod1, &world.lab.pod2, &world.lab.pod3);
    let node = world.lab.from(&world.lab.node);
    // The modes of kube-proxy that have node ports on localhost.
    for (config, addresses) in [(BOTH, &[V4, V6][..]), ("mode: iptables\n", &[V4])] {
        write(&world, LOCAL, &[one, two, three])?;
        let agent = world.agent(config)?.start()?;
        for address in addresses {
            node.tcp(*address).eventually().reaches(&["pod-1", "pod-2"]);
        }
        node.tcp("192.0.2.10:30080").reaches(&PODS);
        // Only an endpoint on the other node.
        write(&world, LOCAL, &[three])?;
        for address in addresses {
            node.tcp(*address).eventually().refused();
        }
        node.tcp("192.0.2.10:30080").reaches(&["pod-3"]);
        write(&world, LOCAL, &[two, three])?;
        for address in addresses {
            node.tcp(*address).eventually().reaches(&["pod-2"]);
        }
        write(&world, "", &[two, three])?;
        for address in addresses {
            node.tcp(*address).eventually().reaches(&["pod-2", "pod-3"]);
        }
        // As a registry on another node from which the node pulls images.
        write(&world, "", &[three])?;
        for address in addresses {
            node.tcp(*address).eventually().reaches(&["pod-3"]);
        }
        agent.stop()?;
    }
    Ok(())
}

#[test]
fn session_affinity_under_policy_local_keeps_an_endpoint_of_the_node() -> Result<()> {
    const STICKY: &str = "externalTrafficPolicy: Local\n  sessionAffinity: ClientIP";
    let world = World::with_web()?;
    let (one, two, three) = (&world.lab.pod1, &world.lab.pod2, &world.lab.pod3);
    write(&world, STICKY, &[one, two, three])?;
    let _agent = world.agent(BOTH)?.start()?;
    let node = world.lab.from(&world.lab.node);
    super::connect(&world, V4)?;
    let kept = node.connect(V4)?.server;
    node.tcp(V4).times(50).reaches(&[&*kept]);
    let other = if kept == "pod-1" { two } else { one };
    write(&world, STICKY, &[other, three])?;
    node.tcp(V4).eventually().reaches(&[&*other.name]);
    write(&world, STICKY, &[three])?;
    node.tcp(V4).eventually().refused();
    Ok(())
}

#[test]
fn session_affinity_keeps_the_endpoint_while_it_is_there() -> Result<()> {
    let world = World::with_web()?;
    let (one, two, three) = (&world.lab.pod1, &world.lab.pod2, &world.lab.pod3);
    let sticky = "sessionAffinity: ClientIP";
    write(&world, sticky, &[one, two])?;
    let _agent = world.agent(BOTH)?.start()?;
    let node = world.lab.from(&world.lab.node);
    super::connect(&world, V4)?;
    let kept = node.connect(V4)?.server;
    node.tcp(V4).times(50).reaches(&[&*kept]);
    write(&world, sticky, &[one, two, three])?;
    wait_for_endpoints(&world, 3)?;
    node.tcp(V4).times(50).reaches(&[&*kept]);
    let other = if kept == "pod-1" { two } else { one };
    write(&world, sticky, &[other])?;
    node.tcp(V4).eventually().reaches(&[&*other.name]);
    write(&world, sticky, &[one, two, three])?;
    wait_for_endpoints(&world, 3)?;
    node.tcp(V4).times(50).reaches(&[&*other.name]);
    Ok(())
}

/// Waits until the agent has that many endpoints of each family in its Services.
fn wait_for_endpoints(world: &World, count: usize) -> Result<()> {
    super::wait_for("the endpoints", || {
        let counts = &status_json(&world.lab.node)?["counts"]["endpoints"];
        Ok((*counts == 2 * count).then_some(()))
    })
}

#[test]
fn port_without_endpoints_is_refused_and_connections_stay() -> Result<()> {
    let world = World::with_web()?;
    let none: [&Host; 0] = [];
    let all = [&world.lab.pod1, &world.lab.pod2, &world.lab.pod3];
    world.manifests.write("web.yaml", manifest(&web(), "web", &none))?;
    let _agent = world.agent(BOTH)?.start()?;
    let node = world.lab.from(&world.lab.node);
    for _ in 0..2 {
        for address in [V4, V6] {
            node.tcp(address).eventually().refused();
        }
        world.manifests.write("web.yaml", manifest(&web(), "web", &all))?;
        for address in [V4, V6] {
            node.tcp(address).eventually().reaches(&PODS);
        }
        let mut connection = node.connect(V4)?;
        world.manifests.write("web.yaml", manifest(&web(), "web", &none))?;
        node.tcp(V4).eventually().refused();
        assert_eq!(connection.echo("still there")?, "still there");
    }
    Ok(())
}

#[test]
fn connection_outlives_its_endpoint_in_the_pool() -> Result<()> {
    let world = World::with_web()?;
    let _agent = world.agent(BOTH)?.start()?;
    let node = world.lab.from(&world.lab.node);
    node.tcp(V4).eventually().reaches(&PODS);
    let mut connection = node.connect(V4)?;
    let all = [&world.lab.pod1, &world.lab.pod2, &world.lab.pod3];
    let others: Vec<&Host> =
        all.into_iter().filter(|host| host.name != connection.server).collect();
    world.manifests.write("web.yaml", manifest(&web(), "web", &others))?;
    let names: Vec<&str> = others.iter().map(|host| &*host.name).collect();
    node.tcp(V4).eventually().reaches(&names);
    assert_eq!(connection.echo("still there")?, "still there");
    Ok(())
}

#[test]
fn endpoint_that_refuses_makes_the_client_see_a_reset() -> Result<()> {
    let world = World::new()?;
    world.manifests.write("raw.yaml", raw_service(&world.lab.pod1))?;
    let _agent = world.agent(BOTH)?.start()?;
    super::connect(&world, RAW)?;
    let tally = world.lab.from(&world.lab.node).tcp(RAW).tally(4, PATIENCE)?;
    let is_reset = |outcome: &Outcome| {
        matches!(outcome, Outcome::Refused | Outcome::Unreachable(Errno::ECONNRESET))
    };
    assert!(tally.counts.iter().all(|(outcome, _)| is_reset(outcome)), "{tally}");
    let labels = [("result", "unreachable")];
    assert!(super::metric(&world, "shunt_loopback_connections_total", &labels)? >= 4.0);
    Ok(())
}
