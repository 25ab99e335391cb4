//! Kubernetes Events (`events.k8s.io/v1`).
//!
//! Owns: the content of an Event, the limits, and sending.
//!
//! All nodes see a problem of a Service. A few of them send its Event, with the same name, so that
//! the cluster has one per Service and reason ([`writers`]). Events about a Node belong to that node.
//!
//! Guarantees: recording never waits and never fails. If the API server rejects Events, they are
//! lost; the log has the same text.

mod limit;
mod publish;
mod writers;

use std::sync::Arc;

use shunt_core::model::ObjectName;
use tokio::sync::{Mutex, mpsc};

use super::history::ChangeHistory;

pub use publish::publish;

/// The maximum number of Events that wait to be sent.
const QUEUE: usize = 100;

/// The nodes that see the cause of an Event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EventScope {
    /// This node; others may not.
    Node,
    /// All nodes: the objects are the cause.
    Cluster,
}

/// An Event before it is sent. Reason and action are for programs, the note is for people.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Notice {
    /// The Service that `kubectl describe` shows it with; `None` for the Node of this agent.
    pub service: Option<ObjectName>,
    /// The nodes that see its cause.
    pub scope: EventScope,
    /// True if a person should act on it.
    pub is_warning: bool,
    /// The reason in one word, as `FrontendConflict`.
    pub reason: &'static str,
    /// The action of the agent in one word, as `ProgramService`.
    pub action: &'static str,
    /// The text for people.
    pub note: String,
}

impl Notice {
    /// Makes a warning about the Node of this agent.
    #[must_use]
    pub fn of_node(reason: &'static str, action: &'static str, note: String) -> Notice {
        Notice { service: None, scope: EventScope::Node, is_warning: true, reason, action, note }
    }

    /// Makes a warning about a Service.
    #[must_use]
    pub fn of_service(
        service: &ObjectName,
        scope: EventScope,
        reason: &'static str,
        action: &'static str,
        note: String,
    ) -> Notice {
        Notice { service: Some(service.clone()), scope, ..Notice::of_node(reason, action, note) }
    }
}

/// The queue of notices. One call of [`publish()`] at a time takes from it; the next one continues
/// when that is dropped.
#[derive(Debug, Clone)]
pub struct Notices(Arc<Mutex<mpsc::Receiver<Notice>>>);

/// The sending end of the queue. Clones share it.
#[derive(Debug, Clone)]
pub struct Recorder {
    queue: mpsc::Sender<Notice>,
    history: ChangeHistory,
}

impl Recorder {
    /// Makes a recorder and its queue, for [`publish()`]. The history has every notice, too.
    #[must_use]
    pub fn new(history: ChangeHistory) -> (Recorder, Notices) {
        let (sender, queue) = mpsc::channel(QUEUE);
        (Recorder { queue: sender, history }, Notices(Arc::new(Mutex::new(queue))))
    }

    /// Queues a notice. Drops it if the queue is full.
    pub fn record(&self, notice: Notice) {
        self.history.notice(notice.service.clone(), notice.note.clone());
        // The queue is full, or closed: there is no API server, or the process is ending.
        let _ = self.queue.try_send(notice);
    }
}
