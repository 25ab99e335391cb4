//! What is delivered of lists and events.

use std::time::{Duration, SystemTime};

use shunt_core::model::{Change, Family, Listed};

use super::script::{
    Answer, Log, Script, added, bookmark, deleted, end, error, object, service, slice,
};

#[tokio::test(start_paused = true)]
pub(super) async fn a_streamed_list_is_delivered_at_its_end_and_events_as_they_come() {
    let events = [
        added(service("a", 3)),
        added(service("b", 2)),
        end(7),
        added(service("c", 8)),
        deleted(service("a", 9)),
    ];
    let script = Script::new([("services", vec![Answer::watch(&events)])]);
    let told = script.run(Duration::from_secs(60)).await;
    assert_eq!(told.iter().filter(|told| told.contains("services=")).count(), 1, "{told:?}");
    assert!(told.contains(&"+a, +b, services=a b".to_owned()), "{told:?}");
    assert_eq!(told.iter().filter(|told| *told == "synced").count(), 1, "{told:?}");
    let place = |word: &str| told.iter().position(|told| told == word);
    assert!(place("+c") < place("-a") && place("+c") > place("+a, +b, services=a b"), "{told:?}");
}

#[tokio::test(start_paused = true)]
pub(super) async fn only_what_concerns_us_is_asked_for() {
    let script = Script::new([]);
    assert_eq!(script.run(Duration::from_secs(10)).await.len(), 5);
    for (resource, path, label, field) in [
        (
            "services",
            "/api/v1/services?",
            "&labelSelector=%21service.kubernetes.io%2Fservice-proxy-name",
            "&fieldSelector=spec.clusterIP%21%3DNone",
        ),
        (
            "endpointslices",
            "/apis/discovery.k8s.io/v1/endpointslices?",
            "&labelSelector=%21service.kubernetes.io%2Fheadless",
            "",
        ),
        ("nodes", "/api/v1/nodes?", "", "&fieldSelector=metadata.name%3Dn"),
        ("servicecidrs", "/apis/networking.k8s.io/v1/servicecidrs?", "", ""),
    ] {
        let requests = script.requests(resource);
        let [(_, path_and_query)] = &requests[..] else { panic!("{requests:?}") };
        assert!(path_and_query.starts_with(path), "{path_and_query}");
        for part in [
            label,
            field,
            "&watch=true",
            "&allowWatchBookmarks=true",
            "&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion=",
        ] {
            assert!(path_and_query.contains(part), "{path_and_query}: {part}");
        }
    }
}

#[tokio::test(start_paused = true)]
pub(super) async fn a_server_that_refuses_to_stream_is_asked_for_pages() {
    for code in [400, 422] {
        // 400 may also be about the selector; that is tried first.
        let refusals = if code == 400 { 2 } else { 1 };
        let mut answers: Vec<Answer> = (0..refusals).map(|_| Answer::status(code)).collect();
        answers.extend([
            Answer::page("5", "next", &[service("a", 1)]),
            Answer::page("5", "", &[service("b", 2)]),
            Answer::ending(&[added(service("c", 6))]),
            Answer::watch(&[]),
        ]);
        let script = Script::new([("services", answers)]);
        let told = script.run(Duration::from_secs(60)).await;
        assert!(told.contains(&"+a, +b, services=a b".to_owned()), "{told:?}");
        assert_eq!(told.last().unwrap(), "+c");
        let course = script.course("services");
        assert_eq!(course[refusals..], ["page", "page next", "5", "6"], "{course:?}");
    }
}

#[tokio::test(start_paused = true)]
pub(super) async fn a_server_that_does_not_know_streaming_is_asked_for_pages() {
    // It sends what there is, and no word about having done so.
    let answers = vec![
        Answer::watch(&[added(service("a", 1))]),
        Answer::page("5", "", &[service("a", 1)]),
        Answer::watch(&[]),
    ];
    let script = Script::new([("services", answers)]);
    let told = script.run(Duration::from_secs(60)).await;
    assert!(told.iter().any(|told| told == "+a, services=a"), "{told:?}");
    assert_eq!(script.course("services"), ["stream", "page", "5"]);
}

#[tokio::test(start_paused = true)]
pub(super) async fn a_server_that_does_not_know_the_selector_is_asked_for_more() {
    let headless = object("default/h", 2, r#","spec":{"clusterIP":"None","ports":[{"port":80}]}"#);
    let answers = vec![
        Answer::status(400),
        Answer::watch(&[added(service("a", 1)), added(headless), end(3)]),
    ];
    let script = Script::new([("services", answers)]);
    let told = script.run(Duration::from_secs(10)).await;
    assert!(told.iter().any(|told| told.starts_with("+a, -h, services=a h")), "{told:?}");
    let (_, second) = &script.requests("services")[1];
    assert!(second.contains("labelSelector") && !second.contains("fieldSelector"), "{second}");
}

#[tokio::test(start_paused = true)]
pub(super) async fn half_a_list_is_no_list() {
    let events = [added(service("a", 1)), added(service("b", 2)), end(3)];
    let whole: usize = events.iter().map(|event| event.len() + 1).sum();
    for bytes in [events[0].len() + 1, events[0].len() + 20, whole - 1] {
        let whole = Answer::page("3", "", &[service("a", 1), service("b", 2)]);
        let answers = vec![Answer::cut(&events, bytes), whole, Answer::watch(&[])];
        let script = Script::new([("services", answers)]);
        let told = script.run(Duration::from_secs(60)).await;
        let lists: Vec<&String> = told.iter().filter(|told| told.contains("+a")).collect();
        assert_eq!(lists, ["+a, +b, services=a b"], "{told:?}");
        assert_eq!(script.course("services"), ["stream", "page", "3"]);
    }
    // A page that expired while the list was read.
    let answers = vec![
        Answer::status(422),
        Answer::page("5", "next", &[service("a", 1)]),
        Answer::status(410),
        Answer::page("9", "", &[service("b", 8)]),
        Answer::watch(&[]),
    ];
    let script = Script::new([("services", answers)]);
    let told = script.run(Duration::from_secs(60)).await;
    assert!(told.contains(&"+b, services=b".to_owned()), "{told:?}");
    assert!(!told.iter().any(|told| told.contains("+a")), "{told:?}");
    // What is no list at all.
    let answers = vec![
        Answer::status(422),
        Answer::body("{}"),
        Answer::status(422),
        Answer::body(r#"{"kind":"Status","metadata":{},"status":"Failure"}"#),
        Answer::status(422),
        Answer::body("<html>"),
        Answer::status(422),
        Answer::page("9", "", &[service("b", 8)]),
        Answer::watch(&[]),
    ];
    let script = Script::new([("services", answers)]);
    let told = script.run(Duration::from_secs(60)).await;
    let lists: Vec<&String> = told.iter().filter(|told| told.contains("services=")).collect();
    assert_eq!(lists, ["+b, services=b"]);
}

#[tokio::test(start_paused = true)]
pub(super) async fn an_object_that_is_wrong_costs_only_itself_and_is_told_once_per_version() {
    let odd = |version| object("default/odd", version, r#","spec":{"ports":[{"port":"http"}]}"#);
    let nameless = r#"{"metadata":{},"spec":{}}"#.to_owned();
    let first = [added(odd(1)), added(service("a", 2)), added(nameless), end(5), added(odd(6))];
    let answers = vec![
        Answer::ending(&first),
        Answer::status(410),
        Answer::watch(&[added(odd(6)), added(service("a", 2)), end(9), added(odd(10))]),
    ];
    let log = Log::collect();
    let script = Script::new([("services", answers)]);
    let told = script.run(Duration::from_secs(60)).await;
    assert!(told.iter().any(|told| told.starts_with("+a, -odd, services=a odd")), "{told:?}");
    let problems = log.lines("Service default/odd");
    assert_eq!(problems.len(), 3, "{problems:?}");
    assert!(problems[0].contains("spec.ports[0].port"), "{problems:?}");
    assert!(problems[0].contains("must be a whole number, not text"), "{problems:?}");
}

#[tokio::test(start_paused = true)]
pub(super) async fn only_our_node_counts_and_it_may_be_absent() {
    let script = Script::new([]);
    let told = script.run(Duration::from_secs(1)).await;
    assert!(told.contains(&"-node".to_owned()), "{told:?}");
    assert_eq!(told.last().unwrap(), "synced");

    let node = |name, version| added(object(name, version, ""));
    let events = [end(1), node("m", 2), node("n", 3), deleted(object("n", 4, ""))];
    let script = Script::new([("nodes", vec![Answer::watch(&events)])]);
    let told = script.run(Duration::from_secs(1)).await;
    let nodes: Vec<&String> = told.iter().filter(|told| told.contains("node")).collect();
    assert_eq!(nodes[1..], ["+node n", "-node"], "{told:?}");
}

#[tokio::test(start_paused = true)]
pub(super) async fn programming_does_not_wait_for_long_for_what_we_may_not_read() {
    let log = Log::collect();
    let refusals = || (0..100).map(|_| Answer::status(403)).collect();
    let script = Script::new([("nodes", refusals())]);
    let told = script.run(Duration::from_secs(30)).await;
    assert_eq!(told[3..], ["synced"], "{told:?}");
    let waited = log.lines("programming without the lists");
    assert_eq!(waited.len(), 1);
    assert!(waited[0].contains("Node;"), "{waited:?}");

    // Without Services there is nothing to program, however long it takes.
    let script = Script::new([("services", refusals())]);
    let told = script.run(Duration::from_secs(600)).await;
    assert!(!told.iter().any(|told| told.contains("synced")), "{told:?}");
}

#[tokio::test(start_paused = true)]
pub(super) async fn service_cidrs_may_come_with_an_upgrade() {
    let v1beta1 =
        vec![Answer::status(404), Answer::watch(&[added(object("kubernetes", 1, "")), end(2)])];
    let script = Script::new([("servicecidrs", v1beta1)]);
    let told = script.run(Duration::from_secs(10)).await;
    assert!(told.iter().any(|told| told.starts_with("+cidr kubernetes, cidrs=kuber")), "{told:?}");
    assert!(script.requests("servicecidrs")[1].1.contains("/v1beta1/"));

    let answers = vec![
        Answer::status(404),
        Answer::status(404),
        Answer::watch(&[added(object("kubernetes", 1, "")), end(2)]),
    ];
    let script = Script::new([("servicecidrs", answers)]);
    let told = script.run(Duration::from_secs(1201)).await;
    let cidrs: Vec<&String> = told.iter().filter(|told| told.contains("cidr")).collect();
    assert!(cidrs[0].starts_with("cidrs="), "{told:?}");
    assert_eq!(cidrs[1], "+cidr kubernetes, cidrs=kubernetes");
    let requests = script.requests("servicecidrs");
    assert!(requests[2].0 - requests[1].0 >= Duration::from_secs(600));
    assert!(requests[2].1.contains("/v1/"));
}

#[tokio::test(start_paused = true)]
pub(super) async fn a_role_without_service_cidrs_delays_nothing() {
    let log = Log::collect();
    let cidr = || added(object("kubernetes", 1, ""));
    let mut answers: Vec<Answer> = (0..4).map(|_| Answer::status(403)).collect();
    answers.push(Answer::ending(&[cidr(), end(2)]));
    // The role is decoded away again: what was listed holds.
    answers.extend([Answer::status(410), Answer::status(403)]);
    answers.push(Answer::watch(&[cidr(), end(3)]));
    let script = Script::new([("servicecidrs", answers)]);
    let source = script.clone();
    let started = tokio::time::Instant::now();
    let (mut synced, mut seen) = (None, Vec::new());
    source
        .deliveries(Duration::from_secs(4000), |delivery| {
            for change in delivery.changes {
                match change {
                    Change::Synced => synced = Some(started.elapsed()),
                    Change::ServiceCidr(..) => seen.push("one"),
                    Change::Listed(Listed::ServiceCidrs(names)) if names.is_empty() => {
                        seen.push("none");
                    }
                    _ => {}
                }
            }
        })
        .await;
    assert_eq!(synced, Some(Duration::ZERO), "nothing waits for them");
    assert_eq!(seen, ["none", "one", "one"]);
    let requests = script.requests("servicecidrs");
    for two in requests.windows(2).take(4) {
        let pause = two[1].0 - two[0].0;
        assert!((300..=600).contains(&pause.as_secs()), "{pause:?}");
    }
    let warnings = log.lines("does not let the agent");
    assert_eq!(warnings.len(), 2, "once for each time that it is decoded away: {warnings:?}");
    assert!(
        warnings[0].contains(
            "{apiGroups: [networking.k8s.io], resources: [servicecidrs], verbs: [list, watch]}"
        ),
        "{warnings:?}"
    );
    assert_eq!(log.lines("permits list and watch kind=ServiceCIDR").len(), 2);
}

#[tokio::test(start_paused = true)]
pub(super) async fn triggers_of_events_are_delivered_and_those_of_lists_are_not() {
    let future = "2100-01-01T00:00:00.5Z";
    let events = [
        added(slice("listed", 1, future)),
        end(2),
        added(slice("old", 3, "2020-01-01T00:00:00Z")),
        added(slice("odd", 4, "yesterday")),
        added(slice("new", 5, future)),
        deleted(slice("new", 6, future)),
        bookmark(7),
    ];
    let script = Script::new([("endpointslices", vec![Answer::watch(&events)])]);
    let mut triggers = Vec::new();
    script.deliveries(Duration::from_secs(60), |delivery| triggers.extend(delivery.triggers)).await;
    let time = SystemTime::UNIX_EPOCH + Duration::from_millis(4_102_444_800_500);
    assert_eq!(triggers, [(Family::V4, time)]);
}

/// The parameters of each list of Services, streamed or not, that say how new it has to be.
fn lists(script: &Script) -> Vec<String> {
    let parameters = ["limit", "continue", "resourceVersion", "sendInitialEvents"];
    let of = |path: &str| {
        let (_, query) = path.split_once('?').unwrap();
        let known = query.split('&').filter(|part| {
            part.split_once('=').is_some_and(|(name, _)| parameters.contains(&name))
        });
        known.collect::<Vec<_>>().join("&")
    };
    let requests = script.requests("services");
    let is_list =
        |path: &str| !path.contains("watch=true") || path.contains("sendInitialEvents=true");
    requests.iter().filter(|(_, path)| is_list(path)).map(|(_, path)| of(path)).collect()
}

#[tokio::test(start_paused = true)]
pub(super) async fn streaming_is_tried_again_on_each_relist() {
    let pause = || Answer::watch(&[added(service("a", 1))]);
    let answers = vec![
        // A pause of ten seconds, and a list instead.
        pause(),
        Answer::page("5", "", &[service("a", 1)]),
        Answer::status(410),
        // Again, though only a part of it comes.
        pause(),
        Answer::page("7", "", &[service("a", 1)]),
        Answer::status(410),
        Answer::watch(&[added(service("b", 8)), end(9)]),
    ];
    let script = Script::new([("services", answers)]);
    let told = script.run(Duration::from_secs(60)).await;
    assert_eq!(script.course("services"), ["stream", "page", "5", "stream", "page", "7", "stream"]);
    assert_eq!(
        lists(&script),
        [
            "sendInitialEvents=true&resourceVersion=",
            "resourceVersion=0&limit=250",
            "sendInitialEvents=true&resourceVersion=5",
            "resourceVersion=5",
            "sendInitialEvents=true&resourceVersion=7",
        ]
    );
    assert_eq!(told.last().unwrap(), "+b, services=b");
}

#[tokio::test(start_paused = true)]
async fn a_failed_stream_means_pages_for_this_list_only() {
    let item = || added(service("a", 1));
    let whole = [item(), end(5)];
    let failures: [fn(&[String]) -> Answer; 7] = [
        |list| Answer::cut(list, 20),
        |list| Answer::ending(&list[..1]),
        |list| Answer::watch(&[list[0].clone(), error(500)]),
        |_| Answer::watch(&["<html>".to_owned()]),
        |_| Answer::status(405),
        |_| Answer::status(500),
        |_| Answer::status(501),
    ];
    for (number, failure) in failures.into_iter().enumerate() {
        let answers = vec![
            failure(&whole),
            Answer::page("5", "", &[service("a", 1)]),
            Answer::status(410),
            failure(&whole),
            // The next attempt begins with a stream again.
            Answer::status(500),
            Answer::watch(&[added(service("b", 8)), end(9)]),
        ];
        let script = Script::new([("services", answers)]);
        let told = script.run(Duration::from_secs(60)).await;
        let course = script.course("services");
        assert_eq!(course, ["stream", "page", "5", "stream", "page", "stream"], "{number}");
        assert_eq!(told.last().unwrap(), "+b, services=b", "{number}");
    }
    // Pages would fail alike.
    for failure in [401, 403, 429] {
        let answers = vec![Answer::status(failure), Answer::watch(&whole)];
        let script = Script::new([("services", answers)]);
        script.run(Duration::from_secs(60)).await;
        assert_eq!(script.course("services"), ["stream", "stream"], "{failure}");
    }
}

#[tokio::test(start_paused = true)]
pub(super) async fn what_the_server_cannot_list_is_listed_from_the_store() {
    for refusal in [|| Answer::status(410), Answer::too_new] {
        let answers = vec![
            Answer::ending(&[end(7)]),
            Answer::status(410),
            refusal(),
            Answer::watch(&[added(service("b", 8)), end(9)]),
        ];
        let script = Script::new([("services", answers)]);
        script.run(Duration::from_secs(60)).await;
        assert_eq!(
            lists(&script),
            [
                "sendInitialEvents=true&resourceVersion=",
                "sendInitialEvents=true&resourceVersion=7",
                "sendInitialEvents=true&resourceVersion=",
            ]
        );

        let answers = vec![
            Answer::ending(&[end(7)]),
            Answer::status(410),
            Answer::status(422),
            refusal(),
            Answer::page("9", "", &[service("b", 8)]),
            Answer::watch(&[]),
        ];
        let script = Script::new([("services", answers)]);
        script.run(Duration::from_secs(60)).await;
        assert_eq!(lists(&script)[2..], ["resourceVersion=7", "limit=250"]);
        let requests = script.requests("services");
        assert!(requests[4].0 - requests[3].0 < Duration::from_millis(1), "{requests:?}");
    }
}

#[tokio::test(start_paused = true)]
pub(super) async fn a_server_without_a_cache_is_asked_for_pages_again() {
    let answers = vec![
        Answer::status(422),
        Answer::page("5", "next", &[service("a", 1)]),
        Answer::page("5", "", &[service("b", 2)]),
        Answer::status(410),
        Answer::status(422),
        Answer::page("7", "other", &[service("a", 1)]),
        // Too slow: then all at once.
        Answer::status(410),
        Answer::page("8", "", &[service("c", 2)]),
        Answer::watch(&[]),
    ];
    let script = Script::new([("services", answers)]);
    let told = script.run(Duration::from_secs(60)).await;
    let lists = lists(&script);
    assert_eq!(
        lists.iter().filter(|list| !list.starts_with("send")).collect::<Vec<_>>(),
        [
            "resourceVersion=0&limit=250",
            "limit=250&continue=next",
            "limit=250&resourceVersion=5",
            "limit=250&continue=other",
            "resourceVersion=5",
        ]
    );
    assert_eq!(told.last().unwrap(), "+c, services=c");
}
