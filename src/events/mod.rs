//! Events (`events.k8s.io/v1`): what `kubectl get events` tells people.
//!
//! Owns: what an Event looks like, how many are sent at the most, and sending them.
//!
//! What is wrong with a Service is seen by all nodes: each gives the Event the same name, so that the
//! cluster has one for each Service and reason. Events about a Node are its own.
//!
//! What one can rely on: recording never waits and never fails. If the API server does not take
//! Events, they are lost; everything that they say is in the log, too.

mod limit;
mod publish;

use std::sync::Arc;

use shunt_core::model::ObjectName;
use tokio::sync::{Mutex, mpsc};

pub use publish::publish;

/// Events that may wait to be sent.
const QUEUE: usize = 100;

/// What an Event is about.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Regarding {
    /// Our Node.
    Node,
    /// A Service.
    Service(ObjectName),
}

/// What happened. The reason and the action are for programs, the note is for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notice {
    /// What it is about.
    pub regarding: Regarding,
    /// Whether somebody should do something about it.
    pub is_warning: bool,
    /// Why it is told, in one word.
    pub reason: &'static str,
    /// What was done or tried, in one word.
    pub action: &'static str,
    /// All of it in words.
    pub note: String,
}

/// The notices that wait to be sent. Of several who send them, one does at a time: the next one
/// takes over when it is dropped.
#[derive(Debug, Clone)]
pub struct Notices(Arc<Mutex<mpsc::Receiver<Notice>>>);

/// Takes notices. Clones feed the same queue.
#[derive(Debug, Clone)]
pub struct Recorder(mpsc::Sender<Notice>);

impl Recorder {
    /// A recorder, and the queue to be handed to [`publish()`].
    #[must_use]
    pub fn new() -> (Recorder, Notices) {
        let (sender, queue) = mpsc::channel(QUEUE);
        (Recorder(sender), Notices(Arc::new(Mutex::new(queue))))
    }

    /// Takes a notice; if too many wait already, it is dropped.
    pub fn record(&self, notice: Notice) {
        // Full, or nobody sends them: there is no API server, or the process is ending.
        let _ = self.0.try_send(notice);
    }
}
