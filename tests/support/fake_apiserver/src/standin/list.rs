//! Lists: whole, or in pages of one revision.

use serde_json::{Value, json};

use crate::object::{Key, Kind};

use super::options::Options;
use super::selector::Selector;
use super::status::Refusal;
use super::store::Store;

/// Answers a list. `cache`: what version 0 has is there as a whole.
pub(super) fn list(
    store: &Store,
    kind: Kind,
    options: &Options,
    selector: &Selector,
    cache: bool,
) -> Result<Value, Refusal> {
    let Place { revision, after } = place(store, kind, options)?;
    if revision > store.revision() {
        return Err(Refusal::too_large(revision, store.revision()));
    }
    let compacted = |compacted: super::store::Compacted| compacted.refuse(revision);
    let objects = store.at(revision, kind).map_err(compacted)?;
    let mut wanted = objects.iter().filter(|(key, object)| {
        after.as_ref().is_none_or(|after| *key > after) && selector.matches(object)
    });
    let is_whole = cache && options.revision == Some(0);
    let limit = options.limit.filter(|_| !is_whole).unwrap_or(usize::MAX);
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

fn place(store: &Store, kind: Kind, options: &Options) -> Result<Place, Refusal> {
    let asked = options.revision;
    if options.token.is_empty() {
        let newest = store.revision().max(asked.unwrap_or_default());
        let revision = asked.filter(|_| options.is_exact).unwrap_or(newest);
        return Ok(Place { revision, after: None });
    }
    let bad = || Refusal::new(400, "invalid continue token: continue key is not valid");
    let [revision, namespace, name] = options.token.split('|').collect::<Vec<_>>()[..] else {
        return Err(bad());
    };
    let (namespace, name) = (namespace.to_owned(), name.to_owned());
    let after = Some(Key { kind, namespace, name });
    Ok(Place { revision: revision.parse().map_err(|_| bad())?, after })
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
