//! Parses the bytes of a file into objects and problems. Pure.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::value::RawValue;
use shunt_core::model::Change;

use crate::source::objects::{Encoded, Key, Kind, Names, convert_completed, raw};
use crate::source::spanned_yaml::{self, Diagnostic, Document, Severity, SyntaxError};

use super::kinds::{Recognised, recognise};

/// The number of problems of a file that are listed; the others are counted.
const MAX_PROBLEMS: usize = 100;

/// The context of all files.
#[derive(Default)]
pub struct Context<'a> {
    /// The name of the agent's Node; other Nodes are ignored.
    pub node_name: Arc<str>,
    /// The interned names of objects.
    pub names: Names,
    /// Adds to each Service what its file leaves out.
    pub complete: Option<&'a mut (dyn FnMut(&mut raw::Service) + Send)>,
}

/// The content of a file.
#[derive(Debug, Default)]
pub struct Manifest {
    /// The valid objects. Of several definitions of one, the last one counts.
    pub objects: Vec<Object>,
    /// The problems, with file and line.
    pub problems: Vec<Diagnostic>,
    /// The valid kinds that shunt does not use.
    pub not_used: BTreeSet<String>,
}

/// An object in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Object {
    /// Kind and name.
    pub key: Key,
    /// The first line.
    pub line: u32,
    /// The object; None if shunt does not implement it, for example a headless Service.
    pub change: Option<Change>,
}

/// Parses the objects in a file. Returns an error if the file is not YAML or JSON; then its objects
/// are unknown.
pub fn parse(
    file: &Arc<Path>,
    bytes: &[u8],
    context: &mut Context<'_>,
) -> Result<Manifest, Box<Diagnostic>> {
    let syntax_error = |error: SyntaxError| Box::new(error.in_file(file));
    let mut reader = ManifestReader { file, context, manifest: Manifest::default(), unlisted: 0 };
    for document in spanned_yaml::documents(bytes).map_err(syntax_error)? {
        reader.document(&document.map_err(syntax_error)?, None);
    }
    Ok(reader.finish())
}

struct ManifestReader<'a, 'b> {
    file: &'a Arc<Path>,
    context: &'a mut Context<'b>,
    manifest: Manifest,
    unlisted: usize,
}

/// What decides the meaning of a document.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Head<'a> {
    #[serde(borrow)]
    api_version: Option<&'a RawValue>,
    #[serde(borrow)]
    kind: Option<&'a RawValue>,
    #[serde(borrow)]
    items: Option<&'a RawValue>,
}

impl ManifestReader<'_, '_> {
    /// Parses a document, or an item of a list.
    fn document(&mut self, document: &Document<'_>, list: Option<Option<Kind>>) {
        if !document.json().starts_with('{') {
            let reason = "not an object; it should begin with apiVersion and kind";
            let value = document.describe("");
            return self.warn(document, "kind", value, reason);
        }
        let Ok(head) = serde_json::from_str::<Head<'_>>(document.json()) else {
            let reason = "apiVersion, kind or items comes twice; remove one (it is ignored)";
            return self.warn(document, "", None, reason);
        };
        let text = |field: Option<&RawValue>| serde_json::from_str::<String>(field?.get()).ok();
        let (api_version, kind) = (text(head.api_version), text(head.kind));
        let recognised = match (list.flatten(), api_version, &kind) {
            // The items of a ServiceList of the API server have neither kind nor apiVersion.
            (Some(kind), _, None) => Recognised::Ours(kind),
            (_, Some(api_version), Some(kind)) => recognise(&api_version, kind),
            (_, None, _) => Recognised::Mistake("an object needs an apiVersion".into()),
            (_, _, None) => Recognised::Mistake("an object needs a kind".into()),
        };
        match recognised {
            Recognised::Ours(kind) => self.object(kind, document),
            Recognised::List(kind) if list.is_none() => {
                match head.items.and_then(|items| document.elements(items)) {
                    Some(items) => items.for_each(|item| self.document(&item, Some(kind))),
                    None => {
                        let reason = "a list needs items (it is ignored)";
                        self.warn(document, "items", None, reason);
                    }
                }
            }
            Recognised::List(_) => {
                self.warn(document, "kind", None, "a list within a list is ignored");
            }
            Recognised::NotUsed => {
                self.manifest.not_used.extend(kind.filter(|kind| kind.len() < 100));
            }
            Recognised::Mistake(reason) => {
                let value = document.describe("kind");
                self.warn(document, "kind", value, &format!("{reason} (it is ignored)"));
            }
        }
    }

    fn object(&mut self, kind: Kind, document: &Document<'_>) {
        let object = Encoded::Json(document.json());
        let Context { names, complete, .. } = &mut *self.context;
        let complete = |service: &mut raw::Service| {
            complete.iter_mut().for_each(|complete| complete(service));
        };
        let converted = match convert_completed(kind, &object, names, complete) {
            Ok(converted) => converted,
            Err(reason) => {
                let reason = format!("{reason} (the {kind} is left out)");
                return self.warn(document, "metadata", None, &reason);
            }
        };
        if kind == Kind::Node && converted.key.name.name != self.context.node_name {
            return;
        }
        let refused = converted.is_refused();
        for mut problem in converted.problems {
            if problem.severity == Severity::Error && !problem.field.is_empty() {
                problem.value = problem.value.or_else(|| document.describe(&problem.field));
            }
            let line = document.line_of(&problem.field);
            self.report(problem, line);
        }
        if refused {
            return;
        }
        let object = Object { key: converted.key, line: document.line, change: converted.change };
        self.manifest.objects.push(object);
    }

    fn warn(&mut self, document: &Document<'_>, field: &str, value: Option<String>, reason: &str) {
        let mut problem = Diagnostic::new(Severity::Warning, field, reason);
        problem.value = value;
        let line = document.line_of(&problem.field);
        self.report(problem, line);
    }

    fn report(&mut self, problem: Diagnostic, line: u32) {
        if self.manifest.problems.len() < MAX_PROBLEMS {
            self.manifest.problems.push(problem.in_file(self.file, Some(line)));
        } else {
            self.unlisted += 1;
        }
    }

    fn finish(mut self) -> Manifest {
        if self.unlisted > 0 {
            let reason = format!("{} more problems are not listed", self.unlisted);
            let problem = Diagnostic::new(Severity::Warning, "", reason);
            self.manifest.problems.push(problem.in_file(self.file, None));
        }
        self.manifest
    }
}
