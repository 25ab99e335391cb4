//! Sending Events to the API server.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ObjectReference, Service};
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::{Api, ListParams, PostParams};
use kube::{Client, Error};
use shunt_core::model::ObjectName;
use tokio::time::Instant;

use super::limit::Limit;
use super::writers::{fnv1a, is_writer};
use super::{Notice, Notices};
use crate::serve::escape;
use crate::serve::time::Seldom;
use crate::source::kubernetes::{Connection, REQUEST_TIMEOUT};
use shunt_core::jitter;

/// The reporting controller.
const CONTROLLER: &str = "shunt";
/// The maximum length of a note in bytes (`events.k8s.io/v1`, validation).
const MAX_NOTE: usize = 1024;
/// The maximum length of an object's name, and of `reportingInstance`, in bytes.
const MAX_NAME: usize = 253;
const MAX_INSTANCE: usize = 128;
/// The delay of Events about Services, and the maximum of its random part: several nodes send them,
/// and most of those then find that the Event exists.
const MIN_DELAY: Duration = Duration::from_secs(1);
const MAX_DELAY: Duration = Duration::from_secs(5);
/// The pauses before the retries of an Event, which is lost after the last one. Each is prolonged by
/// a random part, up to as long again: all nodes may send Events at the same time.
const PAUSES: [Duration; 3] =
    [Duration::from_secs(2), Duration::from_secs(10), Duration::from_secs(30)];

/// About Events that the API server rejects.
static REJECTED: Seldom = Seldom::new();

/// Sends the recorded notices until all recorders are dropped. `nodes` returns the names of the
/// nodes of the cluster, as far as they are known, and `time` the time of an Event.
pub async fn publish(
    notices: Notices,
    connection: Arc<Connection>,
    node_name: String,
    nodes: impl Fn() -> HashSet<Arc<str>>,
    time: impl Fn() -> Timestamp,
) {
    let mut notices = notices.0.lock().await;
    // The clock of tokio, which tests stop.
    let now = || Instant::now().into_std();
    let mut limit = Limit::new(now());
    let is_sent_by_others = |notice: &Notice| {
        let is = !is_writer(&node_name, &nodes(), notice);
        if is {
            tracing::debug!(reason = notice.reason, "other nodes send this Event");
        }
        is
    };
    while let Some(notice) = notices.recv().await {
        // The limits are for what this node sends.
        if is_sent_by_others(&notice) || !limit.permits(&notice, now()) {
            continue;
        }
        if notice.service.is_some() {
            tokio::time::sleep(MIN_DELAY + MAX_DELAY.mul_f64(jitter::fraction())).await;
        }
        // At a start, the nodes become known meanwhile.
        if is_sent_by_others(&notice) {
            continue;
        }
        let time = time();
        let mut pauses = PAUSES.iter();
        loop {
            match send(&connection, &notice, &node_name, time).await {
                // Another node was faster, or the answer to an earlier attempt was lost.
                Ok(()) | Err(PublishFailure::Conflict) => {}
                // The next Event may be valid.
                Err(PublishFailure::Rejected(text)) => {
                    if REJECTED.may() {
                        tracing::warn!(
                            reason = notice.reason,
                            "the API server rejected an Event; the agent's role must be allowed to \
                             create events.k8s.io: {text}"
                        );
                    }
                }
                Err(PublishFailure::Passing(text)) => {
                    if let Some(pause) = pauses.next() {
                        tokio::time::sleep(pause.mul_f64(1.0 + jitter::fraction())).await;
                        continue;
                    }
                    tracing::debug!(reason = notice.reason, "lost an Event: {text}");
                }
            }
            break;
        }
    }
}

/// Why a request failed. Only one that passes may succeed later.
enum PublishFailure {
    Conflict,
    Rejected(String),
    Passing(String),
}

async fn send(
    connection: &Connection,
    notice: &Notice,
    node_name: &str,
    time: Timestamp,
) -> Result<(), PublishFailure> {
    let uid = match &notice.service {
        // kubectl and the kubelet use the name as the uid of a Node.
        None => Some(node_name.to_owned()),
        Some(service) => match uid(connection, service).await {
            Ok(uid) => uid,
            Err(passing @ PublishFailure::Passing(_)) => return Err(passing),
            // Without the uid, `kubectl get events` still shows the Event.
            Err(_) => None,
        },
    };
    let event = event(notice, node_name, uid, time);
    let namespace = event.metadata.namespace.as_deref().unwrap_or_default();
    let sent = ask(connection, async |client| {
        Api::namespaced(client, namespace).create(&PostParams::default(), &event).await
    });
    sent.await.map(drop)
}

/// Returns the uid of a Service, or `None` if the Service is gone. `kubectl describe` finds Events
/// by it. The request is a list of one, which kube-proxy's role allows.
async fn uid(
    connection: &Connection,
    service: &ObjectName,
) -> Result<Option<String>, PublishFailure> {
    let ObjectName { namespace, name } = service;
    // Version 0: from the server's cache.
    let one = ListParams::default().fields(&format!("metadata.name={name}")).at("0");
    let list = ask(connection, async |client| {
        Api::<Service>::namespaced(client, namespace).list_metadata(&one).await
    });
    Ok(list.await?.items.into_iter().find_map(|service| service.metadata.uid))
}

/// Sends a request and returns the answer.
async fn ask<T>(
    connection: &Connection,
    request: impl AsyncFnOnce(Client) -> Result<T, Error>,
) -> Result<T, PublishFailure> {
    let (number, client) = connection.client();
    match tokio::time::timeout(REQUEST_TIMEOUT, request(client)).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(Error::Api(status))) => {
            if status.code == 401 {
                connection.renew(number);
            }
            Err(match status.code {
                409 => PublishFailure::Conflict,
                400 | 402..=428 | 430..=499 => PublishFailure::Rejected(status.message),
                _ => PublishFailure::Passing(status.message),
            })
        }
        // A request that cannot be made, or an answer that cannot be read.
        Ok(Err(error @ (Error::BuildRequest(_) | Error::SerdeError(_)))) => {
            Err(PublishFailure::Rejected(error.to_string()))
        }
        Ok(Err(error)) => {
            connection.renew(number);
            Err(PublishFailure::Passing(error.to_string()))
        }
        Err(_) => Err(PublishFailure::Passing(format!("no answer within {REQUEST_TIMEOUT:?}"))),
    }
}

/// Returns the name of an Event. All nodes give the same name to an Event about the same Service
/// for the same reason, so that there is one in the whole cluster.
fn event_name(notice: &Notice, node_name: &str, uid: Option<&str>, time: Timestamp) -> String {
    match &notice.service {
        None => {
            let suffix = format!(".{:x}", time.as_nanosecond());
            // A label must not end with a dash.
            let start = cut(node_name, MAX_NAME - suffix.len()).trim_end_matches(['-', '.']);
            format!("{start}{suffix}")
        }
        Some(service) => {
            let parts = [CONTROLLER, uid.unwrap_or_default(), notice.reason].join("/");
            format!("{}.{:016x}", service.name, fnv1a(&parts))
        }
    }
}

/// Returns the object. Events about a Node are in the namespace `default`.
fn event(notice: &Notice, node_name: &str, uid: Option<String>, time: Timestamp) -> Event {
    let (kind, namespace, name) = match &notice.service {
        None => ("Node", None, node_name),
        Some(service) => ("Service", Some(service.namespace.to_string()), &*service.name),
    };
    let type_ = if notice.is_warning { "Warning" } else { "Normal" };
    Event {
        metadata: ObjectMeta {
            name: Some(event_name(notice, node_name, uid.as_deref(), time)),
            namespace: Some(namespace.clone().unwrap_or_else(|| "default".to_owned())),
            ..ObjectMeta::default()
        },
        event_time: Some(MicroTime(time)),
        reporting_controller: Some(CONTROLLER.to_owned()),
        reporting_instance: Some(
            cut(&format!("{CONTROLLER}-{node_name}"), MAX_INSTANCE).to_owned(),
        ),
        type_: Some(type_.to_owned()),
        reason: Some(notice.reason.to_owned()),
        action: Some(notice.action.to_owned()),
        regarding: Some(ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some(kind.to_owned()),
            namespace,
            name: Some(name.to_owned()),
            uid,
            ..ObjectReference::default()
        }),
        note: Some(cut(&escape::line(&notice.note), MAX_NOTE).to_owned()),
        ..Event::default()
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

    use hyper::{Method, Request};
    use serde_json::Value;

    use super::*;
    use crate::serve::events::EventScope;
    use crate::serve::events::Recorder;

    #[test]
    fn an_event_is_what_the_api_takes() {
        let notice = Notice { note: "ä".repeat(MAX_NOTE), ..conflict("web") };
        let now = Timestamp::constant(1_500_000_000, 1_000);
        let event = json(event(&notice, "node-1", Some("0a-1b".to_owned()), now));
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
        let event = json(event(&starting(), "node-1", None, Timestamp::now()));
        assert_eq!(event["metadata"]["namespace"], "default");
        assert_eq!(event["type"], "Normal");
        assert!(event["regarding"].get("namespace").is_none());
    }

    fn json(event: Event) -> Value {
        serde_json::to_value(event).unwrap()
    }

    /// An API server that keeps Events by their names, or answers with the next of `failures`.
    #[derive(Default)]
    struct Server {
        events: Mutex<BTreeMap<String, Value>>,
        failures: Mutex<Vec<u16>>,
        requests: Mutex<usize>,
        uids: Mutex<usize>,
    }

    impl Server {
        fn connection(self: &Arc<Server>) -> Arc<Connection> {
            let server = self.clone();
            let service = tower::service_fn(move |request: Request<kube::client::Body>| {
                let server = server.clone();
                async move {
                    let method = request.method().clone();
                    let body = request.into_body().collect_bytes().await.unwrap();
                    let (status, body) = server.answer(&method, &body);
                    let body = kube::client::Body::from(body.into_bytes());
                    let answer = hyper::Response::builder().status(status).body(body).unwrap();
                    Ok::<_, std::convert::Infallible>(answer)
                }
            });
            let client = kube::Client::new(service, "default");
            Arc::new(Connection::new(move || Ok(client.clone())).unwrap())
        }

        fn answer(&self, method: &Method, body: &[u8]) -> (u16, String) {
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
            let event: Value = serde_json::from_slice(body).unwrap();
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
        let (loser, note) = (ObjectName::new("shop", loser), "198.51.100.7:80".to_owned());
        Notice::of_service(&loser, EventScope::Cluster, "FrontendConflict", "ProgramService", note)
    }

    fn starting() -> Notice {
        Notice { is_warning: false, ..Notice::of_node("Starting", "StartShunt", String::new()) }
    }

    async fn publish_from(
        server: &Arc<Server>,
        node: &str,
        nodes: &HashSet<Arc<str>>,
        told: impl IntoIterator<Item = Notice>,
    ) {
        let (recorder, notices) = Recorder::new(crate::serve::history::ChangeHistory::default());
        told.into_iter().for_each(|notice| recorder.record(notice));
        drop(recorder);
        // Events of two periods have different names.
        let time = || Timestamp::constant(1_500_000_000, 0);
        publish(notices, server.connection(), node.to_owned(), || nodes.clone(), time).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_few_of_a_thousand_nodes_make_one_event_about_a_service() {
        let server = Arc::new(Server::default());
        let nodes: HashSet<Arc<str>> = (0..1000).map(|n| format!("node-{n}").into()).collect();
        for node in &nodes {
            let told = [starting(), conflict("web"), conflict("other")];
            publish_from(&server, node, &nodes, told).await;
        }
        assert_eq!(server.regarding("Service").len(), 2, "one for each Service");
        assert_eq!(server.regarding("Node").len(), 1000, "one for each node");
        // Five nodes ask for the uid and send the Event. A 409 is an answer, and not tried again.
        assert_eq!(*server.requests.lock().unwrap(), 1000 + 2 * 5);
        assert_eq!(*server.uids.lock().unwrap(), 2 * 5);
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
}
