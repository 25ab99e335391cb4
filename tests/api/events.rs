//! What `kubectl get events` tells.

use std::env;
use std::net::TcpListener;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use shunt_fake_apiserver::{Answer, Api, Case, Fault, Kind, Verb, both, standin_only};
use shunt_testbed::{EndpointSlice, Exposition, METRICS_PORT, Protocol, Service, eventually};

use crate::world::{World, cluster_ip_service};

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = both![
        the_start_is_told,
        the_longest_name_of_a_node_is_taken,
        problems_of_objects_are_told,
        a_conflict_that_others_told_is_not_told_again,
        a_refused_frontend_is_told_once,
        a_repair_is_told,
        a_taken_port_is_told,
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
    eventually(reason, || Ok(with_reason(world, reason)?.pop()))
}

/// Waits for a warning with that reason about such an object, whose text has these parts.
fn assert_warns(world: &World, reason: &str, about: [&str; 2], parts: &[&str]) -> Result<Value> {
    let event = eventually(format_args!("{reason} about {about:?}"), || {
        let events = with_reason(world, reason)?.into_iter();
        let mut events = events.filter(|event| {
            let regarding = &event["regarding"];
            [&event["type"], &regarding["kind"], &regarding["name"]]
                == ["Warning", about[0], about[1]]
        });
        Ok(events.next())
    })?;
    let note = event["note"].as_str().unwrap_or_default();
    assert!(parts.iter().all(|part| note.contains(part)), "{parts:?}: {note}");
    Ok(event)
}

/// The uid by which `kubectl describe service` finds an Event.
fn uid(world: &World, service: &str) -> Result<Value> {
    let services = world.api.client()?.get("/api/v1/services")?;
    let mut services = services.body["items"].as_array().cloned().unwrap_or_default();
    services.retain(|it| it["metadata"]["name"] == service);
    Ok(services.pop().context("no Service")?["metadata"]["uid"].take())
}

/// Two Services that want the same address; it gets the first.
fn put_conflict(world: &World) -> Result<()> {
    for (name, ip) in [("a-first", "10.96.0.31"), ("b-second", "10.96.0.32")] {
        world.api.put(cluster_ip_service(name, ip).external_ips(&["198.51.100.7"]))?;
    }
    Ok(())
}

fn a_taken_port_is_told(api: Api) -> Result<()> {
    let world = World::new(api)?;
    let service = Service::new("taken").cluster_ips(&["10.96.0.33"]);
    world.api.put(service.node_port("tcp", Protocol::Tcp, 80, 30_081))?;
    world.put_slices("taken", &[&world.lab.pod1])?;
    let take = |address: &'static str| world.lab.node.run(|| Ok(TcpListener::bind(address)?));
    let _taken = [take("127.0.0.1:10256")?, take("127.0.0.1:30081")?];
    let agent = world.agent_by_flags().arg("--nodeport-addresses=primary,localhost");
    let _agent = agent.spawn()?;
    let node = ["Node", "node-1"];
    assert_warns(&world, "FailedToStartProxierHealthcheck", node, &["0.0.0.0:10256"])?;
    let service = ["Service", "taken"];
    assert_warns(&world, "FailedToListenOnLoopback", service, &["127.0.0.1:30081"])?;
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

/// No input makes a kernel refuse one frontend alone, so the agent runs with a library (see
/// `tests/support/fault_preload`) that takes the key from such elements on their way.
fn a_refused_frontend_is_told_once(api: Api) -> Result<()> {
    const REFUSED: [&str; 2] = ["10.96.0.40:80", "[fd00:96::40]:80"];
    let world = World::new(api)?;
    let service = Service::new("refused").cluster_ips(&["10.96.0.40", "fd00:96::40"]);
    let service = service.spec("ipFamilyPolicy: RequireDualStack");
    world.api.put(service.port("tcp", Protocol::Tcp, 80))?;
    world.put_slices("refused", &[&world.lab.pod1])?;
    let library = env::current_exe()?.with_file_name("libshunt_fault_preload.so");
    ensure!(library.is_file(), "{} is missing", library.display());
    let preload = format!("LD_PRELOAD={}", library.display());
    let refuse = format!("SHUNT_REFUSE={}", REFUSED.join(" "));
    let agent = || anyhow::Ok(world.agent()?.wrapper(&["env", &preload, &refuse]));
    let told = "the kernel refuses this frontend";
    let output = agent()?.once()?;
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && log.contains(told), "{log}");

    let agent = agent()?.start()?;
    let parts = ["fix the Service; ", "Invalid argument (22)"];
    let event = assert_warns(&world, "FrontendRefused", ["Service", "refused"], &parts)?;
    assert_eq!(event["regarding"]["uid"], uid(&world, "refused")?);
    // The kernel says no again and again.
    agent.wait_for_answer(METRICS_PORT, "/metrics", |answer| {
        let scraped = Exposition::parse(&answer.body).ok()?;
        (scraped.value("shunt_commit_failures_total", &[])? >= 3.0).then_some(())
    })?;
    // Events are sent in order: were there more of them, they would be there before this one.
    put_conflict(&world)?;
    wait_for(&world, "FrontendConflict")?;
    assert_eq!(with_reason(&world, "FrontendRefused")?.len(), 1);
    assert_eq!(agent.log().matches(told).count(), REFUSED.len());
    agent.stop()
}

/// As on the other nodes: the Event is there, so the server answers 409 to the second agent.
fn a_conflict_that_others_told_is_not_told_again(api: Api) -> Result<()> {
    let world = World::new(api)?;
    put_conflict(&world)?;
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
fn put_many(world: &World) -> Result<()> {
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
    world.api.put(format!("{service}{slice}"))
}

/// What each warning is about, and what it says.
fn problems_of_objects_are_told(api: Api) -> Result<()> {
    let world = World::new(api)?;
    world.lab.node.nft("add table ip kube-proxy")?;
    put_conflict(&world)?;
    put_many(&world)?;
    // An address that another Service has as its ClusterIP, whichever is older.
    let grabber = cluster_ip_service("a-grabber", "10.96.0.34").external_ips(&["10.96.0.35"]);
    world.api.put(grabber)?;
    world.api.put(cluster_ip_service("b-owner", "10.96.0.35"))?;
    let _agent = world.start()?;
    let parts = ["1 nftables table; ", "shunt cleanup"];
    assert_warns(&world, "KubeProxyFound", ["Node", "node-1"], &parts)?;
    let about = ["Service", "many"];
    let event = assert_warns(&world, "TooManyElements", about, &["more than 100000 elements"])?;
    assert_eq!(event["action"], "ProgramService");
    let parts = ["198.51.100.7:80", "default/a-first"];
    let event = assert_warns(&world, "FrontendConflict", ["Service", "b-second"], &parts)?;
    assert_eq!(event["regarding"]["uid"], uid(&world, "b-second")?);
    let parts =
        ["10.96.0.35:80", "default/b-owner", "ClusterIPs always take precedence over ExternalIPs"];
    let event = assert_warns(&world, "FrontendConflict", ["Service", "a-grabber"], &parts)?;
    assert!(!event["note"].as_str().unwrap_or_default().contains("older"), "{event}");
    Ok(())
}

fn a_repair_is_told(api: Api) -> Result<()> {
    let world = World::with_web(api)?;
    let _agent = world.start()?;
    world.assert_web(&["pod-1", "pod-2", "pod-3"]);
    world.lab.node.nft("flush ruleset")?;
    assert_warns(&world, "DriftRepaired", ["Node", "node-1"], &[])?;
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
