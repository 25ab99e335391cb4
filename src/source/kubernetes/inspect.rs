//! A single look at the API server, for `shunt check`: may the agent list and watch each kind of
//! objects, and what do the few objects say that concern the node itself?

use std::fmt::Debug;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::{v1, v1beta1};
use kube::api::{Api, ListParams, WatchParams};
use kube::{Client, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use shunt_core::model::Change;
use tokio::time::timeout;

use super::client::{Connection, REQUEST_TIMEOUT};
use super::failure::{Failure, rule};
use super::{Access, AccessError};
use crate::source::objects::{Encoded, Kind, Names, convert};

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
        let Err(failure) = inspection.look(&client, kind, node_name).await else { continue };
        let refused = Refused::new(&failure, kind);
        let is_lost = matches!(refused, Refused::Unreachable(_) | Refused::Credentials(_));
        inspection.refused.push((kind, refused));
        if is_lost {
            // The other requests would fail alike, after the same time.
            break;
        }
    }
    Ok(inspection)
}

impl Inspection {
    async fn look(&mut self, client: &Client, kind: Kind, node_name: &str) -> Result<(), Failure> {
        let all = ListParams::default;
        let named = |name: &str| all().fields(&format!("metadata.name={name}"));
        match kind {
            Kind::Service => {
                let mut services = ask::<Service>(client, named("kubernetes")).await?;
                services.retain(|it| it.metadata.namespace.as_deref() == Some("default"));
                let specs = services.into_iter().filter_map(|service| service.spec);
                self.kubernetes_ips = specs.flat_map(|it| it.cluster_ips).flatten().collect();
            }
            Kind::EndpointSlice => {
                ask::<EndpointSlice>(client, all().limit(1)).await?;
            }
            Kind::Node => self.add(kind, &ask::<Node>(client, named(node_name)).await?),
            Kind::ServiceCidr => match ask::<v1::ServiceCIDR>(client, all()).await {
                Err(Failure::Absent) => match ask::<v1beta1::ServiceCIDR>(client, all()).await {
                    // Servers before Kubernetes 1.31 have none.
                    Err(Failure::Absent) => {}
                    found => self.add(kind, &found?),
                },
                found => self.add(kind, &found?),
            },
        }
        Ok(())
    }

    /// Adds objects by way of their JSON, from which the source reads them, too.
    fn add(&mut self, kind: Kind, objects: &[impl Serialize]) {
        let json = objects.iter().filter_map(|object| serde_json::to_string(object).ok());
        let converted =
            json.filter_map(|it| convert(kind, &Encoded::Json(&it), &mut Names::new()).ok());
        self.changes.extend(converted.filter_map(|converted| converted.change));
    }
}

/// Requests a list and a watch, and returns the list.
async fn ask<K>(client: &Client, list: ListParams) -> Result<Vec<K>, Failure>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    let api = Api::<K>::all(client.clone());
    let found = answer(api.list(&list)).await?;
    // The role may permit lists only. An answer means yes, whatever the watch would send.
    let watch = WatchParams {
        field_selector: list.field_selector,
        timeout: Some(1),
        ..WatchParams::default()
    };
    let version = found.metadata.resource_version.unwrap_or_default();
    answer(api.watch(&watch, &version)).await.map(drop)?;
    Ok(found.items)
}

async fn answer<T>(request: impl Future<Output = kube::Result<T>>) -> Result<T, Failure> {
    timeout(REQUEST_TIMEOUT, request).await.map_or_else(
        |_| Err(Failure::Unreachable(format!("no answer within {} s", REQUEST_TIMEOUT.as_secs()))),
        |answer| Ok(answer?),
    )
}

impl Refused {
    fn new(failure: &Failure, kind: Kind) -> Refused {
        match failure {
            Failure::Unreachable(reason) => Refused::Unreachable(reason.clone()),
            Failure::Refused { code: 401, message, .. } => Refused::Credentials(message.clone()),
            Failure::Refused { code: 403, message, .. } => {
                Refused::Forbidden { message: message.clone(), rule: rule(kind) }
            }
            other => Refused::Other(other.told(kind)),
        }
    }
}
