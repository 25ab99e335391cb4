//! The way to the server is cut, closed or blocked: rules stay, and afterwards they are right.

use std::time::Duration;

use anyhow::Result;
use shunt_fake_apiserver::{Answer, Api, Case, Fault, Kind, Request, both, standin_only};

use crate::world::{World, cluster_ip_service};

pub(crate) fn cases() -> Vec<Case> {
    // First those that take half a minute, beside which all others run.
    let alone = standin_only![
        a_request_that_is_never_answered_is_given_up,
        answers_that_are_cut_anywhere_do_no_harm,
    ];
    let both = both![
        a_dead_connection_is_given_up,
        rules_stay_while_the_server_is_away_and_are_right_afterwards,
        nothing_is_lost_while_nothing_gets_through,
        cut_connections_lose_nothing,
        a_server_that_restarts_and_forgets_is_listed_anew,
        an_agent_that_starts_without_a_server_leaves_the_rules,
    ];
    [alone, both].concat()
}

const ALL: [&str; 3] = ["pod-1", "pod-2", "pod-3"];

/// Changes of all sorts, as [`assert_changed`] expects them.
fn change(world: &World) -> Result<()> {
    world.put_slices("web", &[&world.lab.pod2])?;
    world.api.put(cluster_ip_service("new", "10.96.0.30"))?;
    world.put_slices("new", &[&world.lab.pod1])?;
    world.delete("old")
}

fn assert_changed(world: &World) {
    world.assert_web_becomes(&["pod-2"]);
    world.lab.from(&world.lab.client).tcp("10.96.0.30:80").eventually().reaches(&["pod-1"]);
    world.assert_gone(&["10.96.0.20:80"]);
}

/// A world with a Service that [`change`] deletes.
fn with_old(api: Api) -> Result<World> {
    let world = World::with_web(api)?;
    world.api.put(cluster_ip_service("old", "10.96.0.20"))?;
    world.put_slices("old", &[&world.lab.pod3])?;
    Ok(world)
}

fn assert_unchanged(world: &World) {
    world.assert_web(&ALL);
    world.lab.from(&world.lab.client).tcp("10.96.0.20:80").reaches(&["pod-3"]);
}

/// The other host is gone without a word: no reset, no answer.
fn a_dead_connection_is_given_up(api: Api) -> Result<()> {
    let world = with_old(api)?;
    let _agent = world.start()?;
    let accepted = world.gate.accepted();
    world.gate.abandon();
    change(&world)?;
    assert_unchanged(&world);
    world.gate.wait_for_accepted(accepted + 1)?;
    assert_changed(&world);
    world.mark()
}

fn a_request_that_is_never_answered_is_given_up(api: Api) -> Result<()> {
    let world = World::with_web(api)?;
    world.standin()?.misbehave(Fault::new(Answer::Silence).of(Kind::Service).times(1));
    let agent = world.agent()?.spawn()?;
    agent.wait_for_log_within(Duration::from_secs(90), &["WARN", "the API server", "no answer"])?;
    agent.wait_ready()?;
    world.assert_web(&ALL);
    world.mark()
}

fn rules_stay_while_the_server_is_away_and_are_right_afterwards(api: Api) -> Result<()> {
    let world = with_old(api)?;
    let agent = world.start()?;
    let generation = world.generation()?;
    world.gate.refuse()?;
    agent.wait_for_log(&["WARN", "the API server cannot be reached", "retrying"])?;
    change(&world)?;
    assert_unchanged(&world);
    assert_eq!(world.generation()?, generation);
    assert_eq!(agent.http_status("/healthz")?, 200);
    world.gate.reopen()?;
    agent.wait_for_log(&["INFO", "the API server answers again"])?;
    assert_changed(&world);
    let log = agent.log();
    let warnings = log.lines().filter(|line| line.contains("WARN") && line.contains("API server"));
    assert_eq!(warnings.count(), 1, "an outage is logged once:\n{log}");
    world.mark()
}

fn nothing_is_lost_while_nothing_gets_through(api: Api) -> Result<()> {
    let world = with_old(api)?;
    let _agent = world.start()?;
    world.gate.block();
    change(&world)?;
    assert_unchanged(&world);
    world.gate.reopen()?;
    assert_changed(&world);
    world.mark()
}

fn cut_connections_lose_nothing(api: Api) -> Result<()> {
    let world = with_old(api)?;
    let _agent = world.start()?;
    for pod in [&world.lab.pod1, &world.lab.pod2, &world.lab.pod3] {
        world.gate.cut();
        world.put_slices("web", &[pod])?;
        world.gate.cut();
        world.assert_web_becomes(&[&pod.name]);
    }
    change(&world)?;
    world.gate.cut();
    assert_changed(&world);
    world.mark()
}

fn answers_that_are_cut_anywhere_do_no_harm(api: Api) -> Result<()> {
    let world = with_old(api)?;
    world.start()?.stop()?;
    let generation = world.generation()?;
    change(&world)?;
    // The list of Services never gets through as a whole.
    world.api.put(format!(
        "{{apiVersion: v1, kind: Service, metadata: {{name: long, annotations: {{x: {}}}}}, \
         spec: {{clusterIP: 10.96.0.40, ports: [{{port: 80}}]}}}}\n",
        "x".repeat(20_000)
    ))?;
    let standin = world.standin()?;
    let cut_after = |bytes| {
        standin.behave();
        standin.misbehave(Fault::new(Answer::CutAfter(bytes)).of(Kind::Service));
    };
    let is_list = |request: &Request| request.kind == Some(Kind::Service);
    for bytes in [1, 700, 1_500, 2_500, 5_000, 10_000, 20_000] {
        let asked = standin.requests().iter().filter(|request| is_list(request)).count();
        cut_after(bytes);
        let agent = world.agent()?.spawn()?;
        standin.wait_for_requests(asked + 2, is_list)?;
        assert!(agent.is_running(), "{}", agent.log());
    }
    assert_unchanged(&world);
    assert_eq!(world.generation()?, generation, "half a list is none");
    cut_after(700);
    let agent = world.agent()?.spawn()?;
    agent.wait_for_log(&["the API server", "the rules stay"])?;
    standin.behave();
    agent.wait_ready()?;
    assert_changed(&world);
    world.mark()
}

fn a_server_that_restarts_and_forgets_is_listed_anew(api: Api) -> Result<()> {
    let world = with_old(api)?;
    let agent = world.start()?;
    world.gate.refuse()?;
    change(&world)?;
    world.api.forget()?;
    assert_unchanged(&world);
    world.gate.reopen()?;
    agent.wait_for_log(&["resource version expired for", ", relisting"])?;
    assert_changed(&world);
    world.mark()
}

fn an_agent_that_starts_without_a_server_leaves_the_rules(api: Api) -> Result<()> {
    let world = with_old(api)?;
    world.start()?.stop()?;
    let generation = world.generation()?;
    world.gate.refuse()?;
    change(&world)?;
    let agent = world.agent()?.spawn()?;
    agent.wait_for_log(&["WARN", "the API server cannot be reached"])?;
    assert_unchanged(&world);
    assert_eq!(world.generation()?, generation);
    assert_eq!(agent.http_status("/healthz")?, 503, "not before all is listed");
    world.gate.reopen()?;
    agent.wait_ready()?;
    assert_changed(&world);
    assert_eq!(world.generation()?, generation + 1, "what has changed, at once");
    Ok(())
}
