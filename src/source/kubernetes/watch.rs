//! List and watch of one kind of objects, for ever.
//!
//! Not `kube::runtime::watcher`: it takes a list as a whole or not at all, so that one object that
//! is wrong would keep all others from us; it neither falls back from streamed lists to pages, nor
//! finds its way out of a watch that is refused with 410, nor hands out `Retry-After`.

use std::cmp::Ordering;
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use http_body_util::{BodyExt, Limited};
use hyper::header::RETRY_AFTER;
use hyper::{Response, StatusCode};
use kube::Client;
use kube::client::Body;
use kube::core::Status;
use serde_json::value::RawValue;
use shunt_core::model::{Change, ChangeBatch, ObjectName};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout, timeout_at};

use super::Listing;
use super::api_status::ApiStatus;
use super::backoff::Backoff;
use super::client::Connection;
use super::decoder::{Decoded, Decoder};
use super::failure::Failure;
use super::lines::Lines;
use super::messages::{Page, bookmark, event, garbage};
use super::resource::{RelistFrom, Request, Resource};
use crate::jitter;
use crate::source::objects::Kind;
use crate::spanned_yaml::excerpt;

/// How long an answer may take to begin: a busy server lets requests wait for up to a minute, and
/// one that is sent again waits anew. (Pings find a dead connection earlier.)
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a page of a list may take to be there.
const PAGE_TIMEOUT: Duration = Duration::from_secs(60);
/// How much a page may be.
const MAX_PAGE_BYTES: usize = 256 << 20;
/// How much of the reason for a refusal is read.
const MAX_REFUSAL_BYTES: usize = 64 << 10;
/// A streamed list that pauses for this long, or takes this long as a whole, may be one of a server
/// that does not know how to end it (before Kubernetes 1.27): then pages are asked for, this time.
const STREAM_IDLE_TIMEOUT: Duration = Duration::from_secs(10);
const STREAM_TIMEOUT: Duration = Duration::from_secs(120);
/// A watch that lasts for this long is one that works.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(1);
/// A server that is alive sends a bookmark each minute. One that sends none is asked again at this
/// interval, which costs little.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(90);
/// After so many attempts to go on from a version that fail for no reason that would pass, all is
/// listed anew.
const STUCK: u32 = 8;
/// Watches that end at once, and lists that expire, are worth a word after so many in a row.
const SHORT_LIVED: u32 = 4;
/// How often we look whether a server without ServiceCIDRs has learned about them: not earlier than
/// after this time, nor later than after twice of it.
const ABSENT_RETRY_INTERVAL: Duration = Duration::from_secs(600);
/// How often we try again to list ServiceCIDRs that we may not list: not earlier than after this
/// time, nor later than after twice of it.
const FORBIDDEN_RETRY_INTERVAL: Duration = Duration::from_secs(300);
/// A server cannot send us away for longer than this.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(120);

/// Follows one kind of objects.
pub(super) struct Watch {
    resource: Resource,
    connection: Arc<Connection>,
    api_status: Arc<ApiStatus>,
    decoder: Decoder,
    batches: mpsc::Sender<Listing>,
    backoff: Backoff,
    /// For lists that have to be made again: a list that goes well says nothing about the watch.
    relist: Backoff,
    /// The version up to which everything is known; none if there has to be a list first.
    version: Option<String>,
    /// How new the next list has to be.
    relist_from: RelistFrom,
    /// The list is asked for in pages, since the server did not stream it just now.
    pages: bool,
    /// The server divides lists from its cache into pages: it has none.
    paginated: bool,
    /// The server sends bookmarks between events: it is not silent for long.
    bookmarks: bool,
    /// The role does not let us list ServiceCIDRs, and that has been said.
    forbidden: bool,
    /// A list has been delivered.
    listed: bool,
    /// A watch has been open before.
    watched: bool,
    /// How often going on from `version` has failed.
    stuck: u32,
}

/// What ended a [`Watch`]: nobody listens.
struct NobodyListens;

/// Why a connection ended.
enum End {
    Failed(Failure),
    NobodyListens,
}

impl From<Failure> for End {
    fn from(failure: Failure) -> End {
        End::Failed(failure)
    }
}

impl From<NobodyListens> for End {
    fn from(_: NobodyListens) -> End {
        End::NobodyListens
    }
}

/// The objects of a list, while it is incomplete.
#[derive(Default)]
struct List(BTreeMap<ObjectName, Change>);

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
            connection,
            api_status,
            decoder,
            batches,
            backoff: Backoff::default(),
            relist: Backoff::default(),
            version: None,
            relist_from: RelistFrom::Cache,
            pages: false,
            paginated: false,
            bookmarks: false,
            forbidden: false,
            listed: false,
            watched: false,
            stuck: 0,
        }
    }

    /// Goes on until nobody takes the news.
    pub(super) async fn run(mut self) {
        loop {
            let (number, client) = self.connection.client();
            let before = self.version.clone();
            let failure = match self.follow(&client).await {
                Ok(()) => continue,
                Err(End::NobodyListens) => return,
                Err(End::Failed(failure)) => failure,
            };
            if failure.is_about_access() {
                self.connection.renew(number);
            }
            if before != self.version {
                self.stuck = 0;
            }
            if self.recover(failure).await.is_err() {
                return;
            }
        }
    }

    /// What follows from a failure, with the pause that it needs.
    async fn recover(&mut self, failure: Failure) -> Result<(), NobodyListens> {
        let kind = self.resource.kind;
        match &failure {
            Failure::Ended | Failure::Silent | Failure::Broken(_) => {
                let lasting = self.backoff.failures() >= SHORT_LIVED;
                // A streamed list that breaks twice is asked for in pages.
                let again = self.backoff.failures() > 0;
                self.pages = self.version.is_none() && !self.pages && again;
                if lasting {
                    self.count_as_stuck();
                }
                if lasting || matches!(failure, Failure::Broken(_)) {
                    self.api_status.lost(kind, &failure, lasting);
                }
                if matches!(failure, Failure::Silent) && self.bookmarks {
                    // It has lost our place: a server that was set back to an older state waits for
                    // a version that will not come.
                    self.list_anew(RelistFrom::Store);
                }
            }
            Failure::NoStreaming => {
                tracing::debug!(%kind, "the API server does not stream this list; requesting pages");
                self.pages = true;
                return Ok(());
            }
            Failure::Expired | Failure::TooNew if self.version.is_none() => {
                // What the store has is never too old, nor too new.
                let first = self.relist_from != RelistFrom::Store;
                self.list_anew(RelistFrom::Store);
                if first {
                    return Ok(());
                }
                if self.relist.failures() >= SHORT_LIVED {
                    self.api_status.lost(kind, &failure, true);
                }
                sleep(self.relist.next()).await;
                return Ok(());
            }
            Failure::Expired | Failure::TooNew => {
                tracing::info!("{}, relisting", failure.told(kind));
                if self.relist.failures() >= SHORT_LIVED {
                    self.api_status.lost(kind, &failure, true);
                }
                if let Some(version) = self.version.take() {
                    self.list_anew(RelistFrom::Since(version));
                }
                // However long it was away: it is there now.
                sleep(self.relist.next()).await;
                return Ok(());
            }
            Failure::Absent if kind == Kind::ServiceCidr => return self.without().await,
            Failure::Refused { code: 403, .. } if kind == Kind::ServiceCidr => {
                return self.do_without(&failure).await;
            }
            Failure::Refused { code: 400, .. } if self.resource.widen() => return Ok(()),
            Failure::Refused { code: 400, .. } if self.version.is_none() && !self.pages => {
                self.pages = true;
                return Ok(());
            }
            Failure::Refused { code: 401 | 403 | 429, .. } => {
                self.api_status.lost(kind, &failure, true);
            }
            Failure::Unreachable(_) => {
                self.api_status.lost(kind, &failure, true);
                self.pages = false;
            }
            Failure::Absent | Failure::Refused { .. } | Failure::Garbage(_) => {
                self.api_status.lost(kind, &failure, true);
                // The other way to get a list may do.
                self.pages = self.version.is_none() && !self.pages;
                self.count_as_stuck();
            }
        }
        let pause = self.backoff.next();
        if let Failure::Refused { retry_after: Some(asked), .. } = failure {
            sleep(pause.max(asked.min(MAX_RETRY_AFTER))).await;
            return Ok(());
        }
        tokio::select! {
            () = sleep(pause) => {}
            () = self.api_status.back() => {}
        }
        Ok(())
    }

    fn count_as_stuck(&mut self) {
        self.stuck += 1;
        if self.stuck >= STUCK {
            self.list_anew(RelistFrom::Store);
            self.stuck = 0;
        }
    }

    /// What comes next is a list.
    fn list_anew(&mut self, from: RelistFrom) {
        self.version = None;
        self.relist_from = from;
    }

    /// The server has no objects of this kind in this version of the API.
    async fn without(&mut self) -> Result<(), NobodyListens> {
        self.list_anew(RelistFrom::Cache);
        if self.resource.next_version() {
            return Ok(());
        }
        tracing::debug!(kind = %self.resource.kind, "the API server does not serve this resource");
        self.deliver_list(List::default()).await?;
        self.api_status.well(self.resource.kind);
        sleep(ABSENT_RETRY_INTERVAL.mul_f64(1.0 + jitter::fraction())).await;
        Ok(())
    }

    /// The role is one of before Kubernetes 1.33, which knew no ServiceCIDRs. They are not needed
    /// for any Service to work, so nothing waits for them.
    async fn do_without(&mut self, failure: &Failure) -> Result<(), NobodyListens> {
        let kind = self.resource.kind;
        if !std::mem::replace(&mut self.forbidden, true) {
            tracing::warn!(
                "{}; until then, connections to ClusterIPs without a Service are not refused",
                failure.told(kind)
            );
        }
        // What has been listed before holds.
        if !self.listed {
            self.deliver_list(List::default()).await?;
        }
        self.api_status.well(kind);
        sleep(FORBIDDEN_RETRY_INTERVAL.mul_f64(1.0 + jitter::fraction())).await;
        Ok(())
    }

    /// One connection, from the request to the end of its stream. `Ok` means: go on at once.
    async fn follow(&mut self, client: &Client) -> Result<(), End> {
        match &self.version {
            Some(version) => {
                let request = self.resource.watch(version);
                let lines = self.open(client, request).await?;
                self.follow_events(lines).await
            }
            None if !self.pages => {
                let request = self.resource.stream(&self.relist_from);
                let mut lines = self.open(client, request).await.map_err(no_streaming)?;
                self.follow_list(&mut lines).await?;
                self.follow_events(lines).await
            }
            None => self.list_pages(client).await,
        }
    }

    /// Opens a watch.
    async fn open(
        &mut self,
        client: &Client,
        request: Result<Request, kube::core::request::Error>,
    ) -> Result<Lines, Failure> {
        let lines = Lines::new(self.send(client, request).await?.into_body());
        if std::mem::replace(&mut self.watched, true) {
            self.api_status.restarted(self.resource.kind);
        }
        Ok(lines)
    }

    /// Sends a request and waits for the answer to begin.
    async fn send(
        &self,
        client: &Client,
        request: Result<Request, kube::core::request::Error>,
    ) -> Result<Response<Body>, Failure> {
        let request = request.map_err(|error| Failure::Unreachable(error.to_string()))?;
        let answer = match timeout(RESPONSE_TIMEOUT, client.send(request.map(Body::from))).await {
            Err(_) => {
                let reason = format!("no answer within {} s", RESPONSE_TIMEOUT.as_secs());
                return Err(Failure::Unreachable(reason));
            }
            Ok(Err(error)) => return Err(Failure::unreachable(&error)),
            Ok(Ok(answer)) => answer,
        };
        match answer.status() {
            StatusCode::OK => Ok(answer),
            _ => Err(refusal(answer).await),
        }
    }

    /// A list, page by page. Of a version that is known the server has no pages but in the store:
    /// then the whole list is asked for, which it has in its cache.
    async fn list_pages(&mut self, client: &Client) -> Result<(), End> {
        let mut limit = self.paginated || !matches!(self.relist_from, RelistFrom::Since(_));
        let mut list = List::default();
        let mut next: Option<String> = None;
        let version = loop {
            let is_first = next.is_none();
            let request = self.resource.list(&self.relist_from, limit, next.take());
            let answer = match self.send(client, request).await {
                Err(Failure::Expired) if !is_first => {
                    // The pages were too slow for the server.
                    (list, limit) = (List::default(), false);
                    continue;
                }
                answer => answer?,
            };
            let body =
                timeout(PAGE_TIMEOUT, Limited::new(answer.into_body(), MAX_PAGE_BYTES).collect());
            let body = match body.await {
                Err(_) => {
                    let reason = format!("no whole list within {} s", PAGE_TIMEOUT.as_secs());
                    return Err(Failure::Unreachable(reason).into());
                }
                Ok(Err(error)) => return Err(Failure::broken(&*error).into()),
                Ok(Ok(body)) => body.to_bytes(),
            };
            let page: Page<'_> = serde_json::from_slice(&body).map_err(|e| garbage(&e, &body))?;
            if page.metadata.resource_version.is_empty() {
                let what = String::from_utf8_lossy(&body);
                return Err(Failure::Garbage(format!("no list: {}", excerpt(&what))).into());
            }
            for item in page.items.unwrap_or_default() {
                self.put(&mut list, item);
            }
            match page.metadata.next.filter(|next| !next.is_empty()) {
                Some(token) => {
                    self.paginated |= self.relist_from == RelistFrom::Cache;
                    next = Some(token);
                }
                None => break page.metadata.resource_version,
            }
        };
        self.deliver_list(list).await?;
        self.version = Some(version);
        self.pages = false;
        self.settled();
        Ok(())
    }

    /// The list at the beginning of a watch that streams it.
    async fn follow_list(&mut self, lines: &mut Lines) -> Result<(), End> {
        let deadline = tokio::time::Instant::now() + STREAM_TIMEOUT;
        let mut list = List::default();
        let version = loop {
            let pause = (tokio::time::Instant::now() + STREAM_IDLE_TIMEOUT).min(deadline);
            let Ok(line) = timeout_at(pause, lines.next()).await else {
                return Err(Failure::NoStreaming.into());
            };
            let Some(line) = line? else { return Err(Failure::Ended.into()) };
            let event = event(line)?;
            match event.type_ {
                "ADDED" | "MODIFIED" => self.put(&mut list, event.object),
                "DELETED" => {
                    let gone = self.decoder.take_gone(event.object).map_err(Failure::Garbage)?;
                    gone.map(|gone| list.0.remove(&gone.name));
                }
                _ => {
                    let (version, is_end) = bookmark(&event).map_err(no_streaming)?;
                    if is_end {
                        break version;
                    }
                }
            }
        };
        self.deliver_list(list).await?;
        self.version = Some(version);
        self.pages = false;
        self.settled();
        Ok(())
    }

    /// The events of a watch, to its end.
    async fn follow_events(&mut self, mut lines: Lines) -> Result<(), End> {
        let mut silence_timeout = SETTLE_TIMEOUT;
        loop {
            let line = match timeout(silence_timeout, lines.next()).await {
                Ok(line) => line?,
                Err(_) if silence_timeout == SETTLE_TIMEOUT => {
                    self.settled();
                    self.relist.reset();
                    silence_timeout = SILENCE_TIMEOUT;
                    continue;
                }
                Err(_) => return Err(Failure::Silent.into()),
            };
            let received = Instant::now();
            let Some(line) = line else { return Err(Failure::Ended.into()) };
            let event = event(line)?;
            let decoded = match event.type_ {
                "ADDED" | "MODIFIED" => {
                    self.decoder.take(event.object).map_err(Failure::Garbage)?
                }
                "DELETED" => self.decoder.take_gone(event.object).map_err(Failure::Garbage)?,
                _ => {
                    let (version, _) = bookmark(&event)?;
                    self.is_news(&version)?;
                    self.version = Some(version);
                    self.bookmarks = true;
                    None
                }
            };
            if let Some(Decoded { version, change, trigger, .. }) = decoded
                && self.is_news(&version)?
            {
                let triggers = trigger.into_iter().collect();
                let batch = ChangeBatch { changes: vec![change], received, triggers };
                self.deliver(None, batch).await?;
                self.version = Some(version);
            }
            if silence_timeout == SETTLE_TIMEOUT {
                self.settled();
                self.relist.reset();
                silence_timeout = SILENCE_TIMEOUT;
            }
        }
    }

    /// False for a version that has come before. Versions are numbers that grow (Kubernetes says so
    /// since 1.35); a server in which they do not has been set back to an older state, or something
    /// between us puts events out of order: only a list can tell what there is.
    fn is_news(&mut self, version: &str) -> Result<bool, Failure> {
        let number = |version: &str| version.parse::<u64>().ok();
        let known = self.version.as_deref().and_then(number);
        match number(version).zip(known).map(|(new, known)| new.cmp(&known)) {
            Some(Ordering::Less) => {
                let known = self.version.take().unwrap_or_default();
                self.relist_from = RelistFrom::Store;
                let what = format!("an event of version {version} after one of version {known}");
                Err(Failure::Garbage(what))
            }
            Some(Ordering::Equal) => Ok(false),
            Some(Ordering::Greater) | None => Ok(true),
        }
    }

    /// Adds an object to a list. One that cannot be read at all is left out, not the others.
    fn put(&mut self, list: &mut List, object: &RawValue) {
        match self.decoder.take(object) {
            Ok(Some(decoded)) => {
                list.0.insert(decoded.name, decoded.change);
            }
            Ok(None) => {}
            Err(reason) => tracing::warn!("ignoring an object from the API server: {reason}"),
        }
    }

    /// Delivers a complete list.
    async fn deliver_list(&mut self, list: List) -> Result<(), NobodyListens> {
        self.listed = true;
        let names: HashSet<ObjectName> = list.0.keys().cloned().collect();
        let mut changes: Vec<Change> = list.0.into_values().collect();
        changes.extend(self.decoder.listed(names));
        self.deliver(Some(self.resource.kind), ChangeBatch::new(changes, Instant::now())).await
    }

    async fn deliver(&self, listed: Option<Kind>, batch: ChangeBatch) -> Result<(), NobodyListens> {
        self.batches.send((listed, batch)).await.map_err(|_| NobodyListens)
    }

    /// The connection works.
    fn settled(&mut self) {
        if std::mem::take(&mut self.forbidden) {
            tracing::info!(kind = %self.resource.kind, "the API server permits list and watch");
        }
        self.backoff.reset();
        self.stuck = 0;
        self.api_status.well(self.resource.kind);
    }
}

/// How servers that do not know streamed lists answer: the parameters are invalid to them.
fn no_streaming(failure: Failure) -> Failure {
    match failure {
        Failure::Refused { code: 405 | 422 | 501, .. } => Failure::NoStreaming,
        other => other,
    }
}

/// The failure in an answer that is none of success.
async fn refusal(answer: Response<Body>) -> Failure {
    let code = answer.status().as_u16();
    let retry_after = answer.headers().get(RETRY_AFTER);
    let retry_after = retry_after.and_then(|value| value.to_str().ok()?.trim().parse().ok());
    let body =
        timeout(RESPONSE_TIMEOUT, Limited::new(answer.into_body(), MAX_REFUSAL_BYTES).collect());
    let body = match body.await {
        Ok(Ok(body)) => body.to_bytes(),
        _ => Default::default(),
    };
    let mut status: Status = serde_json::from_slice(&body)
        .unwrap_or_else(|_| Status::failure(&String::from_utf8_lossy(&body), ""));
    status.code = code;
    Failure::from_status(&status, retry_after.map(Duration::from_secs))
}
