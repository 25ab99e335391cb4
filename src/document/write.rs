//! YAML as Kubernetes' own tools write it: block style, keys in order, two blanks per level.

use serde_json::Value;

/// Writes a document.
#[must_use]
pub fn to_yaml(value: &Value) -> String {
    let mut text = String::new();
    match value {
        Value::Object(fields) if !fields.is_empty() => mapping(&mut text, fields, 0),
        Value::Array(items) if !items.is_empty() => sequence(&mut text, items, 0),
        other => {
            text.push_str(&flow(other));
            text.push('\n');
        }
    }
    text
}

fn mapping(text: &mut String, fields: &serde_json::Map<String, Value>, indent: usize) {
    for (i, (key, value)) in fields.iter().enumerate() {
        // The first key of a list's element stands behind its dash.
        if i > 0 || !text.ends_with("- ") {
            text.push_str(&" ".repeat(indent));
        }
        text.push_str(&scalar(key));
        text.push(':');
        match value {
            Value::Object(inner) if !inner.is_empty() => {
                text.push('\n');
                mapping(text, inner, indent + 2);
            }
            Value::Array(items) if !items.is_empty() => {
                text.push('\n');
                sequence(text, items, indent);
            }
            other => {
                text.push(' ');
                text.push_str(&flow(other));
                text.push('\n');
            }
        }
    }
}

fn sequence(text: &mut String, items: &[Value], indent: usize) {
    for item in items {
        text.push_str(&" ".repeat(indent));
        text.push_str("- ");
        match item {
            Value::Object(fields) if !fields.is_empty() => mapping(text, fields, indent + 2),
            // JSON is YAML: lists of lists are rare enough.
            other => {
                text.push_str(&flow(other));
                text.push('\n');
            }
        }
    }
}

fn flow(value: &Value) -> String {
    match value {
        Value::String(text) => scalar(text),
        other => other.to_string(),
    }
}

/// Text without quotes where nobody can take it for something else, otherwise as JSON writes it.
fn scalar(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
    let starts = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '/');
    let reserved = ["true", "false", "null", "yes", "no", "on", "off", "y", "n"];
    if starts && text.chars().all(plain) && !reserved.contains(&text.to_lowercase().as_str()) {
        text.to_owned()
    } else {
        Value::from(text).to_string()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::document::{parse, typed};

    #[test]
    fn it_reads_as_kubernetes_writes() {
        let value = json!({
            "b": {"w": [], "x": {}, "z": {"deep": 1.5}},
            "a": ["10.0.0.0/8", "primary", {"p": 1, "q": [2]}],
            "c": "", "d": "no", "e": "0s", "f": null, "g": true, "h": "/var/lib/x.conf",
        });
        let expected = "a:\n- \"10.0.0.0/8\"\n- primary\n- p: 1\n  q:\n  - 2\n\
                        b:\n  w: []\n  x: {}\n  z:\n    deep: 1.5\n\
                        c: \"\"\nd: \"no\"\ne: \"0s\"\nf: null\ng: true\nh: /var/lib/x.conf\n";
        assert_eq!(to_yaml(&value), expected);
    }

    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            "\\PC{0,8}".prop_map(Value::from),
            "[a-z:#{}\\[\\], '\"!&*-]{0,6}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 24, 4, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                proptest::collection::btree_map("\\PC{0,4}", inner, 0..4)
                    .prop_map(|fields| Value::Object(fields.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(value in value()) {
            let text = to_yaml(&json!({ "value": value }));
            let documents = parse(text.as_bytes()).unwrap_or_else(|e| panic!("{e}\n{text}"));
            let read: Value = typed(documents[0].get("value").unwrap()).unwrap();
            prop_assert_eq!(read, value, "{}", text);
        }
    }
}
