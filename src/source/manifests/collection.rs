//! The objects of all files together, and the changes after a file changes. Pure.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;
use std::sync::Arc;

use shunt_core::model::Change;

use crate::source::objects::{Key, Kind};
use crate::source::spanned_yaml::{Diagnostic, FieldPath, Severity};

use super::locations::{Location, Locations};
use super::{Manifest, Object};

/// A file, ordered by precedence of its definitions: by its path on the command line, then by name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct FileId {
    /// The position of the path on the command line.
    pub(super) root: usize,
    /// The name of the file.
    pub(super) path: Arc<Path>,
}

/// The content of all files. The changes depend only on the previous and the current contents,
/// never on the order of the reads.
#[derive(Debug, Default)]
pub(super) struct Collection {
    files: BTreeMap<FileId, Manifest>,
    /// The objects at the end of the last round.
    known: BTreeMap<Key, Change>,
    /// The objects with definitions in several files.
    contested: BTreeMap<Key, Diagnostic>,
    locations: Locations,
}

impl Collection {
    /// Makes an empty collection, which keeps `locations` up to date.
    pub(super) fn new(locations: Locations) -> Collection {
        Collection { locations, ..Collection::default() }
    }

    /// Sets the content of a file.
    pub(super) fn set(&mut self, file: FileId, manifest: Manifest) {
        self.files.insert(file, manifest);
    }

    /// Notes that a file cannot be read: its previous content stays.
    pub(super) fn keep(&mut self, file: FileId, problem: Diagnostic) {
        self.files.entry(file).or_default().problems = vec![problem];
    }

    /// Removes a file.
    pub(super) fn remove(&mut self, file: &FileId) {
        self.files.remove(file);
    }

    /// Returns the known files of a path.
    pub(super) fn files_of(&self, root: usize) -> Vec<FileId> {
        self.files.keys().filter(|file| file.root == root).cloned().collect()
    }

    /// Returns the problems of a file.
    pub(super) fn problems_of(&self, file: &FileId) -> &[Diagnostic] {
        self.files.get(file).map_or(&[], |manifest| &manifest.problems)
    }

    /// Ends a round. Returns the changes since the last one, in the order of the objects.
    pub(super) fn finish(&mut self) -> Vec<Change> {
        let mut definitions: BTreeMap<&Key, Vec<(&FileId, &Object)>> = BTreeMap::new();
        for (file, manifest) in &self.files {
            for object in &manifest.objects {
                definitions.entry(&object.key).or_default().push((file, object));
            }
        }
        let (mut current, mut locations) = (BTreeMap::new(), HashMap::new());
        self.contested.clear();
        for (key, definitions) in definitions {
            let Some(((file, object), others)) = definitions.split_last() else { continue };
            let location = Location { file: file.path.clone(), line: object.line };
            if !others.is_empty() {
                self.contested.insert(key.clone(), contest(key, &location, others));
            }
            if key.kind == Kind::Service {
                locations.insert(key.name.clone(), location);
            }
            current.extend(object.change.clone().map(|change| (key.clone(), change)));
        }
        self.locations.set(locations);
        let keys: BTreeSet<&Key> = self.known.keys().chain(current.keys()).collect();
        let mut changes = Vec::new();
        for key in keys {
            let change = current.get(key);
            if change != self.known.get(key) {
                if let Some(contest) = self.contested.get(key) {
                    contest.log();
                }
                changes.push(change.cloned().unwrap_or_else(|| key.gone()));
            }
        }
        self.known = current;
        changes
    }

    /// Returns all problems at the end of the last round.
    pub(super) fn problems(&self) -> impl Iterator<Item = Diagnostic> {
        let problems = self.files.values().flat_map(|manifest| &manifest.problems);
        problems.chain(self.contested.values()).cloned()
    }
}

/// Returns the warning about an object which counts at this location, and which other files define, too.
fn contest(key: &Key, winner: &Location, others: &[(&FileId, &Object)]) -> Diagnostic {
    let places = others.iter().rev().take(4);
    let mut places: Vec<String> =
        places.map(|(file, object)| format!("{}:{}", file.path.display(), object.line)).collect();
    if places.len() == 4 {
        places[3] = "…".into();
    }
    let reason = format!(
        "the same object is also in {}; the last file by name wins; remove it from the others",
        places.join(", ")
    );
    let problem = Diagnostic::new(Severity::Warning, FieldPath::default(), reason).of_object(key);
    problem.in_file(&winner.file, Some(winner.line))
}
