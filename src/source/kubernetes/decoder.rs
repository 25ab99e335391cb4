//! Decodes the JSON of an object into a change for the model.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use shunt_core::model::{Change, Family, Listed, ObjectName};

use crate::source::objects::{self, Converted, Key, Kind, Names, raw};
use crate::spanned_yaml::{self, Diagnostic, FieldPath, Severity, typed};

/// A decoder for objects of one kind, which logs their problems.
pub(super) struct Decoder {
    kind: Kind,
    node_name: Arc<str>,
    names: Arc<Mutex<Names>>,
    /// Triggers before this time, the start of the agent, are not measured.
    started: SystemTime,
    /// The versions of objects with problems that are in the log already.
    told: HashMap<ObjectName, String>,
}

/// A decoded object.
#[derive(Debug, PartialEq)]
pub(super) struct Decoded {
    /// The name of the object.
    pub(super) name: ObjectName,
    /// The `resourceVersion`.
    pub(super) version: String,
    /// The object or its deletion.
    pub(super) change: Change,
    /// The time of the trigger, from the annotation of an EndpointSlice.
    pub(super) trigger: Option<(Family, SystemTime)>,
}

/// The metadata of any object, readable whatever is wrong with the rest.
#[derive(Deserialize)]
struct Bare {
    metadata: BareMetadata,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct BareMetadata {
    name: String,
    #[serde(default)]
    namespace: String,
    #[serde(default)]
    resource_version: String,
}

impl Decoder {
    pub(super) fn new(
        kind: Kind,
        node_name: Arc<str>,
        names: Arc<Mutex<Names>>,
        started: SystemTime,
    ) -> Decoder {
        Decoder { kind, node_name, names, started, told: HashMap::new() }
    }

    /// Decodes an existing object. Returns `None` for the Node of another machine.
    ///
    /// # Errors
    /// If the object has no valid metadata.
    pub(super) fn take(&mut self, json: &RawValue) -> Result<Option<Decoded>, String> {
        let names = self.names.clone();
        let names = &mut names.lock().unwrap_or_else(PoisonError::into_inner);
        let read = match self.kind {
            Kind::Service => {
                read(json, |raw: raw::Service| (objects::service(&raw, names), raw.metadata))
            }
            Kind::EndpointSlice => read(json, |raw: raw::EndpointSlice| {
                (objects::endpoint_slice(&raw, names), raw.metadata)
            }),
            Kind::Node => read(json, |raw: raw::Node| (objects::node(&raw, names), raw.metadata)),
            Kind::ServiceCidr => read(json, |raw: raw::ServiceCidr| {
                (objects::service_cidr(&raw, names), raw.metadata)
            }),
        };
        let (converted, metadata) = match read {
            Some(read) => read,
            None => self.mistyped(json, names)?,
        };
        if metadata.name.is_empty() {
            return Err(format!("a {} without a name", self.kind));
        }
        if self.kind == Kind::Node && converted.key.name.name != self.node_name {
            return Ok(None);
        }
        let name = converted.key.name.clone();
        self.tell(&name, &metadata.resource_version, &converted.problems);
        let change = converted.into_change();
        let trigger = self.trigger(&change, &metadata.annotations);
        Ok(Some(Decoded { name, version: metadata.resource_version, change, trigger }))
    }

    /// Decodes a deleted object.
    ///
    /// # Errors
    /// If the object has no valid metadata.
    pub(super) fn take_gone(&mut self, json: &RawValue) -> Result<Option<Decoded>, String> {
        let metadata = bare(json)?;
        let names = &mut self.names.lock().unwrap_or_else(PoisonError::into_inner);
        let key = Key::named(self.kind, &metadata, names);
        if self.kind == Kind::Node && key.name.name != self.node_name {
            return Ok(None);
        }
        self.told.remove(&key.name);
        let change = key.gone();
        let version = metadata.resource_version;
        Ok(Some(Decoded { name: key.name, version, change, trigger: None }))
    }

    /// Handles a complete list: returns the change that deletes all objects that it lacks.
    pub(super) fn listed(&mut self, names: HashSet<ObjectName>) -> Option<Change> {
        self.told.retain(|name, _| names.contains(name));
        let listed = match self.kind {
            Kind::Service => Listed::Services(names.into()),
            Kind::EndpointSlice => Listed::Slices(names.into()),
            Kind::ServiceCidr => {
                let names: HashSet<Arc<str>> = names.into_iter().map(|name| name.name).collect();
                Listed::ServiceCidrs(names.into())
            }
            Kind::Node => return names.is_empty().then_some(Change::NodeGone),
        };
        Some(Change::Listed(listed))
    }

    /// Finds the field with the wrong type by the slow parser, so that the message equals that for
    /// a manifest.
    fn mistyped(
        &self,
        json: &RawValue,
        names: &mut Names,
    ) -> Result<(Converted, raw::Metadata), String> {
        let metadata = bare(json)?;
        let key = Key::named(self.kind, &metadata, names);
        let document = spanned_yaml::parse(json.get().as_bytes());
        let error =
            document.ok().as_deref().and_then(<[_]>::first).and_then(|node| match self.kind {
                Kind::Service => typed::<raw::Service>(node).err(),
                Kind::EndpointSlice => typed::<raw::EndpointSlice>(node).err(),
                Kind::Node => typed::<raw::Node>(node).err(),
                Kind::ServiceCidr => typed::<raw::ServiceCidr>(node).err(),
            });
        let (field, reason) = match error {
            Some(error) => (error.field, error.reason),
            None => (FieldPath::default(), "a field has the wrong type".to_owned()),
        };
        let reason = format!("{reason} (the {} is left out)", self.kind);
        let problem = Diagnostic::new(Severity::Error, field, reason).of_object(&key);
        Ok((Converted::refused(key, vec![problem]), metadata))
    }

    /// Reports problems, once for each version of an object.
    fn tell(&mut self, name: &ObjectName, version: &str, problems: &[Diagnostic]) {
        if problems.is_empty() {
            self.told.remove(name);
        } else if self.told.get(name).is_none_or(|told| told != version) {
            problems.iter().for_each(Diagnostic::log);
            self.told.insert(name.clone(), version.to_owned());
        }
    }

    fn trigger(
        &self,
        change: &Change,
        annotations: &raw::Annotations,
    ) -> Option<(Family, SystemTime)> {
        let Change::Slice(slice) = change else { return None };
        let time: jiff::Timestamp = annotations.last_change_trigger_time.as_ref()?.parse().ok()?;
        let time = SystemTime::from(time);
        (time > self.started).then_some((slice.family, time))
    }
}

fn read<T: DeserializeOwned>(
    json: &RawValue,
    convert: impl FnOnce(T) -> (Converted, raw::Metadata),
) -> Option<(Converted, raw::Metadata)> {
    serde_json::from_str(json.get()).ok().map(convert)
}

fn bare(json: &RawValue) -> Result<raw::Metadata, String> {
    let Bare { metadata } = serde_json::from_str(json.get())
        .map_err(|error| format!("an object without valid metadata ({error})"))?;
    let BareMetadata { name, namespace, resource_version } = metadata;
    Ok(raw::Metadata { name, namespace, resource_version, ..raw::Metadata::default() })
}
