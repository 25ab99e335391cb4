//! Documents of a text as JSON.

use std::borrow::Cow;
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use serde_json::Value;
use serde_json::value::RawValue;

use super::{Diagnostic, Severity, excerpt, steps};

/// A syntax error: the text is neither YAML nor JSON.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: {reason}")]
pub struct SyntaxError {
    /// The line, counted from 1.
    pub line: u32,
    /// The column, counted from 1.
    pub column: u32,
    /// The problem at this place.
    pub reason: String,
}

impl SyntaxError {
    /// Returns the error for the reader of this file.
    pub(crate) fn in_file(&self, file: &Arc<Path>) -> Diagnostic {
        let reason = format!("not YAML or JSON, in column {}: {}", self.column, self.reason);
        Diagnostic::new(Severity::Error, "", reason).in_file(file, Some(self.line))
    }
}

/// A document, or an object in it, as JSON. Each field and each element of a list is in the line
/// that it has in the text, counted from the first line of the document.
#[derive(Debug, Clone)]
pub struct Document<'a> {
    /// The first line, counted from 1.
    pub line: u32,
    pub(super) json: Cow<'a, str>,
}

/// Returns parts of a text, of which this is the first line, as documents.
pub(super) fn parts<'a>(
    text: &'a str,
    mut line: u32,
    values: Vec<&'a RawValue>,
) -> impl Iterator<Item = Document<'a>> {
    let mut counted = 0;
    values.into_iter().map(move |value| {
        let start = offset(text, value.get());
        line = line.saturating_add(newlines(&text.as_bytes()[counted..start]));
        counted = start;
        Document { line, json: value.get().into() }
    })
}

fn offset(text: &str, part: &str) -> usize {
    (part.as_ptr() as usize).saturating_sub(text.as_ptr() as usize).min(text.len())
}

pub(super) fn newlines(bytes: &[u8]) -> u32 {
    let count = bytes.iter().filter(|byte| **byte == b'\n').count();
    u32::try_from(count).unwrap_or(u32::MAX)
}

impl Document<'_> {
    /// Returns the text of the document in JSON.
    #[must_use]
    pub fn json(&self) -> &str {
        &self.json
    }

    /// Returns the document as a value. Of a key that it has more than once, the last one counts.
    #[must_use]
    pub fn value(&self) -> Value {
        serde_json::from_str(&self.json).unwrap_or_default()
    }

    /// Returns the elements of a list in the document; `None` if it is no list.
    #[must_use]
    pub fn elements<'s>(
        &'s self,
        list: &'s RawValue,
    ) -> Option<impl Iterator<Item = Document<'s>>> {
        let elements: Vec<&RawValue> = serde_json::from_str(list.get()).ok()?;
        Some(parts(&self.json, self.line, elements))
    }

    /// Returns the line of the field at `path`, or of the nearest existing value around it.
    #[must_use]
    pub fn line_of(&self, path: &str) -> u32 {
        let mut found = &*self.json;
        for step in steps(path) {
            match inner(found, step) {
                Some(value) => found = value,
                None => break,
            }
        }
        let before = &self.json.as_bytes()[..offset(&self.json, found)];
        self.line.saturating_add(newlines(before))
    }

    /// Returns a short description of the value at `path` for a message.
    #[must_use]
    pub fn describe(&self, path: &str) -> Option<String> {
        let json = steps(path).try_fold(&*self.json, inner)?;
        Some(describe(&serde_json::from_str(json).ok()?))
    }
}

/// Returns the JSON of a field or element.
fn inner<'a>(json: &'a str, step: &str) -> Option<&'a str> {
    let value = match serde_json::from_str::<HashMap<String, &RawValue>>(json) {
        Ok(mut fields) => fields.remove(step)?,
        Err(_) => {
            let elements: Vec<&RawValue> = serde_json::from_str(json).ok()?;
            *elements.get(step.parse::<usize>().ok()?)?
        }
    };
    Some(value.get())
}

/// Returns a short description of a value for a message.
#[must_use]
pub fn describe(value: &Value) -> String {
    match value {
        Value::String(text) => excerpt(text),
        Value::Array(items) => format!("a list of {}", items.len()),
        Value::Object(fields) => format!("a mapping of {}", fields.len()),
        scalar => scalar.to_string(),
    }
}
