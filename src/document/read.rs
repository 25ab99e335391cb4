//! Trees out of YAML and JSON texts.
//!
//! JSON is read as the YAML that it is. The parser works with a stack of its own, not that of the
//! thread, and both it and this builder are bounded: a text costs time and memory in proportion to
//! its length, whatever is in it.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use granit_parser::{Event, Options, Parser, ScalarStyle, Span, StrInput, Tag};

use super::{Entry, Node, Scalar, Value, excerpt};

/// More than any object that we read needs, and little enough for a recursive walk.
const NESTING_LIMIT: usize = 64;

/// How many nodes anchors and aliases may copy in a document. Who wants more than that has written
/// an alias bomb.
const COPY_LIMIT: usize = 10_000;

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

/// Reads all documents of a text. Empty ones are left out.
pub fn parse(bytes: &[u8]) -> Result<Vec<Node<'_>>, SyntaxError> {
    documents(bytes)?.collect()
}

/// Reads all documents of a text in which keys may occur twice, as lenient readers do: the last one
/// counts, and the others are told.
pub fn parse_leniently(bytes: &[u8]) -> Result<(Vec<Node<'_>>, Vec<SyntaxError>), SyntaxError> {
    let mut reader = Reader::new(bytes)?;
    reader.builder.overridden = Some(Vec::new());
    let documents = reader.by_ref().collect::<Result<_, _>>()?;
    Ok((documents, reader.builder.overridden.unwrap_or_default()))
}

/// Reads the documents of a text one by one, so that they need not all be in memory. Empty ones are
/// left out; an error is the last item.
pub fn documents(
    bytes: &[u8],
) -> Result<impl Iterator<Item = Result<Node<'_>, SyntaxError>>, SyntaxError> {
    Reader::new(bytes)
}

struct Reader<'a> {
    events: Parser<'a, StrInput<'a>>,
    builder: Builder<'a>,
    failed: bool,
}

impl<'a> Reader<'a> {
    fn new(bytes: &'a [u8]) -> Result<Reader<'a>, SyntaxError> {
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
        let events = Parser::new_from_str_with_options(text, options);
        Ok(Reader { events, builder: Builder::default(), failed: false })
    }
}

impl<'a> Iterator for Reader<'a> {
    type Item = Result<Node<'a>, SyntaxError>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.failed {
            let taken = match self.events.next()? {
                Ok((event, span)) => self.builder.take(event, span),
                Err(error) => {
                    let marker = error.marker();
                    Err(syntax_error(marker.line(), marker.col(), error.info()))
                }
            };
            if let Err(error) = taken {
                self.failed = true;
                return Some(Err(error));
            }
            if let Some(document) = self.builder.document.take() {
                return Some(Ok(document));
            }
        }
        None
    }
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
    /// Keys that came again in the same mapping, if that is no error.
    overridden: Option<Vec<SyntaxError>>,
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
                        Content::Mapping { mut entries, .. } => {
                            match &mut self.overridden {
                                None => no_key_twice(&entries)?,
                                Some(overridden) => keep_last(&mut entries, overridden),
                            }
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

/// Of entries with the same key, keeps the last one.
fn keep_last(entries: &mut Vec<Entry<'_>>, overridden: &mut Vec<SyntaxError>) {
    let last: HashMap<String, u32> =
        entries.iter().map(|entry| (entry.key.to_string(), entry.line)).collect();
    if last.len() == entries.len() {
        return;
    }
    let mut kept = HashSet::new();
    let mut counts: Vec<bool> =
        entries.iter().rev().map(|entry| kept.insert(entry.key.to_string())).collect();
    entries.retain(|entry| {
        let counts = counts.pop().unwrap_or(true);
        if let (false, Some(line)) = (counts, last.get(&*entry.key)) {
            let key = excerpt(&entry.key);
            let reason = format!("the key {key} comes again in line {line}, and that one counts");
            overridden.push(SyntaxError { line: entry.line, column: 1, reason });
        }
        counts
    });
}
