//! What a source hands on.

use std::time::{Instant, SystemTime};

use super::{Change, Family};

/// Changes that a source read at one moment: the only thing that travels from sources to the dataplane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangeBatch {
    /// The changes, in the order in which they count.
    pub changes: Vec<Change>,
    /// When the source read them.
    pub received: Instant,
    /// For each EndpointSlice that an event (not a list) brought: when the Pods or the Service behind it
    /// changed, as the annotation `endpoints.kubernetes.io/last-change-trigger-time` says.
    pub triggers: Vec<(Family, SystemTime)>,
}

impl ChangeBatch {
    /// Changes without known triggers.
    #[must_use]
    pub fn new(changes: Vec<Change>, received: Instant) -> ChangeBatch {
        ChangeBatch { changes, received, triggers: Vec::new() }
    }

    /// Counts the changes, whether they make a difference or not.
    #[must_use]
    pub fn counts(&self) -> ChangeCounts {
        let mut counts = ChangeCounts::default();
        for change in &self.changes {
            match change {
                Change::Service(_) | Change::ServiceGone(_) => counts.services += 1,
                Change::Slice(_) | Change::SliceGone(_) => counts.slices += 1,
                _ => {}
            }
        }
        counts
    }
}

/// Numbers of changes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ChangeCounts {
    /// Of Services.
    pub services: usize,
    /// Of EndpointSlices.
    pub slices: usize,
}
