//! Watches: a stream of what is written from some revision on.

use std::sync::Arc;
use std::time::Duration;

use hyper::body::Bytes;
use serde_json::{Value, json};
use tokio::sync::{broadcast, watch};
use tokio::time::{Instant, sleep_until};

use crate::object::Kind;

use super::body::Sender;
use super::encoding::Encoding;
use super::options::Options;
use super::selector::Selector;
use super::shared::Shared;
use super::store::{Object, Store, Write};

/// What watches that are open are told to do.
#[derive(Clone, Debug)]
pub(super) struct Order {
    pub(super) kind: Kind,
    /// After the events up to here.
    pub(super) revision: u64,
    pub(super) what: What,
}

#[derive(Clone, Debug)]
pub(super) enum What {
    /// Send these bytes.
    Say(Bytes),
    /// Break off.
    Break,
}

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
    orders: broadcast::Receiver<Order>,
    _open: Open,
}

impl Watch {
    pub(super) fn new(
        kind: Kind,
        encoding: Encoding,
        options: &Options,
        selector: Selector,
        shared: &Arc<Shared>,
    ) -> Self {
        Self {
            kind,
            encoding,
            selector,
            from: options.revision.filter(|&revision| revision != 0),
            bookmarks: options.bookmarks,
            end: options.timeout.map(|timeout| Instant::now() + timeout),
            written: shared.written.subscribe(),
            orders: shared.orders.subscribe(),
            _open: Open::new(kind, shared),
        }
    }

    /// Sends events until the end. What is sent to nobody is not kept.
    pub(super) async fn run(mut self, shared: &Shared, mut sender: Sender) -> Option<()> {
        let mut position = match self.from {
            Some(revision) => {
                let known = shared.store().check(revision);
                if let Err(compacted) = known {
                    self.send(&mut sender, &compacted.refuse(revision).event()).await?;
                    return None;
                }
                revision
            }
            None => self.send_all(shared, &mut sender).await?,
        };
        let settings = shared.settings();
        let end = self.end.unwrap_or_else(forever);
        loop {
            // Orders given before this revision was written come before it.
            let revision = shared.store().revision();
            while let Ok(order) = self.orders.try_recv() {
                self.obey(order, shared, &mut position, &mut sender).await?;
            }
            self.catch_up(shared, revision, &mut position, &mut sender).await?;
            let bookmark = match settings.bookmarks {
                Some(interval) if self.bookmarks => Instant::now() + interval,
                _ => forever(),
            };
            tokio::select! {
                changed = self.written.changed() => changed.ok()?,
                order = self.orders.recv() => {
                    self.obey(order.ok()?, shared, &mut position, &mut sender).await?;
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

    async fn obey(
        &self,
        order: Order,
        shared: &Shared,
        position: &mut u64,
        sender: &mut Sender,
    ) -> Option<()> {
        if order.kind != self.kind {
            return Some(());
        }
        self.catch_up(shared, order.revision, position, sender).await?;
        match order.what {
            What::Say(bytes) => sender.send(bytes).await,
            What::Break => sender.fail().await,
        }
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

    /// Sends what was written after `position`, up to `revision`.
    async fn catch_up(
        &self,
        shared: &Shared,
        revision: u64,
        position: &mut u64,
        sender: &mut Sender,
    ) -> Option<()> {
        let events = self.events(&shared.store(), *position, revision);
        *position = revision.max(*position);
        for event in &events {
            self.send(sender, event).await?;
        }
        Some(())
    }

    fn events(&self, store: &Store, after: u64, until: u64) -> Vec<Value> {
        let writes = store.since(after).iter().take_while(|write| write.revision <= until);
        let writes = writes.filter(|write| write.key.kind == self.kind);
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
