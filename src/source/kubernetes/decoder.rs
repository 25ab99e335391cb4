//! Decodes an object into a change for the model.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::rc::Rc;
use std::sync::Arc;
use std::time::SystemTime;

use shunt_core::model::{Change, Family, ObjectName};

use crate::source::objects::{Converted, Encoded, Kind, Names, convert};
use crate::source::spanned_yaml::Diagnostic;

/// A decoder for objects of one kind, which logs their problems.
pub(super) struct Decoder {
    kind: Kind,
    node_name: Arc<str>,
    names: Rc<RefCell<Names>>,
    /// Triggers before this time, the start of the agent, are not measured.
    started: SystemTime,
    /// The versions of objects with problems that are in the log already.
    told: HashMap<ObjectName, String>,
}

impl Decoder {
    pub(super) fn new(
        kind: Kind,
        node_name: Arc<str>,
        names: Rc<RefCell<Names>>,
        started: SystemTime,
    ) -> Decoder {
        Decoder { kind, node_name, names, started, told: HashMap::new() }
    }

    /// Decodes an existing object. Returns `None` for the Node of another machine.
    ///
    /// # Errors
    /// If the object has no valid metadata.
    pub(super) fn take(&mut self, object: &Encoded<'_>) -> Result<Option<Converted>, String> {
        let converted = convert(self.kind, object, &mut self.names.borrow_mut())?;
        if converted.key.name.name.is_empty() {
            return Err(format!("a {} without a name", self.kind));
        }
        if self.kind == Kind::Node && converted.key.name.name != self.node_name {
            return Ok(None);
        }
        self.tell(&converted);
        Ok(Some(converted))
    }

    /// Decodes a deleted object.
    ///
    /// # Errors
    /// If the object has no valid metadata.
    pub(super) fn take_gone(&mut self, object: &Encoded<'_>) -> Result<Option<Converted>, String> {
        let (key, version) = object.identity(self.kind, &mut self.names.borrow_mut())?;
        if self.kind == Kind::Node && key.name.name != self.node_name {
            return Ok(None);
        }
        self.told.remove(&key.name);
        Ok(Some(Converted { key, version, trigger: None, change: None, problems: Vec::new() }))
    }

    /// Handles a complete list: returns the change that deletes all objects that it lacks.
    pub(super) fn listed(&mut self, names: HashSet<ObjectName>) -> Change {
        self.told.retain(|name, _| names.contains(name));
        Change::Listed(self.kind, names.into())
    }

    /// Reports problems, once for each version of an object.
    fn tell(&mut self, Converted { key, version, problems, .. }: &Converted) {
        if problems.is_empty() {
            self.told.remove(&key.name);
        } else if self.told.get(&key.name) != Some(version) {
            problems.iter().for_each(Diagnostic::log);
            self.told.insert(key.name.clone(), version.clone());
        }
    }

    /// Returns the family of an EndpointSlice and the time of its trigger, after the start.
    pub(super) fn trigger(&self, converted: &Converted) -> Option<(Family, SystemTime)> {
        let Some(Change::Slice(slice)) = &converted.change else { return None };
        let time = SystemTime::from(converted.trigger?);
        (time > self.started).then_some((slice.family, time))
    }
}
