//! The ways in which an endpoint stops to answer, and how it comes back.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use shunt_testbed::{EndpointSlice, Host, Protocol, patience};

use super::scene::{
    Scene, at_once, connect_all, drop_port, endpoint, endpoints, kill, rescued, revive, times,
};
use crate::world::{TARGET, World, http_service};

const VIP: &str = "10.96.0.20:80";

/// A world with a Service on these pods, on the port of the echo servers or another.
pub(super) fn world_on(pods: impl Fn(&World) -> Vec<(&Host, u16)>) -> Result<World> {
    let world = World::new()?;
    let pods = pods(&world);
    let mut manifest = http_service("http", &["10.96.0.20", "fd00:96::20"]).to_string();
    for (place, (pod, port)) in pods.into_iter().enumerate() {
        for slice in [EndpointSlice::v4("http"), EndpointSlice::v6("http")] {
            let family = if slice.to_string().contains("IPv4") { "v4" } else { "v6" };
            let slice = slice.name(&format!("http-{place}-{family}"));
            manifest += &slice.port("http", Protocol::Tcp, port).hosts(&[pod]).to_string();
        }
    }
    world.manifests.write("http.yaml", manifest)?;
    Ok(world)
}

pub(super) fn on_three_pods() -> Result<World> {
    world_on(|world| {
        let lab = &world.lab;
        vec![(&lab.pod1, TARGET), (&lab.pod2, TARGET), (&lab.pod3, TARGET)]
    })
}

#[test]
fn same_connect_succeeds_when_a_pod_dies() -> Result<()> {
    let scene = Scene::start(on_three_pods()?, "on")?;
    let lab = &scene.world.lab;
    scene.warm_up(&times(16, &lab.pod2, VIP)?)?;
    kill(&lab.pod3)?;
    let began = Instant::now();
    let servers =
        scene.connect_until_ejected(&times(16, &lab.pod2, VIP)?, &[endpoint(&lab.pod3)])?;
    assert!(!servers.contains(&"pod-3".to_owned()), "{servers:?}");
    assert!(began.elapsed() < rescued(), "{:?}\n{}", began.elapsed(), scene.agent.log());
    // Later connections do not wait at all.
    connect_all(&times(30, &lab.pod2, VIP)?, at_once())?;
    assert_eq!(scene.metric("shunt_endpoint_ejections_total")?, 1.0);
    assert_eq!(scene.status()?["endpoints"][0]["reason"], "silentHost");
    assert_eq!(scene.status()?["endpoints"][0]["services"], 1);

    revive(&lab.pod3)?;
    scene.wait_ejected(&[])?;
    assert_eq!(scene.metric("shunt_endpoint_restores_total")?, 1.0);
    lab.from(&lab.pod2).tcp(VIP).eventually().reaches(&["pod-1", "pod-2", "pod-3"]);
    Ok(())
}

/// A quiet client, and no other one.
#[test]
fn single_connection_is_rescued() -> Result<()> {
    let scene = Scene::start(on_three_pods()?, "on")?;
    let lab = &scene.world.lab;
    scene.warm_up(&times(16, &lab.pod2, VIP)?)?;
    kill(&lab.pod3)?;
    // One at a time, until one has met the dead pod.
    scene.connect_until_ejected(&times(1, &lab.pod2, VIP)?, &[endpoint(&lab.pod3)])?;
    Ok(())
}

#[test]
fn dead_link_of_a_node() -> Result<()> {
    let scene = Scene::start(on_three_pods()?, "on")?;
    let lab = &scene.world.lab;
    lab.from(&lab.pod2).tcp(VIP).eventually().reaches(&["pod-1", "pod-2", "pod-3"]);
    scene.warm_up(&times(16, &lab.pod2, VIP)?)?;
    lab.node2.ip("link set eth0 down")?;
    scene.connect_until_ejected(&times(16, &lab.pod2, VIP)?, &[endpoint(&lab.pod3)])?;
    lab.node2.ip("link set eth0 up")?;
    lab.node2.ip("route add default via 192.0.2.1\nroute add 10.244.0.0/24 via 192.0.2.10\n")?;
    scene.wait_ejected(&[])?;
    lab.from(&lab.pod2).tcp(VIP).eventually().reaches(&["pod-1", "pod-2", "pod-3"]);
    Ok(())
}

#[test]
fn silent_port_of_a_live_host_is_ejected_later() -> Result<()> {
    let scene = Scene::start(on_three_pods()?, "on")?;
    let lab = &scene.world.lab;
    drop_port(&lab.pod3)?;
    let began = Instant::now();
    let calls = times(4, &lab.pod2, VIP)?;
    scene.wait("ejected", |scene| {
        let _ = connect_all(&calls, Duration::from_millis(1_500));
        Ok(scene.in_state("ejected")? == [endpoint(&lab.pod3)])
    })?;
    assert!(began.elapsed() > Duration::from_secs(9), "too early: {:?}", began.elapsed());
    assert_eq!(scene.status()?["endpoints"][0]["reason"], "silentPort");
    revive(&lab.pod3)?;
    scene.wait_ejected(&[])?;
    Ok(())
}

#[test]
fn an_endpoint_that_leaves_the_api_is_forgotten() -> Result<()> {
    let scene = Scene::start(World::with_web()?, "on")?;
    let lab = &scene.world.lab;
    scene.warm_up(&times(16, &lab.pod2, "10.96.0.10:80")?)?;
    kill(&lab.pod3)?;
    let calls = times(16, &lab.pod2, "10.96.0.10:80")?;
    scene.connect_until_ejected(&calls, &[endpoint(&lab.pod3)])?;
    let pods = [&lab.pod1, &lab.pod2];
    scene
        .world
        .manifests
        .write("web.yaml", crate::world::manifest(&crate::world::web(), "web", &pods))?;
    scene.wait("forgotten", |scene| {
        let status = scene.status()?;
        Ok(status["endpoints"].as_array().is_some_and(Vec::is_empty))
    })?;
    Ok(())
}

/// With each return, the next one takes longer.
#[test]
fn flapping_endpoint_stays_away_longer() -> Result<()> {
    let scene = Scene::start(on_three_pods()?, "on")?;
    let lab = &scene.world.lab;
    let mut away = Vec::new();
    for round in 1..=3 {
        scene.warm_up(&times(16, &lab.pod2, VIP)?)?;
        kill(&lab.pod3)?;
        scene.connect_until_ejected(&times(16, &lab.pod2, VIP)?, &[endpoint(&lab.pod3)])?;
        let recent = scene.status()?["endpoints"][0]["recent"].clone();
        assert_eq!(recent, round, "{recent}");
        revive(&lab.pod3)?;
        let began = Instant::now();
        scene.wait_ejected(&[])?;
        away.push(began.elapsed());
    }
    // Three successes, a second apart.
    ensure!(away[2] > Duration::from_millis(1_500), "one success must not suffice: {away:?}");
    Ok(())
}

#[test]
fn many_endpoints_of_a_dead_node_among_thousands_of_services() -> Result<()> {
    const OTHERS: u16 = 2_000;
    // An emulated processor cannot open hundreds of connections in the time that they may take.
    let is_slow = patience(Duration::from_secs(1)) > Duration::from_secs(1);
    let dead_count: u16 = if is_slow { 20 } else { 100 };
    let world = World::new()?;
    let lab = &world.lab;
    let mut manifest = String::new();
    for n in 0..dead_count {
        let name = format!("dead-{n}");
        manifest += &http_service(&name, &[&format!("10.97.0.{n}")]).to_string();
        let live = EndpointSlice::v4(&name).port("http", Protocol::Tcp, TARGET);
        manifest += &live.hosts(&[&lab.pod1, &lab.pod2]).to_string();
        let dead = EndpointSlice::v4(&name).name(&format!("{name}-far"));
        let dead = dead.port("http", Protocol::Tcp, 9_000 + n).hosts(&[&lab.pod3]);
        manifest += &dead.to_string();
        // At the same distance as the dead one.
        let far = EndpointSlice::v4(&name).name(&format!("{name}-node"));
        let far = far.port("http", Protocol::Tcp, TARGET);
        manifest += &far
            .endpoint("10.244.1.22", "nodeName: \"node-3\", conditions: {ready: true}")
            .to_string();
    }
    for n in 0..OTHERS {
        let name = format!("other-{n}");
        let ip = format!("10.98.{}.{}", n / 250, n % 250);
        manifest += &http_service(&name, &[&ip]).to_string();
        let slice = EndpointSlice::v4(&name).port("http", Protocol::Tcp, TARGET);
        manifest += &slice.hosts(&[&lab.pod1]).to_string();
    }
    world.manifests.write("all.yaml", manifest)?;
    let pod4 = world.lab.add_pod(&world.lab.node2, "pod-4", [10, 244, 1, 22], "fd00:244:1::22")?;
    let _server = shunt_testbed::Echo::on(&pod4, TARGET)?;
    kill(&world.lab.pod3)?;
    let scene = Scene::start(world, "on")?;
    let lab = &scene.world.lab;
    let mut calls = Vec::new();
    for n in 0..dead_count {
        calls.extend(times(3, &lab.pod2, &format!("10.97.0.{n}:80"))?);
    }
    let dead: Vec<SocketAddr> =
        (0..dead_count).map(|n| SocketAddr::new(lab.pod3.ipv4[0].into(), 9_000 + n)).collect();
    scene.connect_until_ejected(&calls, &dead)?;
    // New connections do not wait.
    connect_all(&calls, at_once())?;
    revive(&lab.pod3)?;
    scene.wait_ejected(&[]).context("a refused connection is an answer")?;
    Ok(())
}

#[test]
fn both_families_have_endpoints_of_their_own() -> Result<()> {
    let scene = Scene::start(on_three_pods()?, "on")?;
    let lab = &scene.world.lab;
    let mut calls = times(16, &lab.pod2, VIP)?;
    calls.extend(times(16, &lab.pod2, "[fd00:96::20]:80")?);
    scene.warm_up(&calls)?;
    kill(&lab.pod3)?;
    scene.connect_until_ejected(&calls, &endpoints(&lab.pod3))?;
    Ok(())
}
