//! `Status` objects: how the server says no.

use serde_json::{Value, json};

/// A refusal: its HTTP status and message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) code: u16,
    message: String,
}

impl Refusal {
    pub(super) fn new(code: u16, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    /// One of which only the code matters.
    pub(super) fn of(code: u16) -> Self {
        let message = match code {
            429 => "storage is (re)initializing",
            503 => "the server is currently unable to handle the request",
            _ => "refused",
        };
        Self::new(code, message)
    }

    /// The server has not come that far.
    pub(super) fn too_large(asked: u64, current: u64) -> Self {
        let message = format!("Timeout: Too large resource version: {asked}, current: {current}");
        Self::new(504, message)
    }

    /// What happened after that is not known any more.
    pub(super) fn too_old(asked: u64, oldest: u64) -> Self {
        Self::new(410, format!("too old resource version: {asked} ({oldest})"))
    }

    pub(super) fn object(&self) -> Value {
        let Self { code, message } = self;
        let details = if *code == 504 { json!({"retryAfterSeconds": 1}) } else { json!({}) };
        json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": message, "details": details, "code": code,
        })
    }

    /// As an event of a watch.
    pub(super) fn event(&self) -> Value {
        json!({"type": "ERROR", "object": self.object()})
    }
}
