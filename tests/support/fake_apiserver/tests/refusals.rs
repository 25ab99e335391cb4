//! The stand-in refuses what kube-apiserver refuses, in the same words: requests beyond the role of
//! the chart, and options that do not fit together.

use std::process::ExitCode;

use anyhow::{Context, Result};
use hyper::Method;
use serde_json::json;
use shunt_fake_apiserver::{Api, Reply, both, run};

const SLICES: &str = "/apis/discovery.k8s.io/v1/endpointslices";
/// The ServiceAccount of the chart.
const USER: &str = "system:serviceaccount:kube-system:shunt";

fn main() -> ExitCode {
    let cases = both![
        the_role_allows_its_verbs_and_no_other,
        a_forbidden_request_is_named_in_full,
        options_of_a_list_must_fit,
        options_of_a_watch_must_fit,
        a_page_has_the_revision_of_its_list,
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
