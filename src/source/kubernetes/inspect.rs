//! A single look at the API server, for `shunt check`: may the agent list and watch each kind of
//! objects, and what do the few objects say that concern the node itself?

use std::sync::Arc;

use hyper::header::HeaderValue;
use kube::Client;
use shunt_core::model::Change;

use super::client::Connection;
use super::failure::RequestFailure;
use super::resource::{RelistFrom, Resource, send};
use super::{Access, AccessError, ContentType, page};
use crate::source::objects::{Encoded, Kind, Names, convert};

/// The answers of the API server.
#[derive(Debug, Default)]
pub struct Inspection {
    /// The kinds of objects that the agent cannot list and watch.
    pub refused: Vec<(Kind, RequestFailure)>,
    /// The ServiceCIDRs, and the Node if it exists. (The Service is not among them.)
    pub changes: Vec<Change>,
    /// The ClusterIPs of the Service `default/kubernetes`, by which pods reach the API server.
    pub kubernetes_ips: Vec<String>,
}

/// Requests a small list and a watch of each kind. Must be called within a tokio runtime.
///
/// # Errors
/// If the credentials or the server's address cannot be read or used.
pub async fn inspect(access: Access, node_name: &str) -> Result<Inspection, AccessError> {
    let (_, client) = Connection::open(access, Arc::new(|_, _, _, _| {}))?.client();
    let mut inspection = Inspection::default();
    for kind in Kind::ALL {
        let Err(failure) = inspection.look(&client, kind, node_name).await else { continue };
        let is_lost = matches!(
            failure,
            RequestFailure::Unreachable(_) | RequestFailure::Refused { code: 401, .. }
        );
        inspection.refused.push((kind, failure));
        if is_lost {
            // The other requests would fail alike, after the same time.
            break;
        }
    }
    Ok(inspection)
}

impl Inspection {
    async fn look(
        &mut self,
        client: &Client,
        kind: Kind,
        node_name: &str,
    ) -> Result<(), RequestFailure> {
        let mut resource = Resource::new(kind, node_name);
        if kind == Kind::Service {
            resource = resource.named("kubernetes");
        }
        let accept = HeaderValue::from_static(ContentType::Json.as_str());
        loop {
            let list = resource.list(&RelistFrom::Store, true, None);
            let answer = match send(client, list, accept.clone()).await {
                Err(RequestFailure::Absent) if kind == Kind::ServiceCidr => {
                    if resource.next_version() {
                        continue;
                    }
                    // Servers before Kubernetes 1.31 have none.
                    return Ok(());
                }
                answer => answer?,
            };
            let mut names = Names::new();
            let take = |object: &Encoded<'_>| {
                let converted = convert(kind, object, &mut names).ok();
                match converted.and_then(|converted| converted.change) {
                    Some(Change::Service(service)) if &*service.name.namespace == "default" => {
                        let ips = service.cluster_ips.iter().map(ToString::to_string);
                        self.kubernetes_ips.extend(ips);
                    }
                    Some(change @ (Change::Node(_) | Change::ServiceCidr(..))) => {
                        self.changes.push(change);
                    }
                    _ => {}
                }
            };
            let version = page::read(answer, take).await?.version;
            // The role may permit lists only. An answer means yes, whatever the watch would send.
            return send(client, resource.watch(&version), accept).await.map(drop);
        }
    }
}
