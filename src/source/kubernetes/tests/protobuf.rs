//! Answers in protobuf, and what follows if they cannot be decoded.

use std::time::Duration;

use shunt_fake_apiserver::Kind;
use shunt_fake_apiserver::protobuf::frame;

use super::script::{Answer, Log, Protobuf, Script, added, object, service};
use super::{failures, lists};

/// Runs tests with a server that speaks protobuf.
macro_rules! in_protobuf {
    ($($module:ident::$name:ident,)*) => {
        $(#[test]
        fn $name() {
            let _speaks = Protobuf::spoken();
            $module::$name();
        })*
    };
}

in_protobuf![
    lists::a_list_is_delivered_at_its_end_and_events_as_they_come,
    lists::only_what_concerns_us_is_asked_for,
    lists::a_list_may_come_in_pages,
    lists::a_server_that_does_not_know_the_selector_is_asked_for_more,
    lists::programming_does_not_wait_for_long_for_what_we_may_not_read,
    lists::service_cidrs_may_come_with_an_upgrade,
    lists::a_role_without_service_cidrs_delays_nothing,
    lists::triggers_of_events_are_delivered_and_those_of_lists_are_not,
    lists::what_the_server_cannot_list_is_listed_from_the_store,
    lists::known_version_is_never_listed_in_pages,
    failures::a_watch_goes_on_where_it_was,
    failures::a_version_that_is_too_old_means_a_new_list,
    failures::who_is_asked_to_wait_waits,
    failures::an_outage_is_told_once_and_pauses_grow,
    failures::pauses_begin_anew_after_a_success,
    failures::silent_watch_is_reopened_and_then_listed_from_the_cache,
    failures::a_server_that_ends_each_watch_at_once_is_not_asked_all_the_time,
];

const PROTOBUF: &str = "application/vnd.kubernetes.protobuf, application/json";
const JSON: &str = "application/json";

fn json(text: &str) -> serde_json::Value {
    serde_json::from_str(text).unwrap()
}

/// Answers that are no protobuf, and what is logged of them.
fn garbage() -> [(Vec<u8>, &'static str); 6] {
    let event = |json: &str| frame(Kind::Service, &self::json(json));
    let mut bare = event(r#"{"type":"ADDED","object":{"metadata":{"name":"a"}}}"#);
    let magic = bare.windows(4).position(|bytes| bytes == b"k8s\0").unwrap();
    bare[magic] = b'K';
    [
        (b"{\"type\":\"ADDED\"}\n".to_vec(), "a frame of 2065855609 bytes; the limit is 16777216"),
        (vec![0xff; 8], "a frame of 4294967295 bytes"),
        ([0, 0, 0, 4, 9, 9, 9, 9].to_vec(), "an event: failed to decode"),
        (bare, "an object that begins with \\\"K8s\\\\x00\\\""),
        (event(r#"{"type":"EXPLODED","object":{"metadata":{"name":"a"}}}"#), "an event of type"),
        (event(r#"{"type":"ADDED","object":{"metadata":{}}}"#), "a Service without a name"),
    ]
}

#[tokio::test(start_paused = true)]
async fn garbage_in_a_watch_is_requested_as_json_at_once() {
    let log = Log::collect();
    for (body, expected) in garbage() {
        let script = Script::new([(
            "services",
            vec![
                Answer::list(7, &[service("a", 3)]),
                Answer::protobuf(body),
                Answer::watch(&[added(service("b", 8))]),
            ],
        )]);
        let told = script.run(Duration::from_secs(30)).await;
        assert_eq!(script.course("services"), ["list", "7", "7"], "{expected}");
        assert_eq!(script.accepted("services"), [PROTOBUF, PROTOBUF, JSON], "{expected}");
        assert!(told.contains(&"+b".to_owned()), "{expected}: {told:?}");
        let expected = expected.replace("\\\"", "\"").replace("\\\\", "\\");
        let lines = log.lines(&expected);
        let warnings = lines.iter().filter(|line| line.contains("WARN")).count();
        assert_eq!(warnings, 1, "{expected}: {:?}", log.lines("WARN"));
    }
}

#[tokio::test(start_paused = true)]
async fn garbage_in_place_of_a_list_is_requested_as_json_at_once() {
    for (body, _) in garbage().into_iter().take(5) {
        let script = Script::new([(
            "services",
            vec![Answer::protobuf(body), Answer::list(7, &[service("a", 3)]), Answer::watch(&[])],
        )]);
        let told = script.run(Duration::from_secs(5)).await;
        assert_eq!(script.accepted("services"), [PROTOBUF, JSON, JSON]);
        assert!(told.contains(&"+a, services=a".to_owned()), "{told:?}");
        assert!(told.contains(&"synced".to_owned()), "{told:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn rejected_content_type_is_followed_by_json() {
    for code in [406, 415] {
        let list = Answer::list(7, &[service("a", 3)]);
        let answers = vec![Answer::status(code), list, Answer::watch(&[])];
        let script = Script::new([("services", answers)]);
        let told = script.run(Duration::from_secs(5)).await;
        assert_eq!(script.accepted("services"), [PROTOBUF, JSON, JSON], "{code}");
        assert!(told.contains(&"+a, services=a".to_owned()), "{told:?}");
        // JSON is the last choice: its rejection is like any other, with pauses.
        let always = (0..40).map(|_| Answer::status(code)).collect();
        let script = Script::new([("services", always)]);
        script.run(Duration::from_secs(60)).await;
        let accepted = script.accepted("services");
        assert_eq!(accepted[..3], [PROTOBUF, JSON, JSON], "{code}");
        assert!(accepted.len() < 30, "{} requests", accepted.len());
    }
}

#[tokio::test(start_paused = true)]
async fn protobuf_is_requested_again_later() {
    let watches = (0..10).map(|_| Answer::watch(&[]));
    let answers = [Answer::protobuf(vec![0xff; 4]), Answer::list(7, &[])];
    let script = Script::new([("services", answers.into_iter().chain(watches).collect())]);
    // Watches that are silent are opened anew.
    script.run(Duration::from_secs(1000)).await;
    let accepted = script.accepted("services");
    assert_eq!(accepted.first().map(String::as_str), Some(PROTOBUF));
    assert_eq!(accepted[1], JSON);
    assert_eq!(accepted.last().map(String::as_str), Some(PROTOBUF), "{accepted:?}");
}

#[tokio::test(start_paused = true)]
async fn undecodable_object_costs_only_itself_and_is_logged_once_per_version() {
    let log = Log::collect();
    let _speaks = Protobuf::spoken();
    // The fake server encodes it with a field of a wrong type.
    let odd = |version| object("default/odd", version, r#","spec":{"ports":[{"port":"http"}]}"#);
    let list = Answer::list(7, &[odd(2), service("good", 3), odd(2)]);
    let events = [added(odd(8)), added(service("other", 9))];
    let script = Script::new([("services", vec![list, Answer::watch(&events)])]);
    let told = script.run(Duration::from_secs(60)).await;
    assert!(told.contains(&"-odd, +good, -odd, services=good odd".to_owned()), "{told:?}");
    assert!(told.contains(&"+other".to_owned()), "{told:?}");
    assert_eq!(script.accepted("services"), [PROTOBUF, PROTOBUF]);
    let lines = log.lines("Service default/odd");
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(lines[0].contains("Service.spec: invalid wire type"), "{lines:?}");
}
