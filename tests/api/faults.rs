//! A server that answers wrong: the agent ends right, programs nothing half, and says what it saw.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::json;
use shunt_fake_apiserver::{Answer, Api, Case, Fault, Key, Kind, Request, Verb, standin_only};

use crate::status;
use crate::world::{World, cluster_ip_service};

pub(crate) fn cases() -> Vec<Case> {
    standin_only![
        a_slow_start_is_waited_for,
        too_many_requests_are_repeated_later,
        missing_rights_are_named,
        a_role_without_service_cidrs_will_do,
        a_watch_that_is_refused_with_410_begins_anew,
        a_watch_that_ends_with_410_begins_anew,
        a_list_that_expires_between_pages_is_asked_for_as_a_whole,
        relist_after_pages_is_not_of_the_expired_version,
        lists_that_are_none_change_nothing,
        half_a_list_is_none,
        garbage_in_a_watch_does_no_harm,
        half_a_line_does_no_harm,
        events_that_come_twice_count_once,
        an_older_event_after_a_newer_one_does_not_count,
        watches_that_end_go_on_where_they_were,
        bookmarks_spare_lists,
        errors_in_a_watch_do_no_harm,
    ]
}

const ALL: [&str; 3] = ["pod-1", "pod-2", "pod-3"];

fn is_service(request: &Request) -> bool {
    request.kind == Some(Kind::Service)
}

fn lists(world: &World) -> Result<usize> {
    let requests = world.standin()?.requests();
    Ok(requests.iter().filter(|request| request.starts_list()).count())
}

fn a_slow_start_is_waited_for(api: Api) -> Result<()> {
    let world = World::with_web(api)?;
    world.standin()?.misbehave(Fault::new(Answer::Status(503)).times(8));
    let agent = world.start()?;
    agent.wait_for_log(&["WARN", "unable to handle the request", "503"])?;
    agent.wait_for_log(&["INFO", "answers again"])?;
    world.assert_web(&ALL);
    world.mark()
}

fn too_many_requests_are_repeated_later(api: Api) -> Result<()> {
    let world = World::with_web(api)?;
    let standin = world.standin()?;
    standin.misbehave(Fault::new(Answer::RetryAfter(429, 1)).of(Kind::Service).times(2));
    let agent = world.start()?;
    agent.wait_for_log(&["WARN", "re)initializing", "429"])?;
    world.assert_web(&ALL);
    let lists = |request: &Request| is_service(request) && request.starts_list();
    let requests = standin.requests().into_iter().filter(lists).count();
    assert_eq!(requests, 3, "none before its time");
    world.mark()
}

fn missing_rights_are_named(api: Api) -> Result<()> {
    let world = World::with_web(api)?;
    let standin = world.standin()?;
    standin.misbehave(Fault::new(Answer::Status(403)).of(Kind::EndpointSlice));
    let agent = world.agent()?.spawn()?;
    agent.wait_for_log(&["WARN", "EndpointSlice", "403", "system:node-proxier"])?;
    let tables = world.lab.node.output("nft", &["list", "tables"])?;
    assert_eq!(tables, "", "Services without endpoints would refuse everybody");
    standin.behave();
    agent.wait_ready()?;
    world.assert_web(&ALL);
    Ok(())
}

/// As Kubernetes' own role was before 1.33.
fn a_role_without_service_cidrs_will_do(api: Api) -> Result<()> {
    let world = World::with_web(api)?;
    let standin = world.standin()?;
    standin.misbehave(Fault::new(Answer::Status(403)).of(Kind::ServiceCidr));
    let started = Instant::now();
    let agent = world.start()?;
    world.assert_web(&ALL);
    // What waits for the rest of the objects waits for ten seconds.
    assert!(started.elapsed() < Duration::from_secs(10), "{}", agent.log());
    agent.wait_for_log(&["WARN", "403", "apiGroups: [networking.k8s.io]", "servicecidrs"])?;
    status::wait_for(&world, &["OK  "])?;
    world.put_slices("web", &[&world.lab.pod2])?;
    world.assert_web_becomes(&["pod-2"]);
    assert_eq!(agent.log().matches("servicecidrs").count(), 1, "{}", agent.log());
    Ok(())
}

fn a_watch_that_is_refused_with_410_begins_anew(api: Api) -> Result<()> {
    let world = World::with_web(api)?;
    let agent = world.start()?;
    let (standin, generation) = (world.standin()?, world.generation()?);
    standin.misbehave(Fault::new(Answer::Status(410)).on(Verb::Watch).of(Kind::Service).times(1));
    standin.end_watches(Kind::Service)?;
    agent.wait_for_log(&["resource version expired for services, relisting"])?;
    standin.wait_for_requests(2, |request| is_service(request) && request.starts_list())?;
    standin.wait_for_watch(Kind::Service)?;
    assert_eq!(world.generation()?, generation);
    world.mark()
}

fn a_watch_that_ends_with_410_begins_anew(api: Api) -> Result<()> {
    let world = World::with_web(api)?;
    let agent = world.start()?;
    let standin = world.standin()?;
    let gone = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": "too old resource version: 1 (2)", "reason": "Expired", "code": 410,
    });
    for kind in [Kind::Service, Kind::EndpointSlice] {
        standin.say_event(kind, "ERROR", &gone)?;
        agent.wait_for_log(&["resource version expired for", kind.plural(), "relisting"])?;
        let begins = |request: &Request| request.kind == Some(kind) && request.starts_list();
        standin.wait_for_requests(2, begins)?;
    }
    world.mark()
}

/// Services that are listed in pages.
fn with_pages(api: Api) -> Result<World> {
    let world = World::with_web(api)?;
    for number in 0..300 {
        let ip = format!("10.96.{}.{}", 20 + number / 250, 1 + number % 250);
        world.api.put(cluster_ip_service(&format!("many-{number}"), &ip))?;
    }
    world.standin()?.configure(|settings| settings.cache = false);
    Ok(world)
}

fn a_list_that_expires_between_pages_is_asked_for_as_a_whole(api: Api) -> Result<()> {
    let world = with_pages(api)?;
    let standin = world.standin()?;
    let of_lists = |answer| Fault::new(answer).on(Verb::List).of(Kind::Service).times(1);
    // The first page is right, the second is refused.
    standin.misbehave(of_lists(Answer::Late(Duration::ZERO)));
    standin.misbehave(of_lists(Answer::Status(410)));
    let agent = world.start()?;
    world.assert_web(&ALL);
    assert_eq!(agent.log().matches("relisting").count(), 0, "that is no outage");
    let of_services = |request: &&Request| request.verb == Verb::List && is_service(request);
    let requests = standin.requests();
    let lists: Vec<&Request> = requests.iter().filter(of_services).collect();
    let [first, second, whole] = lists[..] else { bail!("{lists:?}") };
    assert!(first.starts_list() && !second.starts_list(), "{lists:?}");
    assert_eq!((whole.starts_list(), whole.parameter("limit")), (true, ""), "{lists:?}");
    world.lab.from(&world.lab.client).tcp("10.96.21.50:80").refused();
    world.mark()
}

/// The store has a version for minutes after its watch has expired.
fn relist_after_pages_is_not_of_the_expired_version(api: Api) -> Result<()> {
    let world = with_pages(api)?;
    let _agent = world.start()?;
    let standin = world.standin()?;
    standin.misbehave(Fault::new(Answer::Status(410)).on(Verb::Watch).of(Kind::Service));
    standin.end_watches(Kind::Service)?;
    world.api.put(cluster_ip_service("new", "10.96.0.30"))?;
    world.lab.from(&world.lab.client).tcp("10.96.0.30:80").eventually().refused();
    standin.behave();
    world.mark()
}

fn lists_that_are_none_change_nothing(api: Api) -> Result<()> {
    let world = World::with_web(api)?;
    world.start()?.stop()?;
    let generation = world.generation()?;
    let bodies: [&[u8]; 7] = [
        b"",
        b"<html>login, please</html>",
        b"{}",
        b"null",
        b"[]",
        b"{\"kind\":\"ServiceList\",\"metadata\":{},\"items\":[]}",
        b"{\"kind\":\"ServiceList\",\"metadata\":{\"resourceVersion\":\"7\"},\"items\":[",
    ];
    for body in bodies {
        let standin = world.standin()?;
        let bad = Fault::new(Answer::Body(body.to_vec())).on(Verb::List).of(Kind::Service);
        standin.misbehave(bad.times(1));
        let agent = world.agent()?.spawn()?;
        let text = String::from_utf8_lossy(body);
        let told = agent.wait_for_log(&["WARN", "invalid response"]);
        told.with_context(|| format!("a list is {text:?}"))?;
        agent.wait_ready()?;
        assert_eq!(world.generation()?, generation, "a list is {text:?}");
    }
    world.assert_web(&ALL);
    Ok(())
}

fn half_a_list_is_none(api: Api) -> Result<()> {
    let world = World::with_web(api)?;
    world.start()?.stop()?;
    let generation = world.generation()?;
    let standin = world.standin()?;
    for bytes in [0, 1, 10, 500, 1_500] {
        let cut = Fault::new(Answer::CutAfter(bytes)).on(Verb::List).of(Kind::EndpointSlice);
        standin.misbehave(cut.times(1));
        world.start()?.stop()?;
        assert_eq!(world.generation()?, generation, "cut after {bytes} bytes");
    }
    let _agent = world.start()?;
    world.assert_web(&ALL);
    world.mark()
}

fn garbage_in_a_watch_does_no_harm(api: Api) -> Result<()> {
    let world = World::with_web(api)?;
    // The garbage is lines.
    world.standin()?.configure(|settings| settings.protobuf = false);
    let agent = world.start()?;
    let (standin, generation) = (world.standin()?, world.generation()?);
    let garbage = [
        "\u{0}\u{1}garbage\n",
        "\n",
        "{}\n",
        "{\"type\":\"ADDED\"}\n",
        "{\"type\":\"ADDED\",\"object\":null}\n",
        "{\"type\":\"ADDED\",\"object\":{\"metadata\":{}}}\n",
        "{\"type\":\"EXPLODED\",\"object\":{\"metadata\":{\"name\":\"web\"}}}\n",
        "{\"type\":\"BOOKMARK\",\"object\":{\"metadata\":{}}}\n",
    ];
    for line in garbage {
        let before = standin.requests().len();
        standin.say(Kind::Service, line)?;
        // It does not trust this watch any more.
        let after = |requests: &[Request]| requests.iter().skip(before).any(is_service);
        standin.wait_until(after).with_context(|| format!("after {line:?}"))?;
        standin.wait_for_watch(Kind::Service)?;
        assert_eq!(world.generation()?, generation, "after {line:?}");
    }
    agent.wait_for_log(&["WARN", "invalid response", "garbage"])?;
    world.assert_web(&ALL);
    world.mark()
}

fn half_a_line_does_no_harm(api: Api) -> Result<()> {
    let world = World::with_web(api)?;
    // The garbage is lines.
    world.standin()?.configure(|settings| settings.protobuf = false);
    let _agent = world.start()?;
    let (standin, generation) = (world.standin()?, world.generation()?);
    let web = standin.get(&Key::new(Kind::Service, "web")).context("no Service")?;
    let line = json!({"type": "DELETED", "object": web}).to_string();
    for (length, end) in [(1, true), (50, false), (line.len() - 1, true), (line.len(), false)] {
        let before = standin.requests().len();
        standin.say(Kind::Service, &line.as_bytes()[..length])?;
        if end {
            standin.end_watches(Kind::Service)?;
        } else {
            standin.break_watches(Kind::Service)?;
        }
        standin.wait_until(|requests| requests.iter().skip(before).any(is_service))?;
        standin.wait_for_watch(Kind::Service)?;
        assert_eq!(world.generation()?, generation, "after {length} bytes");
    }
    world.assert_web(&ALL);
    world.mark()
}

fn events_that_come_twice_count_once(api: Api) -> Result<()> {
    let world = World::with_web(api)?;
    world.put_slices("new", &[&world.lab.pod1])?;
    world.standin()?.configure(|settings| settings.twice = true);
    let _agent = world.start()?;
    let generation = world.generation()?;
    world.api.put(cluster_ip_service("new", "10.96.0.30"))?;
    world.lab.from(&world.lab.client).tcp("10.96.0.30:80").eventually().reaches(&["pod-1"]);
    world.api.delete(&Key::new(Kind::Service, "new"))?;
    world.assert_gone(&["10.96.0.30:80"]);
    assert_eq!(world.generation()?, generation + 2);
    world.mark()
}

fn an_older_event_after_a_newer_one_does_not_count(api: Api) -> Result<()> {
    let world = World::with_web(api)?;
    let slice = Key::new(Kind::EndpointSlice, "web-v4");
    let service = Key::new(Kind::Service, "web");
    let standin = world.standin()?;
    let (old_slice, old_service) =
        (standin.get(&slice).context("no slice")?, standin.get(&service).context("no Service")?);
    let _agent = world.start()?;
    world.put_slices("web", &[&world.lab.pod2])?;
    world.assert_web_becomes(&["pod-2"]);
    standin.say_event(Kind::EndpointSlice, "MODIFIED", &old_slice)?;
    standin.say_event(Kind::Service, "DELETED", &old_service)?;
    world.mark()?;
    world.assert_web(&["pod-2"]);
    Ok(())
}

fn watches_that_end_go_on_where_they_were(api: Api) -> Result<()> {
    let world = World::with_web(api)?;
    let _agent = world.start()?;
    let (standin, lists) = (world.standin()?, lists(&world)?);
    for pod in [&world.lab.pod1, &world.lab.pod2, &world.lab.pod3] {
        let before = standin.requests().len();
        standin.end_watches(Kind::EndpointSlice)?;
        world.put_slices("web", &[pod])?;
        world.assert_web_becomes(&[&pod.name]);
        let again = |request: &Request| request.kind == Some(Kind::EndpointSlice);
        standin.wait_until(|requests| requests.iter().skip(before).any(again))?;
    }
    assert_eq!(self::lists(&world)?, lists, "nothing is listed again");
    Ok(())
}

/// A kind in which nothing happens, while much does in others: only bookmarks tell its watch how far
/// the server has come.
fn bookmarks_spare_lists(api: Api) -> Result<()> {
    let world = World::with_web(api)?;
    let agent = world.start()?;
    let (standin, lists) = (world.standin()?, lists(&world)?);
    world.api.put("{apiVersion: v1, kind: Node, metadata: {name: other}}")?;
    for kind in [Kind::Service, Kind::EndpointSlice, Kind::Node, Kind::ServiceCidr] {
        standin.bookmark(kind)?;
    }
    standin.compact();
    for kind in [Kind::Service, Kind::EndpointSlice, Kind::Node, Kind::ServiceCidr] {
        standin.end_watches(kind)?;
        let again = |request: &Request| request.kind == Some(kind);
        standin.wait_for_requests(2, again)?;
    }
    world.mark()?;
    assert_eq!(self::lists(&world)?, lists, "nothing is listed again:\n{}", agent.log());
    Ok(())
}

/// Errors that are told in the stream and that have nothing to do with versions.
fn errors_in_a_watch_do_no_harm(api: Api) -> Result<()> {
    let world = World::with_web(api)?;
    let agent = world.start()?;
    let (standin, generation) = (world.standin()?, world.generation()?);
    let error = json!({
        "kind": "Status", "status": "Failure", "message": "etcdserver: leader changed",
        "reason": "InternalError", "code": 500,
    });
    standin.say_event(Kind::EndpointSlice, "ERROR", &error)?;
    agent.wait_for_log(&["WARN", "leader changed", "500"])?;
    let again = |request: &Request| request.kind == Some(Kind::EndpointSlice);
    standin.wait_for_requests(2, again)?;
    assert_eq!(world.generation()?, generation);
    world.mark()
}
