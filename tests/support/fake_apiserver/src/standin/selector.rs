//! Label and field selectors. Pure.

use serde_json::Value;

use crate::object::Kind;

/// Which objects a client wants.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Selector {
    labels: Vec<Requirement>,
    fields: Vec<Requirement>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Requirement {
    Is { path: String, value: String },
    IsNot { path: String, value: String },
    Exists { path: String },
    Absent { path: String },
}

impl Selector {
    /// From the parameters `labelSelector` and `fieldSelector`; `service_fields` tells whether the
    /// server knows fields of Services. An error says it as the server does.
    pub(super) fn parse(
        kind: Kind,
        labels: &str,
        fields: &str,
        service_fields: bool,
    ) -> Result<Self, String> {
        let terms = |text: &str| -> Vec<Requirement> {
            text.split(',').map(str::trim).filter(|term| !term.is_empty()).map(term).collect()
        };
        let selector = Self { labels: terms(labels), fields: terms(fields) };
        for requirement in &selector.fields {
            match requirement {
                Requirement::Is { path, .. } | Requirement::IsNot { path, .. } => {
                    let common = ["metadata.name", "metadata.namespace"].contains(&path.as_str());
                    let of_service = ["spec.clusterIP", "spec.type"].contains(&path.as_str());
                    let known = common || kind == Kind::Service && service_fields && of_service;
                    if !known {
                        return Err(format!("field label not supported: {path}"));
                    }
                }
                Requirement::Exists { path } | Requirement::Absent { path } => {
                    return Err(format!("invalid selector: '{path}'; can't understand '{path}'"));
                }
            }
        }
        Ok(selector)
    }

    pub(super) fn matches(&self, object: &Value) -> bool {
        let label = |name: &str| object["metadata"]["labels"].get(name).and_then(Value::as_str);
        let field = |path: &str| {
            let value = path.split('.').fold(object, |value, name| &value[name]);
            // An absent field is an empty string to the server.
            Some(value.as_str().unwrap_or_default())
        };
        self.labels.iter().all(|requirement| requirement.holds(label))
            && self.fields.iter().all(|requirement| requirement.holds(field))
    }
}

impl Requirement {
    fn holds<'a>(&self, get: impl Fn(&str) -> Option<&'a str>) -> bool {
        match self {
            Self::Is { path, value } => get(path) == Some(value),
            Self::IsNot { path, value } => get(path) != Some(value),
            Self::Exists { path } => get(path).is_some(),
            Self::Absent { path } => get(path).is_none(),
        }
    }
}

fn term(text: &str) -> Requirement {
    let owned = |(path, value): (&str, &str)| (path.trim().to_owned(), value.trim().to_owned());
    if let Some(path) = text.strip_prefix('!') {
        Requirement::Absent { path: path.trim().to_owned() }
    } else if let Some((path, value)) = text.split_once("!=").map(owned) {
        Requirement::IsNot { path, value }
    } else if let Some((path, value)) = text.split_once("==").map(owned) {
        Requirement::Is { path, value }
    } else if let Some((path, value)) = text.split_once('=').map(owned) {
        Requirement::Is { path, value }
    } else {
        Requirement::Exists { path: text.to_owned() }
    }
}
