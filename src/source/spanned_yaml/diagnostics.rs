//! Collects the problems of an object or a configuration.

use std::collections::HashSet;
use std::fmt;
use std::hash::Hash;

use super::{Diagnostic, Severity};

/// The number of problems that are listed; the others are counted.
const MAX_PROBLEMS: usize = 50;

/// The problems of an object or a configuration. Its reader continues after each, so that all are named
/// at once.
#[derive(Default)]
pub(crate) struct Diagnostics {
    problems: Vec<Diagnostic>,
    beyond_limit: usize,
    has_error: bool,
}

impl Diagnostics {
    /// Adds an error: the object cannot be used.
    pub(crate) fn error(
        &mut self,
        at: impl fmt::Display,
        value: impl fmt::Display,
        reason: impl fmt::Display,
    ) {
        self.add(Severity::Error, &at, Some(&value), reason.to_string());
    }

    /// Adds an error for a missing field: the object cannot be used.
    pub(crate) fn missing(&mut self, at: impl fmt::Display, reason: impl fmt::Display) {
        self.add(Severity::Error, &at, None, reason.to_string());
    }

    /// Returns a valid value. Otherwise, adds an error: the object cannot be used.
    pub(crate) fn valid<T>(
        &mut self,
        at: impl fmt::Display,
        value: impl fmt::Display,
        parsed: Result<T, impl fmt::Display>,
    ) -> Option<T> {
        parsed.map_err(|reason| self.error(at, value, reason)).ok()
    }

    /// Adds a warning for an ignored part; `effect` names the part.
    pub(crate) fn ignored(
        &mut self,
        at: impl fmt::Display,
        value: impl fmt::Display,
        reason: impl fmt::Display,
        effect: &str,
    ) {
        self.add(Severity::Warning, &at, Some(&value), format!("{reason} ({effect})"));
    }

    /// Adds a warning for a part that is ignored because of a missing field.
    pub(crate) fn ignored_without(&mut self, at: impl fmt::Display, reason: &str, effect: &str) {
        self.add(Severity::Warning, &at, None, format!("{reason} ({effect})"));
    }

    /// Returns a valid value. Otherwise, adds a warning for the ignored part.
    pub(crate) fn usable<T>(
        &mut self,
        at: impl fmt::Display,
        value: impl fmt::Display,
        parsed: Result<T, impl fmt::Display>,
        effect: &str,
    ) -> Option<T> {
        parsed.map_err(|reason| self.ignored(at, value, reason, effect)).ok()
    }

    /// Parses a list without duplicates. Ignores an invalid element, with a warning.
    pub(crate) fn list<T: Clone + Eq + Hash>(
        &mut self,
        texts: &[String],
        at: &str,
        parse: fn(&str) -> Result<T, String>,
        effect: &str,
    ) -> Vec<T> {
        let (mut list, mut seen) = (Vec::with_capacity(texts.len()), HashSet::new());
        for (i, text) in texts.iter().enumerate() {
            let value = self.usable(format_args!("{at}[{i}]"), text, parse(text), effect);
            list.extend(value.filter(|value| seen.insert(value.clone())));
        }
        list
    }

    /// Adds a note about a field without effect.
    pub(crate) fn note(&mut self, at: impl fmt::Display, reason: &str) {
        self.add(Severity::Note, &at, None, reason.to_owned());
    }

    /// Adds a problem.
    pub(crate) fn add(
        &mut self,
        severity: Severity,
        at: &dyn fmt::Display,
        value: Option<&dyn fmt::Display>,
        reason: impl Into<String>,
    ) {
        let is_error = severity == Severity::Error;
        // The first error is always listed.
        if self.problems.len() >= MAX_PROBLEMS && (self.has_error || !is_error) {
            self.beyond_limit += 1;
            return;
        }
        self.has_error |= is_error;
        let problem = Diagnostic::new(severity, at.to_string(), reason);
        self.problems.push(match value {
            Some(value) => problem.with_value(value),
            None => problem,
        });
    }

    /// Returns all problems.
    pub(crate) fn into_problems(mut self) -> Vec<Diagnostic> {
        if self.beyond_limit > 0 {
            let reason = format!("{} more problems are not listed", self.beyond_limit);
            self.problems.push(Diagnostic::new(Severity::Warning, "", reason));
        }
        self.problems
    }
}
