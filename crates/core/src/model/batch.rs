//! Batches of changes from a source to the dataplane.

use std::time::{Instant, SystemTime};

use super::{Change, Family, Kind};

/// A batch of changes that a source read at one moment: the only message from sources to the
/// dataplane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangeBatch {
    /// The changes, in the order of their application.
    pub changes: Vec<Change>,
    /// The time when the source read them.
    pub received: Instant,
    /// The trigger of each EndpointSlice from an event, not from a list: the time of the change of
    /// a Pod or the Service, from the annotation
    /// `endpoints.kubernetes.io/last-change-trigger-time`.
    pub triggers: Vec<(Family, SystemTime)>,
}

impl ChangeBatch {
    /// Makes a batch without known triggers.
    #[must_use]
    pub fn new(changes: Vec<Change>, received: Instant) -> ChangeBatch {
        ChangeBatch { changes, received, triggers: Vec::new() }
    }

    /// Counts the changes, with and without effect.
    #[must_use]
    pub fn counts(&self) -> ChangeCounts {
        let mut counts = ChangeCounts::default();
        for change in &self.changes {
            match change {
                Change::Service(_)
                | Change::ServiceIgnored(..)
                | Change::Gone(Kind::Service, _) => {
                    counts.services += 1;
                }
                Change::Slice(_) | Change::Gone(Kind::EndpointSlice, _) => counts.slices += 1,
                _ => {}
            }
        }
        counts
    }
}

/// Numbers of changes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ChangeCounts {
    /// Changes of Services.
    pub services: usize,
    /// Changes of EndpointSlices.
    pub slices: usize,
}
