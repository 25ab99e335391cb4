//! The content type of answers, and its negotiation.

use std::time::Duration;

use hyper::HeaderMap;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use tokio::time::Instant;

/// How long requests ask for JSON after an answer in protobuf that the agent cannot use.
const JSON_INTERVAL: Duration = Duration::from_secs(600);

/// The encoding of an answer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ContentType {
    /// Protobuf; events of watches are frames.
    #[default]
    Protobuf,
    /// JSON; events of watches are lines.
    Json,
}

impl ContentType {
    /// Returns the media type.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            ContentType::Protobuf => "application/vnd.kubernetes.protobuf",
            ContentType::Json => "application/json",
        }
    }

    /// Recognises a media type, with or without parameters. Returns `None` for a type that the agent
    /// does not speak.
    #[must_use]
    pub fn parse(text: &str) -> Option<ContentType> {
        let media_type = text.split(';').next().unwrap_or_default().trim();
        let is_named = |known: &ContentType| media_type.eq_ignore_ascii_case(known.as_str());
        [ContentType::Protobuf, ContentType::Json].into_iter().find(is_named)
    }

    /// Returns the content type of an answer. Each answer has its own: a proxy or a server may send
    /// JSON whatever the agent accepts.
    pub(super) fn of(headers: &HeaderMap) -> ContentType {
        let value = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
        value.and_then(ContentType::parse).unwrap_or(ContentType::Json)
    }
}

/// The content types that a watch accepts at the moment.
#[derive(Debug)]
pub(super) struct Negotiation {
    configured: ContentType,
    /// The end of the time without protobuf.
    json_until: Option<Instant>,
}

impl Negotiation {
    pub(super) fn new(configured: ContentType) -> Negotiation {
        Negotiation { configured, json_until: None }
    }

    /// Returns the value of `Accept`.
    pub(super) fn accept(&self) -> HeaderValue {
        HeaderValue::from_static(match self.current() {
            ContentType::Protobuf => "application/vnd.kubernetes.protobuf, application/json",
            ContentType::Json => ContentType::Json.as_str(),
        })
    }

    /// Requests JSON for some time. Returns false if the agent has requested JSON already.
    pub(super) fn fall_back(&mut self) -> bool {
        let is_new = self.current() == ContentType::Protobuf;
        if is_new {
            self.json_until = Some(Instant::now() + JSON_INTERVAL);
        }
        is_new
    }

    fn current(&self) -> ContentType {
        match self.json_until {
            Some(end) if Instant::now() < end => ContentType::Json,
            _ => self.configured,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answer_without_a_known_content_type_is_json() {
        for (value, expected) in [
            ("application/json", ContentType::Json),
            ("application/json;stream=watch", ContentType::Json),
            ("application/vnd.kubernetes.protobuf", ContentType::Protobuf),
            ("application/vnd.kubernetes.protobuf;stream=watch", ContentType::Protobuf),
            ("Application/Vnd.Kubernetes.Protobuf ; stream=watch", ContentType::Protobuf),
            ("application/vnd.kubernetes.protobuf2", ContentType::Json),
            ("text/plain", ContentType::Json),
        ] {
            let headers = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static(value))]);
            assert_eq!(ContentType::of(&headers), expected, "{value}");
        }
        assert_eq!(ContentType::of(&HeaderMap::new()), ContentType::Json);
    }
}
