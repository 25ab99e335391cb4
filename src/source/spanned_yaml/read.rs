//! Parses YAML and JSON texts into trees.
//!
//! JSON is a subset of YAML. The parser has a stack of its own, not that of the thread, and both
//! the parser and this builder are bounded: any text costs time and memory in proportion to its
//! length.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use granit_parser::{Event, Options, Parser, ScalarStyle, Span, StrInput, Tag};

use super::{Entry, Node, Scalar, Value, excerpt, scalar};

/// The maximum nesting: more than any object of Kubernetes needs, and safe for a recursive walk.
const NESTING_LIMIT: usize = 64;

/// The bytes that aliases may copy: so many, and so many for each byte of the text. A text with more
/// is an alias bomb.
const COPY_ALWAYS: usize = 1024 * 1024;
const COPY_PER_BYTE: usize = 10;

/// A syntax error: the text is neither YAML nor JSON.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: {reason}")]
pub struct SyntaxError {
    /// The line, counted from 1.
    pub line: u32,
    /// The column, counted from 1.
    pub column: u32,
    /// The problem at this place.
    pub reason: String,
}

/// Parses all documents of a text. Omits empty ones.
pub fn parse(bytes: &[u8]) -> Result<Vec<Node<'_>>, SyntaxError> {
    documents(bytes)?.collect()
}

/// Parses the documents of a text leniently: of duplicate keys the last one counts, and the others are
/// returned as errors. The text after the first document may be invalid, which is returned as an error, too.
pub fn parse_leniently(bytes: &[u8]) -> Result<(Vec<Node<'_>>, Vec<SyntaxError>), SyntaxError> {
    let mut reader = Reader::new(bytes)?;
    reader.builder.overridden = Some(Vec::new());
    let mut documents = Vec::new();
    let mut invalid = None;
    for document in reader.by_ref() {
        match document {
            Ok(document) => documents.push(document),
            Err(error) if documents.is_empty() => return Err(error),
            Err(error) => {
                let reason =
                    format!("invalid text after the first document, ignored: {}", error.reason);
                invalid = Some(SyntaxError { reason, ..error });
            }
        }
    }
    let errors = reader.builder.overridden.unwrap_or_default().into_iter().chain(invalid);
    Ok((documents, errors.collect()))
}

/// Parses the documents of a text one by one, to keep only one in memory. Omits empty ones; an
/// error is the last item.
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
        // Only a byte order mark at the beginning is removed.
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let mut options = Options::default();
        options.flow_nesting_limit = NESTING_LIMIT;
        options.block_nesting_limit = NESTING_LIMIT;
        options.set_emit_comments(false);
        let events = Parser::new_from_str_with_options(text, options);
        let copy_limit = COPY_ALWAYS + COPY_PER_BYTE * text.len();
        let builder = Builder { copy_limit, ..Builder::default() };
        Ok(Reader { events, builder, failed: false })
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

/// A builder of nodes from the events of the parser.
#[derive(Default)]
struct Builder<'a> {
    document: Option<Node<'a>>,
    open: Vec<Open<'a>>,
    anchors: HashMap<usize, Node<'a>>,
    copied: usize,
    copy_limit: usize,
    /// Duplicate keys of a mapping, if they are no error.
    overridden: Option<Vec<SyntaxError>>,
}

/// A list or mapping before its end.
struct Open<'a> {
    line: u32,
    anchor: usize,
    content: Content<'a>,
}

enum Content<'a> {
    Sequence(Vec<Node<'a>>),
    Mapping {
        entries: Vec<Entry<'a>>,
        key: Option<Key<'a>>,
        /// The entries from a merge key.
        merged: Vec<usize>,
    },
}

/// A key before its value.
enum Key<'a> {
    Named(Cow<'a, str>, u32),
    /// `<<`: the entries of the value become entries of the mapping.
    Merge,
}

impl<'a> Builder<'a> {
    fn take(&mut self, event: Event<'a>, span: Span) -> Result<(), SyntaxError> {
        let line = to_u32(span.start.line());
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                let plain = is_plain(style, tag.as_deref());
                let text = match tag.as_deref() {
                    Some(tag) if is_tag(tag, "binary") => {
                        let decoded = binary(&text);
                        decoded.ok_or_else(|| error_at(span, "this is not text in base64"))?.into()
                    }
                    _ => text,
                };
                let merges = tag.as_deref().is_some_and(|tag| is_tag(tag, "merge"));
                if self.expects_key() && text == "<<" && (plain || merges) {
                    self.expect_merge();
                    return Ok(());
                }
                let value = Value::Scalar(Scalar { text, plain });
                self.close(Node { line, value }, anchor, span)
            }
            Event::SequenceStart(_, anchor, _) => {
                self.start(line, anchor, span, Content::Sequence(Vec::new()))
            }
            Event::MappingStart(_, anchor, _) => {
                let (entries, merged) = (Vec::new(), Vec::new());
                self.start(line, anchor, span, Content::Mapping { entries, key: None, merged })
            }
            Event::SequenceEnd | Event::MappingEnd => match self.open.pop() {
                None => Ok(()),
                Some(Open { line, anchor, content }) => {
                    let value = match content {
                        Content::Sequence(items) => Value::Sequence(items),
                        Content::Mapping { mut entries, merged, .. } => {
                            match &mut self.overridden {
                                None if merged.is_empty() => no_key_twice(&entries)?,
                                None => {
                                    no_key_twice_but(&entries, &merged)?;
                                    keep_last(&mut entries, &mut Vec::new());
                                }
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

    fn expect_merge(&mut self) {
        if let Some(Open { content: Content::Mapping { key, .. }, .. }) = self.open.last_mut() {
            *key = Some(Key::Merge);
        }
    }

    /// Adds a complete node to its parent.
    fn close(&mut self, node: Node<'a>, anchor: usize, span: Span) -> Result<(), SyntaxError> {
        if anchor != 0 {
            self.copy(&node, span)?;
            self.anchors.insert(anchor, node.clone());
        }
        match self.open.last_mut().map(|open| &mut open.content) {
            None if node.is_null() => {}
            None => self.document = Some(node),
            Some(Content::Sequence(items)) => items.push(node),
            Some(Content::Mapping { entries, key, merged }) => match (key.take(), node.value) {
                (Some(Key::Named(key, line)), value) => {
                    entries.push(Entry { key, line, node: Node { line: node.line, value } });
                }
                (Some(Key::Merge), value) => {
                    let start = entries.len();
                    if !merge(entries, value) {
                        let reason = "a merge key (<<) needs a mapping, or a list of mappings";
                        return Err(error_at(span, reason));
                    }
                    merged.extend(start..entries.len());
                }
                (None, Value::Scalar(Scalar { text, plain: true })) => {
                    let Some(text) = scalar::key(text) else {
                        return Err(error_at(span, "null cannot be a key; give the key as text"));
                    };
                    *key = Some(Key::Named(text, node.line));
                }
                (None, Value::Scalar(scalar)) => *key = Some(Key::Named(scalar.text, node.line)),
                (None, _) => return Err(error_at(span, "a list or mapping cannot be a key")),
            },
        }
        Ok(())
    }

    fn copy(&mut self, node: &Node<'_>, span: Span) -> Result<(), SyntaxError> {
        self.copied += node.bytes();
        if self.copied > self.copy_limit {
            let limit = self.copy_limit;
            return Err(error_at(
                span,
                &format!("anchors and aliases copy more than {limit} bytes; write the values out"),
            ));
        }
        Ok(())
    }
}

fn error_at(span: Span, reason: &str) -> SyntaxError {
    syntax_error(span.start.line(), span.start.col(), reason)
}

/// Returns true if the type of a scalar follows from its text.
fn is_plain(style: ScalarStyle, tag: Option<&Tag>) -> bool {
    match tag {
        None => style == ScalarStyle::Plain,
        Some(tag) => {
            ["bool", "int", "float", "null"].into_iter().any(|resolved| is_tag(tag, resolved))
        }
    }
}

/// Returns true for a tag of YAML itself, such as `!!binary`.
fn is_tag(tag: &Tag, name: &str) -> bool {
    let (handle, suffix) = tag.parts();
    let own = |prefix: &str| handle == prefix && suffix == name;
    own("tag:yaml.org,2002:")
        || own("!!")
        || suffix.strip_prefix("tag:yaml.org,2002:") == Some(name)
}

fn binary(text: &str) -> Option<String> {
    let text: String = text.split_whitespace().collect();
    String::from_utf8(STANDARD.decode(text).ok()?).ok()
}

/// Adds the entries of a mapping, or of a list of mappings. The first mapping of the list takes
/// precedence, so it is added last. Returns false for other values.
fn merge<'a>(entries: &mut Vec<Entry<'a>>, value: Value<'a>) -> bool {
    match value {
        Value::Mapping(merged) => {
            entries.extend(merged);
            true
        }
        Value::Sequence(items) => items.into_iter().rev().all(|item| match item.value {
            Value::Mapping(merged) => {
                entries.extend(merged);
                true
            }
            _ => false,
        }),
        Value::Scalar(_) => false,
    }
}

/// Checks like [`no_key_twice`], without the entries from a merge key.
fn no_key_twice_but(entries: &[Entry<'_>], merged: &[usize]) -> Result<(), SyntaxError> {
    let merged: HashSet<usize> = merged.iter().copied().collect();
    let own = entries.iter().enumerate().filter(|(i, _)| !merged.contains(i));
    let own: Vec<Entry<'_>> = own.map(|(_, entry)| entry.clone()).collect();
    no_key_twice(&own)
}

fn no_key_twice(entries: &[Entry<'_>]) -> Result<(), SyntaxError> {
    let twice = if entries.len() <= 16 {
        // Few keys need no table.
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

/// Keeps the last one of entries with the same key.
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
            let reason = format!("the key {key} is repeated in line {line}, and that one wins");
            overridden.push(SyntaxError { line: entry.line, column: 1, reason });
        }
        counts
    });
}
