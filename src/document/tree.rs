//! YAML and JSON texts as trees of nodes that know their lines.
//!
//! JSON is read as the YAML that it is. The parser works with a stack of its own, not that of the
//! thread, and both it and this builder are bounded: a text costs time and memory in proportion to
//! its length, whatever is in it.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use granit_parser::{Event, Options, Parser, ScalarStyle, Span, Tag};

use super::{FieldPath, Segment, excerpt};

/// More than any object that we read needs, and little enough for a recursive walk.
const NESTING_LIMIT: usize = 64;

/// How many nodes anchors and aliases may copy in a document. Who wants more than that has written
/// an alias bomb.
const COPY_LIMIT: usize = 10_000;

/// A value and where it begins.
#[derive(Debug, Clone)]
pub struct Node<'a> {
    /// The line where the value begins, counted from 1.
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

/// A single value, as it was written: what type it has is decided when it is read.
#[derive(Debug, Clone)]
pub struct Scalar<'a> {
    /// The text, escapes resolved.
    pub text: Cow<'a, str>,
    /// Neither quoted nor tagged as a string: `true`, `80` and `null` are not strings.
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

/// A text is neither YAML nor JSON.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: {reason}")]
pub struct SyntaxError {
    /// The line, counted from 1.
    pub line: u32,
    /// The column, counted from 1.
    pub column: u32,
    /// What is wrong there.
    pub reason: String,
}

impl<'a> Node<'a> {
    /// The value of a field, if this is a mapping that has it.
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

    /// The text of a scalar.
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

    /// The line of the field at `path`, or of the nearest thing around it that is in the text.
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

    /// The node at `path`.
    #[must_use]
    pub fn at(&self, path: &FieldPath) -> Option<&Node<'a>> {
        path.segments().iter().try_fold(self, |node, segment| match (segment, &node.value) {
            (Segment::Field(name), _) => node.get(name),
            (Segment::Index(index), Value::Sequence(items)) => items.get(*index),
            _ => None,
        })
    }

    /// Takes the field or element at `path` away. False if it is not there.
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

    /// The value in a few words, for a message.
    #[must_use]
    pub fn describe(&self) -> String {
        match &self.value {
            Value::Scalar(scalar) => excerpt(&scalar.text),
            Value::Sequence(items) => format!("a list of {}", items.len()),
            Value::Mapping(entries) => format!("a mapping of {}", entries.len()),
        }
    }

    fn size(&self) -> usize {
        1 + match &self.value {
            Value::Scalar(_) => 0,
            Value::Sequence(items) => items.iter().map(Node::size).sum(),
            Value::Mapping(entries) => entries.iter().map(|e| e.node.size()).sum(),
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

/// Reads all documents of a text. Empty ones are left out.
pub fn parse(bytes: &[u8]) -> Result<Vec<Node<'_>>, SyntaxError> {
    documents(bytes)?.collect()
}

/// Reads the documents of a text one by one, so that they need not all be in memory. Empty ones are
/// left out; an error is the last item.
pub fn documents(
    bytes: &[u8],
) -> Result<impl Iterator<Item = Result<Node<'_>, SyntaxError>>, SyntaxError> {
    let text = std::str::from_utf8(bytes).map_err(|error| {
        let (line, column) = position(&bytes[..error.valid_up_to()]);
        SyntaxError { line, column, reason: "the bytes here are not valid UTF-8 text".into() }
    })?;
    // What YAML makes of a byte order mark in the middle of a stream is not worth knowing.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut options = Options::default();
    options.flow_nesting_limit = NESTING_LIMIT;
    options.block_nesting_limit = NESTING_LIMIT;
    options.set_emit_comments(false);
    let mut events = Parser::new_from_str_with_options(text, options);
    let mut builder = Builder::default();
    let mut failed = false;
    Ok(std::iter::from_fn(move || {
        while !failed {
            let taken = match events.next()? {
                Ok((event, span)) => builder.take(event, span),
                Err(error) => {
                    let marker = error.marker();
                    Err(syntax_error(marker.line(), marker.col(), error.info()))
                }
            };
            if let Err(error) = taken {
                failed = true;
                return Some(Err(error));
            }
            if let Some(document) = builder.document.take() {
                return Some(Ok(document));
            }
        }
        None
    }))
}

fn position(text: &[u8]) -> (u32, u32) {
    let lines = text.iter().filter(|b| **b == b'\n').count();
    let column = text.iter().rev().take_while(|b| **b != b'\n').count();
    (to_u32(lines + 1), to_u32(column + 1))
}

fn syntax_error(line: usize, column: usize, reason: impl Into<String>) -> SyntaxError {
    SyntaxError { line: to_u32(line), column: to_u32(column + 1), reason: reason.into() }
}

fn to_u32(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// Makes nodes out of events.
#[derive(Default)]
struct Builder<'a> {
    document: Option<Node<'a>>,
    open: Vec<Open<'a>>,
    anchors: HashMap<usize, Node<'a>>,
    copied: usize,
}

/// A list or mapping whose end is still to come.
struct Open<'a> {
    line: u32,
    anchor: usize,
    content: Content<'a>,
}

enum Content<'a> {
    Sequence(Vec<Node<'a>>),
    Mapping { entries: Vec<Entry<'a>>, key: Option<(Cow<'a, str>, u32)> },
}

impl<'a> Builder<'a> {
    fn take(&mut self, event: Event<'a>, span: Span) -> Result<(), SyntaxError> {
        let line = to_u32(span.start.line());
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                let plain = style == ScalarStyle::Plain && !is_string_tag(tag.as_deref());
                let value = Value::Scalar(Scalar { text, plain });
                self.close(Node { line, value }, anchor, span)
            }
            Event::SequenceStart(_, anchor, _) => {
                self.start(line, anchor, span, Content::Sequence(Vec::new()))
            }
            Event::MappingStart(_, anchor, _) => {
                self.start(line, anchor, span, Content::Mapping { entries: Vec::new(), key: None })
            }
            Event::SequenceEnd | Event::MappingEnd => match self.open.pop() {
                None => Ok(()),
                Some(Open { line, anchor, content }) => {
                    let value = match content {
                        Content::Sequence(items) => Value::Sequence(items),
                        Content::Mapping { entries, .. } => {
                            no_key_twice(&entries)?;
                            Value::Mapping(entries)
                        }
                    };
                    self.close(Node { line, value }, anchor, span)
                }
            },
            Event::Alias(id) => {
                let Some(node) = self.anchors.get(&id).cloned() else {
                    return Err(error_at(span, "this alias refers to a value that contains it"));
                };
                self.copy(&node, span)?;
                self.close(node, 0, span)
            }
            Event::DocumentEnd => {
                self.anchors.clear();
                self.copied = 0;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn start(
        &mut self,
        line: u32,
        anchor: usize,
        span: Span,
        content: Content<'a>,
    ) -> Result<(), SyntaxError> {
        if self.expects_key() {
            return Err(error_at(span, "a list or mapping cannot be a key; give the key as text"));
        }
        self.open.push(Open { line, anchor, content });
        Ok(())
    }

    fn expects_key(&self) -> bool {
        matches!(self.open.last(), Some(Open { content: Content::Mapping { key: None, .. }, .. }))
    }

    /// Puts a complete node where it belongs.
    fn close(&mut self, node: Node<'a>, anchor: usize, span: Span) -> Result<(), SyntaxError> {
        if anchor != 0 {
            self.copy(&node, span)?;
            self.anchors.insert(anchor, node.clone());
        }
        match self.open.last_mut().map(|open| &mut open.content) {
            None if node.is_null() => {}
            None => self.document = Some(node),
            Some(Content::Sequence(items)) => items.push(node),
            Some(Content::Mapping { entries, key }) => match (key.take(), node.value) {
                (Some((key, line)), value) => {
                    entries.push(Entry { key, line, node: Node { line: node.line, value } });
                }
                (None, Value::Scalar(Scalar { text, plain: true })) if text == "<<" => {
                    return Err(error_at(
                        span,
                        "merge keys (<<) are not supported; write the fields out",
                    ));
                }
                (None, Value::Scalar(scalar)) => *key = Some((scalar.text, node.line)),
                (None, _) => return Err(error_at(span, "a list or mapping cannot be a key")),
            },
        }
        Ok(())
    }

    fn copy(&mut self, node: &Node<'_>, span: Span) -> Result<(), SyntaxError> {
        self.copied += node.size();
        if self.copied > COPY_LIMIT {
            return Err(error_at(
                span,
                &format!("anchors and aliases copy more than {COPY_LIMIT} values; write them out"),
            ));
        }
        Ok(())
    }
}

fn error_at(span: Span, reason: &str) -> SyntaxError {
    syntax_error(span.start.line(), span.start.col(), reason)
}

fn is_string_tag(tag: Option<&Tag>) -> bool {
    tag.is_some_and(|tag| tag.is_yaml_core_schema_tag("str"))
}

fn no_key_twice(entries: &[Entry<'_>]) -> Result<(), SyntaxError> {
    let twice = if entries.len() <= 16 {
        // The usual case, without a table.
        entries.iter().enumerate().find(|(i, e)| entries[..*i].iter().any(|f| f.key == e.key))
    } else {
        let mut seen = HashSet::with_capacity(entries.len());
        entries.iter().enumerate().find(|(_, e)| !seen.insert(&*e.key))
    };
    let Some((_, second)) = twice else {
        return Ok(());
    };
    let first = entries.iter().find(|e| e.key == second.key).map_or(0, |e| e.line);
    Err(SyntaxError {
        line: second.line,
        column: 1,
        reason: format!(
            "the key {} is already in line {first}; remove one of the two",
            excerpt(&second.key)
        ),
    })
}
