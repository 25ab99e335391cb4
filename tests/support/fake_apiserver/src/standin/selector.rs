//! Label and field selectors. Pure.

use serde_json::Value;

use super::request::Request;

/// Which objects a client wants.
#[derive(Clone, Debug)]
pub(super) struct Selector {
    labels: String,
    fields: String,
}

impl Selector {
    pub(super) fn of(request: &Request) -> Self {
        let parameter = |name: &str| request.parameter(name).to_owned();
        Self { labels: parameter("labelSelector"), fields: parameter("fieldSelector") }
    }

    pub(super) fn matches(&self, object: &Value) -> bool {
        let label = |name: &str| object["metadata"]["labels"].get(name).and_then(Value::as_str);
        let field = |path: &str| {
            let value = path.split('.').fold(object, |value, name| &value[name]);
            // An absent field is an empty string to the server.
            Some(value.as_str().unwrap_or_default())
        };
        terms(&self.labels).all(|term| holds(term, label))
            && terms(&self.fields).all(|term| holds(term, field))
    }
}

fn terms(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').filter(|term| !term.is_empty())
}

/// Those that clients write: `!key`, `key!=value`, `key=value`.
fn holds<'a>(term: &str, get: impl Fn(&str) -> Option<&'a str>) -> bool {
    match (term.strip_prefix('!'), term.split_once("!=")) {
        (Some(path), _) => get(path).is_none(),
        (_, Some((path, value))) => get(path) != Some(value),
        _ => term.split_once('=').is_some_and(|(path, value)| get(path) == Some(value)),
    }
}
