//! Answers in protobuf, and what follows if they cannot be decoded.

use shunt_fake_apiserver::Kind;
use shunt_fake_apiserver::protobuf::frame;

use super::script::{Answer, Log, added, follow, object, service};

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
        (
            b"{\"type\":\"ADDED\"}\n".to_vec(),
            "an object of 2065855613 bytes; the limit is 16777216",
        ),
        (vec![0xff; 8], "an object of 4294967299 bytes"),
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
        let answers = vec![
            Answer::list(7, &[service("a", 3)]),
            Answer::protobuf(body),
            Answer::watch(&[added(service("b", 8))]),
        ];
        let (script, told) = follow("services", 30, answers).await;
        assert_eq!(script.course(), ["list", "7", "7"], "{expected}");
        assert_eq!(script.accepted(), [PROTOBUF, PROTOBUF, JSON], "{expected}");
        assert!(told.contains(&"+b".to_owned()), "{expected}: {told:?}");
        let expected = expected.replace("\\\"", "\"").replace("\\\\", "\\");
        let lines = log.lines(&expected);
        let warnings = lines.iter().filter(|line| line.contains("WARN")).count();
        assert_eq!(warnings, 1, "{expected}: {:?}", log.lines("WARN"));
    }
}

#[tokio::test(start_paused = true)]
async fn garbage_in_place_of_a_list_is_requested_as_json_at_once() {
    let answers = vec![
        Answer::protobuf(vec![0xff; 8]),
        Answer::list(7, &[service("a", 3)]),
        Answer::watch(&[]),
    ];
    let (script, told) = follow("services", 5, answers).await;
    assert_eq!(script.accepted(), [PROTOBUF, JSON, JSON]);
    assert!(told.contains(&"+a, services=a".to_owned()), "{told:?}");
}

#[tokio::test(start_paused = true)]
async fn rejected_content_type_is_followed_by_json() {
    for code in [406, 415] {
        let list = Answer::list(7, &[service("a", 3)]);
        let answers = vec![Answer::status(code), list, Answer::watch(&[])];
        let (script, told) = follow("services", 5, answers).await;
        assert_eq!(script.accepted(), [PROTOBUF, JSON, JSON], "{code}");
        assert!(told.contains(&"+a, services=a".to_owned()), "{told:?}");
        // JSON is the last choice: its rejection is like any other, with pauses.
        let always = (0..40).map(|_| Answer::status(code)).collect();
        let accepted = follow("services", 60, always).await.0.accepted();
        assert_eq!(accepted[..3], [PROTOBUF, JSON, JSON], "{code}");
        assert!(accepted.len() < 30, "{} requests", accepted.len());
    }
}

#[tokio::test(start_paused = true)]
async fn protobuf_is_requested_again_later() {
    let watches = (0..10).map(|_| Answer::watch(&[]));
    let answers = [Answer::protobuf(vec![0xff; 4]), Answer::list(7, &[])];
    // Watches that are silent are opened anew.
    let answers = answers.into_iter().chain(watches).collect();
    let accepted = follow("services", 1000, answers).await.0.accepted();
    assert_eq!(accepted.first().map(String::as_str), Some(PROTOBUF));
    assert_eq!(accepted[1], JSON);
    assert_eq!(accepted.last().map(String::as_str), Some(PROTOBUF), "{accepted:?}");
}

#[tokio::test(start_paused = true)]
async fn undecodable_object_costs_only_itself_and_is_logged_once_per_version() {
    let log = Log::collect();
    // The fake server encodes it with a field of a wrong type.
    let odd = |version| object("default/odd", version, r#","spec":{"ports":[{"port":"http"}]}"#);
    let nameless = r#"{"metadata":{},"spec":{}}"#.to_owned();
    let answers = vec![
        Answer::list(5, &[odd(1), service("a", 2), nameless]),
        Answer::ending(&[added(odd(6))]),
        Answer::status(410),
        Answer::list(9, &[odd(6), service("a", 2)]),
        Answer::watch(&[added(odd(10)), added(service("other", 11))]),
    ];
    let (script, told) = follow("services", 60, answers).await;
    assert!(told.iter().any(|told| told.starts_with("-odd, +a, services=a odd")), "{told:?}");
    assert_eq!(told.last().unwrap(), "+other");
    assert_eq!(script.accepted(), [PROTOBUF; 5]);
    let lines = log.lines("Service default/odd");
    assert_eq!(lines.len(), 3, "{lines:?}");
    assert!(lines[0].contains("Service.spec: invalid wire type"), "{lines:?}");
}
