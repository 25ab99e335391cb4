//! Requests: what they ask for, and the record of them.

use std::collections::BTreeMap;

use hyper::Method;
use hyper::header::AUTHORIZATION;

use crate::object::{Key, Kind};

/// What a request wants to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// All objects of a kind.
    List,
    /// Changes of the objects of a kind, and with a streaming list the objects first.
    Watch,
    /// One object.
    Get,
    /// Make an object.
    Create,
    /// Change parts of an object.
    Patch,
    /// Anything else.
    Other,
}

/// A request as the stand-in saw it.
#[derive(Clone, Debug)]
pub struct Request {
    /// What it wanted to be done.
    pub verb: Verb,
    /// To objects of which kind; none if the path is none that we serve.
    pub kind: Option<Kind>,
    /// The path.
    pub path: String,
    /// The parameters.
    pub query: BTreeMap<String, String>,
    /// The bearer token.
    pub token: Option<String>,
    /// Whether the connection had a client certificate of our authority.
    pub certificate: bool,
    /// The namespace and, for one object, the name.
    pub(super) namespace: String,
    pub(super) name: String,
}

impl Request {
    pub(super) fn new<B>(request: &hyper::Request<B>, certificate: bool) -> Self {
        let path = request.uri().path().to_owned();
        let text = request.uri().query().unwrap_or_default();
        let query: BTreeMap<String, String> =
            form_urlencoded::parse(text.as_bytes()).into_owned().collect();
        let authorization = request.headers().get(AUTHORIZATION);
        let token = authorization.and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
        let token = token.map(str::to_owned);
        let (kind, namespace, name) = resource(&path).unwrap_or_default();
        let watch = query.get("watch").is_some_and(|watch| watch == "true" || watch == "1");
        let verb = match (request.method(), name.is_empty()) {
            (&Method::GET, true) if watch => Verb::Watch,
            (&Method::GET, true) => Verb::List,
            (&Method::GET, false) => Verb::Get,
            (&Method::POST, true) => Verb::Create,
            (&Method::PATCH, false) => Verb::Patch,
            _ => Verb::Other,
        };
        Self { verb, kind, path, query, token, certificate, namespace, name }
    }

    /// A parameter, empty if it is not given.
    pub fn parameter(&self, name: &str) -> &str {
        self.query.get(name).map(String::as_str).unwrap_or_default()
    }

    /// Whether it asks for the objects as part of a watch.
    pub fn is_streaming_list(&self) -> bool {
        self.verb == Verb::Watch && self.parameter("sendInitialEvents") == "true"
    }

    /// Whether it begins to ask for all objects of a kind, in one way or the other.
    pub fn starts_list(&self) -> bool {
        self.is_streaming_list() || self.verb == Verb::List && self.parameter("continue").is_empty()
    }

    pub(super) fn key(&self) -> Option<Key> {
        let (namespace, name) = (self.namespace.clone(), self.name.clone());
        self.kind.map(|kind| Key { kind, namespace, name })
    }
}

/// What a path is about: the kind, the namespace and the name, the last two empty where it is about
/// all of them.
fn resource(path: &str) -> Option<(Option<Kind>, String, String)> {
    Kind::ALL.into_iter().find_map(|kind| {
        let below = path.strip_prefix(&kind.root())?.strip_prefix('/')?;
        let words: Vec<&str> = below.split('/').collect();
        let (namespace, name) = match words.as_slice() {
            [plural] if *plural == kind.plural() => ("", ""),
            [plural, name] if *plural == kind.plural() && !kind.is_namespaced() => ("", *name),
            ["namespaces", namespace, plural] if *plural == kind.plural() => (*namespace, ""),
            ["namespaces", namespace, plural, name] if *plural == kind.plural() => {
                (*namespace, *name)
            }
            _ => return None,
        };
        Some((Some(kind), namespace.to_owned(), name.to_owned()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(method: Method, uri: &str) -> Request {
        let request = hyper::Request::builder().method(method).uri(uri).body(()).unwrap();
        Request::new(&request, false)
    }

    #[test]
    fn paths_are_told_apart() {
        let list = request(Method::GET, "/api/v1/services?limit=5&labelSelector=%21a%2Fb");
        assert_eq!((list.verb, list.kind), (Verb::List, Some(Kind::Service)));
        assert_eq!((list.parameter("limit"), list.parameter("labelSelector")), ("5", "!a/b"));
        let watch = request(Method::GET, "/api/v1/nodes?watch=true&sendInitialEvents=true");
        assert!(watch.is_streaming_list() && watch.kind == Some(Kind::Node));
        let event = request(Method::POST, "/apis/events.k8s.io/v1/namespaces/default/events");
        assert_eq!((event.verb, event.kind), (Verb::Create, Some(Kind::Event)));
        assert_eq!(event.namespace, "default");
        let node = request(Method::GET, "/api/v1/nodes/n");
        assert_eq!((node.verb, node.name.as_str()), (Verb::Get, "n"));
        let pods = request(Method::GET, "/api/v1/pods");
        assert_eq!(pods.kind, None);
    }
}
