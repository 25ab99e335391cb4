//! The stand-in refuses what kube-apiserver refuses, in the same words: requests beyond the role of
//! the chart, options that do not fit together, Events that are not valid.

use std::process::ExitCode;

use anyhow::{Context, Result};
use hyper::Method;
use serde_json::{Value, json};
use shunt_fake_apiserver::{Api, Client, Reply, both, run};

const SLICES: &str = "/apis/discovery.k8s.io/v1/endpointslices";
const EVENTS: &str = "/apis/events.k8s.io/v1/namespaces/default/events";
/// The ServiceAccount of the chart.
const USER: &str = "system:serviceaccount:kube-system:shunt";

fn main() -> ExitCode {
    let cases = both![
        the_role_allows_its_verbs_and_no_other,
        a_forbidden_request_is_named_in_full,
        options_of_a_list_must_fit,
        options_of_a_watch_must_fit,
        a_page_has_the_revision_of_its_list,
        an_event_must_be_valid,
        an_event_lives_where_its_object_lives,
    ];
    run(&[("refusals", cases)])
}

/// Asserts the status, the reason, and how the message begins.
#[track_caller]
fn assert_refused(reply: &Reply, (code, reason, message): (u16, &str, &str), request: &str) {
    let Reply { status, body } = reply;
    let text = |field: &str| body[field].as_str().unwrap_or_default();
    assert_eq!((*status, text("reason")), (code, reason), "{request}: {body}");
    let said = text("message");
    assert!(said.starts_with(message), "{request}:\n{said}\ninstead of\n{message}");
}

/// All that the role allows is answered with something else than 403, and only that.
fn the_role_allows_its_verbs_and_no_other(api: Api) -> Result<()> {
    const NAMED: [Method; 4] = [Method::GET, Method::PUT, Method::PATCH, Method::DELETE];
    const ALLOWED: [&str; 11] = [
        "GET /api/v1/services",
        "GET /api/v1/services?watch=true",
        "GET /api/v1/nodes",
        "GET /api/v1/nodes?watch=true",
        "GET /apis/discovery.k8s.io/v1/endpointslices",
        "GET /apis/discovery.k8s.io/v1/endpointslices?watch=true",
        "GET /apis/networking.k8s.io/v1/servicecidrs",
        "GET /apis/networking.k8s.io/v1/servicecidrs?watch=true",
        "POST /apis/events.k8s.io/v1/events",
        // Unknown versions are no matter of roles.
        "GET /apis/networking.k8s.io/v0/servicecidrs",
        "GET /apis/networking.k8s.io/v0/servicecidrs?watch=true",
    ];
    let client = api.client()?;
    let mut allowed = Vec::new();
    for collection in [
        "/api/v1/services",
        "/api/v1/nodes",
        "/api/v1/pods",
        "/api/v1/secrets",
        "/api/v1/endpoints",
        "/api/v1/events",
        "/apis/discovery.k8s.io/v1/endpointslices",
        "/apis/networking.k8s.io/v1/servicecidrs",
        "/apis/networking.k8s.io/v0/servicecidrs",
        "/apis/networking.k8s.io/v1/ingresses",
        "/apis/events.k8s.io/v1/events",
    ] {
        let mut requests: Vec<(Method, String)> =
            NAMED.map(|method| (method, format!("{collection}/x"))).into();
        requests.extend(NAMED.map(|method| (method, format!("{collection}/x/status"))));
        let whole = [Method::GET, Method::POST, Method::DELETE];
        requests.extend(whole.map(|method| (method, collection.to_owned())));
        // This one ends at once where it is allowed.
        requests.push((Method::GET, format!("{collection}?watch=true")));
        for (method, path) in requests {
            let ends = path.replace("watch=true", "watch=true&resourceVersionMatch=none");
            let reply = client.call(method.clone(), &ends, Some(&json!({})))?;
            if reply.status != 403 {
                allowed.push(format!("{method} {path}"));
            }
        }
    }
    allowed.sort();
    let mut expected = ALLOWED.to_vec();
    expected.sort();
    assert_eq!(allowed, expected);
    Ok(())
}

fn a_forbidden_request_is_named_in_full(api: Api) -> Result<()> {
    let client = api.client()?;
    for (method, path, object, action) in [
        (
            Method::GET,
            "/api/v1/pods",
            "pods",
            r#"list resource "pods" in API group "" at the cluster scope"#,
        ),
        (
            Method::GET,
            "/api/v1/pods?watch=1",
            "pods",
            r#"watch resource "pods" in API group "" at the cluster scope"#,
        ),
        (
            Method::GET,
            "/api/v1/namespaces/default/services/x",
            r#"services "x""#,
            r#"get resource "services" in API group "" in the namespace "default""#,
        ),
        (
            Method::POST,
            "/api/v1/namespaces/default/services",
            "services",
            r#"create resource "services" in API group "" in the namespace "default""#,
        ),
        (
            Method::PATCH,
            "/api/v1/nodes/n/status",
            r#"nodes "n""#,
            r#"patch resource "nodes/status" in API group "" at the cluster scope"#,
        ),
        (
            Method::DELETE,
            "/apis/discovery.k8s.io/v1/namespaces/a/endpointslices",
            "endpointslices.discovery.k8s.io",
            r#"deletecollection resource "endpointslices" in API group "discovery.k8s.io" in the namespace "a""#,
        ),
        (
            Method::PUT,
            "/apis/events.k8s.io/v1/namespaces/default/events/e",
            r#"events.events.k8s.io "e""#,
            r#"update resource "events" in API group "events.k8s.io" in the namespace "default""#,
        ),
        (
            Method::GET,
            "/api/v1/namespaces/default",
            r#"namespaces "default""#,
            r#"get resource "namespaces" in API group "" in the namespace "default""#,
        ),
    ] {
        let reply = client.call(method, path, Some(&json!({})))?;
        let message = format!(r#"{object} is forbidden: User "{USER}" cannot {action}"#);
        assert_refused(&reply, (403, "Forbidden", &message), path);
        assert_eq!(reply.body["message"], message, "to the end");
    }
    let metrics = format!(r#"forbidden: User "{USER}" cannot get path "/metrics""#);
    assert_refused(&client.get("/metrics")?, (403, "Forbidden", &metrics), "/metrics");
    assert_eq!(client.get("/version")?.status, 200);
    Ok(())
}

const NO_OPTION: &str = r#"ListOptions.meta.k8s.io "" is invalid: "#;

fn options_of_a_list_must_fit(api: Api) -> Result<()> {
    let client = api.client()?;
    for (query, code, reason, message) in [
        ("limit=x", 400, "BadRequest", r#"strconv.ParseInt: parsing "x": invalid syntax"#),
        ("timeoutSeconds=1s", 400, "BadRequest", r#"strconv.ParseInt: parsing "1s": "#),
        ("continue=x", 400, "BadRequest", "invalid continue token: continue key is not valid"),
        (
            "resourceVersion=x",
            400,
            "BadRequest",
            "invalid resource version: resourceVersion: Invalid value: \"x\": \
             strconv.ParseUint: parsing \"x\": invalid syntax",
        ),
        (
            "resourceVersionMatch=Exact&resourceVersion=0",
            422,
            "Invalid",
            r#"resourceVersionMatch: Forbidden: resourceVersionMatch "exact" is forbidden for resourceVersion "0""#,
        ),
        (
            "resourceVersionMatch=NotOlderThan",
            422,
            "Invalid",
            "resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden unless \
             resourceVersion is provided",
        ),
        (
            "resourceVersionMatch=NotOlderThan&resourceVersion=1&continue=x",
            422,
            "Invalid",
            "resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden when continue is \
             provided",
        ),
        (
            "resourceVersionMatch=Newest&resourceVersion=5",
            422,
            "Invalid",
            r#"resourceVersionMatch: Unsupported value: "Newest": supported values: "Exact", "NotOlderThan", """#,
        ),
        ("resourceVersion=99999999", 504, "Timeout", "Timeout: Too large resource version: 9"),
        (
            "resourceVersionMatch=Exact&resourceVersion=99999999",
            504,
            "Timeout",
            "Timeout: Too large resource version: 99999999, current: ",
        ),
    ] {
        let reply = client.get(&format!("{SLICES}?{query}"))?;
        let message =
            if code == 422 { format!("{NO_OPTION}{message}") } else { message.to_owned() };
        assert_refused(&reply, (code, reason, &message), query);
        if code == 504 {
            assert_eq!(reply.body["details"]["retryAfterSeconds"], 1, "{query}");
        }
    }
    for query in [
        "limit=-1",
        "limit=0",
        "watch=false",
        "watch=0",
        "allowWatchBookmarks=true",
        "resourceVersionMatch=NotOlderThan&resourceVersion=0",
    ] {
        let reply = client.get(&format!("{SLICES}?{query}"))?;
        let kind = reply.body["kind"].as_str();
        assert_eq!((reply.status, kind), (200, Some("EndpointSliceList")), "{query}");
    }
    Ok(())
}

fn options_of_a_watch_must_fit(api: Api) -> Result<()> {
    let client = api.client()?;
    for (query, code, reason, message) in [
        ("timeoutSeconds=x", 400, "BadRequest", r#"strconv.ParseInt: parsing "x": "#),
        (
            "resourceVersion=x",
            500,
            "",
            "resourceVersion: Invalid value: \"x\": strconv.ParseUint: parsing \"x\": invalid \
             syntax",
        ),
        (
            "resourceVersionMatch=NotOlderThan",
            422,
            "Invalid",
            "resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden for watch unless \
             sendInitialEvents is provided",
        ),
        (
            "continue=x",
            422,
            "Invalid",
            "resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden when continue is \
             provided",
        ),
    ] {
        let reply = client.get(&format!("{SLICES}?watch=true&{query}"))?;
        let message =
            if code == 422 { format!("{NO_OPTION}{message}") } else { message.to_owned() };
        assert_refused(&reply, (code, reason, &message), query);
    }
    let list = client.get(SLICES)?.body;
    let from = list["metadata"]["resourceVersion"].as_str().context("no revision")?;
    for flag in ["watch", "watch=1", "watch=yes&limit=1", "watch=true&allowWatchBookmarks=false"] {
        let path = format!("{SLICES}?{flag}&timeoutSeconds=1&resourceVersion={from}");
        assert_eq!(client.watch(&path)?.next_event()?, None, "{flag} is no watch");
    }
    Ok(())
}

fn a_page_has_the_revision_of_its_list(api: Api) -> Result<()> {
    let client = api.client()?;
    for name in ["a", "b"] {
        api.put(format!(
            "{{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {{name: {name}}}, \
             addressType: IPv4, endpoints: [], ports: []}}"
        ))?;
    }
    let first = client.get(&format!("{SLICES}?limit=1"))?.body;
    let token = first["metadata"]["continue"].as_str().context("one page")?;
    let token: String = form_urlencoded::byte_serialize(token.as_bytes()).collect();
    let page = |version: &str| {
        client.get(&format!("{SLICES}?limit=1&continue={token}&resourceVersion={version}"))
    };
    let message = "specifying resource version is not allowed when using continue";
    assert_refused(&page("5")?, (400, "BadRequest", message), "a revision beside the token");
    for version in ["", "0"] {
        let page = page(version)?;
        assert_eq!(page.body["items"][0]["metadata"]["name"], "b", "{page:?}");
    }
    Ok(())
}

/// A valid Event, but for what `change` makes of it.
fn event(name: &str, change: impl FnOnce(&mut Value)) -> Value {
    let mut event = json!({
        "apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": name},
        "eventTime": "2026-01-01T00:00:00.000000Z", "reportingController": "shunt",
        "reportingInstance": "node-1", "action": "Test", "reason": "Testing", "type": "Normal",
        "regarding": {"kind": "Service", "name": "s", "namespace": "default"}, "note": "one",
    });
    change(&mut event);
    event
}

fn create(client: &Client, event: &Value) -> Result<Reply> {
    client.call(Method::POST, EVENTS, Some(event))
}

fn an_event_must_be_valid(api: Api) -> Result<()> {
    const NOT_NAMED: &str = "metadata.name: Required value: name or generateName is required";
    const TIME: &str = "eventTime: Required value";
    let client = api.client()?;
    let x = |count: usize| "x".repeat(count);
    let too_long = |field: &str| format!("{field}: Invalid value: \"\": can have at most 128");
    let unset = |field: &str| format!("{field}: Invalid value: \"\": needs to be unset");
    let subdomain = |name: &str| {
        format!("metadata.name: Invalid value: {name:?}: a lowercase RFC 1123 subdomain must")
    };
    for (field, value, message) in [
        ("/metadata/name", json!(null), NOT_NAMED.to_owned()),
        ("/metadata/name", json!(""), NOT_NAMED.to_owned()),
        ("/metadata/name", json!("A_b"), subdomain("A_b")),
        ("/metadata/name", json!("a..b"), subdomain("a..b")),
        (
            "/metadata/name",
            json!(x(254)),
            format!(
                "metadata.name: Invalid value: {:?}: must be no more than 253 characters",
                x(254)
            ),
        ),
        ("/eventTime", json!(null), TIME.to_owned()),
        (
            "/reportingController",
            json!(""),
            "[reportingController: Required value, reportingController: Invalid value: \"\": \
             name part must be non-empty, reportingController: Invalid value: \"\": name part \
             must consist of"
                .to_owned(),
        ),
        (
            "/reportingController",
            json!("a b"),
            "reportingController: Invalid value: \"a b\": name part must consist of alphanumeric \
             characters, '-', '_' or '.', and must start and end with"
                .to_owned(),
        ),
        (
            "/reportingController",
            json!("a/b/c"),
            "reportingController: Invalid value: \"a/b/c\": a valid label key must".to_owned(),
        ),
        (
            "/reportingController",
            json!(x(64)),
            format!(
                "reportingController: Invalid value: {:?}: name part must be no more than 63 bytes",
                x(64)
            ),
        ),
        ("/reportingInstance", json!(""), "reportingInstance: Required value".to_owned()),
        ("/reportingInstance", json!(x(129)), too_long("reportingInstance")),
        ("/action", json!(""), "action: Required value".to_owned()),
        ("/action", json!(x(129)), too_long("action")),
        ("/reason", json!(""), "reason: Required value".to_owned()),
        ("/reason", json!(x(129)), too_long("reason")),
        ("/type", json!(""), "type: Invalid value: \"\": has invalid value: ".to_owned()),
        ("/type", json!("Error"), "type: Invalid value: \"\": has invalid value: Error".to_owned()),
        (
            "/note",
            json!(x(1025)),
            "message: Invalid value: \"\": can have at most 1024 characters".to_owned(),
        ),
        (
            "/series",
            json!({"count": 1}),
            "[series.count: Invalid value: \"\": should be at least 2, series.lastObservedTime: \
             Required value]"
                .to_owned(),
        ),
        ("/deprecatedCount", json!(1), unset("count")),
        ("/deprecatedSource", json!({"component": "x"}), unset("source")),
        ("/deprecatedFirstTimestamp", json!("2026-01-01T00:00:00Z"), unset("firstTimestamp")),
    ] {
        let event = event("f", |event| set(event, field, value));
        let name = event["metadata"]["name"].as_str().unwrap_or_default();
        let message = format!("Event {name:?} is invalid: {message}");
        assert_refused(&create(&client, &event)?, (422, "Invalid", &message), field);
    }
    let unfit = "Event in version \"v1\" cannot be handled as a Event: ";
    let unknown_time = |time: &str| {
        format!("{unfit}parsing time {time:?} as \"2006-01-02T15:04:05.000000Z07:00\": ")
    };
    for (field, value, message) in [
        ("/note", json!(5), format!("{unfit}json: cannot unmarshal")),
        ("/eventTime", json!("yesterday"), unknown_time("yesterday")),
        // Not three digits, nor nine.
        ("/eventTime", json!("2026-01-01T00:00:00.000Z"), unknown_time("2026-01-01T00:00:00.000Z")),
        (
            "/eventTime",
            json!("2026-01-01T00:00:00.000000000Z"),
            unknown_time("2026-01-01T00:00:00.000000000Z"),
        ),
        (
            "/apiVersion",
            json!("v1"),
            "the API version in the data (v1) does not match the expected API version \
             (events.k8s.io/v1)"
                .to_owned(),
        ),
        (
            "/kind",
            json!("Service"),
            "Service in version \"v1\" cannot be handled as a Event: ".to_owned(),
        ),
    ] {
        let event = event("f", |event| set(event, field, value));
        assert_refused(&create(&client, &event)?, (400, "BadRequest", &message), field);
    }
    for body in [None, Some(json!([]))] {
        let reply = client.call(Method::POST, EVENTS, body.as_ref())?;
        let message = "the object provided is unrecognized (must be of type Event): couldn't get";
        assert_refused(&reply, (400, "BadRequest", message), "no object");
    }
    let reply = create(&client, &json!({}))?;
    let message = format!(
        "Event \"\" is invalid: [{NOT_NAMED}, {TIME}, type: Invalid value: \"\": has invalid value: ]"
    );
    assert_refused(&reply, (422, "Invalid", &message), "an empty object");

    let longest = event(&x(253), |event| {
        for field in ["/reportingInstance", "/action", "/reason"] {
            set(event, field, json!(x(128)));
        }
        set(event, "/note", json!(x(1024)));
        set(event, "/reportingController", json!(x(63)));
    });
    let reply = create(&client, &longest)?;
    assert_eq!(reply.status, 201, "{reply:?}");
    let message = format!("events.events.k8s.io {:?} already exists", x(253));
    assert_refused(&create(&client, &longest)?, (409, "AlreadyExists", &message), "again");
    let named = event("", |event| event["metadata"] = json!({"generateName": "made-"}));
    let reply = create(&client, &named)?;
    let name = reply.body["metadata"]["name"].as_str();
    assert!(name.is_some_and(|name| name.len() > 5 && name.starts_with("made-")), "{reply:?}");
    Ok(())
}

fn set(object: &mut Value, pointer: &str, value: Value) {
    let (parent, field) = pointer.rsplit_once('/').unwrap_or(("", pointer));
    if let Some(parent) = object.pointer_mut(parent) {
        parent[field] = value;
    }
}

fn an_event_lives_where_its_object_lives(api: Api) -> Result<()> {
    let client = api.client()?;
    let of_node = |name: &str| event(name, |event| event["regarding"] = json!({"kind": "Node"}));
    for namespace in ["default", "kube-system"] {
        let path = EVENTS.replace("default", namespace);
        let reply = client.call(Method::POST, &path, Some(&of_node(namespace)))?;
        assert_eq!(reply.status, 201, "{namespace}: {reply:?}");
    }
    // One without a namespace of its own belongs in these two.
    let path = EVENTS.replace("default", "kube-public");
    let reply = client.call(Method::POST, &path, Some(&of_node("a")))?;
    let message = "Event \"a\" is invalid: involvedObject.namespace: Invalid value: \"\": does not \
                   match event.namespace";
    assert_refused(&reply, (422, "Invalid", message), "a node in kube-public");
    let elsewhere = event("b", |event| event["metadata"]["namespace"] = json!("kube-system"));
    let message = "the namespace of the provided object does not match the namespace sent on the \
                   request";
    assert_refused(&create(&client, &elsewhere)?, (400, "BadRequest", message), "two namespaces");
    let reply = client.call(Method::POST, "/apis/events.k8s.io/v1/events", Some(&of_node("c")))?;
    let message = "the server does not allow this method on the requested resource";
    assert_refused(&reply, (405, "MethodNotAllowed", message), "no namespace");
    Ok(())
}
