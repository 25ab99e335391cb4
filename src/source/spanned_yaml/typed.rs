//! Deserializes typed values from a tree.

use std::fmt;

use serde::de::value::{MapDeserializer, SeqDeserializer};
use serde::de::{self, Deserialize, Deserializer, Expected, IntoDeserializer, Unexpected, Visitor};
use serde::forward_to_deserialize_any;
use serde_path_to_error::Segment as PathSegment;

use super::scalar::Meaning;
use super::{FieldPath, Node, Segment, Value};

/// A value whose type does not match its field.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {reason}")]
pub struct TypeError {
    /// The field.
    pub field: FieldPath,
    /// The expected and the found type.
    pub reason: String,
}

/// Deserializes a node as a `T`.
pub fn typed<'de, T: Deserialize<'de>>(node: &'de Node<'_>) -> Result<T, TypeError> {
    // The tracking of the path costs time, and only errors need it.
    T::deserialize(node).or_else(|_| typed_reporting_unknown(node, |_| ()))
}

/// Deserializes a node as a `T` and reports each field that `T` lacks.
pub fn typed_reporting_unknown<'de, T: Deserialize<'de>>(
    node: &'de Node<'_>,
    mut unknown: impl FnMut(FieldPath),
) -> Result<T, TypeError> {
    let mut report = |path: serde_ignored::Path<'_>| unknown(ignored_path(&path));
    let mut track = serde_path_to_error::Track::new();
    let deserializer = serde_path_to_error::Deserializer::new(node, &mut track);
    T::deserialize(serde_ignored::Deserializer::new(deserializer, &mut report)).map_err(|error| {
        let mut field = FieldPath::default();
        for segment in &track.path() {
            match segment {
                PathSegment::Seq { index } => field.push(Segment::Index(*index)),
                PathSegment::Map { key } => field.push(Segment::Field(key.as_str().into())),
                _ => {}
            }
        }
        TypeError { field, reason: error.0 }
    })
}

fn ignored_path(path: &serde_ignored::Path<'_>) -> FieldPath {
    use serde_ignored::Path;
    let (parent, segment) = match path {
        Path::Root => return FieldPath::default(),
        Path::Seq { parent, index } => (parent, Segment::Index(*index)),
        Path::Map { parent, key } => (parent, Segment::Field(key.as_str().into())),
        Path::Some { parent }
        | Path::NewtypeStruct { parent }
        | Path::NewtypeVariant { parent } => return ignored_path(parent),
    };
    let mut path = ignored_path(parent);
    path.push(segment);
    path
}

/// An error of serde, in terms of YAML types in place of Rust types.
#[derive(Debug)]
pub struct Mismatch(String);

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Mismatch {}

impl de::Error for Mismatch {
    fn custom<T: fmt::Display>(message: T) -> Mismatch {
        Mismatch(message.to_string())
    }

    fn invalid_value(found: Unexpected<'_>, expected: &dyn Expected) -> Mismatch {
        Mismatch(match found {
            Unexpected::Signed(_) if expected.to_string().starts_with('u') => {
                "negative; write 0 or more".to_owned()
            }
            Unexpected::Signed(_) | Unexpected::Unsigned(_) => "out of range".to_owned(),
            _ => format!("must be {expected}"),
        })
    }

    fn invalid_type(found: Unexpected<'_>, expected: &dyn Expected) -> Mismatch {
        let expected = match expected.to_string().as_str() {
            "a string" => "text",
            "a boolean" => "true or false",
            "a sequence" => "a list",
            "a map" => "a mapping",
            name if name.starts_with("struct ") => "a mapping",
            name if name.starts_with(['i', 'u']) => "a whole number",
            name if name.starts_with('f') => "a number",
            other => return Mismatch(format!("must be {other}")),
        };
        let (found, hint) = match found {
            Unexpected::Str(_) if expected == "a whole number" => ("text", "; remove the quotes"),
            Unexpected::Str(_) => ("text", ""),
            Unexpected::Bool(_) if expected == "text" => ("true or false", "; put it in quotes"),
            Unexpected::Bool(_) => ("true or false", ""),
            Unexpected::Signed(_) | Unexpected::Unsigned(_) | Unexpected::Float(_) => {
                ("a number", if expected == "text" { "; put it in quotes" } else { "" })
            }
            Unexpected::Unit | Unexpected::Option => ("null", ""),
            Unexpected::Seq => ("a list", ""),
            Unexpected::Map => ("a mapping", ""),
            _ => ("something else", ""),
        };
        Mismatch(format!("must be {expected}, not {found}{hint}"))
    }
}

impl<'de> IntoDeserializer<'de, Mismatch> for &'de Node<'_> {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

impl<'de> Deserializer<'de> for &'de Node<'_> {
    type Error = Mismatch;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Mismatch> {
        match &self.value {
            Value::Scalar(scalar) => match scalar.meaning() {
                Meaning::Null => visitor.visit_unit(),
                Meaning::Bool(value) => visitor.visit_bool(value),
                Meaning::Signed(value) => visitor.visit_i64(value),
                Meaning::Unsigned(value) => visitor.visit_u64(value),
                Meaning::Float(value) if value.is_finite() => visitor.visit_f64(value),
                Meaning::Float(_) => Err(de::Error::custom("must be a finite number")),
                Meaning::Text(value) => visitor.visit_borrowed_str(value),
            },
            Value::Sequence(items) => visitor.visit_seq(SeqDeserializer::new(items.iter())),
            Value::Mapping(entries) => visitor.visit_map(MapDeserializer::new(
                entries.iter().map(|entry| (&*entry.key, &entry.node)),
            )),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Mismatch> {
        if self.is_null() { visitor.visit_none() } else { visitor.visit_some(self) }
    }

    /// A list is no struct, though serde would take its elements for the fields in order.
    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Mismatch> {
        match &self.value {
            Value::Sequence(_) => Err(de::Error::invalid_type(Unexpected::Seq, &visitor)),
            _ => self.deserialize_any(visitor),
        }
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Mismatch> {
        visitor.visit_unit()
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf
        unit unit_struct newtype_struct seq tuple tuple_struct map enum identifier
    }
}
