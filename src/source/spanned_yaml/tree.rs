//! Trees of nodes with line numbers.

use std::borrow::Cow;

use super::{FieldPath, Segment, excerpt};

/// A value with its first line.
#[derive(Debug, Clone)]
pub struct Node<'a> {
    /// The first line of the value, counted from 1.
    pub line: u32,
    /// The value.
    pub value: Value<'a>,
}

/// A scalar, a list or a mapping.
#[derive(Debug, Clone)]
pub enum Value<'a> {
    /// A single value.
    Scalar(Scalar<'a>),
    /// A list.
    Sequence(Vec<Node<'a>>),
    /// A mapping, in the order of the text. No key occurs twice.
    Mapping(Vec<Entry<'a>>),
}

/// A single value in its written form: its type is determined when it is read.
#[derive(Debug, Clone)]
pub struct Scalar<'a> {
    /// The text with resolved escapes.
    pub text: Cow<'a, str>,
    /// Neither quoted nor tagged as a string: `yes`, `80` and `null` are not strings.
    pub plain: bool,
}

/// One key of a mapping and its value.
#[derive(Debug, Clone)]
pub struct Entry<'a> {
    /// The key.
    pub key: Cow<'a, str>,
    /// The line of the key, counted from 1.
    pub line: u32,
    /// The value.
    pub node: Node<'a>,
}

impl<'a> Node<'a> {
    /// Returns the value of a field, if this is a mapping with that field.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Node<'a>> {
        self.entry(key).map(|entry| &entry.node)
    }

    fn entry(&self, key: &str) -> Option<&Entry<'a>> {
        match &self.value {
            Value::Mapping(entries) => entries.iter().find(|entry| entry.key == key),
            _ => None,
        }
    }

    /// Returns the text of a scalar.
    #[must_use]
    pub fn text(&self) -> Option<&str> {
        match &self.value {
            Value::Scalar(scalar) => Some(&scalar.text),
            _ => None,
        }
    }

    /// True for `null`, `~` and nothing at all.
    #[must_use]
    pub fn is_null(&self) -> bool {
        matches!(&self.value, Value::Scalar(scalar) if scalar.is_null())
    }

    /// Returns the line of the field at `path`, or of the nearest existing node around it.
    #[must_use]
    pub fn line_of(&self, path: &FieldPath) -> u32 {
        let (mut node, mut line) = (self, self.line);
        for segment in path.segments() {
            (node, line) = match (segment, &node.value) {
                (Segment::Field(name), _) => match node.entry(name) {
                    Some(entry) => (&entry.node, entry.line),
                    None => break,
                },
                (Segment::Index(index), Value::Sequence(items)) => match items.get(*index) {
                    Some(item) => (item, item.line),
                    None => break,
                },
                _ => break,
            };
        }
        line
    }

    /// Returns the node at `path`.
    #[must_use]
    pub fn at(&self, path: &FieldPath) -> Option<&Node<'a>> {
        path.segments().iter().try_fold(self, |node, segment| match (segment, &node.value) {
            (Segment::Field(name), _) => node.get(name),
            (Segment::Index(index), Value::Sequence(items)) => items.get(*index),
            _ => None,
        })
    }

    /// Removes the field or element at `path`. Returns false if it is missing.
    pub fn remove(&mut self, path: &FieldPath) -> bool {
        let Some((last, parents)) = path.segments().split_last() else {
            return false;
        };
        let parent =
            parents.iter().try_fold(self, |node, segment| match (segment, &mut node.value) {
                (Segment::Field(name), Value::Mapping(entries)) => {
                    entries.iter_mut().find(|e| e.key == **name).map(|e| &mut e.node)
                }
                (Segment::Index(index), Value::Sequence(items)) => items.get_mut(*index),
                _ => None,
            });
        match (last, parent.map(|node| &mut node.value)) {
            (Segment::Field(name), Some(Value::Mapping(entries))) => {
                let before = entries.len();
                entries.retain(|entry| entry.key != **name);
                entries.len() < before
            }
            (Segment::Index(index), Some(Value::Sequence(items))) if *index < items.len() => {
                items.remove(*index);
                true
            }
            _ => false,
        }
    }

    /// Returns a short description of the value for a message.
    #[must_use]
    pub fn describe(&self) -> String {
        match &self.value {
            Value::Scalar(scalar) => excerpt(&scalar.text),
            Value::Sequence(items) => format!("a list of {}", items.len()),
            Value::Mapping(entries) => format!("a mapping of {}", entries.len()),
        }
    }

    /// Returns the size of this node and all nested ones, with their texts.
    pub(super) fn bytes(&self) -> usize {
        size_of::<Self>()
            + match &self.value {
                Value::Scalar(scalar) => scalar.text.len(),
                Value::Sequence(items) => items.iter().map(Node::bytes).sum(),
                Value::Mapping(entries) => {
                    entries.iter().map(|it| it.key.len() + it.node.bytes()).sum()
                }
            }
    }
}

impl Scalar<'_> {
    /// True for `null`, `~` and nothing at all.
    #[must_use]
    pub fn is_null(&self) -> bool {
        self.plain && matches!(&*self.text, "" | "~" | "null" | "Null" | "NULL")
    }
}
