//! Reading a configuration file.

use std::path::Path;
use std::sync::Arc;

use serde_json::Value;

use super::fields::{is_section, is_zero, similar};
use super::{API_VERSION, Configuration, Effect, FIELDS, Field, KIND};
use crate::source::spanned_yaml::{
    self, Diagnostic, Document, Severity, describe, push_step, steps,
};

/// Parses the file as far as possible. Unknown fields are warnings, as with kube-proxy. Returns
/// `None` if the file is no configuration at all.
pub(super) fn read<'a>(
    path: &Arc<Path>,
    bytes: &'a [u8],
    problems: &mut Vec<Diagnostic>,
) -> Option<(Configuration, Document<'a>)> {
    let error = |field: &str, reason: &str| Diagnostic::new(Severity::Error, field, reason);
    let mut documents = match spanned_yaml::parse_leniently(bytes) {
        Ok((documents, errors)) => {
            // kube-proxy accepts duplicate fields, and whatever follows the first document.
            problems.extend(errors.into_iter().map(|e| {
                let problem = Diagnostic::new(Severity::Warning, "", e.reason);
                problem.in_file(path, Some(e.line))
            }));
            documents
        }
        Err(e) => {
            problems.push(e.in_file(path));
            return None;
        }
    };
    let Some(document) = (!documents.is_empty()).then(|| documents.swap_remove(0)) else {
        let reason = format!("the file is empty; it should begin with apiVersion: {API_VERSION}");
        problems.push(error("", &reason).in_file(path, None));
        return None;
    };
    if let Some(second) = documents.first() {
        // kube-proxy ignores it.
        let reason = "second document in the file, ignored; remove it";
        let problem = Diagnostic::new(Severity::Warning, "", reason);
        problems.push(problem.in_file(path, Some(second.line)));
    }
    let mut found = Vec::new();
    let value = document.value();
    for (field, expected) in [("apiVersion", API_VERSION), ("kind", KIND)] {
        let found_value = value.get(field);
        if found_value.and_then(Value::as_str) != Some(expected) {
            let mut problem = error(field, &format!("must be {expected}"));
            problem.value = found_value.map(describe);
            found.push(problem);
        }
    }
    if !found.is_empty() {
        // It is another kind of file: further errors would mislead.
        problems.extend(found.into_iter().map(|p| locate(p, path, &document)));
        return None;
    }
    let mut written = Configuration::default();
    decode(&value, "", &mut written, &mut found);
    problems.extend(found.into_iter().map(|p| locate(p, path, &document)));
    Some((written, document))
}

fn locate(problem: Diagnostic, path: &Arc<Path>, document: &Document<'_>) -> Diagnostic {
    let line = document.line_of(&problem.field);
    problem.in_file(path, Some(line))
}

/// Decodes the section at a path, as far as its fields are known and have their types: one report
/// names all that do not.
fn decode(
    section: &Value,
    path: &str,
    written: &mut Configuration,
    problems: &mut Vec<Diagnostic>,
) {
    for (name, value) in section.as_object().into_iter().flatten() {
        let mut path = path.to_owned();
        push_step(&mut path, name);
        let is_known = FIELDS.iter().any(|field| is_section(&path, field));
        match (Field::at(&path), value) {
            // As for Go, it counts as absent.
            (_, Value::Null) => {}
            (Some(field), _) => decode_field(field, value, written, problems),
            (None, Value::Object(_)) if is_known => decode(value, &path, written, problems),
            (None, _) if is_known => {
                let found = if value.is_array() { ", not a list" } else { "" };
                let reason = format!("must be a mapping{found}");
                problems.push(problem(Severity::Error, path, value, reason));
            }
            (None, _) => problems.push(unknown_field(path, value)),
        }
    }
}

fn decode_field(
    field: &Field,
    value: &Value,
    written: &mut Configuration,
    problems: &mut Vec<Diagnostic>,
) {
    match field.kind.value(value) {
        Ok(typed) => {
            if let Effect::None(why) = field.effect
                && !is_zero(value)
            {
                let reason = format!("has no effect: {why}");
                problems.push(problem(Severity::Note, field.path.to_owned(), value, reason));
            }
            // An empty address in a file means the default; only a flag turns the server off by it.
            if typed != "" {
                written.put(field.path, typed);
            }
        }
        Err(error) => {
            let wrong = at(value, &error.field);
            let mut path = field.path.to_owned();
            steps(&error.field).for_each(|step| push_step(&mut path, step));
            problems.push(problem(Severity::Error, path, wrong, error.reason));
        }
    }
}

fn problem(severity: Severity, path: String, value: &Value, reason: String) -> Diagnostic {
    Diagnostic { value: Some(describe(value)), ..Diagnostic::new(severity, path, reason) }
}

/// Returns the value of a field or an element of a list, as far as there is one.
fn at<'a>(value: &'a Value, field: &str) -> &'a Value {
    steps(field).fold(value, |value, step| match step.parse::<usize>() {
        Ok(index) if value.is_array() => &value[index],
        _ => &value[step],
    })
}

fn unknown_field(path: String, value: &Value) -> Diagnostic {
    let hint = similar(&path).map(|known| format!("; did you mean {known}?"));
    let reason = format!("unknown field, ignored{}", hint.unwrap_or_default());
    problem(Severity::Warning, path, value, reason)
}
