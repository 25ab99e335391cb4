//! The requests for the lists and watches of each kind.

use std::time::Duration;

use form_urlencoded::Serializer;
use http_body_util::{BodyExt, Limited};
use hyper::header::{ACCEPT, HeaderValue, RETRY_AFTER};
use hyper::{Request, Response, StatusCode};
use kube::Client;
use kube::client::Body;
use shunt_core::jitter;
use tokio::time::timeout;

use super::client::REQUEST_TIMEOUT;
use super::content_type::ContentType;
use super::failure::{RequestFailure, innermost};
use super::messages::status;
use crate::source::objects::Kind;

/// The size limit of the body of a rejection.
const MAX_REFUSAL_BYTES: usize = 64 << 10;

/// Objects per page of a list: few enough to bound the memory of a page of large EndpointSlices.
const PAGE_LIMIT: &str = "250";
/// The server ends a watch after this many seconds and up to `SPREAD` more. The random part keeps
/// the watches of all nodes from ending at once ever after a restart of the server.
const WATCH_SECONDS: u32 = 240;
const SPREAD: u32 = 50;
/// The field by which headless Services are left out. Servers know it since Kubernetes 1.31.
const CLUSTER_IP: &str = "spec.clusterIP";

/// The objects of a kind that concern a node.
#[derive(Debug, Clone)]
pub(super) struct Resource {
    pub(super) kind: Kind,
    /// The place in [`Kind::versions`].
    version: usize,
    labels: Option<&'static str>,
    fields: Option<String>,
    /// The server does not know the field of `fields`.
    wide: bool,
}

/// The minimum version of a list (`resourceVersion`), like in client-go's reflector.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum RelistFrom {
    /// Any version in the server's cache: the agent knows no version yet.
    Cache,
    /// Not older than the known version.
    Since(String),
    /// The current version of the store: the server does not have the known version.
    Store,
}

impl Resource {
    pub(super) fn new(kind: Kind, node_name: &str) -> Resource {
        let (labels, fields) = match kind {
            Kind::Service => (
                Some("!service.kubernetes.io/service-proxy-name"),
                Some(format!("{CLUSTER_IP}!=None")),
            ),
            Kind::EndpointSlice => (Some("!service.kubernetes.io/headless"), None),
            Kind::Node => (None, Some(format!("metadata.name={node_name}"))),
            Kind::ServiceCidr => (None, None),
        };
        Resource { kind, version: 0, labels, fields, wide: false }
    }

    /// Returns the objects of this name only.
    pub(super) fn named(self, name: &str) -> Resource {
        Resource { labels: None, fields: Some(format!("metadata.name={name}")), ..self }
    }

    /// Switches to the next version of the API if the server lacks this one. Returns false after
    /// the last version, and starts over with the first.
    pub(super) fn next_version(&mut self) -> bool {
        self.version = (self.version + 1) % self.kind.versions().len();
        self.version != 0
    }

    /// Drops the field selector, up to the next [`Resource::narrow`], if a server rejects it with
    /// this message. The conversion ignores headless Services anyway.
    pub(super) fn widen(&mut self, refusal: &str) -> bool {
        let unknown = self.kind == Kind::Service && refusal.contains(CLUSTER_IP);
        unknown && !std::mem::replace(&mut self.wide, true)
    }

    /// Restores the field selector, for another server may know it.
    pub(super) fn narrow(&mut self) {
        self.wide = false;
    }

    /// Returns the target of a request for one page of the list, or for the whole list without a
    /// `limit`. A server takes a known version together with a limit as this very version, not as the
    /// minimum.
    pub(super) fn list(&self, from: &RelistFrom, limit: bool, page: Option<&str>) -> String {
        let (version, limit) = match from {
            RelistFrom::Cache => (Some("0"), limit),
            RelistFrom::Since(version) => (Some(&**version), false),
            RelistFrom::Store => (None, limit),
        };
        let start = match page {
            Some(page) => Some(("continue", page)),
            None => version.map(|version| ("resourceVersion", version)),
        };
        self.target(start.into_iter().chain(limit.then_some(("limit", PAGE_LIMIT))))
    }

    /// Returns the target of a request for the changes since a version.
    pub(super) fn watch(&self, since: &str) -> String {
        let seconds = WATCH_SECONDS + (f64::from(SPREAD) * jitter::fraction()) as u32;
        self.target([
            ("watch", "true"),
            ("timeoutSeconds", &seconds.to_string()),
            ("allowWatchBookmarks", "true"),
            ("resourceVersion", since),
        ])
    }

    fn target<'a>(&self, parameters: impl IntoIterator<Item = (&'a str, &'a str)>) -> String {
        let version = self.kind.versions()[self.version];
        let root = if version.contains('/') { "apis" } else { "api" };
        let fields = self.fields.as_deref().filter(|_| !self.wide);
        Serializer::new(format!("/{root}/{version}/{}?", self.kind.resource()))
            .extend_pairs(fields.map(|fields| ("fieldSelector", fields)))
            .extend_pairs(self.labels.map(|labels| ("labelSelector", labels)))
            .extend_pairs(parameters)
            .finish()
    }
}

/// Sends a request and waits for the answer to begin. An answer other than success is a failure.
pub(super) async fn send(
    client: &Client,
    target: String,
    accept: HeaderValue,
) -> Result<Response<Body>, RequestFailure> {
    let request = Request::get(target).header(ACCEPT, accept).body(Body::empty());
    let request = request.map_err(|error| RequestFailure::Unreachable(error.to_string()))?;
    let answer = match timeout(REQUEST_TIMEOUT, client.send(request)).await {
        Err(_) => {
            let reason = format!("no answer within {} s", REQUEST_TIMEOUT.as_secs());
            return Err(RequestFailure::Unreachable(reason));
        }
        Ok(Err(error)) => return Err(RequestFailure::Unreachable(innermost(&error))),
        Ok(Ok(answer)) => answer,
    };
    let code = answer.status();
    if code == StatusCode::OK {
        return Ok(answer);
    }
    let content_type = ContentType::of(answer.headers());
    let retry_after = answer.headers().get(RETRY_AFTER);
    let retry_after = retry_after.and_then(|value| value.to_str().ok()?.trim().parse().ok());
    let body =
        timeout(REQUEST_TIMEOUT, Limited::new(answer.into_body(), MAX_REFUSAL_BYTES).collect());
    let body = match body.await {
        Ok(Ok(body)) => body.to_bytes(),
        _ => Default::default(),
    };
    let mut status = status(content_type, &body);
    status.code = i32::from(code.as_u16());
    Err(RequestFailure::from_status(&status, retry_after.map(Duration::from_secs)))
}
