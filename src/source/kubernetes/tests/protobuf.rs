//! Answers in protobuf, and what follows if they cannot be decoded.

use shunt_fake_apiserver::Kind;
use shunt_fake_apiserver::protobuf::frame;

use super::script::{Answer, Log, added, answers, follow, follow_resource, object};

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
        let mut script = answers("list 7 a@3; watch +b@8");
        script.insert(1, Answer::protobuf(body));
        let (script, told) = follow_resource("services", 30, script).await;
        assert_eq!(script.course(), "list 7 7", "{expected}");
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
    let mut script = answers("list 7 a@3; watch");
    script.insert(0, Answer::protobuf(vec![0xff; 8]));
    let (script, told) = follow_resource("services", 5, script).await;
    assert_eq!(script.accepted(), [PROTOBUF, JSON, JSON]);
    assert!(told.contains(&"+a, services=a".to_owned()), "{told:?}");
}

#[tokio::test(start_paused = true)]
async fn rejected_content_type_is_followed_by_json() {
    for code in [406, 415] {
        let (script, told) = follow(5, &format!("{code}; list 7 a@3; watch")).await;
        assert_eq!(script.accepted(), [PROTOBUF, JSON, JSON], "{code}");
        assert!(told.contains(&"+a, services=a".to_owned()), "{told:?}");
        // JSON is the last choice: its rejection is like any other, with pauses.
        let accepted = follow(60, &format!("40*{code}")).await.0.accepted();
        assert_eq!(accepted[..3], [PROTOBUF, JSON, JSON], "{code}");
        assert!(accepted.len() < 30, "{} requests", accepted.len());
    }
}

#[tokio::test(start_paused = true)]
async fn protobuf_is_requested_again_later() {
    // Watches that are silent are opened anew.
    let mut script = answers("list 7; 10*watch");
    script.insert(0, Answer::protobuf(vec![0xff; 4]));
    let accepted = follow_resource("services", 1000, script).await.0.accepted();
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
    let (first, second, third) = (odd(1), odd(6), added(odd(10)));
    let course = format!(
        "list 5 {first} a@2 {nameless}; end {}; 410; list 9 {second} a@2; watch {third} +other@11",
        added(second.clone())
    );
    let (script, told) = follow(60, &course).await;
    assert!(told.iter().any(|told| told.starts_with("-odd, +a, services=a odd")), "{told:?}");
    assert_eq!(told.last().unwrap(), "+other");
    assert_eq!(script.accepted(), [PROTOBUF; 5]);
    let lines = log.lines("Service default/odd");
    assert_eq!(lines.len(), 3, "{lines:?}");
    assert!(lines[0].contains("Service.spec: invalid wire type"), "{lines:?}");
}
