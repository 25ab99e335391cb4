//! Collects problems of a configuration.

use std::fmt;
use std::time::Duration;

use super::Configuration;
use crate::source::spanned_yaml::{Diagnostic, FieldPath, Severity};

/// Collects problems.
pub(super) struct Check<'p> {
    pub(super) problems: &'p mut Vec<Diagnostic>,
}

impl Check<'_> {
    pub(super) fn add(
        &mut self,
        severity: Severity,
        field: &str,
        value: Option<&dyn fmt::Display>,
        reason: impl Into<String>,
    ) {
        let problem = Diagnostic::new(severity, FieldPath::dotted(field), reason);
        self.problems.push(match value {
            Some(value) => problem.with_value(value),
            None => problem,
        });
    }

    pub(super) fn error(
        &mut self,
        field: &str,
        value: impl fmt::Display,
        reason: impl Into<String>,
    ) {
        self.add(Severity::Error, field, Some(&value), reason);
    }

    /// Returns the value, or adds the reason as an error.
    pub(super) fn value<T>(
        &mut self,
        field: &str,
        text: &str,
        value: Result<T, String>,
    ) -> Option<T> {
        value.map_err(|reason| self.error(field, text, reason)).ok()
    }

    /// Returns the duration in a field.
    pub(super) fn period(&mut self, configuration: &Configuration, field: &str) -> Duration {
        let period = configuration.duration(field).unwrap_or_default();
        period.get().unwrap_or_else(|| {
            self.error(
                field,
                configuration.text(field).unwrap_or_default(),
                "negative duration; write a positive one",
            );
            Duration::ZERO
        })
    }
}
