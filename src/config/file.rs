//! Reading a configuration file.

use std::path::Path;
use std::sync::Arc;

use crate::source::spanned_yaml::{
    self, Diagnostic, FieldPath, Node, Severity, typed_reporting_unknown,
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
) -> Option<(Configuration, Node<'a>)> {
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
    for (field, expected) in [("apiVersion", API_VERSION), ("kind", KIND)] {
        let node = document.get(field);
        if node.and_then(Node::text) != Some(expected) {
            let mut problem = error(FieldPath::top(field), &format!("must be {expected}"));
            problem.value = node.map(Node::describe);
            found.push(problem);
        }
    }
    if !found.is_empty() {
        // It is another kind of file: further errors would mislead.
        problems.extend(found.into_iter().map(|p| locate(p, path, &document)));
        return None;
    }
    found.extend(fields::notes(&document));
    let mut raw = decode(document.clone(), &mut found);
    // An empty address in a file means the default; only a flag turns the server off by it.
    raw.healthz_bind_address.take_if(|address| address.is_empty());
    raw.metrics_bind_address.take_if(|address| address.is_empty());
    problems.extend(found.into_iter().map(|p| locate(p, path, &document)));
    Some((raw, document))
}

fn locate(problem: Diagnostic, path: &Arc<Path>, document: &Node<'_>) -> Diagnostic {
    let line = document.line_of(&problem.field);
    problem.in_file(path, Some(line))
}

/// Decodes the document. Removes a value of a wrong type and decodes the rest, so that one report
/// names all of them.
fn decode(mut document: Node<'_>, problems: &mut Vec<Diagnostic>) -> Configuration {
    for _ in 0..MAX_TYPE_ERRORS {
        let mut unknown = Vec::new();
        let result = typed_reporting_unknown(&document, |field| unknown.push(field));
        let error = match result {
            Ok(configuration) => {
                problems.extend(unknown.into_iter().map(|field| unknown_field(&document, field)));
                return configuration;
            }
            Err(error) => error,
        };
        let value = document.at(&error.field).map(Node::describe);
        let removed = document.remove(&error.field);
        let mut problem = Diagnostic::new(Severity::Error, error.field, error.reason);
        problem.value = value;
        problems.push(problem);
        if !removed {
            break;
        }
    }
    Configuration::default()
}

fn unknown_field(document: &Node<'_>, field: FieldPath) -> Diagnostic {
    let hint = fields::similar(&field).map(|known| format!("; did you mean {known}?"));
    let reason = format!("unknown field, ignored{}", hint.unwrap_or_default());
    let value = document.at(&field).map(Node::describe);
    let mut problem = Diagnostic::new(Severity::Warning, field, reason);
    problem.value = value;
    problem
}
