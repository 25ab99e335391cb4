//! Events as the API server takes them: what `events.k8s.io/v1` demands of each. Pure.

use serde_json::{Map, Value, json};

use super::request::Target;
use super::status::Refusal;

const API_VERSION: &str = "events.k8s.io/v1";
const SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric \
    characters, '-' or '.', and must start and end with an alphanumeric character (e.g. \
    'example.com', regex used for validation is \
    '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const NAME_PART: &str = "name part must consist of alphanumeric characters, '-', '_' or '.', and \
    must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or \
    '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";

/// Where a microsecond time has which digits and signs, in Go's words.
const MICRO_TIME: &str = "2006-01-02T15:04:05.000000Z07:00";

/// Reads the Event that a client wants to make, and completes its metadata. `number` makes a name
/// of `metadata.generateName`.
pub(super) fn created(content: &[u8], target: &Target, number: u64) -> Result<Value, Refusal> {
    let mut event = decode(content)?;
    let metadata = event.entry("metadata").or_insert_with(|| json!({}));
    let given = |metadata: &Value, field: &str| metadata[field].as_str().map(str::to_owned);
    if given(metadata, "namespace").is_some_and(|namespace| namespace != target.namespace) {
        let message = "the namespace of the provided object does not match the namespace sent on \
                       the request";
        return Err(Refusal::bad_request(message));
    }
    metadata["namespace"] = json!(target.namespace);
    let name = given(metadata, "name").filter(|name| !name.is_empty());
    let prefix = given(metadata, "generateName");
    let name = name.or_else(|| prefix.map(|prefix| format!("{prefix}{number}")));
    if let Some(name) = &name {
        metadata["name"] = json!(name);
    }
    let name = name.unwrap_or_default();
    event.insert("kind".to_owned(), json!("Event"));
    event.insert("apiVersion".to_owned(), json!(API_VERSION));
    let event = Value::Object(event);
    let mut errors = common_errors(&event);
    match name.as_str() {
        "" => {
            let why = "name or generateName is required";
            errors.push(format!("metadata.name: Required value: {why}"));
        }
        name if name.len() > 253 => {
            errors.push(invalid("metadata.name", name, "must be no more than 253 characters"));
        }
        name if !is_subdomain(name) => errors.push(invalid("metadata.name", name, SUBDOMAIN)),
        _ => {}
    }
    errors.extend(series_errors(&event));
    if text(&event, "eventTime").is_empty() {
        errors.push(required("eventTime"));
    }
    let kind = text(&event, "type");
    if !["Normal", "Warning"].contains(&kind) {
        errors.push(invalid("type", "", &format!("has invalid value: {kind}")));
    }
    for (field, path) in [
        ("deprecatedFirstTimestamp", "firstTimestamp"),
        ("deprecatedLastTimestamp", "lastTimestamp"),
        ("deprecatedCount", "count"),
        ("deprecatedSource", "source"),
    ] {
        let value = &event[field];
        if !(value.is_null() || *value == json!(0) || *value == json!({})) {
            errors.push(invalid(path, "", "needs to be unset"));
        }
    }
    if errors.is_empty() { Ok(event) } else { Err(Refusal::invalid("Event", &name, &errors)) }
}

/// Reads an object with fields of the right types.
fn decode(content: &[u8]) -> Result<Map<String, Value>, Refusal> {
    let value = serde_json::from_slice(content).unwrap_or_default();
    let Value::Object(event) = value else {
        return Err(Refusal::bad_request(
            "the object provided is unrecognized (must be of type Event): couldn't get \
             version/kind; json parse error: ",
        ));
    };
    let unfit = |why: String| {
        let message = format!("Event in version \"v1\" cannot be handled as a Event: {why}");
        Err(Refusal::bad_request(message))
    };
    match (event.get("apiVersion"), event.get("kind").and_then(Value::as_str)) {
        (_, Some(kind)) if kind != "Event" => {
            return Err(Refusal::bad_request(format!(
                "{kind} in version \"v1\" cannot be handled as a Event: "
            )));
        }
        (Some(Value::String(version)), _) if version != API_VERSION => {
            return Err(Refusal::bad_request(format!(
                "the API version in the data ({version}) does not match the expected API version \
                 ({API_VERSION})"
            )));
        }
        _ => {}
    }
    for field in [
        "action",
        "eventTime",
        "note",
        "reason",
        "reportingController",
        "reportingInstance",
        "type",
    ] {
        if event.get(field).is_some_and(|value| !value.is_string() && !value.is_null()) {
            return unfit("json: cannot unmarshal".to_owned());
        }
    }
    match event.get("eventTime").and_then(Value::as_str) {
        Some(time) if !is_micro_time(time) => {
            unfit(format!("parsing time {time:?} as {MICRO_TIME:?}: cannot parse"))
        }
        _ => Ok(event),
    }
}

/// What is wrong with an Event of any version.
fn common_errors(event: &Value) -> Vec<String> {
    let mut errors = Vec::new();
    let namespace = text(&event["metadata"], "namespace");
    let regarding = text(&event["regarding"], "namespace");
    let is_new = !text(event, "eventTime").is_empty();
    let fits = match regarding {
        "" if is_new => ["default", "kube-system"].contains(&namespace),
        "" => namespace == "default",
        regarding => is_new || regarding == namespace,
    };
    if !fits {
        let why = "does not match event.namespace";
        errors.push(invalid("involvedObject.namespace", regarding, why));
    }
    if !is_new {
        return errors;
    }
    let controller = text(event, "reportingController");
    if controller.is_empty() {
        errors.push(required("reportingController"));
    }
    errors.extend(
        qualified_name_errors(controller)
            .into_iter()
            .map(|why| invalid("reportingController", controller, why)),
    );
    for field in ["reportingInstance", "action", "reason"] {
        match text(event, field).len() {
            0 => errors.push(required(field)),
            1..=128 => {}
            _ => errors.push(invalid(field, "", "can have at most 128 characters")),
        }
    }
    if text(event, "note").len() > 1024 {
        errors.push(invalid("message", "", "can have at most 1024 characters"));
    }
    errors
}

fn series_errors(event: &Value) -> Vec<String> {
    let series = &event["series"];
    let mut errors = Vec::new();
    if !series.is_null() && series["count"].as_i64().unwrap_or_default() < 2 {
        errors.push(invalid("series.count", "", "should be at least 2"));
    }
    if !series.is_null() && text(series, "lastObservedTime").is_empty() {
        errors.push(required("series.lastObservedTime"));
    }
    errors
}

fn qualified_name_errors(name: &str) -> Vec<&'static str> {
    let (prefix, name) = name.rsplit_once('/').unwrap_or(("example.com", name));
    let mut errors = Vec::new();
    if !is_subdomain(prefix) {
        errors.push("a valid label key must consist of alphanumeric characters");
        return errors;
    }
    let inner = |c: u8| c.is_ascii_alphanumeric() || b"-_.".contains(&c);
    if name.is_empty() {
        errors.push("name part must be non-empty");
    } else if name.len() > 63 {
        errors.push("name part must be no more than 63 bytes");
    }
    if !(name.bytes().all(inner) && has_alphanumeric_ends(name)) {
        errors.push(NAME_PART);
    }
    errors
}

fn is_subdomain(name: &str) -> bool {
    let inner = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-';
    name.split('.').all(|label| label.bytes().all(inner) && has_alphanumeric_ends(label))
}

fn has_alphanumeric_ends(text: &str) -> bool {
    let bytes = text.as_bytes();
    [bytes.first(), bytes.last()].iter().all(|end| end.is_some_and(u8::is_ascii_alphanumeric))
}

/// Whether a time has six digits of a second, as the API server demands.
fn is_micro_time(text: &str) -> bool {
    let (head, zone) = text.split_at_checked(26).unwrap_or_default();
    let alike = |(at, expected): (u8, u8)| match expected {
        b'0'..=b'9' => at.is_ascii_digit(),
        sign => at == sign,
    };
    let head_fits = !head.is_empty() && head.bytes().zip(MICRO_TIME.bytes()).all(alike);
    let zone = zone.strip_prefix(['+', '-']).unwrap_or(zone);
    head_fits && (zone == "Z" || zone.len() == 5 && zone.bytes().zip(*b"07:00").all(alike))
}

fn text<'a>(object: &'a Value, field: &str) -> &'a str {
    object[field].as_str().unwrap_or_default()
}

fn required(field: &str) -> String {
    format!("{field}: Required value")
}

fn invalid(field: &str, value: &str, why: &str) -> String {
    format!("{field}: Invalid value: {value:?}: {why}")
}
