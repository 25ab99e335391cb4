//! `KubeProxyConfiguration` of `kubeproxy.config.k8s.io/v1alpha1` as a document.

use serde::Serialize;
use serde_json::Value;

use super::{Field, GoDuration};

/// A configuration, in which each field has the type of its row in [`FIELDS`](super::FIELDS). A field
/// that is absent means the default, and mostly one with Go's zero value, which kubeadm writes for all.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Configuration(Value);

impl Configuration {
    /// Returns the value of a field or section, such as `conntrack.min`.
    #[must_use]
    pub fn get(&self, path: &str) -> Option<&Value> {
        self.0.pointer(&format!("/{}", path.replace('.', "/")))
    }

    /// Returns true if the field is there, and is true or false as given.
    #[must_use]
    pub fn is(&self, path: &str, on: bool) -> bool {
        self.get(path) == Some(&Value::Bool(on))
    }

    /// Returns the text, unless it is absent or empty.
    pub(super) fn text(&self, path: &str) -> Option<&str> {
        self.get(path)?.as_str().filter(|text| !text.is_empty())
    }

    pub(super) fn number(&self, path: &str) -> Option<i64> {
        self.get(path)?.as_i64()
    }

    pub(super) fn duration(&self, path: &str) -> Option<GoDuration> {
        GoDuration::parse(self.text(path)?).ok()
    }

    pub(super) fn list(&self, path: &str) -> impl DoubleEndedIterator<Item = &str> {
        let items = self.get(path).and_then(Value::as_array);
        items.into_iter().flatten().filter_map(Value::as_str)
    }

    /// Returns true if the field means its default.
    pub(super) fn is_unset(&self, path: &str) -> bool {
        Field::at(path).is_none_or(|field| field.is_unset(self.get(path)))
    }

    /// Returns the place of a field, whose sections are made.
    pub(super) fn entry(&mut self, path: &str) -> &mut Value {
        path.split('.').fold(&mut self.0, |section, name| {
            if !section.is_object() {
                *section = Value::Object(serde_json::Map::new());
            }
            &mut section[name]
        })
    }

    pub(super) fn put(&mut self, path: &str, value: impl Into<Value>) {
        *self.entry(path) = value.into();
    }
}
