//! What is delivered of lists and events.

use std::time::{Duration, SystemTime};

use shunt_core::model::{Change, Family, Listed};

use super::script::{
    Answer, Asked, Log, Script, added, bookmark, deleted, error, follow, object, service, slice,
};

#[tokio::test(start_paused = true)]
async fn a_list_is_delivered_at_its_end_and_events_as_they_come() {
    let list = Answer::list(7, &[service("a", 3), service("b", 2)]);
    let events = [added(service("c", 8)), deleted(service("a", 9))];
    let (script, told) = follow("services", 60, vec![list, Answer::watch(&events)]).await;
    assert_eq!(script.course(), ["list", "7"]);
    assert_eq!(told.iter().filter(|told| *told == "synced").count(), 1, "{told:?}");
    let of_services =
        |told: &&String| told.contains("services=") || ["+c", "-a"].contains(&told.as_str());
    let told: Vec<&String> = told.iter().filter(of_services).collect();
    assert_eq!(told, ["+a, +b, services=a b", "+c", "-a"]);
}

#[tokio::test(start_paused = true)]
async fn only_what_concerns_us_is_asked_for() {
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
        let [list, watch] = &requests[..] else { panic!("{requests:?}") };
        for (Asked { path: path_and_query, .. }, parts) in [
            (list, ["&resourceVersion=0", "&limit=250"]),
            (watch, ["&watch=true", "&allowWatchBookmarks=true&resourceVersion=1"]),
        ] {
            assert!(path_and_query.starts_with(path), "{path_and_query}");
            for part in [label, field].into_iter().chain(parts) {
                assert!(path_and_query.contains(part), "{path_and_query}: {part}");
            }
        }
    }
}

/// Whether the requests have a field selector, in their order.
fn narrow(script: &Script) -> Vec<bool> {
    let requests = script.requests("services");
    requests.iter().map(|asked| asked.path.contains("fieldSelector")).collect()
}

#[tokio::test(start_paused = true)]
async fn a_server_that_does_not_know_the_selector_is_asked_for_more() {
    let headless = object("default/h", 2, r#","spec":{"clusterIP":"None","ports":[{"port":80}]}"#);
    // The second is of servers before Kubernetes 1.31.
    for message in [
        "field label not supported: spec.clusterIP",
        r#"\"spec.clusterIP\" is not a known field selector: only \"metadata.name\""#,
    ] {
        let answers = vec![
            Answer::refusal(400, message),
            Answer::list(3, &[service("a", 1), headless.clone()]),
            // The next server may know it.
            Answer::status(410),
            Answer::list(5, &[service("a", 1)]),
            Answer::watch(&[]),
        ];
        let (script, told) = follow("services", 10, answers).await;
        assert!(told.iter().any(|told| told.starts_with("+a, -h, services=a h")), "{told:?}");
        assert_eq!(narrow(&script), [true, false, false, true, true]);
    }
    // A bad request for another reason.
    let answers =
        vec![Answer::status(400), Answer::list(3, &[]), Answer::status(400), Answer::watch(&[])];
    assert_eq!(narrow(&follow("services", 10, answers).await.0), [true; 4]);
}

#[tokio::test(start_paused = true)]
async fn half_a_list_is_no_list() {
    let whole = || Answer::list(3, &[service("a", 1), service("b", 2)]);
    let answers = vec![whole().silent(100), whole(), Answer::watch(&[])];
    let (script, told) = follow("services", 120, answers).await;
    assert_eq!(told.iter().filter(|told| told.contains("+a")).count(), 1, "{told:?}");
    assert_eq!(script.course()[..3], ["list", "list", "3"]);
}

#[tokio::test(start_paused = true)]
async fn programming_does_not_wait_for_long_for_what_we_may_not_read() {
    let log = Log::collect();
    let refusals = || (0..100).map(|_| Answer::status(403)).collect();
    let (_, told) = follow("nodes", 30, refusals()).await;
    assert_eq!(told[3..], ["synced"], "{told:?}");
    let waited = log.lines("programming without the lists");
    assert_eq!(waited.len(), 1);
    assert!(waited[0].contains("Node;"), "{waited:?}");

    // Without Services there is nothing to program, however long it takes.
    let (_, told) = follow("services", 600, refusals()).await;
    assert!(!told.iter().any(|told| told.contains("synced")), "{told:?}");
}

#[tokio::test(start_paused = true)]
async fn service_cidrs_may_come_with_an_upgrade() {
    let list = || Answer::list(2, &[object("kubernetes", 1, "")]);
    let v1beta1 = vec![Answer::status(404), list(), Answer::watch(&[])];
    let (script, told) = follow("servicecidrs", 10, v1beta1).await;
    assert!(told.iter().any(|told| told.starts_with("+cidr kubernetes, cidrs=kuber")), "{told:?}");
    assert!(script.requests("servicecidrs")[1].path.contains("/v1beta1/"));

    let mut answers: Vec<Answer> = (0..40).map(|_| Answer::status(404)).collect();
    answers.extend([list(), Answer::watch(&[])]);
    let (script, told) = follow("servicecidrs", 6000, answers).await;
    let cidrs: Vec<&String> = told.iter().filter(|told| told.contains("cidr")).collect();
    assert!(cidrs[0].starts_with("cidrs="), "{told:?}");
    assert_eq!(cidrs[1..], ["+cidr kubernetes, cidrs=kubernetes"]);
    let requests = script.requests("servicecidrs");
    assert!(requests.iter().step_by(2).all(|asked| asked.path.contains("/v1/")), "{requests:?}");
    // A server that starts has them in a moment, an old one for a long time not.
    let pauses: Vec<Duration> = script.pauses().into_iter().skip(1).step_by(2).collect();
    assert!(pauses[..4].iter().all(|pause| pause.as_secs() < 2), "{pauses:?}");
    assert!(pauses[14..19].iter().all(|p| (300..=600).contains(&p.as_secs())), "{pauses:?}");
}

#[tokio::test(start_paused = true)]
async fn a_role_without_service_cidrs_delays_nothing() {
    let log = Log::collect();
    let list = |version| Answer::list(version, &[object("kubernetes", 1, "")]);
    let mut answers: Vec<Answer> = (0..20).map(|_| Answer::status(403)).collect();
    answers.push(list(2));
    // The role is taken away again: what was listed holds.
    answers.extend([Answer::status(410), Answer::status(403)]);
    answers.extend([list(3), Answer::watch(&[])]);
    let script = Script::new([("servicecidrs", answers)]);
    let started = tokio::time::Instant::now();
    let (mut synced, mut seen) = (None, Vec::new());
    let take = |delivery: shunt_core::model::ChangeBatch| {
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
    };
    script.deliveries(Duration::from_secs(6000), take).await;
    assert_eq!(synced, Some(Duration::ZERO), "nothing waits for them");
    assert_eq!(seen, ["one", "one"], "those that the tables remember hold until then");
    let pauses = script.pauses();
    assert!(pauses[..4].iter().all(|pause| pause.as_secs() < 2), "{pauses:?}");
    assert!(pauses[14..19].iter().all(|p| (300..=600).contains(&p.as_secs())), "{pauses:?}");
    let warnings = log.lines("does not let the agent");
    assert_eq!(warnings.len(), 2, "once for each time that it is taken away: {warnings:?}");
    let rule = "{apiGroups: [networking.k8s.io], resources: [servicecidrs], verbs: [list, watch]}";
    assert!(warnings[0].contains(rule), "{warnings:?}");
    assert_eq!(log.lines("permits list and watch kind=ServiceCIDR").len(), 2);
}

#[tokio::test(start_paused = true)]
async fn triggers_of_events_are_delivered_and_those_of_lists_are_not() {
    let future = "2100-01-01T00:00:00.5Z";
    let list = Answer::list(2, &[slice("listed", 1, future)]);
    let events = [
        added(slice("old", 3, "2020-01-01T00:00:00Z")),
        added(slice("odd", 4, "yesterday")),
        added(slice("new", 5, future)),
        deleted(slice("new", 6, future)),
        bookmark(7),
    ];
    let script = Script::new([("endpointslices", vec![list, Answer::watch(&events)])]);
    let mut triggers = Vec::new();
    script.deliveries(Duration::from_secs(60), |delivery| triggers.extend(delivery.triggers)).await;
    let time = SystemTime::UNIX_EPOCH + Duration::from_millis(4_102_444_800_500);
    assert_eq!(triggers, [(Family::V4, time)]);
}

#[tokio::test(start_paused = true)]
async fn failed_list_is_requested_again() {
    for status in [401, 403, 405, 422, 429, 500, 501] {
        let answers = vec![
            Answer::status(status),
            Answer::list(5, &[service("a", 1)]),
            Answer::status(410),
            Answer::status(status),
            Answer::list(9, &[service("b", 8)]),
            Answer::watch(&[]),
        ];
        let (script, told) = follow("services", 60, answers).await;
        assert_eq!(script.course(), ["list", "list", "5", "list", "list", "9"], "{status}");
        assert_eq!(script.lists()[2..], ["resourceVersion=5", "resourceVersion=5"], "{status}");
        assert_eq!(told.last().unwrap(), "+b, services=b", "{status}");
    }
}

/// A list that expires, at once or in its watch, or that the server's cache does not have yet.
#[tokio::test(start_paused = true)]
async fn what_the_server_cannot_list_is_listed_from_the_store() {
    for refusal in [
        || vec![Answer::status(410)],
        || vec![Answer::too_new()],
        || vec![Answer::list(7, &[]), Answer::watch(&[error(410)])],
    ] {
        let mut answers = vec![Answer::list(7, &[]), Answer::status(410)];
        answers.extend(refusal());
        answers.extend([Answer::list(9, &[service("b", 8)]), Answer::watch(&[bookmark(10)])]);
        let (script, told) = follow("services", 60, answers).await;
        assert_eq!(
            script.lists(),
            ["resourceVersion=0&limit=250", "resourceVersion=7", "limit=250"]
        );
        assert_eq!(told.last().unwrap(), "+b, services=b");
        if script.course().len() == 5 {
            assert!(script.pauses()[2] < Duration::from_millis(1), "{:?}", script.pauses());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_list_may_come_in_pages_and_a_known_version_never_does() {
    let answers = vec![
        Answer::page("5", "next", &[service("a", 1)]),
        Answer::page("5", "", &[service("b", 2)]),
        Answer::ending(&[added(service("c", 6))]),
        Answer::watch(&[]),
    ];
    let (script, told) = follow("services", 60, answers).await;
    assert!(told.contains(&"+a, +b, services=a b".to_owned()), "{told:?}");
    assert_eq!(told.last().unwrap(), "+c");
    assert_eq!(script.course(), ["list", "list next", "5", "6"]);

    let answers = vec![
        Answer::page("5", "next", &[service("a", 1)]),
        // Too slow: then all at once.
        Answer::status(410),
        Answer::page("6", "", &[service("b", 2)]),
        Answer::status(410),
        Answer::page("8", "", &[service("c", 2)]),
        Answer::watch(&[]),
    ];
    let (script, told) = follow("services", 60, answers).await;
    assert_eq!(
        script.lists(),
        [
            "resourceVersion=0&limit=250",
            "limit=250&continue=next",
            "resourceVersion=0",
            "resourceVersion=6",
        ]
    );
    assert!(!told.iter().any(|told| told.contains("+a")), "half a list: {told:?}");
    assert_eq!(told.last().unwrap(), "+c, services=c");
}
