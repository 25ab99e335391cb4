//! File locations of Services, for messages.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};

use shunt_core::model::ObjectName;

/// A place in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Location {
    /// The path of the file.
    pub file: Arc<Path>,
    /// The first line of the object, counted from 1.
    pub line: u32,
}

/// The files and lines of Services at the last read, for messages. A clone is another handle to the
/// same data. Objects do not contain their location: otherwise, one more line in a file would
/// change all objects below it.
#[derive(Debug, Clone, Default)]
pub struct Locations(Arc<RwLock<HashMap<ObjectName, Location>>>);

impl Locations {
    /// Returns the location of a Service; `None` if it comes from an API server.
    #[must_use]
    pub fn of(&self, service: &ObjectName) -> Option<Location> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(service).cloned()
    }

    /// Removes all locations, for a switch to another source.
    pub fn clear(&self) {
        self.set(HashMap::new());
    }

    pub(super) fn set(&self, locations: HashMap<ObjectName, Location>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = locations;
    }
}
