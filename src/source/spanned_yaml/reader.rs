//! Writes YAML as JSON.
//!
//! JSON is a subset of YAML. The parser has a stack of its own, not that of the thread, and both
//! the parser and this writer are bounded: any text costs time and memory in proportion to its
//! length.

use std::borrow::Cow;
use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use foldhash::HashMap;
use granit_parser::{Event, Options, Parser, ScalarStyle, Span, StrInput, Tag};
use serde::Serialize;
use serde_json::value::RawValue;

use super::document::{Document, SyntaxError};
use super::excerpt;
use super::scalar;

/// The maximum nesting: more than any object of Kubernetes needs, and safe for a recursive walk.
const NESTING_LIMIT: usize = 64;

/// The bytes that aliases may copy: so many, and so many for each byte of the text. A text with more
/// is an alias bomb.
const COPY_ALWAYS: usize = 1024 * 1024;
const COPY_PER_BYTE: usize = 10;

/// A reader of the documents in a text.
pub(super) struct Reader<'a> {
    events: Parser<'a, StrInput<'a>>,
    failed: bool,
    /// The document so far.
    json: Vec<u8>,
    /// The line of the text that the end of `json` stands for.
    line: u32,
    open: Vec<Open<'a>>,
    /// The JSON of values with an anchor.
    anchors: HashMap<usize, Vec<u8>>,
    copied: usize,
    copy_limit: usize,
    /// Duplicate keys of a mapping, if they are no error.
    pub(super) overridden: Option<Vec<SyntaxError>>,
}

/// The fields of an object in JSON, each once.
type Entries<'j> = BTreeMap<String, &'j RawValue>;

/// A list or mapping before its end.
struct Open<'a> {
    anchor: usize,
    start: usize,
    next: Next,
    keys: HashMap<Cow<'a, str>, Key>,
    /// A key from `<<` came again.
    is_repeated: bool,
}

/// What comes next in a list or mapping.
#[derive(Clone, Copy, PartialEq)]
enum Next {
    Item,
    Key,
    Value,
    /// The value of `<<`: its entries become entries of the mapping.
    Merged,
}

struct Key {
    line: u32,
    is_merged: bool,
}

impl<'a> Reader<'a> {
    pub(super) fn new(text: &'a str) -> Reader<'a> {
        let mut options = Options::default();
        options.flow_nesting_limit = NESTING_LIMIT;
        options.block_nesting_limit = NESTING_LIMIT;
        options.set_emit_comments(false);
        Reader {
            events: Parser::new_from_str_with_options(text, options),
            failed: false,
            json: Vec::new(),
            line: 1,
            open: Vec::new(),
            anchors: HashMap::default(),
            copied: 0,
            copy_limit: COPY_ALWAYS + COPY_PER_BYTE * text.len(),
            overridden: None,
        }
    }
}

impl<'a> Iterator for Reader<'a> {
    type Item = Result<Document<'a>, SyntaxError>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.failed {
            let taken = match self.events.next()? {
                Ok((event, span)) => self.take(event, span),
                Err(error) => {
                    let marker = error.marker();
                    Err(syntax_error(marker.line(), marker.col(), error.info()))
                }
            };
            match taken {
                Ok(None) => {}
                Ok(Some(document)) => return Some(Ok(document)),
                Err(error) => {
                    self.failed = true;
                    return Some(Err(error));
                }
            }
        }
        None
    }
}

fn syntax_error(line: usize, column: usize, reason: impl Into<String>) -> SyntaxError {
    SyntaxError { line: to_u32(line), column: to_u32(column + 1), reason: reason.into() }
}

fn error_at(span: Span, reason: impl Into<String>) -> SyntaxError {
    syntax_error(span.start.line(), span.start.col(), reason)
}

fn to_u32(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

impl<'a> Reader<'a> {
    /// Writes an event. Returns the document after its last event.
    fn take(&mut self, event: Event<'a>, span: Span) -> Result<Option<Document<'a>>, SyntaxError> {
        let line = to_u32(span.start.line());
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                let is_plain = is_plain(style, tag.as_deref());
                let is_tagged = |name| tag.as_deref().is_some_and(|tag| is_tag(tag, name));
                let text = match is_tagged("binary") {
                    true => {
                        binary(&text).ok_or_else(|| error_at(span, "not text in base64"))?.into()
                    }
                    false => text,
                };
                if self.expected() == Some(Next::Key) {
                    if text == "<<" && (is_plain || is_tagged("merge")) {
                        self.expect(Next::Merged);
                        return Ok(None);
                    }
                    let name = match is_plain {
                        true => scalar::key(text).ok_or_else(|| {
                            error_at(span, "null cannot be a key; give the key as text")
                        })?,
                        false => text,
                    };
                    return self.write_key(name, Key { line, is_merged: false }).map(|()| None);
                }
                let start = self.begin(line);
                match is_plain {
                    true => self.write(
                        &scalar::meaning(&text)
                            .ok_or_else(|| error_at(span, "not a finite number"))?,
                    ),
                    false => self.write(&text),
                }
                return self.end(start, anchor, span);
            }
            Event::SequenceStart(_, anchor, _) => self.start(line, anchor, span, Next::Item)?,
            Event::MappingStart(_, anchor, _) => self.start(line, anchor, span, Next::Key)?,
            Event::SequenceEnd | Event::MappingEnd => {
                let Some(Open { anchor, start, next, is_repeated, .. }) = self.open.pop() else {
                    return Ok(None);
                };
                self.json.push(if next == Next::Item { b']' } else { b'}' });
                if is_repeated {
                    let json = self.take_from(start);
                    self.write(&serde_json::from_slice::<Entries<'_>>(&json).unwrap_or_default());
                }
                return self.end(start, anchor, span);
            }
            Event::Alias(id) => {
                if self.expected() == Some(Next::Key) {
                    return Err(error_at(span, "an alias cannot be a key; give the key as text"));
                }
                let start = self.begin(line);
                let Some(copy) = self.anchors.get(&id) else {
                    return Err(error_at(span, "this alias refers to a value that contains it"));
                };
                self.json.extend_from_slice(copy);
                self.count_copy(self.json.len() - start, span)?;
                return self.end(start, 0, span);
            }
            Event::DocumentEnd => self.anchors.clear(),
            _ => {}
        }
        Ok(None)
    }

    fn expected(&self) -> Option<Next> {
        self.open.last().map(|open| open.next)
    }

    fn expect(&mut self, next: Next) {
        if let Some(open) = self.open.last_mut() {
            open.next = next;
        }
    }

    fn start(
        &mut self,
        line: u32,
        anchor: usize,
        span: Span,
        next: Next,
    ) -> Result<(), SyntaxError> {
        if self.expected() == Some(Next::Key) {
            return Err(error_at(span, "a list or mapping cannot be a key; give the key as text"));
        }
        let start = self.begin(line);
        self.json.push(if next == Next::Item { b'[' } else { b'{' });
        self.open.push(Open { anchor, start, next, keys: HashMap::default(), is_repeated: false });
        Ok(())
    }

    /// Begins a value, and returns where.
    fn begin(&mut self, line: u32) -> usize {
        match self.open.last() {
            None => self.line = line,
            Some(Open { next: Next::Item, start, .. }) => {
                if self.json.len() > start + 1 {
                    self.json.push(b',');
                }
                self.pad(line);
            }
            // The value begins in the line of its key.
            Some(_) => {}
        }
        self.json.len()
    }

    /// Ends a value. Returns the document if that was all of it.
    fn end(
        &mut self,
        start: usize,
        anchor: usize,
        span: Span,
    ) -> Result<Option<Document<'a>>, SyntaxError> {
        if anchor != 0 {
            self.count_copy(self.json.len() - start, span)?;
            self.anchors.insert(anchor, without_newlines(&self.json[start..]));
        }
        match self.expected() {
            None => {
                let json = String::from_utf8(std::mem::take(&mut self.json)).unwrap_or_default();
                let line = self.line - to_u32(json.matches('\n').count());
                return Ok((json != "null").then_some(Document { line, json: json.into() }));
            }
            Some(Next::Merged) => self.merge(start, span)?,
            Some(Next::Value) => self.expect(Next::Key),
            Some(_) => {}
        }
        Ok(None)
    }

    fn count_copy(&mut self, bytes: usize, span: Span) -> Result<(), SyntaxError> {
        self.copied += bytes;
        if self.copied <= self.copy_limit {
            return Ok(());
        }
        let limit = self.copy_limit;
        let reason =
            format!("anchors and aliases copy more than {limit} bytes; write the values out");
        Err(error_at(span, reason))
    }

    /// Writes the entries of the mapping at the end, or of a list of mappings, in its place. The
    /// first mapping of a list takes precedence, so it comes last.
    fn merge(&mut self, start: usize, span: Span) -> Result<(), SyntaxError> {
        let json = self.take_from(start);
        let mappings = match serde_json::from_slice::<Entries<'_>>(&json) {
            Ok(entries) => vec![entries],
            Err(_) => serde_json::from_slice(&json).map_err(|_| {
                error_at(span, "a merge key (<<) needs a mapping, or a list of mappings")
            })?,
        };
        let line = to_u32(span.start.line());
        for (name, value) in mappings.into_iter().rev().flatten() {
            self.write_key(name.into(), Key { line, is_merged: true })?;
            self.write(value);
        }
        self.expect(Next::Key);
        Ok(())
    }

    /// Writes a key. Refuses one that comes again, or notes it; keys from `<<` may come again.
    fn write_key(&mut self, name: Cow<'a, str>, key: Key) -> Result<(), SyntaxError> {
        let line = key.line;
        if self.open.last().is_some_and(|open| !open.keys.is_empty()) {
            self.json.push(b',');
        }
        self.pad(line);
        self.write(&name);
        self.json.push(b':');
        let Some(open) = self.open.last_mut() else { return Ok(()) };
        open.next = Next::Value;
        let Some(earlier) = open.keys.get(&name) else {
            open.keys.insert(name, key);
            return Ok(());
        };
        let (shown, is_free) = (excerpt(&name), key.is_merged || earlier.is_merged);
        let earlier = earlier.line;
        open.keys.insert(name, key);
        if let Some(overridden) = &mut self.overridden {
            let reason = format!("the key {shown} is repeated in line {line}; the last one wins");
            overridden.push(SyntaxError { line: earlier, column: 1, reason });
        } else if is_free {
            open.is_repeated = true;
        } else {
            let reason =
                format!("the key {shown} is already in line {earlier}; remove one of the two");
            return Err(SyntaxError { line, column: 1, reason });
        }
        Ok(())
    }

    /// Writes the ends of lines up to this line.
    fn pad(&mut self, line: u32) {
        let missing = line.saturating_sub(self.line);
        self.json.extend(std::iter::repeat_n(b'\n', missing as usize));
        self.line += missing;
    }

    /// Takes the value at the end, without its ends of lines.
    fn take_from(&mut self, start: usize) -> Vec<u8> {
        let json = self.json.split_off(start);
        let kept = without_newlines(&json);
        self.line = self.line.saturating_sub(to_u32(json.len() - kept.len()));
        kept
    }

    fn write<T: Serialize + ?Sized>(&mut self, value: &T) {
        // Neither the values nor the writer can fail.
        let _ = serde_json::to_writer(&mut self.json, value);
    }
}

fn without_newlines(json: &[u8]) -> Vec<u8> {
    json.iter().copied().filter(|byte| *byte != b'\n').collect()
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
