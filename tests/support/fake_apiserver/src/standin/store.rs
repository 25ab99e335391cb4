//! What the stand-in keeps: objects, and the history of writes since the last compaction. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Context, Result};
use serde_json::{Map, Value, json};

use crate::object::{Key, Kind};

/// An object as the server holds it.
pub(super) type Object = Arc<Value>;

/// One write; an object is made, replaced or deleted.
#[derive(Clone, Debug)]
pub(super) struct Write {
    pub(super) revision: u64,
    pub(super) key: Key,
    pub(super) old: Option<Object>,
    pub(super) new: Option<Object>,
}

/// The objects at the current revision, and what led to it. History is kept: what is
/// compacted is only not shown to those who ask for it anew, since watches that are open have all
/// of it on the way to them.
#[derive(Debug)]
pub(super) struct Store {
    revision: u64,
    compacted: u64,
    objects: BTreeMap<Key, Object>,
    history: Vec<Write>,
}

impl Store {
    /// Without objects. A server that has just been set up has some revisions behind it too.
    pub(super) fn new() -> Self {
        Self { revision: 100, compacted: 100, objects: BTreeMap::new(), history: Vec::new() }
    }

    pub(super) fn revision(&self) -> u64 {
        self.revision
    }

    /// Makes or replaces an object.
    pub(super) fn put(&mut self, mut object: Value) -> Result<Object> {
        let key = Key::of(&object)?;
        self.revision += 1;
        let old = self.objects.get(&key).cloned();
        let metadata = object.get_mut("metadata").and_then(Value::as_object_mut);
        complete(metadata.context("without metadata")?, &key, self.revision, old.as_deref());
        let new = Arc::new(object);
        self.objects.insert(key.clone(), Arc::clone(&new));
        let new_object = Some(Arc::clone(&new));
        self.history.push(Write { revision: self.revision, key, old, new: new_object });
        Ok(new)
    }

    /// Deletes an object; false if there was none.
    pub(super) fn delete(&mut self, key: &Key) -> bool {
        let Some(old) = self.objects.remove(key) else { return false };
        self.revision += 1;
        let (revision, key) = (self.revision, key.clone());
        self.history.push(Write { revision, key, old: Some(old), new: None });
        true
    }

    pub(super) fn get(&self, key: &Key) -> Option<Object> {
        self.objects.get(key).cloned()
    }

    /// Forgets all history.
    pub(super) fn compact(&mut self) {
        self.compacted = self.revision;
    }

    /// The oldest revision after which it is known what happened.
    pub(super) fn oldest(&self) -> u64 {
        self.compacted
    }

    /// All objects of a kind, in the order of their keys.
    pub(super) fn of_kind(&self, kind: Kind) -> impl Iterator<Item = &Object> {
        let of_kind = self.objects.iter().filter(move |(key, _)| key.kind == kind);
        of_kind.map(|(_, object)| object)
    }

    /// All writes after a revision.
    pub(super) fn since(&self, revision: u64) -> &[Write] {
        let first = self.history.partition_point(|write| write.revision <= revision);
        self.history.get(first..).unwrap_or_default()
    }
}

/// Fills in what a server fills in.
fn complete(metadata: &mut Map<String, Value>, key: &Key, revision: u64, old: Option<&Value>) {
    if !key.namespace.is_empty() {
        metadata.insert("namespace".to_owned(), json!(key.namespace));
    }
    metadata.insert("resourceVersion".to_owned(), json!(revision.to_string()));
    let inherited = |field: &str| old.and_then(|old| old["metadata"].get(field)).cloned();
    let uid = inherited("uid").unwrap_or_else(|| json!(uid(revision)));
    metadata.insert("uid".to_owned(), uid);
    let born = inherited("creationTimestamp").unwrap_or_else(|| json!("2026-01-01T00:00:00Z"));
    metadata.entry("creationTimestamp").or_insert(born);
}

fn uid(revision: u64) -> String {
    format!("00000000-0000-4000-8000-{revision:012x}")
}
