//! The kernel refuses a frontend: log, metrics, status and Events say so, and nothing else suffers.
//!
//! No input makes a kernel refuse one frontend alone, so the agent runs with a library (see
//! `tests/support/fault_preload`) that takes the key from such elements on their way. All else is the kernel's and
//! the agent's own: the error, what it is about, the attempts.

use std::env;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use shunt_fake_apiserver::{Api, Case, both};
use shunt_testbed::{Agent, AgentBuilder, Exposition, METRICS_PORT, Protocol, Service};

use crate::world::{World, cluster_ip_service};
use crate::{events, status};

pub(crate) fn cases() -> Vec<Case> {
    both![
        a_refused_frontend_costs_itself_and_everybody_is_told,
        once_fails_on_a_refused_frontend_but_programs_all_else,
    ]
}

/// The Service that has a port which the kernel refuses, and one that it does not.
const SERVICE: &str = "default/picked-on";
const REFUSED: [&str; 2] = ["10.96.0.40:80", "[fd00:96::40]:80"];
const BESIDE: [&str; 2] = ["10.96.0.40:53", "[fd00:96::40]:53"];
const CHANGED: [&str; 2] = ["10.96.0.40:8000", "[fd00:96::40]:8000"];

fn picked_on(port: u16) -> Service {
    Service::new("picked-on")
        .port("tcp", Protocol::Tcp, port)
        .port("udp", Protocol::Udp, 53)
        .cluster_ips(&["10.96.0.40", "fd00:96::40"])
        .spec("ipFamilyPolicy: RequireDualStack")
}

/// An agent whose kernel refuses [`REFUSED`], about to be started.
fn agent(world: &World) -> Result<AgentBuilder> {
    let library = env::current_exe()?.with_file_name("libshunt_fault_preload.so");
    ensure!(
        library.is_file(),
        "{} is missing, which cargo builds with this test: run it from where it was built",
        library.display()
    );
    let preload = format!("LD_PRELOAD={}", library.display());
    let refuse = format!("SHUNT_REFUSE={}", REFUSED.join(" "));
    Ok(world.agent()?.wrapper(&["env", &preload, &refuse]))
}

/// [`SERVICE`] beside one that the kernel accepts.
fn world(api: Api) -> Result<World> {
    let world = World::with_web(api)?;
    world.api.put(picked_on(80))?;
    world.put_slices("picked-on", &[&world.lab.pod1, &world.lab.pod3])?;
    Ok(world)
}

/// Asserts that only that port of that Service suffers, and only there.
#[track_caller]
fn assert_only_it_suffers(world: &World) {
    let client = world.lab.from(&world.lab.client);
    world.assert_web(&["pod-1", "pod-2", "pod-3"]);
    for (refused, beside) in REFUSED.into_iter().zip(BESIDE) {
        client.tcp(refused).refused();
        client.udp(beside).reaches(&["pod-1", "pod-3"]);
    }
}

/// Waits until a metric is as `is_so` wants it, and returns its value.
fn wait_for_metric(agent: &Agent, name: &str, is_so: impl Fn(f64) -> bool) -> Result<f64> {
    let value = agent.wait_for_answer(METRICS_PORT, "/metrics", |answer| {
        Exposition::parse(&answer.body).ok()?.value(name, &[]).filter(|value| is_so(*value))
    });
    value.with_context(|| name.to_owned())
}

fn a_refused_frontend_costs_itself_and_everybody_is_told(api: Api) -> Result<()> {
    let world = world(api)?;
    let client = world.lab.from(&world.lab.client);
    let agent = agent(&world)?.start()?;
    let failures = "shunt_commit_failures_total";
    let at_first = wait_for_metric(&agent, failures, |count| count > 0.0)?;
    assert_only_it_suffers(&world);
    assert_told(&world, &agent)?;

    // Everything goes on, for the kernel says no again and again; nobody is told again.
    world.put_slices("web", &[&world.lab.pod2])?;
    world.assert_web_becomes(&["pod-2"]);
    wait_for_metric(&agent, failures, |count| count >= at_first + 2.0)?;
    world.put_slices("late", &[&world.lab.pod3])?;
    world.api.put(cluster_ip_service("late", "10.96.0.41"))?;
    client.tcp("10.96.0.41:80").eventually().reaches(&["pod-3"]);
    world.put_slices("picked-on", &[&world.lab.pod2])?;
    for (refused, beside) in REFUSED.into_iter().zip(BESIDE) {
        client.udp(beside).eventually().reaches(&["pod-2"]);
        client.tcp(refused).refused();
    }
    status::wait_for(&world, &["PROBLEM  the kernel refuses ", SERVICE])?;
    wait_for_metric(&agent, "shunt_quarantined_service_ports", |count| count == 1.0)?;

    // A Service that is changed to something that the kernel takes is well from then on.
    world.api.put(picked_on(8000))?;
    for (refused, changed) in REFUSED.into_iter().zip(CHANGED) {
        client.tcp(changed).eventually().reaches(&["pod-2"]);
        client.tcp(refused).refused();
    }
    status::wait_for(&world, &["OK  "])?;
    wait_for_metric(&agent, "shunt_quarantined_service_ports", |count| count == 0.0)?;
    for frontend in REFUSED {
        agent.wait_for_log(&["INFO", "no longer refused by the kernel", frontend])?;
    }
    assert_released_by_the_change(&agent.log());

    // Events are sent in order: were there more of them, they would be there before this one.
    for (name, ip) in [("a-first", "10.96.0.42"), ("b-second", "10.96.0.43")] {
        world.api.put(cluster_ip_service(name, ip).external_ips(&["198.51.100.7"]))?;
    }
    events::wait_for(&world, "FrontendConflict")?;
    let told = events::with_reason(&world, "FrontendRefused")?;
    assert_eq!(told.len(), 1, "one for the Service: {told:#?}");
    assert_eq!(agent.log().matches("the kernel refuses this frontend").count(), REFUSED.len());
    world.assert_web(&["pod-2"]);
    agent.stop()
}

/// The log, metrics and the status say which frontends are refused, and an Event names one of them.
#[track_caller]
fn assert_told(world: &World, agent: &Agent) -> Result<()> {
    let services = world.api.client()?.get("/api/v1/services")?;
    let services = services.body["items"].as_array().cloned().unwrap_or_default();
    let service = services.iter().find(|service| service["metadata"]["name"] == "picked-on");
    let uid = service.map(|service| service["metadata"]["uid"].clone());
    let event: Value = events::wait_for(world, "FrontendRefused")?;
    assert_eq!(event["type"], "Warning");
    assert_eq!(event["regarding"]["kind"], "Service");
    assert_eq!(event["regarding"]["name"], "picked-on");
    assert_eq!(Some(&event["regarding"]["uid"]), uid.as_ref(), "{services:?}");
    let note = event["note"].as_str().unwrap_or_default();
    for part in ["fix the Service; ", "Invalid argument (22)"] {
        assert!(note.contains(part), "no {part:?} in {note}");
    }
    assert!(REFUSED.iter().any(|frontend| note.contains(frontend)), "{note}");
    for frontend in REFUSED {
        let of_it = format!("{frontend}/tcp of {SERVICE}:tcp");
        agent.wait_for_log(&[
            "ERROR",
            "the kernel refuses this frontend",
            &of_it,
            "Invalid argument",
        ])?;
        let line = format!("the kernel refuses {of_it}: ");
        let status = status::wait_for(world, &["PROBLEM  the kernel refuses "])?;
        assert!(status.contains(&format!("PROBLEM  {line}")), "no {line:?} in\n{status}");
    }
    wait_for_metric(agent, "shunt_quarantined_service_ports", |count| count == 1.0)?;
    Ok(())
}

/// What is not wanted any more would be forgotten with the next attempt, too, which has nothing to
/// write then.
#[track_caller]
fn assert_released_by_the_change(log: &str) {
    let (before, _) = log.split_once("no longer refused by the kernel").unwrap_or_default();
    let sync = |line: &&str| line.contains(" committed ") || line.contains("nothing to write");
    let last = before.lines().rev().find(sync).unwrap_or_default();
    assert!(last.contains(" committed "), "released by {last:?}:\n{log}");
}

fn once_fails_on_a_refused_frontend_but_programs_all_else(api: Api) -> Result<()> {
    let world = world(api)?;
    let output = agent(&world)?.once()?;
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{log}");
    for frontend in REFUSED {
        let line = log.lines().find(|line| line.contains(&format!("{frontend}/tcp of {SERVICE}")));
        let line = line.with_context(|| format!("no {frontend} in {log}"))?;
        assert!(line.contains("the kernel refuses this frontend"), "{line}");
    }
    assert_only_it_suffers(&world);
    Ok(())
}
