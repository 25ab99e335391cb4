//! The failures of requests and watches, and their consequences. The numbers of fields are those of
//! `generated.proto` in `k8s.io/apimachinery`.

use std::error::Error;
use std::time::Duration;

use hyper::StatusCode;
use prost::Message;
use serde::Deserialize;

use crate::source::objects::Kind;

/// Long enough for the API server's message about a missing permission.
const MAX_MESSAGE_CHARS: usize = 300;

/// The reason for the end of a request or a watch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RequestFailure {
    /// The server ended the watch, which it does periodically.
    Ended,
    /// The connection broke while it was in use.
    Broken(String),
    /// The server was silent for longer than its bookmarks allow.
    Silent,
    /// The server no longer has the changes since the known resource version.
    Expired,
    /// The server is behind the known resource version.
    TooNew,
    /// The server does not have this resource.
    Absent,
    /// The server rejects the request.
    Refused {
        /// The HTTP status.
        code: u16,
        /// The message of the server.
        message: String,
        /// The value of `Retry-After`.
        retry_after: Option<Duration>,
    },
    /// The server cannot be reached within the timeout.
    Unreachable(String),
    /// The server sent an invalid response.
    Garbage(String),
    /// The server sent protobuf that cannot be decoded.
    Encoding(String),
}

/// `meta.v1.Status`: why a request failed.
#[derive(Deserialize, Message)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct MetaStatus {
    #[prost(string, tag = "3")]
    pub(super) message: String,
    #[prost(string, tag = "4")]
    pub(super) reason: String,
    #[prost(message, required, tag = "5")]
    pub(super) details: StatusDetails,
    #[prost(int32, tag = "6")]
    pub(super) code: i32,
}

#[derive(Deserialize, Message)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct StatusDetails {
    #[prost(int32, tag = "5")]
    pub(super) retry_after_seconds: i32,
}

impl RequestFailure {
    /// Returns the failure in an answer to a request, or in an event of a watch.
    pub(super) fn from_status(
        status: &MetaStatus,
        retry_after: Option<Duration>,
    ) -> RequestFailure {
        let asked = u64::try_from(status.details.retry_after_seconds).ok();
        let asked = asked.filter(|seconds| *seconds > 0).map(Duration::from_secs);
        let retry_after = retry_after.or(asked);
        if status.message.contains("Too large resource version") {
            return RequestFailure::TooNew;
        }
        match (u16::try_from(status.code).unwrap_or_default(), &*status.reason) {
            (410, _) | (_, "Expired" | "Gone") => RequestFailure::Expired,
            (404, _) => RequestFailure::Absent,
            (code, reason) => {
                let said = if status.message.is_empty() { reason } else { &status.message };
                RequestFailure::Refused { code, message: shortened(said), retry_after }
            }
        }
    }

    /// Returns true if another connection might help, with the current credentials, certificates
    /// and address of the server.
    pub(super) fn is_about_access(&self) -> bool {
        match self {
            RequestFailure::Unreachable(_) | RequestFailure::Broken(_) => true,
            RequestFailure::Refused { code, .. } => *code == StatusCode::UNAUTHORIZED.as_u16(),
            _ => false,
        }
    }

    /// Returns the message for the log.
    #[must_use]
    pub fn told(&self, kind: Kind) -> String {
        match self {
            RequestFailure::Ended => format!("the API server ended the watch of {kind} objects"),
            RequestFailure::Silent => format!("the watch of {kind} objects is silent"),
            RequestFailure::Expired => {
                format!("resource version expired for {}", kind.resource())
            }
            RequestFailure::TooNew => {
                format!("the API server does not have the known version of {kind} objects yet")
            }
            RequestFailure::Absent => format!("the API server does not serve {kind} objects"),
            RequestFailure::Refused { code: 401, message, .. } => {
                format!("the API server rejects the agent's credentials: {message} (401)")
            }
            RequestFailure::Refused { code: 403, message, .. } => format!(
                "the API server does not let the agent list and watch {kind} objects: {message} \
                 (403); bind its user to the ClusterRole system:node-proxier, or add the rule {}",
                rule(kind)
            ),
            RequestFailure::Refused { code, message, .. } => {
                format!("the API server refuses to list or watch: {message} ({code})")
            }
            RequestFailure::Broken(reason) => {
                format!("the connection to the API server broke: {reason}")
            }
            RequestFailure::Unreachable(reason) => format!("cannot reach the API server: {reason}"),
            RequestFailure::Garbage(what) => {
                format!("the API server sent an invalid response: {what}")
            }
            RequestFailure::Encoding(what) => {
                format!("cannot decode the API server's protobuf, requesting JSON: {what}")
            }
        }
    }
}

/// Returns the rule of a role that permits list and watch of this kind.
#[must_use]
pub fn rule(kind: Kind) -> String {
    let group = kind.versions()[0].split_once('/').map_or("\"\"", |(group, _)| group);
    let resource = kind.resource();
    format!("{{apiGroups: [{group}], resources: [{resource}], verbs: [list, watch]}}")
}

/// Returns the innermost error of a chain, which is the specific one.
pub(super) fn innermost(mut error: &(dyn Error + 'static)) -> String {
    while let Some(source) = error.source() {
        error = source;
    }
    shortened(&error.to_string())
}

/// Returns a message of a server or a library, shortened to a log line.
fn shortened(text: &str) -> String {
    // Cuts off the reference to the manual in messages of rustls, and the time, which would make each
    // message a new one.
    let end = [": https://docs.rs", ": verification time"].iter().filter_map(|it| text.find(it));
    let text = text[..end.min().unwrap_or(text.len())].trim();
    text.chars().take(MAX_MESSAGE_CHARS).collect()
}
