//! All frontends of a Service, and what belongs to them.

use anyhow::{Result, ensure};
use shunt_testbed::{Host, Protocol, Topology};

use super::scene::{
    Scene, at_once, connect, connect_all, endpoint, endpoints, kill, rescued, revive, times,
};
use crate::table::Table;
use crate::world::{World, manifest, run_shunt, web};

const TCP: Table = Table::ALL.on(&[Protocol::Tcp]);

#[test]
fn every_frontend_leaves_a_dead_endpoint() -> Result<()> {
    let scene = Scene::start(World::with_web()?, "on")?;
    let lab = &scene.world.lab;
    let mut calls = Vec::new();
    for case in TCP.cases() {
        for host in [&lab.client, &lab.pod2, &lab.node] {
            calls.extend([(host, case.address()); 2]);
        }
    }
    scene.warm_up(&calls)?;
    kill(&lab.pod3)?;
    scene.connect_until_ejected(&calls, &endpoints(&lab.pod3))?;
    // New connections do not wait.
    connect_all(&calls, at_once())?;
    connect_all(&calls, at_once())?;
    let diff = run_shunt(&lab.node, &["diff"])?;
    ensure!(diff.status.success(), "{}", String::from_utf8_lossy(&diff.stdout));
    revive(&lab.pod3)?;
    scene.wait_ejected(&[])?;
    let diff = run_shunt(&lab.node, &["diff"])?;
    ensure!(diff.status.success(), "{}", String::from_utf8_lossy(&diff.stdout));
    Ok(())
}

/// Clients outside use the pods of the node, its own pods and itself all of them.
#[test]
fn local_policy_and_its_short_circuit() -> Result<()> {
    let world = World::new()?;
    let lab = &world.lab;
    let local = web().spec("externalTrafficPolicy: Local");
    let pods = [&lab.pod1, &lab.pod2, &lab.pod3];
    world.manifests.write("web.yaml", manifest(&local, "web", &pods))?;
    let scene = Scene::start(world, "on")?;
    let lab = &scene.world.lab;
    let mut calls = Vec::new();
    for case in TCP.cases() {
        calls.extend([(&lab.client, case.address()); 3]);
        calls.extend([(&lab.node, case.address()); 3]);
    }
    kill(&lab.pod1)?;
    let servers = scene.connect_until_ejected(&calls, &endpoints(&lab.pod1))?;
    assert!(!servers.contains(&"pod-1".to_owned()));
    connect_all(&calls, at_once())?;
    Ok(())
}

#[test]
fn session_moves_once_and_stays() -> Result<()> {
    let world = World::new()?;
    let lab = &world.lab;
    let sticky = web().spec("sessionAffinity: ClientIP");
    let pods = [&lab.pod1, &lab.pod2, &lab.pod3];
    world.manifests.write("web.yaml", manifest(&sticky, "web", &pods))?;
    let scene = Scene::start(world, "on")?;
    let lab = &scene.world.lab;
    let vip = "10.96.0.10:80";
    let of = |name: &str| pod_of(lab, name);
    let first = connect(&lab.client, vip.parse()?, rescued())?;
    kill(of(&first))?;
    let servers =
        scene.connect_until_ejected(&times(1, &lab.client, vip)?, &[endpoint(of(&first))])?;
    let second = servers[0].clone();
    assert_ne!(second, first);
    let stays = |what: &str| {
        for server in connect_all(&times(10, &lab.client, vip)?, at_once())? {
            ensure!(server == second, "{what}: {server}, not {second}");
        }
        Ok(())
    };
    stays("after the ejection")?;
    revive(of(&first))?;
    scene.wait_ejected(&[])?;
    stays("after the return")
}

fn pod_of<'a>(lab: &'a Topology, name: &str) -> &'a Host {
    match name {
        "pod-1" => &lab.pod1,
        "pod-2" => &lab.pod2,
        _ => &lab.pod3,
    }
}
