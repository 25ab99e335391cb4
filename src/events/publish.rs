//! Sending Events to the API server.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use hyper::StatusCode;
use hyper::header::{ACCEPT, CONTENT_TYPE};
use hyper::http::Request;
use hyper::http::request::Builder;
use shunt_core::model::ObjectName;
use tokio::time::Instant;

use super::limit::{Decision, Limit};
use super::message::{Event, Metadata, MicroTime, Reference};
use super::writers::{fnv1a, is_writer};
use super::{Notice, Notices, Regarding, Scope};
use crate::escape;
use crate::jitter;
use crate::source::kubernetes::{Connection, ContentType, REQUEST_TIMEOUT};

/// The reporting controller.
const CONTROLLER: &str = "shunt";
/// The maximum length of a note in bytes (`events.k8s.io/v1`, validation).
const MAX_NOTE: usize = 1024;
/// The maximum length of an object's name, and of `reportingInstance`, in bytes.
const MAX_NAME: usize = 253;
const MAX_INSTANCE: usize = 128;
/// The seconds in which nodes give the same name to an Event that only some of them see.
const PERIOD: i64 = 600;
/// The delay of Events about Services, and the maximum of its random part: several nodes send them,
/// and most of those then find that the Event exists. Meanwhile the directory gets the changes that
/// the dataplane has just programmed.
const MIN_DELAY: Duration = Duration::from_secs(1);
const MAX_DELAY: Duration = Duration::from_secs(5);
/// The pauses before the retries of an Event, which is lost after the last one. Each is prolonged by
/// a random part, up to as long again: all nodes may send Events at the same time.
const PAUSES: [Duration; 3] =
    [Duration::from_secs(2), Duration::from_secs(10), Duration::from_secs(30)];

/// Sends the recorded notices until all recorders are dropped. `nodes` returns the names of the
/// nodes of the cluster, as far as they are known, and `time` the time of an Event.
pub async fn publish(
    notices: Notices,
    connection: Arc<Connection>,
    node_name: String,
    nodes: impl Fn() -> HashSet<Arc<str>>,
    time: impl Fn() -> SystemTime,
) {
    let mut notices = notices.0.lock().await;
    // The clock of tokio, which tests stop.
    let now = || Instant::now().into_std();
    let mut limit = Limit::new(now());
    let mut forbidden = false;
    let mut content_type = connection.content_types().sent;
    let is_sent_by_others = |notice: &Notice| {
        let is = !is_writer(&node_name, &nodes(), notice);
        if is {
            tracing::debug!(reason = notice.reason, "other nodes send this Event");
        }
        is
    };
    while let Some(mut notice) = notices.recv().await {
        // The limits are for what this node sends.
        if is_sent_by_others(&notice) {
            continue;
        }
        match limit.decide(&notice, now()) {
            Decision::Drop => continue,
            Decision::Send => {}
            Decision::SendCombined => notice.note.insert_str(0, "(combined from similar events): "),
        }
        if notice.regarding != Regarding::Node {
            tokio::time::sleep(MIN_DELAY + MAX_DELAY.mul_f64(jitter::fraction())).await;
        }
        // At a start, the nodes become known meanwhile.
        if is_sent_by_others(&notice) {
            continue;
        }
        let time = time();
        let mut pauses = PAUSES.iter();
        loop {
            let sent = send(&connection, &notice, &node_name, time, content_type).await;
            let Err(error) = sent else {
                forbidden = false;
                break;
            };
            if error.status == Some(StatusCode::UNSUPPORTED_MEDIA_TYPE)
                && content_type == ContentType::Protobuf
            {
                content_type = ContentType::Json;
                continue;
            }
            if error.status == Some(StatusCode::FORBIDDEN) {
                if !std::mem::replace(&mut forbidden, true) {
                    tracing::warn!(
                        "API server forbids Events; allow create of events.k8s.io: {}",
                        error.text
                    );
                }
                break;
            }
            if error.is_final {
                // The next Event may be valid.
                tracing::warn!(
                    reason = notice.reason,
                    "API server rejected an Event: {}",
                    error.text
                );
                break;
            }
            let Some(pause) = pauses.next() else {
                tracing::debug!(reason = notice.reason, "Event lost: {}", error.text);
                break;
            };
            tokio::time::sleep(pause.mul_f64(1.0 + jitter::fraction())).await;
        }
    }
}

struct Failure {
    text: String,
    /// The status of the answer, if there was one.
    status: Option<StatusCode>,
    /// A retry would fail again.
    is_final: bool,
}

impl Failure {
    /// Returns the failure of a request that cannot be made.
    fn of_request(error: impl ToString) -> Failure {
        Failure { text: error.to_string(), status: None, is_final: true }
    }
}

async fn send(
    connection: &Connection,
    notice: &Notice,
    node_name: &str,
    time: SystemTime,
    content_type: ContentType,
) -> Result<(), Failure> {
    let uid = match &notice.regarding {
        // kubectl and the kubelet use the name as the uid of a Node.
        Regarding::Node => Some(node_name.to_owned()),
        Regarding::Service(service) => match uid(connection, service).await {
            // Without the uid, `kubectl get events` still shows the Event.
            Err(error) if error.is_final => None,
            found => found?,
        },
    };
    let event = event(notice, node_name, uid.as_deref(), time);
    let path = format!("/apis/events.k8s.io/v1/namespaces/{}/events", event.metadata.namespace);
    let (content_type, body) = event.encode(content_type).map_err(Failure::of_request)?;
    let request = Request::post(path).header(CONTENT_TYPE, content_type);
    match ask(connection, request, body).await {
        // Another node was faster, or the answer to an earlier attempt was lost.
        Err(error) if error.status == Some(StatusCode::CONFLICT) => Ok(()),
        answer => answer.map(drop),
    }
}

/// Returns the uid of a Service, or `None` if the Service is gone. `kubectl describe` finds Events
/// by it. The request is a list of one, which kube-proxy's role allows.
async fn uid(connection: &Connection, service: &ObjectName) -> Result<Option<String>, Failure> {
    let ObjectName { namespace, name } = service;
    // Version 0: from the server's cache.
    let path = format!(
        "/api/v1/namespaces/{namespace}/services?fieldSelector=metadata.name%3D{name}\
         &resourceVersion=0"
    );
    let list = ask(connection, Request::get(path), Vec::new()).await?;
    let list: serde_json::Value = serde_json::from_str(&list).unwrap_or_default();
    Ok(list["items"][0]["metadata"]["uid"].as_str().map(str::to_owned))
}

/// Sends a request and returns the body of the answer.
async fn ask(connection: &Connection, request: Builder, body: Vec<u8>) -> Result<String, Failure> {
    let request = request.header(ACCEPT, "application/json").body(body);
    let request = request.map_err(Failure::of_request)?;
    let (number, client) = connection.client();
    match tokio::time::timeout(REQUEST_TIMEOUT, client.request_text(request)).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(kube::Error::Api(status))) => {
            let code = StatusCode::from_u16(status.code).unwrap_or_default();
            if code == StatusCode::UNAUTHORIZED {
                connection.renew(number);
            }
            let passes = [StatusCode::UNAUTHORIZED, StatusCode::TOO_MANY_REQUESTS].contains(&code);
            let is_final = code.is_client_error() && !passes;
            Err(Failure { text: status.message, status: Some(code), is_final })
        }
        Ok(Err(error)) => {
            connection.renew(number);
            Err(Failure { text: error.to_string(), status: None, is_final: false })
        }
        Err(_) => {
            let text = format!("no answer within {REQUEST_TIMEOUT:?}");
            Err(Failure { text, status: None, is_final: false })
        }
    }
}

/// Returns the name of an Event. All nodes give the same name to an Event about the same Service
/// for the same reason, so that there is one in the whole cluster.
fn event_name(
    notice: &Notice,
    node_name: &str,
    uid: Option<&str>,
    time: jiff::Timestamp,
) -> String {
    match &notice.regarding {
        Regarding::Node => {
            let suffix = format!(".{:x}", time.as_nanosecond());
            // A label must not end with a dash.
            let start = cut(node_name, MAX_NAME - suffix.len()).trim_end_matches(['-', '.']);
            format!("{start}{suffix}")
        }
        Regarding::Service(service) => {
            let mut parts = [CONTROLLER, uid.unwrap_or_default(), notice.reason].join("/");
            if notice.scope == Scope::Some {
                // An endpoint may be ejected again while the Event of the last time exists.
                let period = time.as_second().div_euclid(PERIOD);
                parts.push_str(&format!("/{period}/{}", notice.note));
            }
            format!("{}.{:016x}", service.name, fnv1a(&parts))
        }
    }
}

/// Returns the object. Events about a Node are in the namespace `default`.
fn event(notice: &Notice, node_name: &str, uid: Option<&str>, time: SystemTime) -> Event {
    let event_time = MicroTime::new(time);
    let (kind, namespace, name) = match &notice.regarding {
        Regarding::Node => ("Node", "default", node_name),
        Regarding::Service(service) => ("Service", &*service.namespace, &*service.name),
    };
    let regarding_namespace = match &notice.regarding {
        Regarding::Node => "",
        Regarding::Service(_) => namespace,
    };
    Event {
        metadata: Metadata {
            name: event_name(notice, node_name, uid, event_time.timestamp()),
            namespace: namespace.to_owned(),
        },
        event_time,
        reporting_controller: CONTROLLER.to_owned(),
        reporting_instance: cut(&format!("{CONTROLLER}-{node_name}"), MAX_INSTANCE).to_owned(),
        type_: if notice.is_warning { "Warning" } else { "Normal" }.to_owned(),
        reason: notice.reason.to_owned(),
        action: notice.action.to_owned(),
        regarding: Reference {
            kind: kind.to_owned(),
            namespace: regarding_namespace.to_owned(),
            name: name.to_owned(),
            uid: uid.unwrap_or_default().to_owned(),
            api_version: "v1".to_owned(),
        },
        note: cut(&escape::line(&notice.note), MAX_NOTE).to_owned(),
    }
}

/// The start of a text, at most so many bytes.
fn cut(text: &str, bytes: usize) -> &str {
    let mut end = text.len().min(bytes);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::collections::btree_map::Entry;
    use std::sync::Mutex;

    use hyper::Method;
    use hyper::http::HeaderValue;
    use prost::Message;
    use serde_json::Value;

    use super::*;
    use crate::events::Recorder;
    use crate::source::kubernetes::ContentTypes;

    #[test]
    fn an_event_is_what_the_api_takes() {
        let notice = Notice {
            regarding: Regarding::Service(ObjectName::new("shop", "web")),
            scope: Scope::Cluster,
            is_warning: true,
            reason: "FrontendConflict",
            action: "ProgramService",
            note: "ä".repeat(MAX_NOTE),
        };
        let now = SystemTime::UNIX_EPOCH + Duration::from_micros(1_500_000_000_000_001);
        let event = event(&notice, "node-1", Some("0a-1b"), now);
        let bodies = [ContentType::Json, ContentType::Protobuf].map(|content_type| {
            let (content_type, body) = event.encode(content_type).unwrap();
            decode(&content_type, &body)
        });
        assert_eq!(bodies[0], bodies[1]);
        let [event, _] = bodies;
        assert_eq!(
            (&event["apiVersion"], &event["kind"]),
            (&"events.k8s.io/v1".into(), &"Event".into())
        );
        assert_eq!(event["metadata"]["namespace"], "shop");
        assert_eq!(event["metadata"]["name"], "web.dccbcbebcaf27234");
        assert_eq!(event["eventTime"], "2017-07-14T02:40:00.000001Z");
        assert_eq!(event["regarding"]["namespace"], "shop");
        assert_eq!(event["regarding"]["uid"], "0a-1b");
        assert_eq!(event["reportingInstance"], "shunt-node-1");
        assert_eq!(event["note"].as_str().map(str::len), Some(MAX_NOTE));
    }

    #[test]
    fn events_about_the_node_are_in_the_default_namespace() {
        let notice = Notice {
            regarding: Regarding::Node,
            scope: Scope::Node,
            is_warning: false,
            reason: "Starting",
            action: "StartShunt",
            note: String::new(),
        };
        let event = event(&notice, "node-1", None, SystemTime::now());
        let (content_type, body) = event.encode(ContentType::Json).unwrap();
        let event = decode(&content_type, &body);
        assert_eq!(event["metadata"]["namespace"], "default");
        assert_eq!(event["type"], "Normal");
        assert!(event["regarding"].get("namespace").is_none());
    }

    #[derive(Message)]
    struct Unknown {
        #[prost(bytes = "vec", tag = "2")]
        raw: Vec<u8>,
    }

    /// Decodes the body of a request as the server does.
    fn decode(content_type: &HeaderValue, body: &[u8]) -> Value {
        if content_type == "application/json" {
            return serde_json::from_slice(body).unwrap();
        }
        let Unknown { raw } = Unknown::decode(body.strip_prefix(b"k8s\0").unwrap()).unwrap();
        let (_, json) = Event::decode(&*raw).unwrap().encode(ContentType::Json).unwrap();
        serde_json::from_slice(&json).unwrap()
    }

    /// An API server that keeps Events by their names, or answers with the next of `failures`.
    #[derive(Default)]
    struct Server {
        events: Mutex<BTreeMap<String, Value>>,
        failures: Mutex<Vec<u16>>,
        requests: Mutex<usize>,
        uids: Mutex<usize>,
        content_types: Mutex<Vec<HeaderValue>>,
        /// The agent accepts JSON only.
        is_json_configured: bool,
    }

    impl Server {
        fn connection(self: &Arc<Server>) -> Arc<Connection> {
            let server = self.clone();
            let service = tower::service_fn(move |request: Request<kube::client::Body>| {
                let server = server.clone();
                async move {
                    let method = request.method().clone();
                    let content_type = request.headers().get(CONTENT_TYPE).cloned();
                    let body = request.into_body().collect_bytes().await.unwrap();
                    let (status, body) = server.answer(&method, content_type.as_ref(), &body);
                    let body = kube::client::Body::from(body.into_bytes());
                    let answer = hyper::Response::builder().status(status).body(body).unwrap();
                    Ok::<_, std::convert::Infallible>(answer)
                }
            });
            let client = kube::Client::new(service, "default");
            let connection = Connection::new(move || Ok(client.clone())).unwrap();
            let is_json = self.is_json_configured;
            let content_type = if is_json { ContentType::Json } else { ContentType::Protobuf };
            Arc::new(
                connection.with_content_types(ContentTypes {
                    sent: content_type,
                    ..ContentTypes::default()
                }),
            )
        }

        fn answer(
            &self,
            method: &Method,
            content_type: Option<&HeaderValue>,
            body: &[u8],
        ) -> (u16, String) {
            if method == Method::GET {
                *self.uids.lock().unwrap() += 1;
                return (200, r#"{"items":[{"metadata":{"uid":"0a-1b"}}]}"#.to_owned());
            }
            *self.requests.lock().unwrap() += 1;
            let refusal = |code: u16| {
                let message = format!("refused with {code}");
                (
                    code,
                    format!(
                        r#"{{"kind":"Status","status":"Failure","message":"{message}","code":{code}}}"#
                    ),
                )
            };
            if let Some(code) = self.failures.lock().unwrap().pop() {
                return refusal(code);
            }
            let content_type = content_type.unwrap();
            self.content_types.lock().unwrap().push(content_type.clone());
            let event = decode(content_type, body);
            let name = event["metadata"]["name"].as_str().unwrap().to_owned();
            match self.events.lock().unwrap().entry(name) {
                Entry::Occupied(_) => refusal(409),
                Entry::Vacant(vacant) => {
                    vacant.insert(event);
                    (201, "{}".to_owned())
                }
            }
        }

        fn regarding(&self, kind: &str) -> Vec<Value> {
            let events = self.events.lock().unwrap();
            let of_kind = |event: &&Value| event["regarding"]["kind"] == kind;
            events.values().filter(of_kind).cloned().collect()
        }
    }

    fn conflict(loser: &str) -> Notice {
        Notice {
            regarding: Regarding::Service(ObjectName::new("shop", loser)),
            scope: Scope::Cluster,
            is_warning: true,
            reason: "FrontendConflict",
            action: "ProgramService",
            note: "198.51.100.7:80 belongs to the older Service shop/a".to_owned(),
        }
    }

    fn starting() -> Notice {
        Notice {
            regarding: Regarding::Node,
            scope: Scope::Node,
            is_warning: false,
            reason: "Starting",
            action: "StartShunt",
            note: String::new(),
        }
    }

    async fn publish_from(
        server: &Arc<Server>,
        node: &str,
        nodes: &HashSet<Arc<str>>,
        told: impl IntoIterator<Item = Notice>,
    ) {
        let (recorder, notices) = Recorder::new();
        told.into_iter().for_each(|notice| recorder.record(notice));
        drop(recorder);
        // Events of two periods have different names.
        let time = || SystemTime::UNIX_EPOCH + Duration::from_secs(1_500_000_000);
        publish(notices, server.connection(), node.to_owned(), || nodes.clone(), time).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_few_of_thousands_of_nodes_make_one_event_about_a_service() {
        let server = Arc::new(Server::default());
        let nodes: HashSet<Arc<str>> = (0..5000).map(|n| format!("node-{n}").into()).collect();
        for node in &nodes {
            let told = [starting(), conflict("web"), conflict("other")];
            publish_from(&server, node, &nodes, told).await;
        }
        assert_eq!(server.regarding("Service").len(), 2, "one for each Service");
        assert_eq!(server.regarding("Node").len(), 5000, "one for each node");
        // Five nodes ask for the uid and send the Event. A 409 is an answer, and not tried again.
        assert_eq!(*server.requests.lock().unwrap(), 5000 + 2 * 5);
        assert_eq!(*server.uids.lock().unwrap(), 2 * 5);
    }

    /// A node with 100 endpoints dies, each in a Service of its own, and all nodes eject them.
    #[tokio::test(start_paused = true)]
    async fn a_dead_node_makes_few_requests() {
        let server = Arc::new(Server::default());
        let nodes: HashSet<Arc<str>> = (0..1000).map(|n| format!("node-{n}").into()).collect();
        let ejected = |n| Notice { scope: Scope::Some, ..conflict(&format!("web-{n}")) };
        for node in &nodes {
            publish_from(&server, node, &nodes, (0..100).map(ejected)).await;
        }
        assert_eq!(server.regarding("Service").len(), 100);
        assert!(*server.requests.lock().unwrap() <= 2 * 100 * 20);
    }

    #[tokio::test(start_paused = true)]
    async fn endpoints_of_one_service_have_events_of_their_own() {
        let server = Arc::new(Server::default());
        let note = |n: u8| format!("endpoint 10.244.0.{n}:8080 does not answer");
        let ejected = |n| Notice { scope: Scope::Some, note: note(n), ..conflict("web") };
        for node in ["node-1", "node-2"] {
            publish_from(&server, node, &HashSet::new(), [ejected(1), ejected(2)]).await;
        }
        let events = server.regarding("Service");
        // The nodes may be in two periods.
        assert!((2..=4).contains(&events.len()), "{events:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn an_event_with_a_cause_on_one_node_comes_from_this_node() {
        let server = Arc::new(Server::default());
        let nodes: HashSet<Arc<str>> = (0..5000).map(|n| format!("node-{n}").into()).collect();
        let unbound = Notice { scope: Scope::Node, ..conflict("web") };
        publish_from(&server, "another", &nodes, [conflict("other"), unbound]).await;
        let events = server.regarding("Service");
        assert_eq!(events.len(), 1);
        assert_eq!(events[0]["regarding"]["name"], "web");
    }

    #[tokio::test(start_paused = true)]
    async fn a_rejected_event_does_not_silence_the_next() {
        for code in [400, 403, 404, 413, 422] {
            let server = Arc::new(Server::default());
            server.failures.lock().unwrap().push(code);
            publish_from(&server, "node-1", &HashSet::new(), [starting(), conflict("web")]).await;
            assert_eq!(server.regarding("Node").len(), 0, "{code}");
            assert_eq!(server.regarding("Service").len(), 1, "{code}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_event_is_tried_again_while_the_server_is_busy() {
        let server = Arc::new(Server::default());
        server.failures.lock().unwrap().extend([503, 429, 500]);
        publish_from(&server, "node-1", &HashSet::new(), [starting()]).await;
        assert_eq!(server.regarding("Node").len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_without_protobuf_gets_json() {
        let server = Arc::new(Server::default());
        server.failures.lock().unwrap().push(415);
        publish_from(&server, "node-1", &HashSet::new(), [starting(), conflict("web")]).await;
        assert_eq!(*server.content_types.lock().unwrap(), ["application/json"; 2]);
        assert_eq!(*server.requests.lock().unwrap(), 3, "it is not asked again");
        let server = Arc::new(Server { is_json_configured: true, ..Server::default() });
        publish_from(&server, "node-1", &HashSet::new(), [starting()]).await;
        assert_eq!(*server.content_types.lock().unwrap(), ["application/json"]);
        let server = Arc::new(Server::default());
        publish_from(&server, "node-1", &HashSet::new(), [starting()]).await;
        assert_eq!(*server.content_types.lock().unwrap(), ["application/vnd.kubernetes.protobuf"]);
    }
}
