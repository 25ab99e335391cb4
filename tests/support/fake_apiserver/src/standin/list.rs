//! Lists, which come as a whole: who asks for pages may get all at once.

use serde_json::{Value, json};

use crate::object::Kind;

use super::request::Request;
use super::selector::Selector;
use super::status::Refusal;
use super::store::Store;

/// Answers a list that is not older than the request wants.
pub(super) fn list(store: &Store, kind: Kind, request: &Request) -> Result<Value, Refusal> {
    let current = store.revision();
    if let Some(asked) = request.number("resourceVersion").filter(|asked| *asked > current) {
        return Err(Refusal::too_large(asked, current));
    }
    let selector = Selector::of(request);
    let objects = store.of_kind(kind).filter(|object| selector.matches(object));
    Ok(json!({
        "kind": format!("{kind}List"), "apiVersion": kind.api_version(),
        "metadata": {"resourceVersion": current.to_string()},
        "items": objects.map(|object| item(object)).collect::<Vec<Value>>(),
    }))
}

/// An object as an item of a list: without its type, which the list says for all.
fn item(object: &Value) -> Value {
    let mut item = object.clone();
    if let Some(fields) = item.as_object_mut() {
        fields.remove("kind");
        fields.remove("apiVersion");
    }
    item
}
