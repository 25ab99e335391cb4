//! `Status` objects: how the server says no.

use serde_json::{Value, json};

use super::store::Compacted;

/// A refusal: its HTTP status, reason and message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) code: u16,
    reason: &'static str,
    message: String,
}

impl Refusal {
    pub(super) fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        Self { code, reason, message: message.into() }
    }

    /// One of which only the code matters.
    pub(super) fn of(code: u16) -> Self {
        let (reason, message) = match code {
            400 => ("BadRequest", "the server could not understand the request"),
            401 => ("Unauthorized", "Unauthorized"),
            403 => ("Forbidden", "forbidden: the user cannot do that"),
            404 => ("NotFound", "the server could not find the requested resource"),
            405 => (
                "MethodNotAllowed",
                "the server does not allow this method on the requested resource",
            ),
            406 => {
                ("NotAcceptable", "only the following media types are accepted: application/json")
            }
            409 => ("AlreadyExists", "already exists"),
            410 => ("Expired", "The resourceVersion for the provided watch is too old."),
            415 => (
                "UnsupportedMediaType",
                "the body of the request was in an unknown format - accepted media types include: \
                 application/json",
            ),
            422 => ("Invalid", "ListOptions.meta.k8s.io \"\" is invalid"),
            429 => ("TooManyRequests", "storage is (re)initializing"),
            503 => ("ServiceUnavailable", "the server is currently unable to handle the request"),
            _ => ("InternalError", "an error on the server has prevented the request"),
        };
        Self::new(code, reason, message)
    }

    pub(super) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message)
    }

    /// Fields that the server does not take: what each error says, path first.
    pub(super) fn invalid(what: &str, name: &str, errors: &[String]) -> Self {
        let all = match errors {
            [error] => error.clone(),
            errors => format!("[{}]", errors.join(", ")),
        };
        Self::new(422, "Invalid", format!("{what} \"{name}\" is invalid: {all}"))
    }

    /// The server has not come that far.
    pub(super) fn too_large(asked: u64, current: u64) -> Self {
        let message = format!("Timeout: Too large resource version: {asked}, current: {current}");
        Self::new(504, "Timeout", message)
    }

    pub(super) fn object(&self) -> Value {
        let Self { code, reason, message } = self;
        let details = if *code == 504 { json!({"retryAfterSeconds": 1}) } else { json!({}) };
        json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": message, "reason": reason, "details": details, "code": code,
        })
    }

    /// As an event of a watch.
    pub(super) fn event(&self) -> Value {
        json!({"type": "ERROR", "object": self.object()})
    }
}

impl Compacted {
    pub(super) fn refuse(&self, asked: u64) -> Refusal {
        let oldest = self.0;
        Refusal::new(410, "Expired", format!("too old resource version: {asked} ({oldest})"))
    }
}
