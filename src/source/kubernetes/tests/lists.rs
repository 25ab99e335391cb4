//! What is delivered of lists and events.

use std::time::{Duration, SystemTime};

use shunt_core::model::{Change, Family, Kind};

use super::script::{
    Answer, Asked, Log, Script, added, answers, bookmark, deleted, follow, follow_resource, object,
    slice,
};

#[tokio::test(start_paused = true)]
async fn a_list_is_delivered_at_its_end_and_events_as_they_come() {
    let (script, told) = follow(60, "list 7 a@3 b@2; watch +c@8 -a@9").await;
    assert_eq!(script.course(), "list 7");
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
        // The next server may know it.
        let mut script = answers(&format!("list 3 a@1 {headless}; 410; list 5 a@1; watch"));
        script.insert(0, Answer::refusal(400, message));
        let (script, told) = follow_resource("services", 10, script).await;
        assert!(told.iter().any(|told| told.starts_with("+a, -h, services=a h")), "{told:?}");
        assert_eq!(narrow(&script), [true, false, false, true, true]);
    }
    // A bad request for another reason.
    assert_eq!(narrow(&follow(10, "400; list 3; 400; watch").await.0), [true; 4]);
}

#[tokio::test(start_paused = true)]
async fn half_a_list_is_no_list() {
    let (script, told) = follow(120, "half 100 3 a@1 b@2; list 3 a@1 b@2; watch").await;
    assert_eq!(told.iter().filter(|told| told.contains("+a")).count(), 1, "{told:?}");
    assert!(script.course().starts_with("list list 3"), "{}", script.course());
}

#[tokio::test(start_paused = true)]
async fn programming_does_not_wait_for_long_for_what_we_may_not_read() {
    let log = Log::collect();
    let (_, told) = follow_resource("nodes", 30, answers("100*403")).await;
    assert_eq!(told[3..], ["synced"], "{told:?}");
    let waited = log.lines("programming without the lists");
    assert_eq!(waited.len(), 1);
    assert!(waited[0].contains("Node;"), "{waited:?}");

    // Without Services there is nothing to program, however long it takes.
    let (_, told) = follow(600, "100*403").await;
    assert!(!told.iter().any(|told| told.contains("synced")), "{told:?}");
}

#[tokio::test(start_paused = true)]
async fn service_cidrs_may_come_with_an_upgrade() {
    let cidr = object("kubernetes", 1, "");
    let after = |refusals: &str| answers(&format!("{refusals}; list 2 {cidr}; watch"));
    let (script, told) = follow_resource("servicecidrs", 10, after("404")).await;
    assert!(told.iter().any(|told| told.starts_with("+cidr kubernetes, cidrs=kuber")), "{told:?}");
    assert!(script.requests("servicecidrs")[1].path.contains("/v1beta1/"));

    let (script, told) = follow_resource("servicecidrs", 6000, after("40*404")).await;
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
    let cidr = object("kubernetes", 1, "");
    // The role is taken away again: what was listed holds.
    let course = format!("20*403; list 2 {cidr}; 410; 403; list 3 {cidr}; watch");
    let script = Script::new([("servicecidrs", answers(&course))]);
    let started = tokio::time::Instant::now();
    let (mut synced, mut seen) = (None, Vec::new());
    let take = |delivery: shunt_core::model::ChangeBatch| {
        for change in delivery.changes {
            match change {
                Change::Synced => synced = Some(started.elapsed()),
                Change::ServiceCidr(..) => seen.push("one"),
                Change::Listed(Kind::ServiceCidr, names) if names.is_empty() => {
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
        let (script, told) =
            follow(60, &format!("{status}; list 5 a@1; 410; {status}; list 9 b@8; watch")).await;
        assert_eq!(script.course(), "list list 5 list list 9", "{status}");
        assert_eq!(script.lists()[2..], ["resourceVersion=5", "resourceVersion=5"], "{status}");
        assert_eq!(told.last().unwrap(), "+b, services=b", "{status}");
    }
}

/// A list that expires, at once or in its watch, or that the server's cache does not have yet.
#[tokio::test(start_paused = true)]
async fn what_the_server_cannot_list_is_listed_from_the_store() {
    for refusal in ["410", "new", "list 7; watch !410"] {
        let (script, told) =
            follow(60, &format!("list 7; 410; {refusal}; list 9 b@8; watch ^10")).await;
        assert_eq!(
            script.lists(),
            ["resourceVersion=0&limit=250", "resourceVersion=7", "limit=250"]
        );
        assert_eq!(told.last().unwrap(), "+b, services=b");
        if script.pauses().len() == 4 {
            assert!(script.pauses()[2] < Duration::from_millis(1), "{:?}", script.pauses());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_list_may_come_in_pages_and_a_known_version_never_does() {
    let (script, told) = follow(60, "page 5 next a@1; list 5 b@2; end +c@6; watch").await;
    assert!(told.contains(&"+a, +b, services=a b".to_owned()), "{told:?}");
    assert_eq!(told.last().unwrap(), "+c");
    assert_eq!(script.course(), "list list-next 5 6");

    // Too slow: then all at once.
    let (script, told) =
        follow(60, "page 5 next a@1; 410; list 6 b@2; 410; list 8 c@2; watch").await;
    assert_eq!(
        script.lists(),
        [
            "resourceVersion=0&limit=250",
            "continue=next&limit=250",
            "resourceVersion=0",
            "resourceVersion=6",
        ]
    );
    assert!(!told.iter().any(|told| told.contains("+a")), "half a list: {told:?}");
    assert_eq!(told.last().unwrap(), "+c, services=c");
}
