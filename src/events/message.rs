//! An Event in the form of the API (`events.k8s.io/v1`), in JSON and protobuf.
//!
//! The numbers of fields are those of `generated.proto` in `k8s.io/api`.

use std::time::SystemTime;

use hyper::http::HeaderValue;
use prost::Message;
use serde::{Serialize, Serializer};

use crate::source::kubernetes::{ContentType, envelope};

const API_VERSION: &str = "events.k8s.io/v1";
const KIND: &str = "Event";

#[derive(Message, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Event {
    #[prost(message, required, tag = "1")]
    pub(super) metadata: Metadata,
    #[prost(message, required, tag = "2")]
    pub(super) event_time: MicroTime,
    #[prost(string, tag = "4")]
    pub(super) reporting_controller: String,
    #[prost(string, tag = "5")]
    pub(super) reporting_instance: String,
    #[prost(string, tag = "6")]
    pub(super) action: String,
    #[prost(string, tag = "7")]
    pub(super) reason: String,
    #[prost(message, required, tag = "8")]
    pub(super) regarding: Reference,
    #[prost(string, tag = "10")]
    pub(super) note: String,
    #[prost(string, tag = "11")]
    #[serde(rename = "type")]
    pub(super) type_: String,
}

#[derive(Message, Serialize)]
pub(super) struct Metadata {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "3")]
    pub(super) namespace: String,
}

/// The object of an Event (`ObjectReference`).
#[derive(Message, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Reference {
    #[prost(string, tag = "1")]
    pub(super) kind: String,
    #[prost(string, tag = "2")]
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) namespace: String,
    #[prost(string, tag = "3")]
    pub(super) name: String,
    #[prost(string, tag = "4")]
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) uid: String,
    #[prost(string, tag = "5")]
    pub(super) api_version: String,
}

/// A time in microseconds. The server ignores smaller parts.
#[derive(Message, Clone, Copy)]
pub(super) struct MicroTime {
    #[prost(int64, tag = "1")]
    seconds: i64,
    #[prost(int32, tag = "2")]
    nanos: i32,
}

impl MicroTime {
    pub(super) fn new(time: SystemTime) -> MicroTime {
        let time = jiff::Timestamp::try_from(time).unwrap_or_default();
        MicroTime { seconds: time.as_second(), nanos: time.subsec_nanosecond() }
    }

    pub(super) fn timestamp(self) -> jiff::Timestamp {
        jiff::Timestamp::new(self.seconds, self.nanos).unwrap_or_default()
    }
}

impl Serialize for MicroTime {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{:.6}", self.timestamp()))
    }
}

/// An object with its type, which protobuf has in the envelope.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Typed<'a> {
    api_version: &'static str,
    kind: &'static str,
    #[serde(flatten)]
    event: &'a Event,
}

impl Event {
    /// Encodes the body of a request, and returns its `Content-Type`.
    ///
    /// # Errors
    /// None: the fields fit into JSON.
    pub(super) fn encode(
        &self,
        content_type: ContentType,
    ) -> Result<(HeaderValue, Vec<u8>), serde_json::Error> {
        Ok(match content_type {
            ContentType::Protobuf => (
                HeaderValue::from_static("application/vnd.kubernetes.protobuf"),
                envelope(API_VERSION, KIND, self),
            ),
            ContentType::Json => {
                let typed = Typed { api_version: API_VERSION, kind: KIND, event: self };
                (HeaderValue::from_static("application/json"), serde_json::to_vec(&typed)?)
            }
        })
    }
}
