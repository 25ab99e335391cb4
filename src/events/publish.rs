//! Sending Events to the API server.

use std::time::{Duration, Instant, SystemTime};

use hyper::http::Request;
use hyper::{Method, StatusCode};

use super::limit::Limit;
use super::{Notice, Notices, Regarding};
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
        let event = event(&notice, &node_name, SystemTime::now());
        let mut pauses = PAUSES.iter();
        while let Err(error) = send(&connection, &event).await {
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
    /// Trying again would not help.
    is_final: bool,
}

async fn send(connection: &Connection, event: &serde_json::Value) -> Result<(), Failure> {
    let failure = |text: String| Failure { text, is_final: false };
    let namespace = event["metadata"]["namespace"].as_str().unwrap_or_default();
    let request = Request::builder()
        .method(Method::POST)
        .uri(format!("/apis/events.k8s.io/v1/namespaces/{namespace}/events"))
        .header("Content-Type", "application/json")
        .body(event.to_string().into_bytes())
        .map_err(|error| Failure { text: error.to_string(), is_final: true })?;
    let (number, client) = connection.client();
    match tokio::time::timeout(PATIENCE, client.request_text(request)).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(kube::Error::Api(status))) => {
            let code = StatusCode::from_u16(status.code).unwrap_or_default();
            // It is there already if an answer to an earlier try was lost.
            if code == StatusCode::CONFLICT {
                return Ok(());
            }
            if code == StatusCode::UNAUTHORIZED {
                connection.renew(number);
                return Err(failure(status.message));
            }
            let is_final = code.is_client_error() && code != StatusCode::TOO_MANY_REQUESTS;
            Err(Failure { text: status.message, is_final })
        }
        Ok(Err(error)) => {
            connection.renew(number);
            Err(failure(error.to_string()))
        }
        Err(_) => Err(failure(format!("no answer within {PATIENCE:?}"))),
    }
}

/// The object. Events about a Node live in the namespace `default`.
fn event(notice: &Notice, node_name: &str, now: SystemTime) -> serde_json::Value {
    let time = jiff::Timestamp::try_from(now).unwrap_or_default();
    let (kind, namespace, name, uid) = match &notice.regarding {
        // As kubectl looks for them, and as the kubelet writes them.
        Regarding::Node => ("Node", "default", node_name, Some(node_name)),
        Regarding::Service(service) => ("Service", &*service.namespace, &*service.name, None),
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
    use crate::model::ObjectName;

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
        let event = event(&notice, "node-1", now);
        assert_eq!(event["metadata"]["namespace"], "shop");
        assert_eq!(event["metadata"]["name"], "web.14d1120d7b1603e8");
        assert_eq!(event["eventTime"], "2017-07-14T02:40:00.000001Z");
        assert_eq!(event["regarding"]["namespace"], "shop");
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
        let event = event(&notice, "node-1", SystemTime::now());
        assert_eq!(event["metadata"]["namespace"], "default");
        assert_eq!(event["regarding"]["uid"], "node-1");
        assert_eq!(event["type"], "Normal");
        assert!(event["regarding"].get("namespace").is_none());
    }
}
