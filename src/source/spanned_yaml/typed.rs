//! Deserializes typed values from JSON.

use serde::de::{Deserialize, DeserializeOwned, Deserializer};
use serde_json::Value;
use serde_path_to_error::Segment;

use super::push_step;

/// A value whose type does not match its field.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {reason}")]
pub struct TypeError {
    /// The path of the field.
    pub field: String,
    /// The expected and the found type.
    pub reason: String,
}

/// Deserializes a `T`. A field that is `null` counts as absent, as for Go.
pub fn typed<T: DeserializeOwned>(json: &str) -> Result<T, TypeError> {
    // Nulls are rare. The tracking of the path costs time, and only errors need it.
    match serde_json::from_str(json) {
        Err(error) if !error.to_string().starts_with("duplicate field") => {
            let mut value = serde_json::from_str(json)
                .map_err(|error| TypeError { field: String::new(), reason: reason(&error) })?;
            remove_nulls(&mut value);
            tracked(value)
        }
        Err(_) => tracked(&mut serde_json::Deserializer::from_str(json)),
        Ok(value) => Ok(value),
    }
}

fn remove_nulls(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|_, value| !value.is_null());
            fields.values_mut().for_each(remove_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(remove_nulls),
        _ => {}
    }
}

fn tracked<'de, T, D>(deserializer: D) -> Result<T, TypeError>
where
    T: Deserialize<'de>,
    D: Deserializer<'de, Error = serde_json::Error>,
{
    let mut track = serde_path_to_error::Track::new();
    let deserializer = serde_path_to_error::Deserializer::new(deserializer, &mut track);
    T::deserialize(deserializer).map_err(|error| {
        let mut field = String::new();
        for segment in &track.path() {
            match segment {
                Segment::Seq { index } => push_step(&mut field, &index.to_string()),
                Segment::Map { key } => push_step(&mut field, key),
                _ => {}
            }
        }
        TypeError { field, reason: reason(&error) }
    })
}

/// Returns the message of an error in terms of YAML types in place of Rust types.
fn reason(error: &serde_json::Error) -> String {
    let message = error.to_string();
    let message = message.rsplit_once(" at line ").map_or(&*message, |(message, _)| message);
    let mismatch = |kind: &str| message.strip_prefix(kind)?.rsplit_once(", expected ");
    if let Some((found, expected)) = mismatch("invalid value: ") {
        return match found.starts_with("integer `-") && expected.starts_with('u') {
            true => "negative; write 0 or more".to_owned(),
            false if found.starts_with("integer") => "out of range".to_owned(),
            false => format!("must be {expected}"),
        };
    }
    let Some((found, expected)) = mismatch("invalid type: ") else {
        let hint = match message.starts_with("duplicate field") {
            true => "; remove one of the two",
            false => "",
        };
        return format!("{message}{hint}");
    };
    let expected = match expected {
        "a string" => "text",
        "a boolean" => "true or false",
        "a sequence" => "a list",
        name if name == "a map" || name.starts_with("struct ") => "a mapping",
        name if name.starts_with(['i', 'u']) => "a whole number",
        name if name.starts_with('f') => "a number",
        other => return format!("must be {other}"),
    };
    let (found, hint) = match found.split_once(' ').map_or(found, |(kind, _)| kind) {
        "string" if expected == "a whole number" => ("text", "; remove the quotes"),
        "string" => ("text", ""),
        "boolean" if expected == "text" => ("true or false", "; put it in quotes"),
        "boolean" => ("true or false", ""),
        "integer" | "floating" if expected == "text" => ("a number", "; put it in quotes"),
        "integer" | "floating" => ("a number", ""),
        "sequence" => ("a list", ""),
        "map" => ("a mapping", ""),
        other => (other, ""),
    };
    format!("must be {expected}, not {found}{hint}")
}
