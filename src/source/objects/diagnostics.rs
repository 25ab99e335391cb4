//! What is found wrong with one object while it is converted.

use std::fmt;

use ipnet::IpNet;
use shunt_core::model::Change;

use crate::spanned_yaml::{At, Diagnostic, Severity, parse_net};

use super::{Converted, Key, Names, raw, values};

/// An object with more problems than this is told about the first ones only.
const MAX_PROBLEMS: usize = 50;

/// Collects problems; a conversion goes on after each, so that all are named at once.
#[derive(Default)]
pub(super) struct Diagnostics {
    problems: Vec<Diagnostic>,
    beyond_limit: usize,
    refused: bool,
}

impl Diagnostics {
    /// The object cannot be used.
    pub(super) fn error(
        &mut self,
        at: At<'_>,
        value: impl fmt::Display,
        reason: impl Into<String>,
    ) {
        self.refused = true;
        self.add(Severity::Error, at, Some(&value), reason.into());
    }

    /// The object cannot be used because a field is missing.
    pub(super) fn missing(&mut self, at: At<'_>, reason: impl Into<String>) {
        self.refused = true;
        self.add(Severity::Error, at, None, reason.into());
    }

    /// A part is ignored; `effect` says which.
    pub(super) fn ignored(
        &mut self,
        at: At<'_>,
        value: impl fmt::Display,
        reason: impl fmt::Display,
        effect: &str,
    ) {
        self.add(Severity::Warning, at, Some(&value), format!("{reason} ({effect})"));
    }

    /// A part is ignored because a field of it is missing.
    pub(super) fn ignored_without(&mut self, at: At<'_>, reason: &str, effect: &str) {
        self.add(Severity::Warning, at, None, format!("{reason} ({effect})"));
    }

    /// Reads a list of prefixes, each once. A wrong one costs just that one.
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

    /// Something has no effect.
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

    /// Checks what all kinds have in common and names the object.
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
        Key::named(kind, metadata, names)
    }

    /// The result: the object, unless something was found that forbids to use it.
    pub(super) fn finish(mut self, key: Key, change: Option<Change>) -> Converted {
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
        Converted { key, change: change.filter(|_| !self.refused), problems }
    }
}
