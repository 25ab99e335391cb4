//! A single look at the API server, for `shunt check`: may the agent list and watch each kind of
//! objects, and what do the few objects say that concern the node itself?

use std::sync::Arc;

use http_body_util::{BodyExt, Limited};
use hyper::StatusCode;
use hyper::body::Bytes;
use hyper::header::ACCEPT;
use kube::Client;
use kube::client::Body;
use shunt_core::model::{Change, ObjectName};
use tokio::time::timeout;

use super::client::{Connection, REQUEST_TIMEOUT};
use super::content_type::ContentType;
use super::failure::{Failure, rule};
use super::messages::{Object, status};
use super::page::Page;
use super::{Access, AccessError};
use crate::source::objects::{Kind, Names};

/// The size limit of an answer: a list of one object.
const MAX_ANSWER_BYTES: usize = 16 << 20;

/// The answers of the API server.
#[derive(Debug, Default)]
pub struct Inspection {
    /// The kinds of objects that the agent cannot list and watch.
    pub refused: Vec<(Kind, Refused)>,
    /// The ServiceCIDRs, and the Node if it exists. (The Service is not among them.)
    pub changes: Vec<Change>,
    /// The ClusterIPs of the Service `default/kubernetes`, by which pods reach the API server.
    pub kubernetes_ips: Vec<String>,
}

/// The reason why a request failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refused {
    /// No answer.
    Unreachable(String),
    /// The server rejects the credentials (401).
    Credentials(String),
    /// The role lacks a permission (403).
    Forbidden {
        /// The message of the server.
        message: String,
        /// The missing rule of the role.
        rule: String,
    },
    /// Any other failure.
    Other(String),
}

/// Requests a small list and a watch of each kind. Must be called within a tokio runtime.
///
/// # Errors
/// If the credentials or the server's address cannot be read or used.
pub async fn inspect(access: Access, node_name: &str) -> Result<Inspection, AccessError> {
    let (_, client) = Connection::open(access, Arc::new(|_| {}))?.client();
    let mut inspection = Inspection::default();
    for kind in Kind::ALL {
        let mut result = Err(Failure::Absent);
        for path in paths(kind) {
            result = inspection.look(&client, kind, &path, node_name).await;
            if result != Err(Failure::Absent) {
                break;
            }
        }
        match result {
            // Servers before Kubernetes 1.31 have no ServiceCIDRs.
            Ok(()) => {}
            Err(Failure::Absent) if kind == Kind::ServiceCidr => {}
            Err(failure) => {
                let refused = Refused::new(&failure, kind);
                let is_lost = matches!(refused, Refused::Unreachable(_) | Refused::Credentials(_));
                inspection.refused.push((kind, refused));
                if is_lost {
                    // The other requests would fail alike, after the same time.
                    return Ok(inspection);
                }
            }
        }
    }
    Ok(inspection)
}

/// Returns the paths of the API, the preferred version first.
fn paths(kind: Kind) -> Vec<String> {
    let versions: &[&str] = match kind {
        Kind::Service | Kind::Node => &["/api/v1"],
        Kind::EndpointSlice => &["/apis/discovery.k8s.io/v1"],
        Kind::ServiceCidr => &["/apis/networking.k8s.io/v1", "/apis/networking.k8s.io/v1beta1"],
    };
    versions.iter().map(|version| format!("{version}/{}", kind.resource())).collect()
}

/// Returns the query for the objects that this command uses.
fn query(kind: Kind, node_name: &str) -> String {
    match kind {
        Kind::Service => "fieldSelector=metadata.name%3Dkubernetes".to_owned(),
        Kind::EndpointSlice => "limit=1".to_owned(),
        Kind::Node => {
            // Other characters are in no name of a Node, and would be in the URL.
            let is_valid = |c: &char| c.is_ascii_alphanumeric() || ['-', '.'].contains(c);
            let name: String = node_name.chars().filter(is_valid).collect();
            format!("fieldSelector=metadata.name%3D{name}")
        }
        Kind::ServiceCidr => "limit=500".to_owned(),
    }
}

impl Inspection {
    async fn look(
        &mut self,
        client: &Client,
        kind: Kind,
        path: &str,
        node_name: &str,
    ) -> Result<(), Failure> {
        let query = query(kind, node_name);
        let answer = get(client, &format!("{path}?{query}")).await?;
        let mut page = Page::new(answer);
        while let Some(item) = page.next().await? {
            self.take(kind, &item, node_name);
        }
        // The role may permit lists only. An answer means yes, whatever the watch would send.
        let version = page.end()?.version;
        let watch = format!("watch=true&timeoutSeconds=1&resourceVersion={version}");
        let query = query.split('&').filter(|part| !part.starts_with("limit="));
        let query: Vec<&str> = query.chain([watch.as_str()]).collect();
        get(client, &format!("{path}?{}", query.join("&"))).await.map(drop)
    }

    fn take(&mut self, kind: Kind, object: &Object<'_>, node_name: &str) {
        let kubernetes = ObjectName::new("default", "kubernetes");
        let received = object.convert(kind, &mut Names::new());
        match received.and_then(|received| received.converted.change) {
            Some(Change::Service(service)) if service.name == kubernetes => {
                let ips = service.cluster_ips.iter().map(ToString::to_string);
                self.kubernetes_ips.extend(ips);
            }
            Some(Change::Node(node)) if &*node.name != node_name => {}
            Some(change @ (Change::Node(_) | Change::ServiceCidr(..))) => self.changes.push(change),
            _ => {}
        }
    }
}

async fn get(client: &Client, uri: &str) -> Result<hyper::Response<Body>, Failure> {
    // JSON is good enough for a few objects.
    let request = hyper::Request::get(uri).header(ACCEPT, "application/json");
    let request = request.body(Body::empty());
    let request = request.map_err(|error| Failure::Garbage(error.to_string()))?;
    let answer = match timeout(REQUEST_TIMEOUT, client.send(request)).await {
        Err(_) => {
            let reason = format!("no answer within {} s", REQUEST_TIMEOUT.as_secs());
            return Err(Failure::Unreachable(reason));
        }
        Ok(answer) => answer.map_err(|error| Failure::unreachable(&error))?,
    };
    if answer.status() == StatusCode::OK {
        return Ok(answer);
    }
    let code = answer.status().as_u16();
    let content_type = ContentType::of(answer.headers());
    let body = read(answer).await?;
    let mut status = status(content_type, &body);
    status.code = code;
    Err(Failure::from_status(&status, None))
}

async fn read(answer: hyper::Response<Body>) -> Result<Bytes, Failure> {
    let body = Limited::new(answer.into_body(), MAX_ANSWER_BYTES).collect();
    match timeout(REQUEST_TIMEOUT, body).await {
        Err(_) => {
            let reason = format!("no whole answer within {} s", REQUEST_TIMEOUT.as_secs());
            Err(Failure::Unreachable(reason))
        }
        Ok(Err(error)) => Err(Failure::broken(&*error)),
        Ok(Ok(body)) => Ok(body.to_bytes()),
    }
}

impl Refused {
    fn new(failure: &Failure, kind: Kind) -> Refused {
        match failure {
            Failure::Unreachable(reason) | Failure::Broken(reason) => {
                Refused::Unreachable(reason.clone())
            }
            Failure::Refused { code: 401, message, .. } => Refused::Credentials(message.clone()),
            Failure::Refused { code: 403, message, .. } => {
                Refused::Forbidden { message: message.clone(), rule: rule(kind) }
            }
            other => Refused::Other(other.told(kind)),
        }
    }
}
