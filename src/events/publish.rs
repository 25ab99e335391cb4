//! Sending Events to the API server.

use std::time::{Duration, Instant, SystemTime};

use hyper::http::Request;
use hyper::{Method, StatusCode};

use super::limit::Limit;
use super::{Notice, Notices, Regarding};
use crate::model::ObjectName;
use crate::source::kubernetes::Connection;

/// Who reports.
const CONTROLLER: &str = "shunt";
/// The longest note that the API server takes, in bytes (`events.k8s.io/v1`, validation).
const NOTE: usize = 1024;
/// How long the API server may take for one.
const PATIENCE: Duration = Duration::from_secs(10);
/// The pauses before an Event is tried again; then it is lost.
const PAUSES: [Duration; 3] =
    [Duration::from_secs(2), Duration::from_secs(10), Duration::from_secs(30)];

/// Sends what is recorded until all recorders are gone.
pub async fn publish(notices: Notices, connection: Connection, node_name: String) {
    let mut notices = notices.0.lock().await;
    let mut limit = Limit::new(Instant::now());
    let mut forbidden = false;
    while let Some(notice) = notices.recv().await {
        if !limit.allows(&notice, Instant::now()) {
            continue;
        }
        let time = SystemTime::now();
        let mut pauses = PAUSES.iter();
        while let Err(error) = send(&connection, &notice, &node_name, time).await {
            if error.is_final {
                if !forbidden {
                    tracing::warn!("the API server takes no Events from us: {}", error.text);
                }
                forbidden = true;
                break;
            }
            let Some(pause) = pauses.next() else {
                tracing::debug!(reason = notice.reason, "an Event is lost: {}", error.text);
                break;
            };
            tokio::time::sleep(*pause).await;
        }
    }
}

struct Failure {
    text: String,
    /// What the server answered, if it did.
    status: Option<StatusCode>,
    /// Trying again would not help.
    is_final: bool,
}

async fn send(
    connection: &Connection,
    notice: &Notice,
    node_name: &str,
    time: SystemTime,
) -> Result<(), Failure> {
    let uid = match &notice.regarding {
        // As kubectl looks for it, and as the kubelet writes it.
        Regarding::Node => Some(node_name.to_owned()),
        Regarding::Service(service) => match uid(connection, service).await {
            // An Event that only `kubectl get events` shows is better than none.
            Err(error) if error.is_final => None,
            found => found?,
        },
    };
    let event = event(notice, node_name, uid.as_deref(), time);
    let namespace = event["metadata"]["namespace"].as_str().unwrap_or_default();
    let path = format!("/apis/events.k8s.io/v1/namespaces/{namespace}/events");
    match ask(connection, Method::POST, &path, event.to_string()).await {
        // It is there already if an answer to an earlier try was lost.
        Err(error) if error.status == Some(StatusCode::CONFLICT) => Ok(()),
        answer => answer.map(drop),
    }
}

/// The uid of a Service, without which `kubectl describe` does not find its Events; none if the
/// Service is gone. It is asked for when it is needed, which is seldom, and as a list of one: that is
/// what the role of kube-proxy allows.
async fn uid(connection: &Connection, service: &ObjectName) -> Result<Option<String>, Failure> {
    let ObjectName { namespace, name } = service;
    // Version 0: from the server's memory.
    let path = format!(
        "/api/v1/namespaces/{namespace}/services?fieldSelector=metadata.name%3D{name}\
         &resourceVersion=0"
    );
    let list = ask(connection, Method::GET, &path, String::new()).await?;
    let list: serde_json::Value = serde_json::from_str(&list).unwrap_or_default();
    Ok(list["items"][0]["metadata"]["uid"].as_str().map(str::to_owned))
}

/// Sends a request and returns the body of the answer.
async fn ask(
    connection: &Connection,
    method: Method,
    path: &str,
    body: String,
) -> Result<String, Failure> {
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("Content-Type", "application/json")
        .body(body.into_bytes())
        .map_err(|error| Failure { text: error.to_string(), status: None, is_final: true })?;
    let (number, client) = connection.client();
    match tokio::time::timeout(PATIENCE, client.request_text(request)).await {
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
            let text = format!("no answer within {PATIENCE:?}");
            Err(Failure { text, status: None, is_final: false })
        }
    }
}

/// The object. Events about a Node live in the namespace `default`.
fn event(
    notice: &Notice,
    node_name: &str,
    uid: Option<&str>,
    time: SystemTime,
) -> serde_json::Value {
    let time = jiff::Timestamp::try_from(time).unwrap_or_default();
    let (kind, namespace, name) = match &notice.regarding {
        Regarding::Node => ("Node", "default", node_name),
        Regarding::Service(service) => ("Service", &*service.namespace, &*service.name),
    };
    let mut regarding = serde_json::json!({ "apiVersion": "v1", "kind": kind, "name": name });
    if let Regarding::Service(_) = notice.regarding {
        regarding["namespace"] = namespace.into();
    }
    if let Some(uid) = uid {
        regarding["uid"] = uid.into();
    }
    let mut note = &*notice.note;
    while note.len() > NOTE {
        let cut = note.char_indices().map(|(at, _)| at).take_while(|at| *at <= NOTE).last();
        note = &note[..cut.unwrap_or_default()];
    }
    serde_json::json!({
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {
            "namespace": namespace,
            "name": format!("{name}.{:x}", time.as_nanosecond()),
        },
        "eventTime": format!("{time:.6}"),
        "reportingController": CONTROLLER,
        "reportingInstance": format!("{CONTROLLER}-{node_name}"),
        "type": if notice.is_warning { "Warning" } else { "Normal" },
        "reason": notice.reason,
        "action": notice.action,
        "regarding": regarding,
        "note": note,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_what_the_api_takes() {
        let notice = Notice {
            regarding: Regarding::Service(ObjectName::new("shop", "web")),
            is_warning: true,
            reason: "FrontendConflict",
            action: "ProgramService",
            note: "ä".repeat(NOTE),
        };
        let now = SystemTime::UNIX_EPOCH + Duration::from_micros(1_500_000_000_000_001);
        let event = event(&notice, "node-1", Some("0a-1b"), now);
        assert_eq!(event["metadata"]["namespace"], "shop");
        assert_eq!(event["metadata"]["name"], "web.14d1120d7b1603e8");
        assert_eq!(event["eventTime"], "2017-07-14T02:40:00.000001Z");
        assert_eq!(event["regarding"]["namespace"], "shop");
        assert_eq!(event["regarding"]["uid"], "0a-1b");
        assert_eq!(event["reportingInstance"], "shunt-node-1");
        assert_eq!(event["note"].as_str().map(str::len), Some(NOTE));
    }

    #[test]
    fn events_about_the_node_are_in_the_default_namespace() {
        let notice = Notice {
            regarding: Regarding::Node,
            is_warning: false,
            reason: "Starting",
            action: "StartShunt",
            note: String::new(),
        };
        let event = event(&notice, "node-1", None, SystemTime::now());
        assert_eq!(event["metadata"]["namespace"], "default");
        assert_eq!(event["type"], "Normal");
        assert!(event["regarding"].get("namespace").is_none());
    }
}
