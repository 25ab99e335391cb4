//! Watches: a stream of what is written from some revision on.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::{broadcast, watch};
use tokio::time::{Instant, sleep_until};

use crate::object::Kind;

use super::body::Sender;
use super::encoding::Encoding;
use super::request::Request;
use super::selector::Selector;
use super::shared::Shared;
use super::status::Refusal;
use super::store::{Object, Store, Write};

/// How often watches that allow it are sent a bookmark.
const BOOKMARKS: Duration = Duration::from_secs(2);

/// Counts a watch as open while it lives.
struct Open {
    kind: Kind,
    shared: Arc<Shared>,
}

impl Open {
    fn new(kind: Kind, shared: &Arc<Shared>) -> Self {
        shared.open_watches.send_modify(|open| *open.entry(kind).or_default() += 1);
        Self { kind, shared: Arc::clone(shared) }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.shared.open_watches.send_modify(|open| *open.entry(self.kind).or_default() -= 1);
    }
}

/// A watch that has been found to be in order. It is open from here on, not only when it runs.
pub(super) struct Watch {
    kind: Kind,
    encoding: Encoding,
    selector: Selector,
    /// The revision that the client has; none if it starts with all objects.
    from: Option<u64>,
    bookmarks: bool,
    end: Option<Instant>,
    written: watch::Receiver<u64>,
    broken: broadcast::Receiver<Kind>,
    _open: Open,
}

impl Watch {
    pub(super) fn new(
        kind: Kind,
        encoding: Encoding,
        request: &Request,
        shared: &Arc<Shared>,
    ) -> Self {
        Self {
            kind,
            encoding,
            selector: Selector::of(request),
            from: request.number("resourceVersion").filter(|&revision| revision != 0),
            bookmarks: request.parameter("allowWatchBookmarks") == "true",
            end: request
                .number("timeoutSeconds")
                .map(|seconds| Instant::now() + Duration::from_secs(seconds)),
            written: shared.written.subscribe(),
            broken: shared.broken.subscribe(),
            _open: Open::new(kind, shared),
        }
    }

    /// Sends events until the end. What is sent to nobody is not kept.
    pub(super) async fn run(mut self, shared: &Shared, mut sender: Sender) -> Option<()> {
        let mut position = match self.from {
            Some(revision) => {
                let oldest = shared.store().oldest();
                if revision < oldest {
                    self.send(&mut sender, &Refusal::too_old(revision, oldest).event()).await?;
                    return None;
                }
                revision
            }
            None => self.send_all(shared, &mut sender).await?,
        };
        let end = self.end.unwrap_or_else(forever);
        loop {
            let events = self.events(&shared.store(), &mut position);
            for event in events {
                self.send(&mut sender, &event).await?;
            }
            let bookmark = if self.bookmarks { Instant::now() + BOOKMARKS } else { forever() };
            tokio::select! {
                changed = self.written.changed() => changed.ok()?,
                kind = self.broken.recv() => {
                    if kind.ok()? == self.kind {
                        return sender.fail().await;
                    }
                }
                () = sleep_until(bookmark) => {
                    self.send(&mut sender, &self.bookmark(position)).await?;
                }
                () = sleep_until(end) => return None,
                () = sender.closed() => return None,
            }
        }
    }

    /// Sends an event.
    async fn send(&self, sender: &mut Sender, event: &Value) -> Option<()> {
        sender.send(self.encoding.event(self.kind, event)).await
    }

    /// Sends all objects; returns the revision.
    async fn send_all(&self, shared: &Shared, sender: &mut Sender) -> Option<u64> {
        let (revision, objects) = {
            let store = shared.store();
            (store.revision(), store.of_kind(self.kind).cloned().collect::<Vec<Object>>())
        };
        for object in objects.iter().filter(|object| self.selector.matches(object)) {
            self.send(sender, &json!({"type": "ADDED", "object": **object})).await?;
        }
        Some(revision)
    }

    /// What was written after `position`, which moves on.
    fn events(&self, store: &Store, position: &mut u64) -> Vec<Value> {
        let writes = store.since(*position).iter().filter(|write| write.key.kind == self.kind);
        *position = store.revision().max(*position);
        writes.filter_map(|write| event(write, &self.selector)).collect()
    }

    /// An object of which only the revision is meant, with the empty fields that Go writes.
    fn bookmark(&self, revision: u64) -> Value {
        let mut object = match self.kind {
            Kind::EndpointSlice => json!({"addressType": "", "endpoints": null, "ports": null}),
            Kind::Service => json!({"spec": {}, "status": {"loadBalancer": {}}}),
            _ => json!({"spec": {}, "status": {}}),
        };
        object["kind"] = json!(self.kind.as_str());
        object["apiVersion"] = json!(self.kind.api_version());
        object["metadata"] =
            json!({"resourceVersion": revision.to_string(), "creationTimestamp": null});
        json!({"type": "BOOKMARK", "object": object})
    }
}

/// A write as those see it who watch what a selector selects.
fn event(write: &Write, selector: &Selector) -> Option<Value> {
    let old = write.old.as_deref().filter(|old| selector.matches(old));
    let new = write.new.as_deref().filter(|new| selector.matches(new));
    match (old, new) {
        (None, None) => None,
        (None, Some(new)) => Some(json!({"type": "ADDED", "object": new})),
        (Some(_), Some(new)) => Some(json!({"type": "MODIFIED", "object": new})),
        (Some(old), None) => {
            let mut last = old.clone();
            last["metadata"]["resourceVersion"] = json!(write.revision.to_string());
            Some(json!({"type": "DELETED", "object": last}))
        }
    }
}

fn forever() -> Instant {
    Instant::now() + Duration::from_secs(3600)
}
