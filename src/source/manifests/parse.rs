//! Parses the bytes of a file into objects and problems. Pure.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use std::sync::Arc;

use shunt_core::model::Change;

use crate::source::objects::{Key, Kind, Names, convert};
use crate::source::spanned_yaml::{
    self, At, Diagnostic, FieldPath, Node, Severity, SyntaxError, TypeError, Value,
};

use super::kinds::{Recognised, recognise};

/// The number of problems of a file that are listed; the others are counted.
const MAX_PROBLEMS: usize = 100;

/// The number of unused kinds of a file that are named.
const MAX_NAMED_KINDS: usize = 20;

/// The context of all files.
#[derive(Debug, Default)]
pub struct Context {
    /// The name of the agent's Node; other Nodes are ignored.
    pub node_name: Arc<str>,
    /// The interned names of objects.
    pub names: Names,
}

/// The content of a file.
#[derive(Debug, Default)]
pub struct Manifest {
    /// The valid objects, each once.
    pub objects: Vec<Object>,
    /// The problems, with file and line.
    pub problems: Vec<Diagnostic>,
    /// Some of the valid kinds that shunt does not use.
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
    context: &mut Context,
) -> Result<Manifest, Box<Diagnostic>> {
    let syntax_error = |error: SyntaxError| {
        let reason = format!("not YAML or JSON, in column {}: {}", error.column, error.reason);
        let problem = Diagnostic::new(Severity::Error, FieldPath::default(), reason);
        Box::new(problem.in_file(file, Some(error.line)))
    };
    let mut reader = Reader {
        file,
        context,
        manifest: Manifest::default(),
        places: HashMap::new(),
        unlisted: 0,
    };
    for document in spanned_yaml::documents(bytes).map_err(syntax_error)? {
        reader.document(&document.map_err(syntax_error)?, None);
    }
    Ok(reader.finish())
}

struct Reader<'a> {
    file: &'a Arc<Path>,
    context: &'a mut Context,
    manifest: Manifest,
    /// Returns the index of the object with this key.
    places: HashMap<Key, usize>,
    unlisted: usize,
}

impl Reader<'_> {
    /// Parses a document, or an item of a list.
    fn document(&mut self, node: &Node<'_>, list: Option<Option<Kind>>) {
        let Value::Mapping(_) = &node.value else {
            let reason = "not an object; it should begin with apiVersion and kind";
            return self.warn(node, At::top("kind"), Some(node.describe()), reason);
        };
        let text = |field| node.get(field).and_then(Node::text);
        let recognised = match (list.flatten(), text("apiVersion"), text("kind")) {
            // The items of a ServiceList of the API server have neither kind nor apiVersion.
            (Some(kind), _, None) => Recognised::Ours(kind),
            (_, Some(api_version), Some(kind)) => recognise(api_version, kind),
            (_, None, _) => Recognised::Mistake("an object needs an apiVersion".into()),
            (_, _, None) => Recognised::Mistake("an object needs a kind".into()),
        };
        match recognised {
            Recognised::Ours(kind) => self.object(kind, node),
            Recognised::List(kind) if list.is_none() => self.list(node, kind),
            Recognised::List(_) => {
                self.warn(node, At::top("kind"), None, "a list within a list is ignored");
            }
            Recognised::NotUsed => {
                if let Some(kind) = text("kind").filter(|kind| kind.len() < 100)
                    && self.manifest.not_used.len() < MAX_NAMED_KINDS
                {
                    self.manifest.not_used.insert(kind.to_owned());
                }
            }
            Recognised::Mistake(reason) => {
                let value = node.get("kind").map(Node::describe);
                self.warn(node, At::top("kind"), value, &format!("{reason} (it is ignored)"));
            }
        }
    }

    fn list(&mut self, node: &Node<'_>, kind: Option<Kind>) {
        match node.get("items").map(|items| &items.value) {
            Some(Value::Sequence(items)) => {
                for item in items {
                    self.document(item, Some(kind));
                }
            }
            _ => self.warn(node, At::top("items"), None, "a list needs items (it is ignored)"),
        }
    }

    fn object(&mut self, kind: Kind, node: &Node<'_>) {
        let converted = match convert(kind, node, &mut self.context.names) {
            Ok(converted) => converted,
            Err(error) => return self.type_error(kind, node, error),
        };
        if kind == Kind::Node && converted.key.name.name != self.context.node_name {
            return;
        }
        let refused = converted.is_refused();
        for problem in converted.problems {
            let line = node.line_of(&problem.field);
            self.report(problem, line);
        }
        if refused {
            return;
        }
        let object = Object { key: converted.key, line: node.line, change: converted.change };
        match self.places.get(&object.key) {
            None => {
                self.places.insert(object.key.clone(), self.manifest.objects.len());
                self.manifest.objects.push(object);
            }
            Some(&place) => {
                let first = self.manifest.objects[place].line;
                let reason = format!(
                    "the same object is already in line {first}; the last definition wins; remove \
                     the other"
                );
                let problem = Diagnostic::new(Severity::Warning, FieldPath::default(), reason);
                self.report(problem.of_object(&object.key), object.line);
                self.manifest.objects[place] = object;
            }
        }
    }

    fn type_error(&mut self, kind: Kind, node: &Node<'_>, error: TypeError) {
        let metadata = |field| node.get("metadata").and_then(|m| m.get(field)).and_then(Node::text);
        let name = metadata("name").unwrap_or("without a name");
        let object = match metadata("namespace").filter(|_| kind.is_namespaced()) {
            Some(namespace) => format!("{kind} {namespace}/{name}"),
            None if kind.is_namespaced() => format!("{kind} default/{name}"),
            None => format!("{kind} {name}"),
        };
        let line = node.line_of(&error.field);
        let value = node.at(&error.field).map(Node::describe);
        let reason = format!("{} (the {kind} is left out)", error.reason);
        let mut problem = Diagnostic::new(Severity::Error, error.field, reason).of_object(object);
        problem.value = value;
        self.report(problem, line);
    }

    fn warn(&mut self, node: &Node<'_>, at: At<'_>, value: Option<String>, reason: &str) {
        let mut problem = Diagnostic::new(Severity::Warning, at.path(), reason);
        problem.value = value;
        let line = node.line_of(&problem.field);
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
            let problem = Diagnostic::new(Severity::Warning, FieldPath::default(), reason);
            self.manifest.problems.push(problem.in_file(self.file, None));
        }
        self.manifest
    }
}
