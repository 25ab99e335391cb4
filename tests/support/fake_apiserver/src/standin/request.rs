//! Requests: what they ask for, and the record of them.

use std::collections::BTreeMap;

use hyper::Method;
use hyper::header::{ACCEPT, AUTHORIZATION};

use crate::object::{Key, Kind};

/// What a request wants to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// All objects of a kind.
    List,
    /// Changes of the objects of a kind.
    Watch,
    /// Make an object.
    Create,
    /// None of these.
    Other,
}

/// A request as the stand-in saw it.
#[derive(Clone, Debug)]
pub struct Request {
    /// What it wanted to be done.
    pub verb: Verb,
    /// To objects of which kind; none if the path is neither that of all objects of a kind nor that of
    /// those in `default`, where all are that tests make.
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
        let kind = Kind::ALL
            .into_iter()
            .find(|&kind| [kind.path(), Key::new(kind, "").collection()].contains(&path));
        let verb = match *request.method() {
            Method::GET if query.get("watch").is_some_and(|watch| watch == "true") => Verb::Watch,
            Method::GET => Verb::List,
            Method::POST => Verb::Create,
            _ => Verb::Other,
        };
        Self { verb, kind, path, query, accept, token, certificate }
    }

    /// A parameter, empty if it is not given.
    pub fn parameter(&self, name: &str) -> &str {
        self.query.get(name).map(String::as_str).unwrap_or_default()
    }

    /// A parameter that is a number, if it is given.
    pub(super) fn number(&self, name: &str) -> Option<u64> {
        self.parameter(name).parse().ok()
    }
}
