//! Lists: whole, or in pages of one revision.

use serde_json::{Value, json};

use crate::object::{Key, Kind};

use super::request::Request;
use super::selector::Selector;
use super::status::Refusal;
use super::store::Store;

/// Answers a list. `cache`: what version 0 has is there as a whole.
pub(super) fn list(
    store: &Store,
    kind: Kind,
    request: &Request,
    selector: &Selector,
    cache: bool,
) -> Result<Value, Refusal> {
    let Place { revision, after } = place(store, request)?;
    if revision > store.revision() {
        return Err(Refusal::too_large(revision, store.revision()));
    }
    let compacted = |compacted: super::store::Compacted| compacted.refuse(revision);
    let objects = store.at(revision, kind).map_err(compacted)?;
    let mut wanted = objects.iter().filter(|(key, object)| {
        after.as_ref().is_none_or(|after| *key > after)
            && (request.namespace.is_empty() || key.namespace == request.namespace)
            && selector.matches(object)
    });
    let limit: usize = match (request.parameter("limit").parse(), revision_asked(request)?) {
        (Ok(0) | Err(_), _) => usize::MAX,
        (_, Some(0)) if cache => usize::MAX,
        (Ok(limit), _) => limit,
    };
    let mut metadata = json!({"resourceVersion": revision.to_string()});
    let page: Vec<_> = wanted.by_ref().take(limit).collect();
    if let (Some((last, _)), remaining @ 1..) = (page.last(), wanted.count()) {
        metadata["continue"] = json!(format!("{revision}|{}|{}", last.namespace, last.name));
        if *selector == Selector::default() {
            metadata["remainingItemCount"] = json!(remaining);
        }
    }
    let items: Vec<Value> = page.into_iter().map(|(_, object)| item(object)).collect();
    Ok(json!({
        "kind": format!("{kind}List"), "apiVersion": kind.api_version(),
        "metadata": metadata, "items": items,
    }))
}

/// Where a list, or a page of it, begins.
struct Place {
    revision: u64,
    after: Option<Key>,
}

fn place(store: &Store, request: &Request) -> Result<Place, Refusal> {
    let asked = revision_asked(request)?;
    let (matching, token) =
        (request.parameter("resourceVersionMatch"), request.parameter("continue"));
    if !token.is_empty() {
        let bad = || Refusal::new(400, "BadRequest", "continue key is not valid");
        let [revision, namespace, name] = token.split('|').collect::<Vec<_>>()[..] else {
            return Err(bad());
        };
        let kind = request.kind.ok_or_else(bad)?;
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        let after = Some(Key { kind, namespace, name });
        return Ok(Place { revision: revision.parse().map_err(|_| bad())?, after });
    }
    if !request.parameter("sendInitialEvents").is_empty() {
        return Err(Refusal::new(422, "Invalid", "sendInitialEvents is forbidden for list"));
    }
    if !matching.is_empty() && asked.is_none() {
        let message = "resourceVersionMatch is forbidden unless resourceVersion is provided";
        return Err(Refusal::new(422, "Invalid", message));
    }
    let revision = match (matching, asked) {
        ("Exact", Some(revision)) => revision,
        (_, asked) => store.revision().max(asked.unwrap_or_default()),
    };
    Ok(Place { revision, after: None })
}

/// The parameter `resourceVersion`.
pub(super) fn revision_asked(request: &Request) -> Result<Option<u64>, Refusal> {
    match request.parameter("resourceVersion") {
        "" => Ok(None),
        text => text.parse().map(Some).map_err(|_| {
            Refusal::new(400, "BadRequest", format!("Invalid value: {text:?}: resourceVersion"))
        }),
    }
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
