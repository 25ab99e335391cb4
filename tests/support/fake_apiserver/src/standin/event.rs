//! Events as clients make them. Whether one is valid in all its fields, the real API server says. Pure.

use serde_json::{Value, json};

use super::request::Target;
use super::status::Refusal;

/// Reads the Event that a client wants to make, and completes its metadata. `number` makes a name
/// of `metadata.generateName`.
pub(super) fn created(content: &[u8], target: &Target, number: u64) -> Result<Value, Refusal> {
    let mut event: Value = serde_json::from_slice(content).unwrap_or_default();
    if !event.is_object() {
        let message = "the object provided is unrecognized (must be of type Event)";
        return Err(Refusal::bad_request(message));
    }
    let given = |event: &Value, field: &str| event["metadata"][field].as_str().map(str::to_owned);
    if given(&event, "namespace").is_some_and(|namespace| namespace != target.namespace) {
        let message = "the namespace of the provided object does not match the namespace sent on \
                       the request";
        return Err(Refusal::bad_request(message));
    }
    let name = given(&event, "name").filter(|name| !name.is_empty());
    let name = name.or_else(|| Some(format!("{}{number}", given(&event, "generateName")?)));
    let is_complete = event["eventTime"].is_string();
    let Some(name) = name.filter(|_| is_complete) else {
        let missing = ["metadata.name or eventTime: Required value".to_owned()];
        return Err(Refusal::invalid("Event", "", &missing));
    };
    event["metadata"]["namespace"] = json!(target.namespace);
    event["metadata"]["name"] = json!(name);
    event["kind"] = json!("Event");
    event["apiVersion"] = json!("events.k8s.io/v1");
    Ok(event)
}
