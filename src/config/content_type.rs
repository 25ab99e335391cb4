//! The content type of the API server's answers.

use super::Configuration;
use super::effective::Check;
use crate::source::kubernetes::ContentType;
use crate::source::spanned_yaml::Severity;

/// Recognises the content types. kube-proxy may speak more of them, so an unknown one is a warning:
/// its effect is that of the default.
pub(super) fn content_type(full: &Configuration, check: &mut Check<'_>) -> ContentType {
    let known = "write application/vnd.kubernetes.protobuf or application/json";
    let mut unknown = |field: &str, value: &str, effect: &str| {
        let reason = format!("shunt does not speak this content type ({effect}); {known}");
        check.add(Severity::Warning, field, Some(&value), reason);
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

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::tests::{HEAD, good, texts};
    use super::super::{Flags, Loaded, load};
    use super::*;

    #[test]
    fn content_type_is_protobuf_unless_json_is_written() {
        use ContentType::{Json, Protobuf};
        let protobuf = "application/vnd.kubernetes.protobuf";
        for (written, expected) in [
            ("contentType: ''".to_owned(), Protobuf),
            (format!("contentType: {protobuf}"), Protobuf),
            ("contentType: application/json".to_owned(), Json),
            ("contentType: application/json; charset=utf-8".to_owned(), Json),
            (
                format!("contentType: application/json, acceptContentTypes: '{protobuf}, */*'"),
                Protobuf,
            ),
            ("acceptContentTypes: application/json".to_owned(), Json),
            (format!("acceptContentTypes: 'application/json,{protobuf}'"), Json),
            (format!("acceptContentTypes: '{protobuf},application/json'"), Protobuf),
        ] {
            let config = good(&format!("clientConnection: {{{written}}}"));
            assert_eq!(config.content_type, expected, "{written}");
        }
        let text = format!(
            "{HEAD}clientConnection:\n  contentType: application/yaml\n  \
             acceptContentTypes: application/cbor,application/json\n"
        );
        let file = (Path::new("f"), text.as_bytes());
        let Loaded { config, problems, .. } = load(Some(file), &Flags::default()).unwrap();
        assert_eq!(config.content_type, Json);
        let expected = [
            "clientConnection.contentType = application/yaml: shunt does not speak this content type \
             (protobuf is used); write application/vnd.kubernetes.protobuf or application/json",
            "clientConnection.acceptContentTypes = application/cbor: shunt does not speak this content \
             type (it is ignored)",
        ];
        for (problem, expected) in texts(&problems).iter().zip(expected) {
            assert!(problem.contains(expected), "{problem}\n{expected}");
        }
        assert_eq!(problems.len(), 2);
    }
}
