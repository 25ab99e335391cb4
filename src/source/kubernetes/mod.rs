//! The Kubernetes API server as a source of objects.
//!
//! Owns: the access to the server ([`Access`]), list and watch ([`watch`]), the reactions to
//! failures of the server, and the signal that everything has been listed once.
//!
//! Invariants:
//! - While the server is unreachable, its last state holds.
//! - A complete list deletes the objects that it lacks ([`Change::Listed`]). It is delivered
//!   as a whole or not at all; between lists, only events are delivered.
//! - An invalid object affects no other object.
//!
//! Must not know: planning, nf_tables.

mod access;
mod api_status;
mod backoff;
mod body;
mod client;
mod content_type;
mod decoder;
mod dial;
mod failure;
#[cfg(any(test, feature = "fuzz"))]
mod fuzz;
mod inspect;
mod kubeconfig;
mod messages;
mod page;
mod proxy;
mod resource;
mod server_name;
mod token;
mod watch;

#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use shunt_core::model::{Change, ChangeBatch};
use tokio::sync::mpsc;

use crate::source::objects::{Kind, Names};

pub use access::{Access, AccessError};
pub use api_status::{ApiStatus, Incident};
pub(crate) use client::REQUEST_TIMEOUT;
pub use client::{Connection, RequestObserver};
pub use content_type::ContentType;
use decoder::Decoder;
pub use dial::Dialer;
pub use failure::{RequestFailure, rule};
#[cfg(any(test, feature = "fuzz"))]
pub(crate) use fuzz::fuzz;
pub use inspect::{Inspection, inspect};
use resource::Resource;
use watch::Watch;

/// How long programming waits for the Node and the ServiceCIDRs after the lists of Services and
/// EndpointSlices: most clusters work without them, and a role may forbid them.
const WAIT_FOR_THE_REST: Duration = Duration::from_secs(10);

/// The capacity of the queue of batches. When it is full, the watches stop reading.
const QUEUE: usize = 64;

/// A batch, and the kind if the batch is the whole list of it.
type Listing = (Option<Kind>, ChangeBatch);

/// A source that lists and watches the objects that concern a node.
pub struct ApiSource {
    /// The connection to the server, for requests of other parts.
    pub connection: Arc<Connection>,
    /// The state of the API server, for use while the source runs.
    pub api_status: Arc<ApiStatus>,
    node_name: Arc<str>,
}

impl ApiSource {
    /// Prepares a source, without a request. Must be called within a tokio runtime. The source
    /// calls `note` for each incident, and `observer` for each request.
    ///
    /// # Errors
    /// If the credentials or the server's address cannot be read or used.
    pub fn new(
        access: Access,
        node_name: &str,
        note: impl Fn(Incident) + Send + Sync + 'static,
        observer: RequestObserver,
    ) -> Result<ApiSource, AccessError> {
        tracing::info!(server = access.server()?, "reading objects from the API server");
        let connection = Connection::open(access, observer)?;
        Ok(ApiSource::with(connection, node_name, note))
    }

    fn with(
        connection: Connection,
        node_name: &str,
        note: impl Fn(Incident) + Send + Sync + 'static,
    ) -> ApiSource {
        ApiSource {
            connection: Arc::new(connection),
            api_status: Arc::new(ApiStatus::new(note)),
            node_name: node_name.into(),
        }
    }

    /// Follows the server until `deliver` returns `Break`; a dropped future stops at once. Delivers
    /// [`Change::Synced`] after the first lists of all kinds.
    pub async fn run(self, deliver: impl FnMut(ChangeBatch) -> ControlFlow<()>) {
        let (sender, batches) = mpsc::channel(QUEUE);
        let names = Rc::new(RefCell::new(Names::new()));
        let started = SystemTime::now();
        let watch = |kind| {
            let decoder = Decoder::new(kind, self.node_name.clone(), names.clone(), started);
            let resource = Resource::new(kind, &self.node_name);
            let (connection, api_status) = (self.connection.clone(), self.api_status.clone());
            Box::pin(Watch::new(resource, connection, api_status, decoder, sender.clone()).run())
        };
        let [services, slices, node, service_cidrs] = Kind::ALL.map(watch);
        // The watches never end.
        tokio::select! {
            () = hand_on(batches, deliver) => {}
            _ = async { tokio::join!(services, slices, node, service_cidrs) } => {}
        }
    }
}

/// Delivers batches, and [`Change::Synced`] after the first lists of all kinds.
async fn hand_on(
    mut batches: mpsc::Receiver<Listing>,
    mut deliver: impl FnMut(ChangeBatch) -> ControlFlow<()>,
) {
    let mut missing = BTreeSet::from(Kind::ALL);
    let mut synced = false;
    let rest = tokio::time::sleep(Duration::MAX);
    tokio::pin!(rest);
    loop {
        let mut batch = tokio::select! {
            received = batches.recv() => {
                let Some((listed, batch)) = received else { return };
                if listed.is_some_and(|kind| missing.remove(&kind) && kind.is_namespaced()) {
                    rest.as_mut().reset(tokio::time::Instant::now() + WAIT_FOR_THE_REST);
                }
                batch
            }
            () = &mut rest, if !synced && !missing.iter().any(|kind| kind.is_namespaced()) => {
                let names: Vec<&str> = missing.iter().map(|kind| kind.as_str()).collect();
                tracing::warn!(
                    "programming without the lists of: {}; the agent applies them as soon as the \
                     API server sends them",
                    names.join(", ")
                );
                missing.clear();
                ChangeBatch::new(Vec::new(), Instant::now())
            }
        };
        if !synced && missing.is_empty() {
            synced = true;
            batch.changes.push(Change::Synced);
        }
        if deliver(batch).is_break() {
            return;
        }
    }
}
