//! The encodings of answers, as a client and the server agree on them. Pure.

use hyper::body::Bytes;
use serde_json::Value;

use crate::object::Kind;
use crate::protobuf;

const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

/// How an answer is encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Encoding {
    Json,
    Protobuf,
}

impl Encoding {
    /// The first type of `Accept` that the server speaks; JSON if there is none.
    pub(super) fn negotiate(accept: &str) -> Self {
        let mut types = accept.split(',').map(|value| value.split(';').next().unwrap_or_default());
        let known = |name: &str| match name.trim() {
            PROTOBUF => Some(Self::Protobuf),
            "application/json" | "*/*" => Some(Self::Json),
            _ => None,
        };
        types.find_map(known).unwrap_or(Self::Json)
    }

    /// What the answer says about itself.
    pub(super) fn content_type(self, is_watch: bool) -> &'static str {
        match (self, is_watch) {
            (Self::Json, _) => "application/json",
            (Self::Protobuf, false) => PROTOBUF,
            (Self::Protobuf, true) => "application/vnd.kubernetes.protobuf;stream=watch",
        }
    }

    /// The body of an answer that is an object, a list or a `Status`.
    pub(super) fn body(self, kind: Option<Kind>, value: &Value) -> Bytes {
        match self {
            Self::Json => value.to_string().into(),
            // Without a kind there are only rejections.
            Self::Protobuf => protobuf::body(kind.unwrap_or(Kind::Node), value).into(),
        }
    }

    /// An event of a watch.
    pub(super) fn event(self, kind: Kind, event: &Value) -> Bytes {
        match self {
            Self::Json => format!("{event}\n").into(),
            Self::Protobuf => protobuf::frame(kind, event).into(),
        }
    }
}
