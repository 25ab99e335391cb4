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
    files: BTreeMap<FileId, HashMap<Key, Object>>,
    problems: BTreeMap<FileId, Vec<Diagnostic>>,
    /// The files that define an object; the last one takes precedence.
    owners: HashMap<Key, BTreeSet<FileId>>,
    /// The objects with definitions in several files.
    contested: BTreeSet<Key>,
    problems_changed: bool,
    /// The objects that this round has touched, in their previous state.
    touched: BTreeMap<Key, Option<Change>>,
    /// The Services that this round has moved to another line or file.
    moved: BTreeSet<Key>,
    locations: Locations,
}

impl Collection {
    /// Makes an empty collection, which keeps `locations` up to date.
    pub(super) fn new(locations: Locations) -> Collection {
        Collection { locations, ..Collection::default() }
    }

    /// Sets the content of a file.
    pub(super) fn set(&mut self, file: FileId, manifest: Manifest) {
        let objects = manifest.objects.into_iter().map(|o| (o.key.clone(), o)).collect();
        self.replace(&file, objects);
        self.set_problems(file, manifest.problems);
    }

    /// Notes that a file cannot be read: its previous content stays.
    pub(super) fn keep(&mut self, file: FileId, problem: Diagnostic) {
        self.files.entry(file.clone()).or_default();
        self.set_problems(file, vec![problem]);
    }

    /// Removes a file.
    pub(super) fn remove(&mut self, file: &FileId) {
        self.replace(file, HashMap::new());
        self.files.remove(file);
        self.set_problems(file.clone(), Vec::new());
    }

    /// Returns the known files of a path.
    pub(super) fn files_of(&self, root: usize) -> Vec<FileId> {
        self.files.keys().filter(|file| file.root == root).cloned().collect()
    }

    /// Returns the problems of a file.
    pub(super) fn problems_of(&self, file: &FileId) -> &[Diagnostic] {
        self.problems.get(file).map_or(&[], Vec::as_slice)
    }

    /// Returns true if [`Collection::problems`] may have changed since the last call.
    pub(super) fn problems_changed(&mut self) -> bool {
        std::mem::take(&mut self.problems_changed)
    }

    fn set_problems(&mut self, file: FileId, problems: Vec<Diagnostic>) {
        if problems != self.problems_of(&file) {
            self.problems_changed = true;
            if problems.is_empty() {
                self.problems.remove(&file);
            } else {
                self.problems.insert(file, problems);
            }
        }
    }

    fn replace(&mut self, file: &FileId, objects: HashMap<Key, Object>) {
        let old = self.files.remove(file).unwrap_or_default();
        for key in old.keys().chain(objects.keys()) {
            let same = match (old.get(key), objects.get(key)) {
                (Some(old), Some(new)) => old.change == new.change,
                _ => false,
            };
            if !same && !self.touched.contains_key(key) {
                // The previous content of this file is handled below.
                let before = self.current(key, |f| if f == file { Some(&old) } else { None });
                self.touched.insert(key.clone(), before);
            }
            let line = |objects: &HashMap<Key, Object>| objects.get(key).map(|object| object.line);
            if key.kind == Kind::Service && line(&old) != line(&objects) {
                self.moved.insert(key.clone());
            }
        }
        for key in old.keys().filter(|key| !objects.contains_key(*key)) {
            self.disown(key, file);
        }
        for key in objects.keys().filter(|key| !old.contains_key(*key)) {
            let owners = self.owners.entry(key.clone()).or_default();
            owners.insert(file.clone());
            if owners.len() > 1 {
                self.problems_changed = true;
                self.contested.insert(key.clone());
            }
        }
        self.files.insert(file.clone(), objects);
    }

    fn disown(&mut self, key: &Key, file: &FileId) {
        let Some(owners) = self.owners.get_mut(key) else {
            return;
        };
        owners.remove(file);
        self.problems_changed |= !owners.is_empty();
        if owners.len() < 2 {
            self.contested.remove(key);
        }
        if owners.is_empty() {
            self.owners.remove(key);
        }
    }

    /// Returns the definition of an object that takes precedence; `aside` has the content of a file
    /// that was taken out for the moment.
    fn current<'a>(
        &'a self,
        key: &Key,
        aside: impl Fn(&FileId) -> Option<&'a HashMap<Key, Object>>,
    ) -> Option<Change> {
        let file = self.owners.get(key)?.last()?;
        let objects = aside(file).or_else(|| self.files.get(file))?;
        objects.get(key)?.change.clone()
    }

    fn location(&self, key: &Key) -> Option<Location> {
        let file = self.owners.get(key)?.last()?;
        let line = self.files.get(file)?.get(key)?.line;
        Some(Location { file: file.path.clone(), line })
    }

    /// Ends a round. Returns the changes since the last one, in the order of the objects.
    pub(super) fn finish(&mut self) -> Vec<Change> {
        let moved = std::mem::take(&mut self.moved).into_iter();
        let moved = moved.map(|key| (self.location(&key), key.name)).collect::<Vec<_>>();
        self.locations.set(moved);
        let touched = std::mem::take(&mut self.touched);
        let mut changes = Vec::with_capacity(touched.len());
        for (key, before) in touched {
            let now = self.current(&key, |_| None);
            if now != before {
                if self.contested.contains(&key) {
                    self.contest(&key).log();
                }
                changes.push(now.unwrap_or_else(|| key.gone()));
            }
        }
        changes
    }

    /// Returns all current problems.
    pub(super) fn problems(&self) -> impl Iterator<Item = Diagnostic> {
        let contests = self.contested.iter().map(|key| self.contest(key));
        self.problems.values().flatten().cloned().chain(contests)
    }

    fn contest(&self, key: &Key) -> Diagnostic {
        let line = |file: &FileId| self.files.get(file)?.get(key).map(|object| object.line);
        let mut owners = self.owners.get(key).into_iter().flatten().rev();
        let winner = owners.next();
        let mut others: Vec<String> = owners
            .take(4)
            .map(|file| format!("{}:{}", file.path.display(), line(file).unwrap_or_default()))
            .collect();
        if others.len() == 4 {
            others[3] = "…".into();
        }
        let reason = format!(
            "the same object is also in {}; the last file by name wins; remove it from the others",
            others.join(", ")
        );
        let problem =
            Diagnostic::new(Severity::Warning, FieldPath::default(), reason).of_object(key);
        match winner {
            Some(file) => problem.in_file(&file.path, line(file)),
            None => problem,
        }
    }
}
