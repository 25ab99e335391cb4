//! What is delivered of lists and events.

use std::time::{Duration, SystemTime};

use shunt_core::model::{Change, Family, Listed};

use super::script::{Answer, Log, Script, added, bookmark, deleted, error, object, service, slice};

#[tokio::test(start_paused = true)]
pub(super) async fn a_list_is_delivered_at_its_end_and_events_as_they_come() {
    let list = Answer::list(7, &[service("a", 3), service("b", 2)]);
    let events = [added(service("c", 8)), deleted(service("a", 9))];
    let script = Script::new([("services", vec![list, Answer::watch(&events)])]);
    let told = script.run(Duration::from_secs(60)).await;
    assert_eq!(script.course("services"), ["list", "7"]);
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
        let [(_, list), (_, watch)] = &requests[..] else { panic!("{requests:?}") };
        for (path_and_query, parts) in [
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

#[tokio::test(start_paused = true)]
pub(super) async fn a_list_may_come_in_pages() {
    let answers = vec![
        Answer::page("5", "next", &[service("a", 1)]),
        Answer::page("5", "", &[service("b", 2)]),
        Answer::ending(&[added(service("c", 6))]),
        Answer::watch(&[]),
    ];
    let script = Script::new([("services", answers)]);
    let told = script.run(Duration::from_secs(60)).await;
    assert!(told.contains(&"+a, +b, services=a b".to_owned()), "{told:?}");
    assert_eq!(told.last().unwrap(), "+c");
    assert_eq!(script.course("services"), ["list", "list next", "5", "6"]);
}

#[tokio::test(start_paused = true)]
pub(super) async fn a_server_that_does_not_know_the_selector_is_asked_for_more() {
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
        let script = Script::new([("services", answers)]);
        let told = script.run(Duration::from_secs(10)).await;
        assert!(told.iter().any(|told| told.starts_with("+a, -h, services=a h")), "{told:?}");
        let requests = script.requests("services");
        assert!(requests.iter().all(|(_, path)| path.contains("labelSelector")), "{requests:?}");
        let narrow: Vec<bool> =
            requests.iter().map(|(_, path)| path.contains("fieldSelector")).collect();
        assert_eq!(narrow, [true, false, false, true, true], "{requests:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn bad_request_for_another_reason_does_not_widen_the_list() {
    let answers =
        vec![Answer::status(400), Answer::list(3, &[]), Answer::status(400), Answer::watch(&[])];
    let script = Script::new([("services", answers)]);
    script.run(Duration::from_secs(10)).await;
    let requests = script.requests("services");
    assert_eq!(requests.len(), 4, "{requests:?}");
    assert!(requests.iter().all(|(_, path)| path.contains("fieldSelector")), "{requests:?}");
}

#[tokio::test(start_paused = true)]
pub(super) async fn half_a_list_is_no_list() {
    let items = [service("a", 1), service("b", 2)];
    let whole = || Answer::list(3, &items);
    let length = whole().length();
    for bytes in [length / 3, length * 2 / 3, length - 1] {
        for part in [Answer::broken, Answer::silent] {
            let answers = vec![part(whole(), bytes), whole(), Answer::watch(&[])];
            let script = Script::new([("services", answers)]);
            let told = script.run(Duration::from_secs(120)).await;
            let lists: Vec<&String> = told.iter().filter(|told| told.contains("+a")).collect();
            assert_eq!(lists, ["+a, +b, services=a b"], "{told:?}");
            assert_eq!(script.course("services")[..3], ["list", "list", "3"]);
        }
    }
    // A page that expired while the list was read.
    let answers = vec![
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
    let malformed = r#"{"metadata":{"resourceVersion":"9"},"items":[{"metadata":{"name":"a"},?}]}"#;
    let answers = vec![
        Answer::body("{}"),
        Answer::body(r#"{"kind":"Status","metadata":{},"status":"Failure"}"#),
        Answer::body("<html>"),
        Answer::body(malformed),
        Answer::list(9, &[service("b", 8)]),
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
    let answers = vec![
        Answer::list(5, &[odd(1), service("a", 2), nameless]),
        Answer::ending(&[added(odd(6))]),
        Answer::status(410),
        Answer::list(9, &[odd(6), service("a", 2)]),
        Answer::watch(&[added(odd(10))]),
    ];
    let log = Log::collect();
    let script = Script::new([("services", answers)]);
    let told = script.run(Duration::from_secs(60)).await;
    assert!(told.iter().any(|told| told.starts_with("-odd, +a, services=a odd")), "{told:?}");
    let problems = log.lines("Service default/odd");
    assert_eq!(problems.len(), 3, "{problems:?}");
    assert!(problems[0].contains("spec.ports[0].port"), "{problems:?}");
    assert!(problems[0].contains("must be a whole number, not text"), "{problems:?}");
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
    let list = || Answer::list(2, &[object("kubernetes", 1, "")]);
    let v1beta1 = vec![Answer::status(404), list(), Answer::watch(&[])];
    let script = Script::new([("servicecidrs", v1beta1)]);
    let told = script.run(Duration::from_secs(10)).await;
    assert!(told.iter().any(|told| told.starts_with("+cidr kubernetes, cidrs=kuber")), "{told:?}");
    assert!(script.requests("servicecidrs")[1].1.contains("/v1beta1/"));

    let mut answers: Vec<Answer> = (0..40).map(|_| Answer::status(404)).collect();
    answers.extend([list(), Answer::watch(&[])]);
    let script = Script::new([("servicecidrs", answers)]);
    let told = script.run(Duration::from_secs(6000)).await;
    let cidrs: Vec<&String> = told.iter().filter(|told| told.contains("cidr")).collect();
    assert!(cidrs[0].starts_with("cidrs="), "{told:?}");
    assert_eq!(cidrs[1..], ["+cidr kubernetes, cidrs=kubernetes"]);
    let requests = script.requests("servicecidrs");
    assert!(requests.iter().step_by(2).all(|(_, path)| path.contains("/v1/")), "{requests:?}");
    // A server that starts has them in a moment, an old one for a long time not.
    let pauses: Vec<Duration> =
        requests.chunks(2).zip(requests[2..].chunks(2)).map(|(a, b)| b[0].0 - a[0].0).collect();
    assert!(pauses[..4].iter().all(|pause| pause.as_secs() < 2), "{pauses:?}");
    assert!(
        pauses[14..19].iter().all(|pause| (300..=600).contains(&pause.as_secs())),
        "{pauses:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn service_cidrs_are_kept_when_the_server_does_not_find_them() {
    let list = |version| Answer::list(version, &[object("kubernetes", 1, "")]);
    let not_found = || (0..4).map(|_| Answer::status(404));
    let answers = [list(2)].into_iter().chain(not_found()).chain([Answer::watch(&[])]);
    let script = Script::new([("servicecidrs", answers.collect())]);
    let told = script.run(Duration::from_secs(10)).await;
    let cidrs: Vec<&String> = told.iter().filter(|told| told.contains("cidr")).collect();
    assert_eq!(cidrs, ["+cidr kubernetes, cidrs=kubernetes"], "{told:?}");
    assert_eq!(script.course("servicecidrs"), ["list", "2", "2", "2", "2", "2"]);
}

#[tokio::test(start_paused = true)]
pub(super) async fn a_role_without_service_cidrs_delays_nothing() {
    let log = Log::collect();
    let list = |version| Answer::list(version, &[object("kubernetes", 1, "")]);
    let mut answers: Vec<Answer> = (0..20).map(|_| Answer::status(403)).collect();
    answers.push(list(2));
    // The role is decoded away again: what was listed holds.
    answers.extend([Answer::status(410), Answer::status(403)]);
    answers.extend([list(3), Answer::watch(&[])]);
    let script = Script::new([("servicecidrs", answers)]);
    let source = script.clone();
    let started = tokio::time::Instant::now();
    let (mut synced, mut seen) = (None, Vec::new());
    source
        .deliveries(Duration::from_secs(6000), |delivery| {
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
    assert_eq!(seen, ["one", "one"], "those that the tables remember hold until then");
    let requests = script.requests("servicecidrs");
    let pauses: Vec<Duration> = requests.windows(2).map(|two| two[1].0 - two[0].0).collect();
    assert!(pauses[..4].iter().all(|pause| pause.as_secs() < 2), "{pauses:?}");
    assert!(pauses[14..19].iter().all(|p| (300..=600).contains(&p.as_secs())), "{pauses:?}");
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
        let script = Script::new([("services", answers)]);
        let told = script.run(Duration::from_secs(60)).await;
        let course = script.course("services");
        assert_eq!(course, ["list", "list", "5", "list", "list", "9"], "{status}");
        assert_eq!(
            script.lists("services")[2..],
            ["resourceVersion=5", "resourceVersion=5"],
            "{status}"
        );
        assert_eq!(told.last().unwrap(), "+b, services=b", "{status}");
    }
}

#[tokio::test(start_paused = true)]
pub(super) async fn what_the_server_cannot_list_is_listed_from_the_store() {
    for refusal in [|| Answer::status(410), Answer::too_new] {
        let answers = vec![
            Answer::list(7, &[]),
            Answer::status(410),
            refusal(),
            Answer::list(9, &[service("b", 8)]),
            Answer::watch(&[]),
        ];
        let script = Script::new([("services", answers)]);
        script.run(Duration::from_secs(60)).await;
        assert_eq!(
            script.lists("services"),
            ["resourceVersion=0&limit=250", "resourceVersion=7", "limit=250"]
        );
        let requests = script.requests("services");
        assert!(requests[3].0 - requests[2].0 < Duration::from_millis(1), "{requests:?}");
    }
}

#[tokio::test(start_paused = true)]
pub(super) async fn known_version_is_never_listed_in_pages() {
    let answers = vec![
        Answer::page("5", "next", &[service("a", 1)]),
        // Too slow: then all at once.
        Answer::status(410),
        Answer::page("6", "", &[service("b", 2)]),
        Answer::status(410),
        Answer::page("8", "", &[service("c", 2)]),
        Answer::watch(&[]),
    ];
    let script = Script::new([("services", answers)]);
    let told = script.run(Duration::from_secs(60)).await;
    assert_eq!(
        script.lists("services"),
        [
            "resourceVersion=0&limit=250",
            "limit=250&continue=next",
            "resourceVersion=0",
            "resourceVersion=6",
        ]
    );
    assert_eq!(told.last().unwrap(), "+c, services=c");
}

#[tokio::test(start_paused = true)]
async fn list_that_expires_at_once_is_followed_by_one_from_the_store() {
    let answers = vec![
        Answer::list(7, &[]),
        Answer::status(410),
        Answer::list(7, &[]),
        Answer::watch(&[error(410)]),
        Answer::list(9, &[service("b", 8)]),
        Answer::watch(&[bookmark(10)]),
    ];
    let script = Script::new([("services", answers)]);
    let told = script.run(Duration::from_secs(60)).await;
    assert_eq!(
        script.lists("services"),
        ["resourceVersion=0&limit=250", "resourceVersion=7", "limit=250"]
    );
    assert_eq!(told.last().unwrap(), "+b, services=b");
}
