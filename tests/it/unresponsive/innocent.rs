//! Endpoints that must never be ejected, and the limits.

use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use shunt_testbed::{Echo, Host, patience};

use super::endings::{on_three_pods, world_on};
use super::scene::{Scene, connect_all, drop_input, endpoint, kill, listen, revive, times};
use crate::world::{TARGET, World};

const VIP: &str = "10.96.0.20:80";
/// Longer than the longest silence that leads to a verdict, with time for the verdict.
const LONG: Duration = Duration::from_secs(14);

/// Connects again and again, whatever becomes of it, and watches that nothing is ejected.
fn nothing_is_ejected(scene: &Scene, calls: &[(&Host, SocketAddr)]) -> Result<()> {
    let began = Instant::now();
    while began.elapsed() < LONG {
        let _ = connect_all(calls, Duration::from_millis(1_500));
        let ejected = scene.in_state("ejected")?;
        ensure!(ejected.is_empty(), "{ejected:?}\n{}", scene.agent.log());
    }
    assert_eq!(scene.metric("shunt_endpoint_ejections_total")?, 0.0);
    Ok(())
}

#[test]
fn refused_connections_are_answers() -> Result<()> {
    let world = world_on(|world| {
        let lab = &world.lab;
        // No server listens on this port.
        vec![(&lab.pod1, TARGET), (&lab.pod2, TARGET), (&lab.pod3, 9_999)]
    })?;
    let scene = Scene::start(world, "on")?;
    nothing_is_ejected(&scene, &times(6, &scene.world.lab.pod2, VIP)?)
}

#[test]
fn client_without_permission_ejects_nothing() -> Result<()> {
    let scene = Scene::start(on_three_pods()?, "on")?;
    let lab = &scene.world.lab;
    for pod in [&lab.pod1, &lab.pod3] {
        drop_input(pod, "ip saddr 10.244.0.12")?;
    }
    nothing_is_ejected(&scene, &times(6, &lab.pod2, VIP)?)?;
    // The agent did look.
    assert_eq!(scene.in_state("unresponsive")?, []);
    Ok(())
}

/// A policy also blocks the agent, whose own pods it always reaches.
#[test]
fn policy_that_blocks_the_agent_too_ejects_nothing() -> Result<()> {
    let scene = Scene::start(on_three_pods()?, "on")?;
    let lab = &scene.world.lab;
    drop_input(&lab.pod1, "ip saddr 10.244.0.12")?;
    drop_input(&lab.pod2, "ip saddr 10.244.0.12")?;
    drop_input(&lab.pod3, "tcp dport 8080")?;
    nothing_is_ejected(&scene, &times(6, &lab.pod2, VIP)?)
}

/// The firewall of the node drops the agent's own packets, but not those of clients.
#[test]
fn agent_that_reaches_nothing_ejects_nothing() -> Result<()> {
    let scene = Scene::start(on_three_pods()?, "on")?;
    let lab = &scene.world.lab;
    lab.node.nft(
        "table inet firewall {
             chain output {
                 type filter hook output priority 0
                 ip daddr 10.244.0.0/16 drop
             }
         }",
    )?;
    kill(&lab.pod3)?;
    let calls = times(6, &lab.pod2, VIP)?;
    let start = Instant::now();
    // A slow machine needs longer for so many attempts that the agent suspects the endpoint.
    loop {
        nothing_is_ejected(&scene, &calls)?;
        let status = scene.status()?;
        if status["endpoints"][0]["reason"] == "noOtherAnswers" {
            return Ok(());
        }
        ensure!(start.elapsed() < patience(2 * LONG), "{status:#}");
    }
}

#[test]
fn overloaded_server_that_accepts_now_and_then_stays() -> Result<()> {
    const PORT: u16 = 9_090;
    let world = world_on(|world| {
        let lab = &world.lab;
        vec![(&lab.pod1, TARGET), (&lab.pod2, TARGET), (&lab.pod3, PORT)]
    })?;
    let listener = TcpListener::from(world.lab.pod3.run(|| listen(PORT))?);
    let scene = Scene::start(world, "on")?;
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut open = Vec::new();
            while !is_over.load(Ordering::Relaxed) {
                open.extend(listener.accept());
                thread::sleep(Duration::from_millis(1_500));
            }
        });
        let calls = times(16, &scene.world.lab.pod2, VIP);
        let result = calls.and_then(|calls| nothing_is_ejected(&scene, &calls));
        is_over.store(true, Ordering::Relaxed);
        result
    })
}

#[test]
fn nothing_is_ejected_when_all_backends_are_dead() -> Result<()> {
    let world = world_on(|world| {
        let lab = &world.lab;
        vec![(&lab.pod1, TARGET), (&lab.pod3, TARGET)]
    })?;
    let scene = Scene::start(world, "on")?;
    let lab = &scene.world.lab;
    kill(&lab.pod1)?;
    kill(&lab.pod3)?;
    nothing_is_ejected(&scene, &times(6, &lab.pod2, VIP)?)
}

/// They die one after the other.
#[test]
fn ejected_endpoint_returns_when_the_others_die_too() -> Result<()> {
    let scene = Scene::start(on_three_pods()?, "on")?;
    let lab = &scene.world.lab;
    scene.warm_up(&times(16, &lab.pod2, VIP)?)?;
    kill(&lab.pod3)?;
    scene.connect_until_ejected(&times(16, &lab.pod2, VIP)?, &[endpoint(&lab.pod3)])?;
    kill(&lab.pod1)?;
    kill(&lab.pod2)?;
    scene.wait_ejected(&[])?;
    for pod in [&lab.pod1, &lab.pod2, &lab.pod3] {
        revive(pod)?;
    }
    lab.from(&lab.client).tcp(VIP).eventually().reaches(&["pod-1", "pod-2", "pod-3"]);
    Ok(())
}

#[test]
fn last_backend_stays() -> Result<()> {
    let world = world_on(|world| vec![(&world.lab.pod3, TARGET)])?;
    let scene = Scene::start(world, "on")?;
    kill(&scene.world.lab.pod3)?;
    nothing_is_ejected(&scene, &times(6, &scene.world.lab.pod2, VIP)?)
}

#[test]
fn at_most_a_third_of_a_pool_is_ejected() -> Result<()> {
    let world = World::new()?;
    let more: Vec<Host> = (22..25)
        .map(|n: u8| {
            let v6 = format!("fd00:244:1::{n}");
            world.lab.add_pod(&world.lab.node2, &format!("pod-{n}"), [10, 244, 1, n], &v6)
        })
        .collect::<Result<_>>()?;
    let _servers: Vec<Echo> =
        more.iter().map(|pod| Echo::on(pod, TARGET)).collect::<Result<_>>()?;
    let lab = &world.lab;
    let pods: Vec<&Host> = [&lab.pod1, &lab.pod2, &lab.pod3].into_iter().chain(&more).collect();
    let service = crate::world::http_service("http", &["10.96.0.20", "fd00:96::20"]);
    let slices = crate::world::http_slices("http", &pods);
    world.manifests.write("http.yaml", format!("{service}{slices}"))?;
    let scene = Scene::start(world, "on")?;
    let lab = &scene.world.lab;
    let dead = [&lab.pod3, &more[0], &more[1]];
    dead.iter().try_for_each(|pod| kill(pod))?;
    let calls = times(12, &lab.pod2, VIP)?;
    // Three of six are found, but only two may go.
    scene.wait("two of three ejected", |scene| {
        let _ = connect_all(&calls, Duration::from_millis(1_500));
        let (ejected, others) = (scene.in_state("ejected")?, scene.in_state("unresponsive")?);
        ensure!(ejected.len() <= 2, "{ejected:?}");
        Ok(ejected.len() == 2 && others.len() == 1)
    })?;
    // When one returns, the third one goes.
    let first = scene.in_state("ejected")?;
    let back = dead.iter().find(|pod| first.contains(&endpoint(pod))).expect("one of them");
    revive(back)?;
    scene.wait("the other two ejected", |scene| {
        let ejected = scene.in_state("ejected")?;
        ensure!(ejected.len() <= 2, "{ejected:?}");
        Ok(ejected.len() == 2 && !ejected.contains(&endpoint(back)))
    })
}
