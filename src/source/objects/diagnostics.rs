//! The head and the end of each conversion of an object.

use shunt_core::model::Change;

use crate::source::spanned_yaml::{Diagnostic, Diagnostics, Severity};

use super::{Converted, Key, Names, raw, values};

impl Diagnostics {
    /// Checks the metadata of any kind and returns the key of the object.
    pub(super) fn key(
        &mut self,
        kind: super::Kind,
        metadata: &raw::Metadata,
        names: &mut Names,
    ) -> Key {
        let raw::Metadata { name, namespace, .. } = metadata;
        if name.is_empty() {
            self.missing("metadata.name", format_args!("a {kind} needs a name"));
        } else {
            self.valid("metadata.name", name, values::dns_name(name, values::NAME_LENGTH));
        }
        if kind.is_namespaced() && !namespace.is_empty() {
            self.valid("metadata.namespace", namespace, values::dns_label(namespace));
        }
        Key::named(kind, namespace, name, names)
    }

    /// Returns the result: the object, unless an error forbids its use.
    pub(super) fn finish(
        self,
        key: Key,
        metadata: &raw::Metadata,
        change: Option<Change>,
    ) -> Converted {
        let mut is_refused = false;
        let of_object = |mut problem: Diagnostic| {
            if problem.severity == Severity::Error {
                is_refused = true;
                problem.reason.push_str(&format!(" (the {} is left out)", key.kind));
            }
            problem.of_object(&key)
        };
        let problems = self.into_problems().into_iter().map(of_object).collect();
        let version = metadata.resource_version.clone();
        if is_refused {
            return Converted::refused(key, version, problems);
        }
        let trigger = metadata.annotation("endpoints.kubernetes.io/last-change-trigger-time");
        let trigger = trigger.and_then(|time| time.parse().ok());
        Converted { key, version, trigger, change, problems }
    }
}
