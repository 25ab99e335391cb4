//! Events that clients send as protobuf. The numbers of fields are those of `generated.proto` in
//! `k8s.io/api`. Pure.

use prost::{DecodeError, Message};
use serde_json::{Value, json};

use super::status::Refusal;

/// The media type.
pub(super) const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

/// `runtime.Unknown`.
#[derive(Message)]
struct Unknown {
    #[prost(message, required, tag = "1")]
    type_meta: TypeMeta,
    #[prost(bytes = "vec", tag = "2")]
    raw: Vec<u8>,
}

#[derive(Message)]
struct TypeMeta {
    #[prost(string, tag = "1")]
    api_version: String,
    #[prost(string, tag = "2")]
    kind: String,
}

#[derive(Message)]
struct Event {
    #[prost(message, required, tag = "1")]
    metadata: Metadata,
    #[prost(message, optional, tag = "2")]
    event_time: Option<MicroTime>,
    #[prost(string, tag = "4")]
    reporting_controller: String,
    #[prost(string, tag = "5")]
    reporting_instance: String,
    #[prost(string, tag = "6")]
    action: String,
    #[prost(string, tag = "7")]
    reason: String,
    #[prost(message, required, tag = "8")]
    regarding: Reference,
    #[prost(string, tag = "10")]
    note: String,
    #[prost(string, tag = "11")]
    type_: String,
}

#[derive(Message)]
struct Metadata {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    generate_name: String,
    #[prost(string, tag = "3")]
    namespace: String,
}

#[derive(Message)]
struct Reference {
    #[prost(string, tag = "1")]
    kind: String,
    #[prost(string, tag = "2")]
    namespace: String,
    #[prost(string, tag = "3")]
    name: String,
    #[prost(string, tag = "4")]
    uid: String,
    #[prost(string, tag = "5")]
    api_version: String,
}

#[derive(Message)]
struct MicroTime {
    #[prost(int64, tag = "1")]
    seconds: i64,
    #[prost(int32, tag = "2")]
    nanos: i32,
}

/// Returns the Event as JSON, without fields that are not given.
pub(super) fn json(content: &[u8]) -> Result<Vec<u8>, Refusal> {
    let unfit = |error: DecodeError| Refusal::bad_request(error.to_string());
    let content = content.strip_prefix(b"k8s\0").ok_or_else(|| {
        Refusal::bad_request("provided data does not appear to be a protobuf message")
    })?;
    let Unknown { type_meta, raw } = Unknown::decode(content).map_err(unfit)?;
    let event = Event::decode(&*raw).map_err(unfit)?;
    let Reference { kind, namespace, name, uid, api_version } = event.regarding;
    let mut value = json!({
        "apiVersion": type_meta.api_version,
        "kind": type_meta.kind,
        "metadata": {
            "name": event.metadata.name,
            "generateName": event.metadata.generate_name,
            "namespace": event.metadata.namespace,
        },
        "eventTime": event.event_time.as_ref().map(text),
        "reportingController": event.reporting_controller,
        "reportingInstance": event.reporting_instance,
        "action": event.action,
        "reason": event.reason,
        "regarding": {
            "kind": kind, "namespace": namespace, "name": name, "uid": uid, "apiVersion": api_version,
        },
        "note": event.note,
        "type": event.type_,
    });
    remove_empty(&mut value);
    Ok(value.to_string().into_bytes())
}

fn remove_empty(value: &mut Value) {
    let Some(fields) = value.as_object_mut() else { return };
    fields.values_mut().for_each(remove_empty);
    fields.retain(|_, value| !value.is_null() && value != "");
}

/// A time as JSON has it, with six digits of a second.
fn text(time: &MicroTime) -> String {
    let time = jiff::Timestamp::new(time.seconds, time.nanos).unwrap_or_default();
    format!("{time:.6}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_bytes_are_refused() {
        for content in [&b""[..], b"{}", b"k8s\0\xff", b"k8s\0\x12\x01\xff"] {
            assert_eq!(json(content).unwrap_err().code, 400, "{content:?}");
        }
    }
}
