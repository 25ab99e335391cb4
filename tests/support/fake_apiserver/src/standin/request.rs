//! Requests: what they ask for, and the record of them.

use std::collections::BTreeMap;

use hyper::Method;
use hyper::header::{ACCEPT, AUTHORIZATION};

use crate::object::Kind;

/// What a request wants to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// All objects of a kind.
    List,
    /// Changes of the objects of a kind.
    Watch,
    /// One object.
    Get,
    /// Make an object.
    Create,
    /// Change parts of an object.
    Patch,
    /// Replace an object.
    Update,
    /// Delete an object.
    Delete,
    /// Delete all objects of a kind.
    DeleteCollection,
    /// None of these.
    Other,
}

impl Verb {
    /// The name as in a role.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::List => "list",
            Self::Watch => "watch",
            Self::Get => "get",
            Self::Create => "create",
            Self::Patch => "patch",
            Self::Update => "update",
            Self::Delete => "delete",
            Self::DeleteCollection => "deletecollection",
            Self::Other => "",
        }
    }
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
    /// The content types that the client accepts.
    pub accept: String,
    /// The bearer token.
    pub token: Option<String>,
    /// Whether the connection had a client certificate of our authority.
    pub certificate: bool,
    /// What the path is about; none if it is about no resource.
    pub(super) target: Option<Target>,
}

/// A resource, or one object of it, as the API server finds it in a path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) group: String,
    version: String,
    /// With the subresource, as in a role: `nodes/status`.
    pub(super) resource: String,
    /// Empty if the path names none.
    pub(super) namespace: String,
    /// Empty if the path is about all objects.
    pub(super) name: String,
}

impl Target {
    fn of(path: &str) -> Option<Self> {
        let mut words = path.trim_matches('/').split('/');
        let group = match words.next()? {
            "api" => "",
            "apis" => words.next()?,
            _ => return None,
        };
        let version = words.next()?;
        let words: Vec<&str> = words.collect();
        let (namespace, words) = match words.as_slice() {
            // The object that is the namespace, which the server takes to be in itself.
            ["namespaces", namespace] => (*namespace, words.as_slice()),
            ["namespaces", namespace, rest @ ..] => (*namespace, rest),
            words => ("", words),
        };
        let (resource, name) = match words {
            [] => return None,
            [resource] => ((*resource).to_owned(), ""),
            [resource, name] => ((*resource).to_owned(), *name),
            [resource, name, subresource, ..] => (format!("{resource}/{subresource}"), *name),
        };
        let [group, version, namespace, name] =
            [group, version, namespace, name].map(str::to_owned);
        Some(Self { group, version, resource, namespace, name })
    }

    /// The kind, if it is one that the stand-in has, and in a namespace if it has to be.
    fn kind(&self) -> Option<Kind> {
        let Self { group, version, resource, namespace, .. } = self;
        let known = Kind::ALL.into_iter().find(|kind| {
            let api_version = kind.api_version();
            let its_version = api_version.rsplit('/').next().unwrap_or_default();
            kind.group() == group && its_version == version && kind.plural() == resource
        })?;
        (known.is_namespaced() || namespace.is_empty()).then_some(known)
    }

    /// The resource and its group as they appear in messages.
    pub(super) fn qualified(&self) -> String {
        let resource = self.resource.split('/').next().unwrap_or_default();
        if self.group.is_empty() {
            resource.to_owned()
        } else {
            format!("{resource}.{}", self.group)
        }
    }
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
        let accept = request.headers().get(ACCEPT).and_then(|value| value.to_str().ok());
        let accept = accept.unwrap_or_default().to_owned();
        let target = Target::of(&path);
        let kind = target.as_ref().and_then(Target::kind);
        let of_one = target.as_ref().is_some_and(|target| !target.name.is_empty());
        let verb = match (request.method(), of_one) {
            (&Method::GET, false) if flag(&query, "watch") == Some(true) => Verb::Watch,
            (&Method::GET, false) => Verb::List,
            (&Method::GET, true) => Verb::Get,
            (&Method::POST, _) => Verb::Create,
            (&Method::PATCH, _) => Verb::Patch,
            (&Method::PUT, _) => Verb::Update,
            (&Method::DELETE, true) => Verb::Delete,
            (&Method::DELETE, false) => Verb::DeleteCollection,
            _ => Verb::Other,
        };
        Self { verb, kind, path, query, accept, token, certificate, target }
    }

    /// A parameter that is true unless it is `0` or `false`, if it is given.
    pub(super) fn flag(&self, name: &str) -> Option<bool> {
        flag(&self.query, name)
    }

    /// A parameter, empty if it is not given.
    pub fn parameter(&self, name: &str) -> &str {
        self.query.get(name).map(String::as_str).unwrap_or_default()
    }

    /// Whether it begins to ask for all objects of a kind.
    pub fn starts_list(&self) -> bool {
        self.verb == Verb::List && self.parameter("continue").is_empty()
    }
}

fn flag(query: &BTreeMap<String, String>, name: &str) -> Option<bool> {
    query.get(name).map(|value| !["0", "false"].contains(&value.to_ascii_lowercase().as_str()))
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
        assert!(
            list.starts_list() && !request(Method::GET, "/api/v1/nodes?continue=x").starts_list()
        );
        let watch = request(Method::GET, "/api/v1/nodes?watch=true");
        assert_eq!((watch.verb, watch.kind), (Verb::Watch, Some(Kind::Node)));
        let event = request(Method::POST, "/apis/events.k8s.io/v1/namespaces/default/events");
        assert_eq!((event.verb, event.kind), (Verb::Create, Some(Kind::Event)));
        assert_eq!(event.target.unwrap().namespace, "default");
        let node = request(Method::GET, "/api/v1/nodes/n");
        assert_eq!((node.verb, node.kind), (Verb::Get, Some(Kind::Node)));
        assert_eq!(node.target.map(|target| target.name).as_deref(), Some("n"));
        let pods = request(Method::GET, "/api/v1/pods");
        assert_eq!(pods.kind, None);
        assert_eq!(pods.target.map(|target| target.resource).as_deref(), Some("pods"));
        assert_eq!(request(Method::GET, "/api/v1/namespaces/a/nodes").kind, None);
        assert_eq!(request(Method::GET, "/apis/networking.k8s.io/v0/servicecidrs").kind, None);
        let status = request(Method::PUT, "/api/v1/nodes/n/status").target.unwrap();
        assert_eq!(
            (status.resource.as_str(), status.qualified().as_str()),
            ("nodes/status", "nodes")
        );
        assert_eq!(request(Method::GET, "/version").target, None);
    }
}
