//! Collects the problems of an object during its conversion.

use std::fmt;

use ipnet::IpNet;
use shunt_core::model::Change;

use crate::source::spanned_yaml::{At, Diagnostic, Severity, parse_net};

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
        at: At<'_>,
        value: impl fmt::Display,
        reason: impl Into<String>,
    ) {
        self.refused = true;
        self.add(Severity::Error, at, Some(&value), reason.into());
    }

    /// Adds an error for a missing field: the object cannot be used.
    pub(super) fn missing(&mut self, at: At<'_>, reason: impl Into<String>) {
        self.refused = true;
        self.add(Severity::Error, at, None, reason.into());
    }

    /// Adds a warning for an ignored part; `effect` names the part.
    pub(super) fn ignored(
        &mut self,
        at: At<'_>,
        value: impl fmt::Display,
        reason: impl fmt::Display,
        effect: &str,
    ) {
        self.add(Severity::Warning, at, Some(&value), format!("{reason} ({effect})"));
    }

    /// Adds a warning for a part that is ignored because of a missing field.
    pub(super) fn ignored_without(&mut self, at: At<'_>, reason: &str, effect: &str) {
        self.add(Severity::Warning, at, None, format!("{reason} ({effect})"));
    }

    /// Parses a list of prefixes and removes duplicates. Ignores an invalid prefix, with a warning.
    pub(super) fn nets(&mut self, texts: &[String], at: &At<'_>, effect: &str) -> Vec<IpNet> {
        let mut nets = Vec::with_capacity(texts.len());
        for (i, text) in texts.iter().enumerate() {
            match parse_net(text) {
                Ok(net) if nets.contains(&net) => {}
                Ok(net) => nets.push(net),
                Err(reason) => self.ignored(at.index(i), text, reason, effect),
            }
        }
        nets
    }

    /// Adds a note about a field without effect.
    pub(super) fn note(&mut self, at: At<'_>, reason: impl Into<String>) {
        self.add(Severity::Note, at, None, reason.into());
    }

    fn add(
        &mut self,
        severity: Severity,
        at: At<'_>,
        value: Option<&dyn fmt::Display>,
        reason: String,
    ) {
        if self.problems.len() >= MAX_PROBLEMS {
            self.beyond_limit += 1;
            return;
        }
        let problem = Diagnostic::new(severity, at.path(), reason);
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
        let at = At::top("metadata");
        if metadata.name.is_empty() {
            self.missing(at.field("name"), format!("a {kind} needs a name"));
        } else if let Err(reason) = values::dns_name(&metadata.name, values::NAME_LENGTH) {
            self.error(at.field("name"), &metadata.name, reason);
        }
        if kind.is_namespaced()
            && !metadata.namespace.is_empty()
            && let Err(reason) = values::dns_label(&metadata.namespace)
        {
            self.error(at.field("namespace"), &metadata.namespace, reason);
        }
        Key::named(kind, &metadata.namespace, &metadata.name, names)
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
