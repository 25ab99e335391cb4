//! Agents that know too little, too late, or changes every moment.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::json;
use shunt_fake_apiserver::{Answer, Fault, Gate, Kind, Kubeconfig, Standin};
use shunt_testbed::{Agent, AgentBuilder, Node, Occupier, Service};

use super::{explain, wait_for};
use crate::world::{CLUSTER_CIDR, SHUNT, World, slices};

const WEB: u16 = 91;
const QUESTION: [&str; 4] = ["--to", "10.96.0.91:80", "--from", "192.0.2.100"];

/// The testbed with an API server on the node's loopback address.
struct Cluster {
    world: World,
    api: Standin,
    gate: Gate,
    kubeconfig: Kubeconfig,
}

impl Cluster {
    fn new() -> Result<Cluster> {
        let world = World::new()?;
        let api = Standin::start_plain()?;
        api.put(&Node::of(&world.lab.node).to_string())?;
        api.put(&Service::everywhere("web", WEB).to_string())?;
        api.put(&slices("web", &[&world.lab.pod1]))?;
        let (gate, kubeconfig) = api.reach(&world.lab.node)?;
        Ok(Cluster { world, api, gate, kubeconfig })
    }

    fn agent(&self) -> Result<AgentBuilder> {
        let path = self.kubeconfig.path();
        let config = format!("{CLUSTER_CIDR}clientConnection: {{kubeconfig: {path:?}}}\n");
        Agent::builder(SHUNT, &self.world.lab.node).config(&config)
    }

    /// Waits until the answer has this code.
    fn wait_for_code(&self, code: &str) -> Result<()> {
        wait_for(&self.world, &QUESTION, |answer| answer.codes().contains(code)).map(drop)
    }
}

#[test]
fn silent_api_server_is_named() -> Result<()> {
    let cluster = Cluster::new()?;
    let _agent = cluster.agent()?.start()?;
    explain(&cluster.world, &QUESTION)?.is("delivered", &[])?;
    cluster.gate.refuse()?;
    cluster.wait_for_code("api-stale")?;
    explain(&cluster.world, &QUESTION)?.is("delivered", &["api-stale"])
}

#[test]
fn half_listed_objects_are_not_taken_for_the_truth() -> Result<()> {
    let cluster = Cluster::new()?;
    cluster.api.misbehave(Fault::new(Answer::Silence).of(Kind::EndpointSlice));
    let agent = cluster.agent()?.spawn()?;
    cluster.wait_for_code("not-committed-yet")?;
    explain(&cluster.world, &QUESTION)?.is("unknown", &["not-committed-yet"])?;
    let client = || cluster.world.lab.from(&cluster.world.lab.client).tcp("10.96.0.91:80");
    client().unhandled();
    cluster.api.behave();
    cluster.api.cut();
    agent.wait_ready()?;
    wait_for(&cluster.world, &QUESTION, |answer| answer.codes().is_empty())?;
    explain(&cluster.world, &QUESTION)?.is("delivered", &[])?;
    client().reaches(&["pod-1"]);
    agent.stop()?;

    // The rules stay, and deliver.
    cluster.api.misbehave(Fault::new(Answer::Silence).of(Kind::EndpointSlice));
    let _agent = cluster.agent()?.spawn()?;
    cluster.wait_for_code("not-committed-yet")?;
    let answer = explain(&cluster.world, &QUESTION)?;
    ensure!(
        ["unknown", "delivered"].iter().any(|verdict| answer.json["verdict"] == *verdict),
        "{:#}",
        answer.json
    );
    client().reaches(&["pod-1"]);
    Ok(())
}

#[test]
fn invalid_service_is_named() -> Result<()> {
    let cluster = Cluster::new()?;
    cluster.api.put_object(json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "invalid", "namespace": "default"},
        "spec": {"clusterIP": "10.96.0.400", "clusterIPs": ["10.96.0.400"],
                 "ports": [{"name": "http", "port": 80, "protocol": "TCP"}]},
    }))?;
    let _agent = cluster.agent()?.start()?;
    let answer = explain(&cluster.world, &["default/invalid"])?;
    ensure!(answer.status == 4, "{:#}", answer.json);
    ensure!(answer.codes().into_iter().eq(["ignored-invalid"]), "{:#}", answer.json);
    Ok(())
}

/// Another writer replaces the endpoints all the time: plan and kernel are read at different
/// moments, but never differ for two readings of the same objects.
#[test]
fn changes_meanwhile_are_no_difference() -> Result<()> {
    const QUESTIONS: usize = 50;
    let world = World::new()?;
    let pods = [&world.lab.pod1, &world.lab.pod2, &world.lab.pod3];
    let write = |round: usize| {
        let pods = match round % 3 {
            0 => &pods[..1],
            1 => &pods[1..],
            _ => &pods[..],
        };
        let content = format!("{}{}", Service::everywhere("web", WEB), slices("web", pods));
        world.manifests.write("web.yaml", content)
    };
    write(0)?;
    let _agent = world.agent(CLUSTER_CIDR)?.arg("--own-tables=false").start()?;
    let (over, writes) = (AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|scope| {
        let writer = scope.spawn(|| -> Result<()> {
            while !over.load(Ordering::Relaxed) {
                write(writes.fetch_add(1, Ordering::Relaxed))?;
                thread::sleep(Duration::from_millis(10));
            }
            Ok(())
        });
        let asked = (0..QUESTIONS).try_for_each(|_| {
            let answer = explain(&world, &QUESTION)?;
            ensure!(answer.status == 0 && answer.codes().is_empty(), "{:#}", answer.json);
            Ok(())
        });
        over.store(true, Ordering::Relaxed);
        let written = writer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        asked.and(written)
    })?;
    ensure!(writes.load(Ordering::Relaxed) > QUESTIONS, "too few changes: {writes:?}");
    Ok(())
}

/// A process that owns the table `ip shunt` keeps the agent from it.
#[test]
fn failing_sync_is_named() -> Result<()> {
    let world = World::new()?;
    let content =
        format!("{}{}", Service::everywhere("web", WEB), slices("web", &[&world.lab.pod1]));
    world.manifests.write("web.yaml", content)?;
    let agent = world.agent(CLUSTER_CIDR)?.arg("--own-tables=false").start()?;
    let _occupier = Occupier::enter(&world.lab.node)?;
    agent.wait_for_log(&["nothing was programmed"])?;
    wait_for(&world, &QUESTION, |answer| answer.codes().contains("not-committed-yet"))?;
    explain(&world, &QUESTION)?.is("dropped", &["not-committed-yet"])?;
    world.lab.from(&world.lab.client).tcp("10.96.0.91:80").unhandled();
    let six = ["--to", "[fd00:96::91]:80", "--from", "2001:db8:2::100"];
    ensure!(explain(&world, &six)?.json["verdict"] == "delivered");
    Ok(())
}
