//! How it goes with the server: told once per outage, not once per attempt.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use tokio::time::Instant;

use super::failure::Failure;
use crate::source::objects::Kind;

/// What all watches together know about the server.
pub struct Contact {
    troubles: Mutex<BTreeMap<Kind, Trouble>>,
    /// Somebody got through after a time without contact.
    back: Notify,
    on_restart: Box<dyn Fn(Kind) + Send + Sync>,
}

#[derive(Debug)]
struct Trouble {
    since: Instant,
    text: String,
    lasting: bool,
}

impl Contact {
    pub(super) fn new(on_restart: impl Fn(Kind) + Send + Sync + 'static) -> Contact {
        Contact {
            troubles: Mutex::default(),
            back: Notify::new(),
            on_restart: Box::new(on_restart),
        }
    }

    /// What is in the way at the moment, for a person; none if all is well.
    #[must_use]
    pub fn trouble(&self) -> Option<String> {
        let troubles = self.troubles();
        let mut texts: Vec<&str> = troubles.values().map(|trouble| &*trouble.text).collect();
        texts.dedup();
        (!texts.is_empty()).then(|| texts.join("; "))
    }

    /// A watch was opened again.
    pub(super) fn restarted(&self, kind: Kind) {
        (self.on_restart)(kind);
    }

    /// A request or a watch failed. `lasting` if that is more than what happens to healthy servers.
    pub(super) fn lost(&self, kind: Kind, failure: &Failure, lasting: bool) {
        let text = failure.told(kind);
        let mut troubles = self.troubles();
        let same = |(other, trouble): (&Kind, &Trouble)| {
            (*other == kind || trouble.text == text) && (trouble.lasting || !lasting)
        };
        match (troubles.iter().any(same), lasting) {
            (true, _) => tracing::debug!("{text}"),
            (false, false) => tracing::info!("{text}; connecting again"),
            (false, true) => tracing::warn!("{text}; what is programmed stays, trying again"),
        }
        let (since, before) = match troubles.get(&kind) {
            Some(trouble) => (trouble.since, trouble.lasting),
            None => (Instant::now(), false),
        };
        troubles.insert(kind, Trouble { since, text, lasting: lasting || before });
    }

    /// The server answers as it should.
    pub(super) fn well(&self, kind: Kind) {
        let mut troubles = self.troubles();
        let Some(trouble) = troubles.remove(&kind) else { return };
        if troubles.values().all(|other| other.text != trouble.text) {
            let after = trouble.since.elapsed();
            tracing::info!(?after, "the API server answers again ({})", trouble.text);
        }
        self.back.notify_waiters();
    }

    /// Waits until another watch has got through.
    pub(super) async fn back(&self) {
        self.back.notified().await;
    }

    fn troubles(&self) -> MutexGuard<'_, BTreeMap<Kind, Trouble>> {
        self.troubles.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
