//! Collects the problems of an object during its conversion.

use std::fmt;

use shunt_core::model::Change;

use crate::source::spanned_yaml::{Diagnostic, FieldPath, Severity};

use super::{Converted, Key, Names, raw, values};

/// The number of problems of an object that are listed; the others are counted.
const MAX_PROBLEMS: usize = 50;

/// The problems of an object. A conversion continues after each, so that all are named at once.
#[derive(Default)]
pub(super) struct Diagnostics {
    problems: Vec<Diagnostic>,
    beyond_limit: usize,
    refused: bool,
}

impl Diagnostics {
    /// Adds an error: the object cannot be used.
    pub(super) fn error(
        &mut self,
        at: impl fmt::Display,
        value: impl fmt::Display,
        reason: impl fmt::Display,
    ) {
        self.add(Severity::Error, &at, Some(&value), reason.to_string());
    }

    /// Adds an error for a missing field: the object cannot be used.
    pub(super) fn missing(&mut self, at: impl fmt::Display, reason: impl fmt::Display) {
        self.add(Severity::Error, &at, None, reason.to_string());
    }

    /// Returns a valid value. Otherwise, adds an error: the object cannot be used.
    pub(super) fn valid<T>(
        &mut self,
        at: impl fmt::Display,
        value: impl fmt::Display,
        parsed: Result<T, impl fmt::Display>,
    ) -> Option<T> {
        parsed.map_err(|reason| self.error(at, value, reason)).ok()
    }

    /// Adds a warning for an ignored part; `effect` names the part.
    pub(super) fn ignored(
        &mut self,
        at: impl fmt::Display,
        value: impl fmt::Display,
        reason: impl fmt::Display,
        effect: &str,
    ) {
        self.add(Severity::Warning, &at, Some(&value), format!("{reason} ({effect})"));
    }

    /// Adds a warning for a part that is ignored because of a missing field.
    pub(super) fn ignored_without(&mut self, at: impl fmt::Display, reason: &str, effect: &str) {
        self.add(Severity::Warning, &at, None, format!("{reason} ({effect})"));
    }

    /// Returns a valid value. Otherwise, adds a warning for the ignored part.
    pub(super) fn usable<T>(
        &mut self,
        at: impl fmt::Display,
        value: impl fmt::Display,
        parsed: Result<T, impl fmt::Display>,
        effect: &str,
    ) -> Option<T> {
        parsed.map_err(|reason| self.ignored(at, value, reason, effect)).ok()
    }

    /// Parses a list without duplicates. Ignores an invalid element, with a warning.
    pub(super) fn list<T: PartialEq>(
        &mut self,
        texts: &[String],
        at: &str,
        parse: fn(&str) -> Result<T, String>,
        effect: &str,
    ) -> Vec<T> {
        let mut list = Vec::with_capacity(texts.len());
        for (i, text) in texts.iter().enumerate() {
            let value = self.usable(format_args!("{at}[{i}]"), text, parse(text), effect);
            list.extend(value.filter(|value| !list.contains(value)));
        }
        list
    }

    /// Adds a note about a field without effect.
    pub(super) fn note(&mut self, at: impl fmt::Display, reason: &str) {
        self.add(Severity::Note, &at, None, reason.to_owned());
    }

    fn add(
        &mut self,
        severity: Severity,
        at: &dyn fmt::Display,
        value: Option<&dyn fmt::Display>,
        reason: String,
    ) {
        self.refused |= severity == Severity::Error;
        if self.problems.len() >= MAX_PROBLEMS {
            self.beyond_limit += 1;
            return;
        }
        let problem = Diagnostic::new(severity, FieldPath::dotted(&at.to_string()), reason);
        self.problems.push(match value {
            Some(value) => problem.with_value(value),
            None => problem,
        });
    }

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
        mut self,
        key: Key,
        metadata: &raw::Metadata,
        change: Option<Change>,
    ) -> Converted {
        if self.beyond_limit > 0 {
            let reason = format!("{} more problems are not listed", self.beyond_limit);
            self.problems.push(Diagnostic::new(Severity::Warning, Default::default(), reason));
        }
        for problem in &mut self.problems {
            if problem.severity == Severity::Error {
                problem.reason.push_str(&format!(" (the {} is left out)", key.kind));
            }
        }
        let subject = key.to_string();
        let problems = self.problems.into_iter().map(|p| p.of_object(&subject)).collect();
        let version = metadata.resource_version.clone();
        if self.refused {
            return Converted::refused(key, version, problems);
        }
        let trigger = metadata.annotation("endpoints.kubernetes.io/last-change-trigger-time");
        let trigger = trigger.and_then(|time| time.parse().ok());
        Converted { key, version, trigger, change, problems }
    }
}
