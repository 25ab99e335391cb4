//! Lists and watches one kind of objects, without end.
//!
//! `kube::runtime::watcher` does not fit. One invalid object makes it reject a whole list. It
//! neither recovers from a watch that is rejected with 410, nor returns `Retry-After`.

use std::cmp::Ordering;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kube::Client;
use shunt_core::model::{Change, ChangeBatch, ObjectName};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

use super::Listing;
use super::api_status::ApiStatus;
use super::backoff::{MAX_PAUSE, pause};
use super::client::Connection;
use super::content_type::Negotiation;
use super::decoder::Decoder;
use super::failure::RequestFailure;
use super::messages::{EncodedEvent, Events};
use super::page::{self, ListMetadata};
use super::resource::{RelistFrom, Resource, send};
use crate::source::objects::Kind;
use shunt_core::jitter;

/// A watch that lasts for this long counts as working.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a watch may be silent before a list, without a random part of up to a third. A live server
/// sends a bookmark each minute.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(90);
/// After so many watches in a row that bring nothing and fail, the agent relists.
const STUCK: u32 = 8;
/// The number of watches in a row that end at once, or of lists that expire, before a warning.
const SHORT_LIVED: u32 = 4;
/// The maximum pause before the next request for ServiceCIDRs, of a server that has none or does not
/// permit it.
const WITHOUT_CIDRS_PAUSE: Duration = Duration::from_secs(600);
/// The upper bound for a server's `Retry-After`, without the random part.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(120);

/// A watch of one kind of objects.
pub(super) struct Watch {
    resource: Resource,
    connection: Arc<Connection>,
    api_status: Arc<ApiStatus>,
    negotiation: Negotiation,
    decoder: Decoder,
    batches: mpsc::Sender<Listing>,
    /// The number of failures since the last success.
    failures: u32,
    /// The number of versions that expired since the last watch that worked, which a successful list does
    /// not prove.
    expired: u32,
    /// The resource version to resume from; none if a list is required first.
    version: Option<String>,
    /// The minimum version of the next list.
    relist_from: RelistFrom,
    /// The role forbids ServiceCIDRs, and a warning is in the log.
    forbidden: bool,
    /// A list has been delivered.
    listed: bool,
    /// A watch has been open before.
    watched: bool,
    /// The number of watches since the last one that was open for long or got beyond `version`.
    fruitless: u32,
}

/// The objects of an incomplete list.
#[derive(Default)]
struct IncompleteList {
    names: HashSet<ObjectName>,
    /// Those that are not delivered yet.
    changes: Vec<Change>,
}

impl Watch {
    pub(super) fn new(
        resource: Resource,
        connection: Arc<Connection>,
        api_status: Arc<ApiStatus>,
        decoder: Decoder,
        batches: mpsc::Sender<Listing>,
    ) -> Watch {
        Watch {
            resource,
            negotiation: Negotiation::new(connection.content_type()),
            connection,
            api_status,
            decoder,
            batches,
            failures: 0,
            expired: 0,
            version: None,
            relist_from: RelistFrom::Cache,
            forbidden: false,
            listed: false,
            watched: false,
            fruitless: 0,
        }
    }

    /// Lists and watches without end.
    pub(super) async fn run(mut self) {
        loop {
            let (number, client) = self.connection.client();
            if let Err(failure) = self.follow(&client).await {
                if failure.is_about_access() {
                    self.connection.renew(number);
                }
                self.recover(failure).await;
            }
        }
    }

    /// Reacts to a failure and pauses before the next attempt.
    async fn recover(&mut self, failure: RequestFailure) {
        let kind = self.resource.kind;
        match &failure {
            RequestFailure::Encoding(_) | RequestFailure::Refused { code: 406 | 415, .. }
                if self.negotiation.fall_back() =>
            {
                self.api_status.lost(kind, &failure, true);
                return;
            }
            RequestFailure::Ended if self.failures < SHORT_LIVED => {}
            // A server that was restored to an older state would wait for the known version for ever. It
            // rejects a list that is to be as new.
            RequestFailure::Silent => self.relist(),
            RequestFailure::Expired | RequestFailure::TooNew => {
                let listing = self.version.is_none();
                if !listing {
                    tracing::info!("{}, relisting", failure.told(kind));
                }
                if self.expired >= SHORT_LIVED {
                    self.api_status.lost(kind, &failure, true);
                }
                let at_once = listing && self.relist_from != RelistFrom::Store;
                match self.version {
                    Some(_) if self.expired == 0 => self.relist(),
                    // The current version of the store is never too old, nor too new.
                    _ => self.list_anew(RelistFrom::Store),
                }
                if !at_once {
                    // The server works again, however long it was unreachable.
                    sleep(pause(&mut self.expired, MAX_PAUSE)).await;
                }
                return;
            }
            RequestFailure::Absent | RequestFailure::Refused { code: 403, .. }
                if kind == Kind::ServiceCidr =>
            {
                return self.do_without(&failure).await;
            }
            RequestFailure::Refused { code: 400, message, .. } if self.resource.widen(message) => {
                return;
            }
            // What is refused says nothing about the known version.
            _ => {
                let lasting =
                    !matches!(failure, RequestFailure::Broken(_)) || self.failures >= SHORT_LIVED;
                self.api_status.lost(kind, &failure, lasting);
                // These may be about the version, though.
                if matches!(
                    failure,
                    RequestFailure::Absent | RequestFailure::Refused { code: 400 | 422, .. }
                ) {
                    self.fruitless += 1;
                }
            }
        }
        if self.fruitless >= STUCK {
            self.relist();
        }
        let pause = pause(&mut self.failures, MAX_PAUSE);
        if let RequestFailure::Refused { retry_after: Some(asked), .. } = failure {
            // The server asks all nodes for the same pause.
            let asked = asked.min(MAX_RETRY_AFTER).mul_f64(1.0 + jitter::fraction());
            sleep(pause.max(asked)).await;
            return;
        }
        tokio::select! {
            () = sleep(pause) => {}
            () = self.api_status.back() => {}
        }
    }

    /// Makes a list come next that is not older than the known version, if there is one.
    fn relist(&mut self) {
        if let Some(version) = self.version.take() {
            self.list_anew(RelistFrom::Since(version));
        }
    }

    /// Discards the known version, so that a list comes next.
    fn list_anew(&mut self, from: RelistFrom) {
        self.version = None;
        self.relist_from = from;
        self.fruitless = 0;
        self.resource.narrow();
    }

    /// Handles a server from before Kubernetes 1.31, without ServiceCIDRs; a role from before 1.33,
    /// without a rule for them; and a server that just starts. No Service needs them to work, so
    /// programming does not wait for them.
    async fn do_without(&mut self, failure: &RequestFailure) {
        let kind = self.resource.kind;
        // An earlier list stays in effect.
        let is_first = !self.listed;
        if *failure == RequestFailure::Absent {
            if self.resource.next_version() {
                return;
            }
            if is_first {
                self.deliver_list(IncompleteList::default()).await;
            }
        } else {
            if !std::mem::replace(&mut self.forbidden, true) {
                tracing::warn!(
                    "{}; until then, connections to ClusterIPs without a Service are refused only in \
                     ServiceCIDRs that an agent of this node has read before",
                    failure.told(kind)
                );
            }
            if is_first {
                // So do those that the tables remember.
                self.listed = true;
                self.deliver(Some(kind), ChangeBatch::new(Vec::new(), Instant::now())).await;
            }
        }
        self.api_status.well(kind);
        sleep(pause(&mut self.failures, WITHOUT_CIDRS_PAUSE)).await;
    }

    /// Handles one connection, from the request to the end of its stream. `Ok` continues without a
    /// pause.
    async fn follow(&mut self, client: &Client) -> Result<(), RequestFailure> {
        let Some(version) = &self.version else { return self.list(client).await };
        let request = self.resource.watch(version);
        let events = Events::new(send(client, request, self.negotiation.accept()).await?);
        self.fruitless += 1;
        if std::mem::replace(&mut self.watched, true) {
            self.api_status.restarted(self.resource.kind);
        }
        self.follow_events(events).await
    }

    /// Requests a list page by page, or as a whole if the pages expire in between.
    async fn list(&mut self, client: &Client) -> Result<(), RequestFailure> {
        let mut limit = true;
        let mut list = IncompleteList::default();
        let mut next = None;
        let version = loop {
            let is_first = next.is_none();
            let request = self.resource.list(&self.relist_from, limit, next.as_deref());
            let answer = match send(client, request, self.negotiation.accept()).await {
                Err(RequestFailure::Expired) if !is_first && limit => {
                    (list, limit, next) = (IncompleteList::default(), false, None);
                    continue;
                }
                answer => answer?,
            };
            let ListMetadata { version, next: token } =
                page::read(answer, |item| match self.decoder.take(item) {
                    Ok(Some(converted)) => {
                        list.names.insert(converted.key.name.clone());
                        list.changes.push(converted.into_change());
                    }
                    Ok(None) => {}
                    Err(reason) => {
                        tracing::warn!("ignoring an object from the API server: {reason}");
                    }
                })
                .await?;
            if token.is_empty() {
                break version;
            }
            next = Some(token);
        };
        self.deliver_list(list).await;
        self.version = Some(version);
        self.settled();
        Ok(())
    }

    /// Delivers the events of a watch, to its end.
    async fn follow_events(&mut self, mut events: Events) -> Result<(), RequestFailure> {
        let long_silence = SILENCE_TIMEOUT.mul_f64(1.0 + jitter::fraction() / 3.0);
        let mut silence_timeout = SETTLE_TIMEOUT;
        loop {
            match timeout(silence_timeout, events.next()).await {
                Ok(event) => self.take(event?.ok_or(RequestFailure::Ended)?).await?,
                Err(_) if silence_timeout == SETTLE_TIMEOUT => {}
                Err(_) => return Err(RequestFailure::Silent),
            }
            if silence_timeout == SETTLE_TIMEOUT {
                self.settled();
                self.expired = 0;
                silence_timeout = long_silence;
            }
        }
    }

    /// Delivers an event.
    async fn take(&mut self, event: EncodedEvent<'_>) -> Result<(), RequestFailure> {
        let received = Instant::now();
        let (decoded, object) = match event {
            EncodedEvent::Bookmark(version) => {
                self.is_news(&version)?;
                self.advance(version);
                return Ok(());
            }
            EncodedEvent::Current(object) => (self.decoder.take(&object), object),
            EncodedEvent::Gone(object) => (self.decoder.take_gone(&object), object),
        };
        if let Some(converted) = decoded.map_err(|reason| object.invalid(reason))?
            && self.is_news(&converted.version)?
        {
            let triggers = self.decoder.trigger(&converted).into_iter().collect();
            let version = converted.version.clone();
            let changes = vec![converted.into_change()];
            self.deliver(None, ChangeBatch { changes, received, triggers }).await;
            self.advance(version);
        }
        Ok(())
    }

    /// Returns false for a version that has come before. Versions are growing numbers, as
    /// documented since Kubernetes 1.35. If they decrease, the server was restored to an older
    /// state, or a proxy reorders events; both require a list.
    fn is_news(&mut self, version: &str) -> Result<bool, RequestFailure> {
        let number = |version: &str| version.parse::<u64>().ok();
        let known = self.version.as_deref().and_then(number);
        match number(version).zip(known).map(|(new, known)| new.cmp(&known)) {
            Some(Ordering::Less) => {
                let known = self.version.take().unwrap_or_default();
                self.list_anew(RelistFrom::Store);
                let what = format!("an event of version {version} after one of version {known}");
                Err(RequestFailure::Garbage(what))
            }
            Some(Ordering::Equal) => Ok(false),
            Some(Ordering::Greater) | None => Ok(true),
        }
    }

    fn advance(&mut self, version: String) {
        self.version = Some(version);
        self.fruitless = 0;
    }

    /// Delivers a complete list.
    async fn deliver_list(&mut self, list: IncompleteList) {
        self.listed = true;
        let IncompleteList { names, mut changes } = list;
        changes.push(self.decoder.listed(names));
        self.deliver(Some(self.resource.kind), ChangeBatch::new(changes, Instant::now())).await;
    }

    async fn deliver(&self, listed: Option<Kind>, batch: ChangeBatch) {
        // The future is dropped with the receiver.
        let _ = self.batches.send((listed, batch)).await;
    }

    /// Notes that the connection works.
    fn settled(&mut self) {
        if std::mem::take(&mut self.forbidden) {
            tracing::info!(kind = %self.resource.kind, "the API server permits list and watch");
        }
        self.failures = 0;
        self.fruitless = 0;
        self.api_status.well(self.resource.kind);
    }
}
