//! Reading a configuration file.

use std::path::Path;
use std::sync::Arc;

use serde_json::Value;

use crate::source::spanned_yaml::{
    self, Diagnostic, Document, FieldPath, Segment, Severity, describe, typed_reporting_unknown,
};

use super::raw::Configuration;
use super::{API_VERSION, KIND, fields};

/// The maximum number of type errors in one report.
const MAX_TYPE_ERRORS: usize = 20;

/// Parses the file as far as possible. Unknown fields are warnings, as with kube-proxy. Returns
/// `None` if the file is no configuration at all.
pub(super) fn read<'a>(
    path: &Arc<Path>,
    bytes: &'a [u8],
    problems: &mut Vec<Diagnostic>,
) -> Option<(Configuration, Document<'a>)> {
    let error = |field: FieldPath, reason: &str| Diagnostic::new(Severity::Error, field, reason);
    let mut documents = match spanned_yaml::parse_leniently(bytes) {
        Ok((documents, errors)) => {
            // kube-proxy accepts duplicate fields, and whatever follows the first document.
            problems.extend(errors.into_iter().map(|e| {
                let problem = Diagnostic::new(Severity::Warning, FieldPath::default(), e.reason);
                problem.in_file(path, Some(e.line))
            }));
            documents
        }
        Err(e) => {
            let reason = format!("not YAML or JSON, column {}: {}", e.column, e.reason);
            problems.push(error(FieldPath::default(), &reason).in_file(path, Some(e.line)));
            return None;
        }
    };
    let Some(document) = (!documents.is_empty()).then(|| documents.swap_remove(0)) else {
        let reason = format!("the file is empty; it should begin with apiVersion: {API_VERSION}");
        problems.push(error(FieldPath::default(), &reason).in_file(path, None));
        return None;
    };
    if let Some(second) = documents.first() {
        // kube-proxy ignores it.
        let reason = "second document in the file, ignored; remove it";
        let problem = Diagnostic::new(Severity::Warning, FieldPath::default(), reason);
        problems.push(problem.in_file(path, Some(second.line)));
    }
    let mut found = Vec::new();
    let value = document.value();
    for (field, expected) in [("apiVersion", API_VERSION), ("kind", KIND)] {
        let found_value = value.get(field);
        if found_value.and_then(Value::as_str) != Some(expected) {
            let mut problem = error(FieldPath::dotted(field), &format!("must be {expected}"));
            problem.value = found_value.map(describe);
            found.push(problem);
        }
    }
    if !found.is_empty() {
        // It is another kind of file: further errors would mislead.
        problems.extend(found.into_iter().map(|p| locate(p, path, &document)));
        return None;
    }
    found.extend(fields::notes(&value));
    let mut raw = decode(value, &mut found);
    // An empty address in a file means the default; only a flag turns the server off by it.
    raw.healthz_bind_address.take_if(|address| address.is_empty());
    raw.metrics_bind_address.take_if(|address| address.is_empty());
    problems.extend(found.into_iter().map(|p| locate(p, path, &document)));
    Some((raw, document))
}

fn locate(problem: Diagnostic, path: &Arc<Path>, document: &Document<'_>) -> Diagnostic {
    let line = document.line_of(&problem.field);
    problem.in_file(path, Some(line))
}

/// Decodes the document. Removes a value of a wrong type and decodes the rest, so that one report
/// names all of them.
fn decode(mut document: Value, problems: &mut Vec<Diagnostic>) -> Configuration {
    for section in fields::sections() {
        // serde would take the elements of a list for the fields in their order.
        if document.pointer(&format!("/{}", section.replace('.', "/"))).is_some_and(Value::is_array)
        {
            let field = FieldPath::dotted(section);
            let list = remove(&mut document, &field);
            let reason = "must be a mapping, not a list";
            let mut problem = Diagnostic::new(Severity::Error, field, reason);
            problem.value = list.as_ref().map(describe);
            problems.push(problem);
        }
    }
    for _ in 0..MAX_TYPE_ERRORS {
        let mut unknown = Vec::new();
        let result = typed_reporting_unknown(&document.to_string(), |field| unknown.push(field));
        let error = match result {
            Ok(configuration) => {
                problems.extend(unknown.into_iter().map(|field| unknown_field(&document, field)));
                return configuration;
            }
            Err(error) => error,
        };
        let removed = remove(&mut document, &error.field);
        let mut problem = Diagnostic::new(Severity::Error, error.field, error.reason);
        problem.value = removed.as_ref().map(describe);
        problems.push(problem);
        if removed.is_none() {
            break;
        }
    }
    Configuration::default()
}

/// Removes a field or an element of a list.
fn remove(document: &mut Value, field: &FieldPath) -> Option<Value> {
    let (last, parents) = field.segments().split_last()?;
    let parent = parents.iter().try_fold(document, |value, segment| match segment {
        Segment::Field(name) => value.get_mut(&**name),
        Segment::Index(index) => value.get_mut(index),
    })?;
    match (last, parent) {
        (Segment::Field(name), Value::Object(fields)) => fields.remove(&**name),
        (Segment::Index(index), Value::Array(items)) if *index < items.len() => {
            Some(items.remove(*index))
        }
        _ => None,
    }
}

fn unknown_field(document: &Value, field: FieldPath) -> Diagnostic {
    let hint = fields::similar(&field).map(|known| format!("; did you mean {known}?"));
    let reason = format!("unknown field, ignored{}", hint.unwrap_or_default());
    let value = remove(&mut document.clone(), &field);
    let mut problem = Diagnostic::new(Severity::Warning, field, reason);
    problem.value = value.as_ref().map(describe);
    problem
}
