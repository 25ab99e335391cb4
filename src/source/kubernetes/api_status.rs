//! The state of the API server, logged once per outage in place of once per attempt.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::failure::RequestFailure;
use crate::source::objects::Kind;

/// The number of different failures of an outage that are logged: there may be no end of them.
const MAX_TOLD: usize = 16;

/// A change in how the API server answers.
#[derive(Debug)]
pub enum Incident {
    /// The watch of a kind was opened again.
    Restarted(Kind),
    /// The server fails in a way that lasts.
    Lost(String),
    /// It answers again.
    Back(String),
}

/// The state of the API server as all watches together see it.
pub struct ApiStatus {
    troubles: Mutex<Troubles>,
    /// Notified when a watch recovers from a failure.
    back: Notify,
    note: Box<dyn Fn(Incident) + Send + Sync>,
}

#[derive(Debug, Default)]
struct Troubles {
    of: BTreeMap<Kind, TroubleSince>,
    /// The lasting failures that are in the log. A server that starts fails for several reasons in
    /// turn: each gets one log line, not one per attempt.
    told: BTreeSet<String>,
}

#[derive(Debug)]
struct TroubleSince {
    since: Instant,
    text: String,
}

impl ApiStatus {
    pub(super) fn new(note: impl Fn(Incident) + Send + Sync + 'static) -> ApiStatus {
        ApiStatus { troubles: Mutex::default(), back: Notify::new(), note: Box::new(note) }
    }

    /// Returns the current failure as text, and its duration; none if all watches work.
    #[must_use]
    pub fn trouble(&self) -> Option<(String, Duration)> {
        let troubles = self.troubles();
        let since = troubles.of.values().map(|trouble| trouble.since).min()?;
        let mut texts: Vec<&str> = troubles.of.values().map(|trouble| &*trouble.text).collect();
        texts.dedup();
        Some((texts.join("; "), since.elapsed()))
    }

    /// Counts a watch that was opened again.
    pub(super) fn restarted(&self, kind: Kind) {
        (self.note)(Incident::Restarted(kind));
    }

    /// Logs a failed request or watch. `lasting` if healthy servers do not fail in this way.
    pub(super) fn lost(&self, kind: Kind, failure: &RequestFailure, lasting: bool) {
        let text = failure.told(kind);
        let mut troubles = self.troubles();
        let known =
            |(other, trouble): (&Kind, &TroubleSince)| *other == kind || trouble.text == text;
        if lasting && troubles.told.len() < MAX_TOLD && troubles.told.insert(text.clone()) {
            tracing::warn!("{text}; the rules stay, retrying");
            (self.note)(Incident::Lost(text.clone()));
        } else if lasting || troubles.of.iter().any(known) {
            tracing::debug!("{text}");
        } else {
            tracing::info!("{text}; reconnecting");
        }
        let since = troubles.of.get(&kind).map_or_else(Instant::now, |trouble| trouble.since);
        troubles.of.insert(kind, TroubleSince { since, text });
    }

    /// Notes that the server works for this kind.
    pub(super) fn well(&self, kind: Kind) {
        let mut troubles = self.troubles();
        let Some(trouble) = troubles.of.remove(&kind) else { return };
        let Troubles { of, told } = &mut *troubles;
        let lasts = |text: &String| of.values().any(|other| other.text == *text);
        let was_told = told.len() == MAX_TOLD || told.contains(&trouble.text);
        told.retain(lasts);
        if !lasts(&trouble.text) {
            let after = trouble.since.elapsed();
            let text = format!("the API server answers again ({})", trouble.text);
            tracing::info!(?after, "{text}");
            if was_told {
                (self.note)(Incident::Back(text));
            }
        }
        self.back.notify_waiters();
    }

    /// Waits until another watch has recovered.
    pub(super) async fn back(&self) {
        self.back.notified().await;
    }

    fn troubles(&self) -> MutexGuard<'_, Troubles> {
        self.troubles.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
