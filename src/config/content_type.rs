//! The content type of the API server's answers.

use super::Configuration;
use crate::source::kubernetes::ContentType;
use crate::source::spanned_yaml::{Diagnostics, Severity};

/// Recognises the content types. kube-proxy may speak more of them, so an unknown one is a warning:
/// its effect is that of the default.
pub(super) fn content_type(full: &Configuration, check: &mut Diagnostics) -> ContentType {
    let known = "write application/vnd.kubernetes.protobuf or application/json";
    let mut unknown = |field: &str, value: &str, effect: &str| {
        let reason = format!("shunt does not speak this content type ({effect}); {known}");
        check.add(Severity::Warning, &field, Some(&value), reason);
    };
    let written = full.text("clientConnection.contentType").unwrap_or_default();
    let default = ContentType::parse(written).unwrap_or_else(|| {
        unknown("clientConnection.contentType", written, "protobuf is used");
        ContentType::Protobuf
    });
    let mut accepted = None;
    let list = full.text("clientConnection.acceptContentTypes").unwrap_or_default();
    for written in list.split(',').map(str::trim).filter(|written| !written.is_empty()) {
        match ContentType::parse(written) {
            Some(content_type) => accepted = accepted.or(Some(content_type)),
            None if written.starts_with("*/*") => {}
            None => unknown("clientConnection.acceptContentTypes", written, "it is ignored"),
        }
    }
    accepted.unwrap_or(default)
}
