//! The objects of all files together, and the changes after a file changes. Pure.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use std::sync::Arc;

use shunt_core::model::{Change, ObjectName};

use crate::source::objects::{Key, Kind};
use crate::source::spanned_yaml::{Diagnostic, Severity};

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
    pub(super) files: BTreeMap<FileId, Manifest>,
    /// The objects at the end of the last round.
    known: BTreeMap<Key, Change>,
}

impl Collection {
    /// Returns the changes since the last call, deletions first, and a warning for each changed
    /// object with several definitions.
    pub(super) fn finish(&mut self) -> (Vec<Change>, Vec<Diagnostic>) {
        let mut definitions: BTreeMap<&Key, Vec<(&FileId, &Object)>> = BTreeMap::new();
        for (file, manifest) in &self.files {
            for object in &manifest.objects {
                definitions.entry(&object.key).or_default().push((file, object));
            }
        }
        let mut current = BTreeMap::new();
        let (mut changes, mut contests) = (Vec::new(), Vec::new());
        let gone = self.known.keys().filter(|key| !definitions.contains_key(key));
        changes.extend(gone.map(Key::gone));
        for (key, definitions) in definitions {
            let Some((winner @ (_, object), others)) = definitions.split_last() else { continue };
            if self.known.get(key) != object.change.as_ref() {
                changes.push(object.change.clone().unwrap_or_else(|| key.gone()));
                if !others.is_empty() {
                    contests.push(contest(key, *winner, others));
                }
            }
            current.extend(object.change.clone().map(|change| (key.clone(), change)));
        }
        self.known = current;
        (changes, contests)
    }

    /// Returns the names of the current objects of a kind.
    pub(super) fn names(&self, kind: Kind) -> HashSet<ObjectName> {
        let keys = self.known.keys().filter(|key| key.kind == kind);
        keys.map(|key| key.name.clone()).collect()
    }
}

/// Returns the warning about an object that has other definitions than the one that counts.
fn contest(
    key: &Key,
    (file, object): (&FileId, &Object),
    others: &[(&FileId, &Object)],
) -> Diagnostic {
    let places = others.iter().rev().take(4);
    let mut places: Vec<String> =
        places.map(|(file, object)| format!("{}:{}", file.path.display(), object.line)).collect();
    if places.len() == 4 {
        places[3] = "…".into();
    }
    let reason = format!(
        "the same object is also in {}; the last definition wins, by file name, then by line; remove the \
         others",
        places.join(", ")
    );
    let problem = Diagnostic::new(Severity::Warning, "", reason).of_object(key);
    problem.in_file(&file.path, Some(object.line))
}
