//! The encodings of answers, and their negotiation.

use std::time::Duration;

use hyper::HeaderMap;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use tokio::time::Instant;

/// The media type of protobuf in the Kubernetes API.
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

/// How long requests ask for JSON after an answer in protobuf that the agent cannot use.
const JSON_INTERVAL: Duration = Duration::from_secs(600);

/// The encoding of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Encoding {
    /// JSON; events of watches are lines.
    Json,
    /// Protobuf; events of watches are frames.
    Protobuf,
}

impl Encoding {
    /// Returns the encoding of an answer. Each answer has its own: a proxy or a server may send
    /// JSON whatever the agent accepts.
    pub(super) fn of(headers: &HeaderMap) -> Encoding {
        let media_type = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let media_type = media_type.and_then(|value| value.split(';').next()).unwrap_or_default();
        if media_type.trim().eq_ignore_ascii_case(PROTOBUF) {
            Encoding::Protobuf
        } else {
            Encoding::Json
        }
    }
}

/// The encodings that the agent accepts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ContentType {
    /// Protobuf, and JSON as the second choice.
    #[default]
    Protobuf,
    /// JSON only.
    Json,
}

/// The encodings that a watch accepts at the moment.
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
            ContentType::Json => "application/json",
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
    fn content_type_decides_the_encoding() {
        for (value, encoding) in [
            ("application/json", Encoding::Json),
            ("application/json;stream=watch", Encoding::Json),
            ("application/vnd.kubernetes.protobuf", Encoding::Protobuf),
            ("application/vnd.kubernetes.protobuf;stream=watch", Encoding::Protobuf),
            ("Application/Vnd.Kubernetes.Protobuf ; stream=watch", Encoding::Protobuf),
            ("application/vnd.kubernetes.protobuf2", Encoding::Json),
            ("text/plain", Encoding::Json),
        ] {
            let headers = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static(value))]);
            assert_eq!(Encoding::of(&headers), encoding, "{value}");
        }
        assert_eq!(Encoding::of(&HeaderMap::new()), Encoding::Json);
    }

    #[tokio::test(start_paused = true)]
    async fn protobuf_is_requested_again_after_a_time_with_json() {
        let mut negotiation = Negotiation::new(ContentType::Protobuf);
        let protobuf = negotiation.accept();
        assert!(negotiation.fall_back());
        assert_eq!(negotiation.accept(), "application/json");
        assert!(!negotiation.fall_back());
        tokio::time::advance(JSON_INTERVAL).await;
        assert_eq!(negotiation.accept(), protobuf);
        let mut negotiation = Negotiation::new(ContentType::Json);
        assert!(!negotiation.fall_back());
        assert_eq!(negotiation.accept(), "application/json");
    }
}
