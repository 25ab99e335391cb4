//! The stand-in speaks as kube-apiserver does: the same questions get the same answers from both.

use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use hyper::Method;
use serde_json::{Value, json};
use shunt_fake_apiserver::{Api, Client, Key, Kind, Reply, Watching, both, run, standin_only};

const NODES: &str = "/api/v1/nodes";
const SLICES: &str = "/apis/discovery.k8s.io/v1/endpointslices";
const SERVICES: &str = "/api/v1/services";
const EVENTS: &str = "/apis/events.k8s.io/v1/namespaces/default/events";

fn main() -> ExitCode {
    let both = both![
        a_list_has_all_objects,
        pages_are_of_one_revision,
        limit_makes_a_revision_exact,
        selectors_select,
        a_watch_tells_what_is_written,
        a_watch_tells_what_stops_and_starts_to_match,
        a_watch_from_nowhere_begins_with_all_objects,
        a_watch_ends_when_its_time_is_over,
        the_past_is_gone,
        the_future_is_not_there_yet,
        strangers_are_refused,
        what_there_is_not_is_not_found,
        the_role_permits_lists_and_no_single_objects,
        events_are_made_once,
    ];
    let alone = standin_only![
        a_page_after_a_compaction_is_gone,
        bookmarks_come_by_themselves,
        old_servers_know_no_fields_of_services,
    ];
    run(&[("protocol", [both, alone].concat())])
}

fn slice(name: &str, labels: &str, port: u16) -> String {
    format!(
        "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n\
         metadata: {{name: {name}, labels: {{{labels}}}}}\naddressType: IPv4\n\
         ports: [{{name: a, protocol: TCP, port: {port}}}]\nendpoints: []\n"
    )
}

fn service(name: &str, ip: &str) -> String {
    format!(
        "---\napiVersion: v1\nkind: Service\nmetadata: {{name: {name}}}\n\
         spec: {{clusterIP: {ip}, ports: [{{port: 80, protocol: TCP}}]}}\n"
    )
}

fn names(list: &Value) -> Vec<&str> {
    let items = list["items"].as_array().map(Vec::as_slice).unwrap_or_default();
    items.iter().filter_map(name).filter(|name| *name != "kubernetes").collect()
}

fn name(object: &Value) -> Option<&str> {
    object["metadata"]["name"].as_str()
}

fn revision(object: &Value) -> &str {
    object["metadata"]["resourceVersion"].as_str().unwrap_or_default()
}

fn get(client: &Client, path: &str) -> Result<Value> {
    let Reply { status, body } = client.get(path)?;
    ensure!(status == 200, "{path}: {status} {body}");
    Ok(body)
}

/// The type of the next event, the name of what it is about, and its first port.
fn next(watch: &mut Watching<'_>) -> Result<(String, String, u64)> {
    let event = watch.next_event()?.context("the watch has ended")?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let port = event["object"]["ports"][0]["port"].as_u64().unwrap_or_default();
    Ok((text(&event["type"]), text(&event["object"]["metadata"]["name"]), port))
}

fn is(kind: &str, name: &str, port: u64) -> (String, String, u64) {
    (kind.to_owned(), name.to_owned(), port)
}

fn a_list_has_all_objects(api: Api) -> Result<()> {
    let client = api.client()?;
    let before = get(&client, SLICES)?;
    api.put(slice("b", "", 1) + &slice("a", "", 2))?;
    let list = get(&client, SLICES)?;
    assert_eq!(names(&list), ["a", "b"]);
    assert_eq!(list["kind"], "EndpointSliceList");
    assert_eq!(list["apiVersion"], "discovery.k8s.io/v1");
    let item = &list["items"][0];
    assert!(item.get("kind").is_none() && item.get("apiVersion").is_none(), "{item}");
    assert_eq!(item["metadata"]["namespace"], "default");
    for field in ["uid", "creationTimestamp", "resourceVersion"] {
        assert!(item["metadata"][field].is_string(), "{field} of {item}");
    }
    let number = |list: &Value| revision(list).parse::<u64>();
    assert!(number(&list)? >= number(item)? && number(item)? > number(&before)?);
    let cached = get(&client, &format!("{SLICES}?resourceVersion=0&limit=1"))?;
    assert_eq!(names(&cached), ["a", "b"], "version 0 knows no pages");
    Ok(())
}

fn pages_are_of_one_revision(api: Api) -> Result<()> {
    let client = api.client()?;
    for name in ["a", "b", "c", "d", "e"] {
        api.put(slice(name, "", 1))?;
    }
    let first = get(&client, &format!("{SLICES}?limit=2"))?;
    assert_eq!(names(&first), ["a", "b"]);
    assert_eq!(first["metadata"]["remainingItemCount"], 3);
    api.delete(&Key::new(Kind::EndpointSlice, "d"))?;
    api.put(slice("c", "", 2))?;
    api.put(slice("bb", "", 2))?;
    let after = |page: &Value| {
        let token = page["metadata"]["continue"].as_str().unwrap_or_default();
        let token: String = form_urlencoded::byte_serialize(token.as_bytes()).collect();
        get(&client, &format!("{SLICES}?limit=2&continue={token}"))
    };
    let second = after(&first)?;
    assert_eq!(names(&second), ["c", "d"]);
    assert_eq!(second["items"][0]["ports"][0]["port"], 1);
    assert_eq!(revision(&second), revision(&first));
    let third = after(&second)?;
    assert_eq!(names(&third), ["e"]);
    assert!(third["metadata"].get("continue").is_none(), "{third}");
    assert_eq!(names(&get(&client, SLICES)?), ["a", "b", "bb", "c", "e"]);
    Ok(())
}

fn limit_makes_a_revision_exact(api: Api) -> Result<()> {
    let client = api.client()?;
    api.put(slice("a", "", 1))?;
    let before = get(&client, SLICES)?;
    api.put(slice("b", "", 1))?;
    let from = revision(&before);
    let list = |query: &str| get(&client, &format!("{SLICES}?resourceVersion={from}{query}"));
    assert_eq!(names(&list("")?), ["a", "b"]);
    assert_eq!(names(&list("&limit=500&resourceVersionMatch=NotOlderThan")?), ["a", "b"]);
    let exact = list("&limit=500")?;
    assert_eq!((names(&exact), revision(&exact)), (vec!["a"], from));
    Ok(())
}

fn selectors_select(api: Api) -> Result<()> {
    let client = api.client()?;
    api.put(service("headless", "None") + &service("plain", "10.96.0.10"))?;
    api.put(slice("of-headless", "service.kubernetes.io/headless: \"\"", 1))?;
    api.put(slice("of-plain", "x: z", 1))?;
    let list = |query: &str| -> Result<Vec<String>> {
        let list = get(&client, query)?;
        Ok(names(&list).into_iter().map(str::to_owned).collect())
    };
    assert_eq!(list(&format!("{SERVICES}?fieldSelector=spec.clusterIP%21%3DNone"))?, ["plain"]);
    assert_eq!(list(&format!("{SERVICES}?fieldSelector=metadata.name%3Dplain"))?, ["plain"]);
    assert_eq!(
        list(&format!("{SERVICES}?labelSelector=%21service.kubernetes.io%2Fservice-proxy-name"))?,
        ["headless", "plain"]
    );
    let headless = format!("{SLICES}?labelSelector=%21service.kubernetes.io%2Fheadless");
    assert_eq!(list(&headless)?, ["of-plain"]);
    assert_eq!(list(&format!("{SLICES}?labelSelector=x%3Dz"))?, ["of-plain"]);
    assert_eq!(list(&format!("{SLICES}?labelSelector=x%21%3Dz"))?, ["of-headless"]);
    let refused = client.get(&format!("{SLICES}?fieldSelector=spec.clusterIP%21%3DNone"))?;
    assert_eq!(refused.status, 400);
    assert_eq!(refused.body["reason"], "BadRequest");
    Ok(())
}

fn a_watch_tells_what_is_written(api: Api) -> Result<()> {
    let client = api.client()?;
    api.put(slice("old", "", 1))?;
    let list = get(&client, SLICES)?;
    api.put(slice("new", "", 1))?;
    let from = revision(&list);
    let mut watch = client.watch(&format!("{SLICES}?watch=true&resourceVersion={from}"))?;
    api.put(slice("new", "", 2))?;
    api.delete(&Key::new(Kind::EndpointSlice, "new"))?;
    api.put(slice("newer", "", 3))?;
    let first = watch.next_event()?.context("no event")?;
    assert_eq!((&first["type"], name(&first["object"])), (&json!("ADDED"), Some("new")));
    assert_eq!(first["object"]["kind"], "EndpointSlice");
    let changed = watch.next_event()?.context("no event")?;
    assert_eq!(changed["type"], "MODIFIED");
    assert_eq!(changed["object"]["metadata"]["uid"], first["object"]["metadata"]["uid"]);
    let deleted = watch.next_event()?.context("no event")?;
    assert_eq!(deleted["type"], "DELETED");
    assert_eq!(deleted["object"]["ports"][0]["port"], 2);
    let number = |event: &Value| revision(&event["object"]).parse::<u64>();
    assert!(number(&deleted)? > number(&changed)?, "a deletion has a revision of its own");
    assert_eq!(next(&mut watch)?, is("ADDED", "newer", 3));
    Ok(())
}

fn a_watch_tells_what_stops_and_starts_to_match(api: Api) -> Result<()> {
    let client = api.client()?;
    api.put(slice("a", "", 1) + &slice("b", "headless: \"\"", 1))?;
    let list = get(&client, SLICES)?;
    let from = revision(&list);
    let mut watch = client
        .watch(&format!("{SLICES}?watch=true&resourceVersion={from}&labelSelector=%21headless"))?;
    api.put(slice("a", "headless: \"\"", 2))?;
    api.put(slice("a", "headless: \"\"", 3))?;
    api.put(slice("b", "", 4))?;
    api.put(slice("a", "", 5))?;
    let gone = watch.next_event()?.context("no event")?;
    assert_eq!(gone["type"], "DELETED");
    assert_eq!(gone["object"]["ports"][0]["port"], 1, "as it was when it matched: {gone}");
    assert_eq!(next(&mut watch)?, is("ADDED", "b", 4));
    assert_eq!(next(&mut watch)?, is("ADDED", "a", 5));
    Ok(())
}

fn a_watch_from_nowhere_begins_with_all_objects(api: Api) -> Result<()> {
    let client = api.client()?;
    api.put(slice("a", "", 1) + &slice("b", "", 1))?;
    for from in ["", "&resourceVersion=0"] {
        let mut watch = client.watch(&format!("{SLICES}?watch=true{from}"))?;
        let mut seen = [next(&mut watch)?, next(&mut watch)?];
        seen.sort();
        assert_eq!(seen, [is("ADDED", "a", 1), is("ADDED", "b", 1)]);
    }
    Ok(())
}

fn a_watch_ends_when_its_time_is_over(api: Api) -> Result<()> {
    let client = api.client()?;
    let list = get(&client, SLICES)?;
    let from = revision(&list);
    let path = format!("{SLICES}?watch=true&timeoutSeconds=1&resourceVersion={from}");
    assert_eq!(client.watch(&path)?.next_event()?, None);
    Ok(())
}

fn the_past_is_gone(api: Api) -> Result<()> {
    let client = api.client()?;
    let before = get(&client, SLICES)?;
    api.put(slice("a", "", 1))?;
    api.forget()?;
    let from = revision(&before);
    let mut watch = client.watch(&format!("{SLICES}?watch=true&resourceVersion={from}"))?;
    let event = watch.next_event()?.context("no event")?;
    assert_eq!((&event["type"], &event["object"]["kind"]), (&json!("ERROR"), &json!("Status")));
    assert_eq!(event["object"]["code"], 410);
    assert_eq!(event["object"]["reason"], "Expired");
    assert_eq!(watch.next_event()?, None);
    Ok(())
}

fn the_future_is_not_there_yet(api: Api) -> Result<()> {
    let client = api.client()?;
    let future = "resourceVersionMatch=NotOlderThan&resourceVersion=99999999";
    let Reply { status, body } = client.get(&format!("{SLICES}?{future}"))?;
    assert_eq!((status, &body["reason"]), (504, &json!("Timeout")), "{body}");
    Ok(())
}

fn strangers_are_refused(api: Api) -> Result<()> {
    let stranger = Client::new(api.connector(), api.authority().as_deref(), "nobody")?;
    let Reply { status, body } = stranger.get(SLICES)?;
    assert_eq!((status, &body["reason"]), (401, &json!("Unauthorized")));
    Ok(())
}

fn what_there_is_not_is_not_found(api: Api) -> Result<()> {
    let client = api.client()?;
    let reply = client.get("/apis/networking.k8s.io/v0/servicecidrs")?;
    assert_eq!(reply.status, 404, "{reply:?}");
    Ok(())
}

fn the_role_permits_lists_and_no_single_objects(api: Api) -> Result<()> {
    let client = api.client()?;
    api.put("{apiVersion: v1, kind: Node, metadata: {name: a}, spec: {podCIDR: 10.0.0.0/24}}")?;
    let nodes = get(&client, NODES)?;
    assert_eq!(nodes["items"][0]["spec"]["podCIDR"], "10.0.0.0/24");
    assert_eq!(client.get(&format!("{NODES}/a"))?.status, 403);
    Ok(())
}

fn events_are_made_once(api: Api) -> Result<()> {
    let client = api.client()?;
    let event = json!({
        "apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": "e"},
        "eventTime": "2026-01-01T00:00:00.000000Z", "reportingController": "shunt",
        "reportingInstance": "node-1", "action": "Test", "reason": "Testing", "type": "Normal",
        "regarding": {"kind": "Service", "name": "s", "namespace": "default"}, "note": "one",
    });
    let made = client.call(Method::POST, EVENTS, Some(&event))?;
    assert_eq!((made.status, &made.body["note"]), (201, &json!("one")), "{made:?}");
    let again = client.call(Method::POST, EVENTS, Some(&event))?;
    assert_eq!((again.status, &again.body["reason"]), (409, &json!("AlreadyExists")));
    Ok(())
}

fn a_page_after_a_compaction_is_gone(api: Api) -> Result<()> {
    let client = api.client()?;
    api.put(slice("a", "", 1) + &slice("b", "", 1))?;
    let first = get(&client, &format!("{SLICES}?limit=1"))?;
    let token = first["metadata"]["continue"].as_str().context("one page")?;
    let token: String = form_urlencoded::byte_serialize(token.as_bytes()).collect();
    api.put(slice("c", "", 1))?;
    api.standin()?.compact();
    let Reply { status, body } = client.get(&format!("{SLICES}?limit=1&continue={token}"))?;
    assert_eq!((status, &body["reason"]), (410, &json!("Expired")));
    let exact = format!("{SLICES}?limit=1&resourceVersion={}", revision(&first));
    assert_eq!(client.get(&exact)?.status, 410);
    Ok(())
}

fn bookmarks_come_by_themselves(api: Api) -> Result<()> {
    let client = api.client()?;
    let interval = std::time::Duration::from_millis(1);
    api.standin()?.configure(|settings| settings.bookmarks = Some(interval));
    let from = api.standin()?.revision();
    let path = format!("{SLICES}?watch=true&resourceVersion={from}&allowWatchBookmarks=true");
    let mut watch = client.watch(&path)?;
    api.put(service("a", "10.96.0.10"))?;
    loop {
        let event = watch.next_event()?.context("no event")?;
        assert_eq!(event["type"], "BOOKMARK");
        if revision(&event["object"]).parse::<u64>()? > from {
            return Ok(());
        }
    }
}

fn old_servers_know_no_fields_of_services(api: Api) -> Result<()> {
    let client = api.client()?;
    api.standin()?.configure(|settings| settings.service_fields = false);
    let refused = client.get(&format!("{SERVICES}?fieldSelector=spec.clusterIP%21%3DNone"))?;
    assert_eq!(refused.status, 400, "{refused:?}");
    Ok(())
}
