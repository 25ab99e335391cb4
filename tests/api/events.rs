//! What `kubectl get events` tells.

use std::net::TcpListener;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use shunt_fake_apiserver::{Answer, Api, Case, Fault, Kind, Verb, both, standin_only};
use shunt_testbed::{EndpointSlice, Protocol, Service};

use crate::world::{World, cluster_ip_service};

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = both![
        the_start_is_told,
        the_longest_name_of_a_node_is_taken,
        a_conflict_is_told,
        a_conflict_that_others_told_is_not_told_again,
        a_conflict_of_kinds_is_told,
        too_many_elements_are_told,
        a_repair_is_told,
        rules_of_kube_proxy_are_told,
        a_taken_port_is_told,
        a_taken_node_port_on_localhost_is_told,
    ];
    cases.extend(standin_only![
        forbidden_events_delay_nothing,
        unanswered_events_delay_nothing,
        event_has_no_uid_if_the_service_cannot_be_read,
    ]);
    cases
}

/// The Events with that reason.
pub(crate) fn with_reason(world: &World, reason: &str) -> Result<Vec<Value>> {
    const EVENTS: &str = "/apis/events.k8s.io/v1/namespaces/default/events";
    let mut events = match &world.api {
        Api::Standin(standin) => standin.all(Kind::Event),
        // The agent itself may write Events, but not read them.
        Api::Kubernetes(kubernetes) => {
            let list = kubernetes.admin().get(EVENTS)?.body;
            list["items"].as_array().cloned().unwrap_or_default()
        }
    };
    events.retain(|event| event["reason"] == reason);
    Ok(events)
}

/// Waits for an Event with that reason.
pub(crate) fn wait_for(world: &World, reason: &str) -> Result<Value> {
    let start = Instant::now();
    loop {
        if let Some(event) = with_reason(world, reason)?.pop() {
            return Ok(event);
        }
        ensure!(start.elapsed() < Duration::from_secs(60), "no {reason}");
        thread::sleep(Duration::from_millis(10));
    }
}

fn a_taken_port_is_told(api: Api) -> Result<()> {
    let world = World::new(api)?;
    let _taken = world.lab.node.run(|| Ok(TcpListener::bind("127.0.0.1:10256")?))?;
    let _agent = world.agent()?.spawn()?;
    let event = wait_for(&world, "FailedToStartProxierHealthcheck")?;
    assert_eq!(event["type"], "Warning");
    assert_eq!(event["regarding"]["kind"], "Node");
    assert!(event["note"].as_str().is_some_and(|note| note.contains("0.0.0.0:10256")), "{event}");
    Ok(())
}

fn a_taken_node_port_on_localhost_is_told(api: Api) -> Result<()> {
    let world = World::new(api)?;
    let service = Service::new("taken").cluster_ips(&["10.96.0.33"]);
    world.api.put(service.node_port("tcp", Protocol::Tcp, 80, 30_081))?;
    world.put_slices("taken", &[&world.lab.pod1])?;
    let _taken = world.lab.node.run(|| Ok(TcpListener::bind("127.0.0.1:30081")?))?;
    let agent = world.agent_by_flags().arg("--nodeport-addresses=primary,localhost");
    let _agent = agent.spawn()?;
    let event = wait_for(&world, "FailedToListenOnLoopback")?;
    assert_eq!(event["type"], "Warning");
    assert_eq!(event["regarding"]["kind"], "Service");
    assert_eq!(event["regarding"]["name"], "taken");
    assert!(event["note"].as_str().is_some_and(|note| note.contains("127.0.0.1:30081")), "{event}");
    Ok(())
}

fn the_start_is_told(api: Api) -> Result<()> {
    let world = World::new(api)?;
    let agent = world.start()?;
    let event = wait_for(&world, "Starting")?;
    assert_eq!(event["type"], "Normal");
    assert_eq!(event["regarding"]["kind"], "Node");
    assert_eq!(event["regarding"]["name"], "node-1");
    assert_eq!(event["regarding"]["uid"], "node-1");
    assert_eq!(event["reportingController"], "shunt");
    assert_eq!(event["reportingInstance"], "shunt-node-1");
    // The server takes it at once.
    let created = agent.wait_for_answer(10249, "/metrics", |answer| {
        let is_post = |line: &&str| line.contains(r#"method="POST""#) && line.contains("code=");
        let lines: Vec<String> = answer.body.lines().filter(is_post).map(str::to_owned).collect();
        (!lines.is_empty()).then_some(lines)
    })?;
    assert!(created.iter().all(|line| line.contains(r#"code="201""#)), "{created:?}");
    Ok(())
}

/// The server limits the Event's own name and `reportingInstance`, both of which have the node's.
fn the_longest_name_of_a_node_is_taken(api: Api) -> Result<()> {
    let world = World::new(api)?;
    let label = "n".repeat(63);
    // Where the name of the Event is cut, it must not end with a dash.
    let name = format!("{label}.{label}.{label}.{}-{}", "m".repeat(43), "o".repeat(17));
    assert_eq!(name.len(), 253);
    let agent = world.agent()?.name_from_configuration();
    let _agent = agent.arg(format!("--hostname-override={name}")).spawn()?;
    let event = wait_for(&world, "Starting")?;
    assert_eq!(event["regarding"]["name"], name.as_str());
    Ok(())
}

fn rules_of_kube_proxy_are_told(api: Api) -> Result<()> {
    let world = World::new(api)?;
    world.lab.node.nft("add table ip kube-proxy")?;
    let _agent = world.start()?;
    let event = wait_for(&world, "KubeProxyFound")?;
    assert_eq!(event["type"], "Warning");
    assert_eq!(event["regarding"]["kind"], "Node");
    let note = event["note"].as_str().unwrap_or_default();
    assert!(note.contains("1 nftables table; ") && note.contains("shunt cleanup"), "{note}");
    Ok(())
}

fn a_conflict_is_told(api: Api) -> Result<()> {
    let world = World::new(api)?;
    for (name, ip) in [("a-first", "10.96.0.31"), ("b-second", "10.96.0.32")] {
        world.api.put(cluster_ip_service(name, ip).external_ips(&["198.51.100.7"]))?;
    }
    let _agent = world.start()?;
    let event = wait_for(&world, "FrontendConflict")?;
    assert_eq!(event["type"], "Warning");
    assert_eq!(event["regarding"]["kind"], "Service");
    assert_eq!(event["regarding"]["name"], "b-second");
    let note = event["note"].as_str().unwrap_or_default();
    assert!(note.contains("198.51.100.7:80") && note.contains("default/a-first"), "{note}");
    // By this `kubectl describe service` finds it.
    let services = world.api.client()?.get("/api/v1/services")?;
    let services = services.body["items"].as_array().cloned().unwrap_or_default();
    let loser = services.iter().find(|service| service["metadata"]["name"] == "b-second");
    let uid = loser.map(|loser| &loser["metadata"]["uid"]);
    assert_eq!(Some(&event["regarding"]["uid"]), uid, "{services:?}");
    Ok(())
}

/// An address that another Service has as its ClusterIP, whichever is older.
fn a_conflict_of_kinds_is_told(api: Api) -> Result<()> {
    let world = World::new(api)?;
    let grabber = cluster_ip_service("a-grabber", "10.96.0.31").external_ips(&["10.96.0.32"]);
    world.api.put(grabber)?;
    world.api.put(cluster_ip_service("b-owner", "10.96.0.32"))?;
    let _agent = world.start()?;
    let event = wait_for(&world, "FrontendConflict")?;
    assert_eq!(event["regarding"]["name"], "a-grabber");
    let note = event["note"].as_str().unwrap_or_default();
    for part in
        ["10.96.0.32:80", "default/b-owner", "ClusterIPs always take precedence over ExternalIPs"]
    {
        assert!(note.contains(part), "{note}");
    }
    assert!(!note.contains("older"), "{note}");
    Ok(())
}

/// As on the other nodes: the Event is there, so the server answers 409 to the second agent.
fn a_conflict_that_others_told_is_not_told_again(api: Api) -> Result<()> {
    let world = World::new(api)?;
    for (name, ip) in [("a-first", "10.96.0.31"), ("b-second", "10.96.0.32")] {
        world.api.put(cluster_ip_service(name, ip).external_ips(&["198.51.100.7"]))?;
    }
    let agent = world.start()?;
    let first = wait_for(&world, "FrontendConflict")?;
    agent.stop()?;
    let agent = world.start()?;
    agent.wait_for_answer(10249, "/metrics", |answer| {
        answer.body.lines().any(|line| line.contains(r#"code="409""#)).then_some(())
    })?;
    assert_eq!(with_reason(&world, "FrontendConflict")?, [first]);
    assert_eq!(with_reason(&world, "Starting")?.len(), 2);
    Ok(())
}

/// Hash tables for 100 ports on four addresses, without room for 201 endpoints each.
fn too_many_elements_are_told(api: Api) -> Result<()> {
    let world = World::new(api)?;
    let name = |port: u16| format!("port-{port}");
    let service = Service::new("many")
        .cluster_ips(&["10.96.0.33"])
        .external_ips(&["198.51.100.1", "198.51.100.2", "198.51.100.3"])
        .metadata("annotations: {shunt.dev/load-balancing: source-hash}");
    let service =
        (1..=100).fold(service, |service, port| service.port(&name(port), Protocol::Tcp, port));
    let slice = EndpointSlice::v4("many");
    let slice = (1..=100).fold(slice, |slice, port| slice.port(&name(port), Protocol::Tcp, port));
    let slice = (1..=201).fold(slice, |slice, n| {
        slice.endpoint(&format!("10.244.7.{n}"), "conditions: {ready: true}")
    });
    world.api.put(service)?;
    world.api.put(slice)?;
    let _agent = world.start()?;
    let event = wait_for(&world, "TooManyElements")?;
    assert_eq!((&event["type"], &event["action"]), (&json!("Warning"), &json!("ProgramService")));
    assert_eq!(event["regarding"]["name"], "many");
    let note = event["note"].as_str().unwrap_or_default();
    assert!(note.contains("more than 100000 elements"), "{note}");
    Ok(())
}

fn a_repair_is_told(api: Api) -> Result<()> {
    let world = World::with_web(api)?;
    let _agent = world.start()?;
    world.assert_web(&["pod-1", "pod-2", "pod-3"]);
    world.lab.node.nft("flush ruleset")?;
    let event = wait_for(&world, "DriftRepaired")?;
    assert_eq!(event["type"], "Warning");
    assert_eq!(event["regarding"]["name"], "node-1");
    world.assert_web(&["pod-1", "pod-2", "pod-3"]);
    Ok(())
}

/// Everything works while the server answers like this when it is given an Event.
fn works_with(api: Api, answer: Answer) -> Result<String> {
    let world = World::with_web(api)?;
    world.standin()?.misbehave(Fault::new(answer).on(Verb::Create).of(Kind::Event));
    let agent = world.start()?;
    world.standin()?.wait_for_requests(1, |request| request.verb == Verb::Create)?;
    world.assert_web(&["pod-1", "pod-2", "pod-3"]);
    world.mark()?;
    let log = agent.log();
    agent.stop()?;
    Ok(log)
}

fn forbidden_events_delay_nothing(api: Api) -> Result<()> {
    let log = works_with(api, Answer::Status(403))?;
    assert_eq!(log.matches("API server forbids Events").count(), 1, "{log}");
    Ok(())
}

fn unanswered_events_delay_nothing(api: Api) -> Result<()> {
    works_with(api, Answer::Silence).map(|_| ())
}

fn event_has_no_uid_if_the_service_cannot_be_read(api: Api) -> Result<()> {
    let world = World::new(api)?;
    let service = |name, ip| cluster_ip_service(name, ip).external_ips(&["198.51.100.7"]);
    world.api.put(service("a-first", "10.96.0.31"))?;
    let _agent = world.start()?;
    world.standin()?.misbehave(Fault::new(Answer::Status(403)).on(Verb::List).of(Kind::Service));
    world.api.put(service("b-second", "10.96.0.32"))?;
    let event = wait_for(&world, "FrontendConflict")?;
    assert_eq!(event["regarding"]["name"], "b-second");
    assert!(event["regarding"].get("uid").is_none(), "{event:?}");
    Ok(())
}
