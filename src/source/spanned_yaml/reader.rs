//! Writes YAML as JSON.
//!
//! JSON is a subset of YAML. The parser limits the nesting, and with it the recursion of this writer, which
//! limits the copies: any text costs time and memory in proportion to its length.

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
pub(super) struct YamlReader<'a> {
    events: Parser<'a, StrInput<'a>>,
    failed: bool,
    /// The document so far.
    json: Vec<u8>,
    /// The line of the text that the end of `json` stands for.
    line: u32,
    /// The JSON of values with an anchor.
    anchors: HashMap<usize, Vec<u8>>,
    copied: usize,
    copy_limit: usize,
    /// Duplicate keys of a mapping, if they are no error.
    pub(super) overridden: Option<Vec<SyntaxError>>,
}

/// The fields of an object in JSON, each once.
type Entries<'j> = BTreeMap<String, &'j RawValue>;

/// The keys of a mapping so far: the line of each, and whether it is from `<<`.
type Keys<'a> = HashMap<Cow<'a, str>, (u32, bool)>;

impl<'a> YamlReader<'a> {
    pub(super) fn new(text: &'a str) -> YamlReader<'a> {
        let mut options = Options::default();
        options.flow_nesting_limit = NESTING_LIMIT;
        options.block_nesting_limit = NESTING_LIMIT;
        options.set_emit_comments(false);
        YamlReader {
            events: Parser::new_from_str_with_options(text, options),
            failed: false,
            json: Vec::new(),
            line: 1,
            anchors: HashMap::default(),
            copied: 0,
            copy_limit: COPY_ALWAYS + COPY_PER_BYTE * text.len(),
            overridden: None,
        }
    }
}

impl<'a> Iterator for YamlReader<'a> {
    type Item = Result<Document<'a>, SyntaxError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        let read = self.document().transpose()?;
        self.failed = read.is_err();
        Some(read)
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

impl<'a> YamlReader<'a> {
    /// Returns the next document that is not empty.
    fn document(&mut self) -> Result<Option<Document<'a>>, SyntaxError> {
        while let Some((event, span)) = self.event()? {
            if !matches!(
                event,
                Event::Scalar(..) | Event::SequenceStart(..) | Event::MappingStart(..)
            ) {
                // It is between two documents.
                self.anchors.clear();
                continue;
            }
            let line = to_u32(span.start.line());
            self.line = line;
            self.value(event, span)?;
            let json = String::from_utf8(std::mem::take(&mut self.json)).unwrap_or_default();
            if json != "null" {
                return Ok(Some(Document { line, json: json.into() }));
            }
        }
        Ok(None)
    }

    fn event(&mut self) -> Result<Option<(Event<'a>, Span)>, SyntaxError> {
        self.events.next().transpose().map_err(|error| {
            let marker = error.marker();
            syntax_error(marker.line(), marker.col(), error.info())
        })
    }

    /// Writes the value that begins with this event.
    fn value(&mut self, event: Event<'a>, span: Span) -> Result<(), SyntaxError> {
        let start = self.json.len();
        let anchor = match event {
            Event::Scalar(text, style, anchor, tag) => {
                let tag = tag.as_deref();
                match is_plain(style, tag) {
                    true => self.write(
                        &scalar::meaning(&text)
                            .ok_or_else(|| error_at(span, "not a finite number"))?,
                    ),
                    false => self.write(&verbatim(text, tag, span)?),
                }
                anchor
            }
            Event::SequenceStart(_, anchor, _) => {
                self.json.push(b'[');
                while let Some((event, span)) = self.event()? {
                    if matches!(event, Event::SequenceEnd) {
                        break;
                    }
                    if self.json.len() > start + 1 {
                        self.json.push(b',');
                    }
                    self.pad(to_u32(span.start.line()));
                    self.value(event, span)?;
                }
                self.json.push(b']');
                anchor
            }
            Event::MappingStart(_, anchor, _) => {
                self.mapping()?;
                anchor
            }
            Event::Alias(id) => {
                let Some(copy) = self.anchors.get(&id) else {
                    return Err(error_at(span, "this alias refers to a value that contains it"));
                };
                self.json.extend_from_slice(copy);
                self.count_copy(start, span)?;
                0
            }
            _ => 0,
        };
        if anchor != 0 {
            self.count_copy(start, span)?;
            self.anchors.insert(anchor, without_newlines(&self.json[start..]));
        }
        Ok(())
    }

    /// Writes the mapping whose start was the last event.
    fn mapping(&mut self) -> Result<(), SyntaxError> {
        let start = self.json.len();
        let mut keys = Keys::default();
        // A key from `<<` came again.
        let mut is_repeated = false;
        self.json.push(b'{');
        while let Some((event, span)) = self.event()? {
            let (text, style, tag) = match event {
                Event::MappingEnd => break,
                Event::Scalar(text, style, _, tag) => (text, style, tag),
                event => {
                    let what = match event {
                        Event::Alias(_) => "an alias",
                        _ => "a list or mapping",
                    };
                    let reason = format!("{what} cannot be a key; give the key as text");
                    return Err(error_at(span, reason));
                }
            };
            let (tag, is_plain) = (tag.as_deref(), is_plain(style, tag.as_deref()));
            if text == "<<" && (is_plain || tag.is_some_and(|tag| is_tag(tag, "merge"))) {
                is_repeated |= self.merge(&mut keys)?;
                continue;
            }
            let name = match is_plain {
                true => scalar::key(text)
                    .ok_or_else(|| error_at(span, "null cannot be a key; give the key as text"))?,
                false => verbatim(text, tag, span)?,
            };
            is_repeated |= self.write_key(&mut keys, name, to_u32(span.start.line()), false)?;
            if let Some((event, span)) = self.event()? {
                self.value(event, span)?;
            }
        }
        self.json.push(b'}');
        if is_repeated {
            let json = self.take_from(start);
            self.write(&serde_json::from_slice::<Entries<'_>>(&json).unwrap_or_default());
        }
        Ok(())
    }

    /// Counts the value at the end as a copy.
    fn count_copy(&mut self, start: usize, span: Span) -> Result<(), SyntaxError> {
        self.copied += self.json.len() - start;
        if self.copied <= self.copy_limit {
            return Ok(());
        }
        let limit = self.copy_limit;
        let reason =
            format!("anchors and aliases copy more than {limit} bytes; write the values out");
        Err(error_at(span, reason))
    }

    /// Writes the entries of the mapping that comes next, or of a list of mappings. The first mapping of a
    /// list takes precedence, so it comes last. Returns true as for [`YamlReader::write_key`].
    fn merge(&mut self, keys: &mut Keys<'a>) -> Result<bool, SyntaxError> {
        let start = self.json.len();
        let Some((event, span)) = self.event()? else { return Ok(false) };
        self.value(event, span)?;
        let json = self.take_from(start);
        let mappings = match serde_json::from_slice::<Entries<'_>>(&json) {
            Ok(entries) => vec![entries],
            Err(_) => serde_json::from_slice(&json).map_err(|_| {
                error_at(span, "a merge key (<<) needs a mapping, or a list of mappings")
            })?,
        };
        let line = to_u32(span.start.line());
        let mut is_repeated = false;
        for (name, value) in mappings.into_iter().rev().flatten() {
            is_repeated |= self.write_key(keys, name.into(), line, true)?;
            self.write(value);
        }
        Ok(is_repeated)
    }

    /// Writes a key. Refuses one that comes again, or notes it; keys from `<<` may come again. Returns
    /// true for such a one.
    fn write_key(
        &mut self,
        keys: &mut Keys<'a>,
        name: Cow<'a, str>,
        line: u32,
        is_merged: bool,
    ) -> Result<bool, SyntaxError> {
        if !keys.is_empty() {
            self.json.push(b',');
        }
        self.pad(line);
        self.write(&name);
        self.json.push(b':');
        let earlier = keys.get(&name).map(|earlier| (*earlier, excerpt(&name)));
        keys.insert(name, (line, is_merged));
        let Some(((earlier, was_merged), shown)) = earlier else { return Ok(false) };
        if let Some(overridden) = &mut self.overridden {
            let reason = format!("the key {shown} is repeated in line {line}; the last one wins");
            overridden.push(SyntaxError { line: earlier, column: 1, reason });
            return Ok(false);
        }
        if is_merged || was_merged {
            return Ok(true);
        }
        let reason = format!("the key {shown} is already in line {earlier}; remove one of the two");
        Err(SyntaxError { line, column: 1, reason })
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

/// Returns a text that is no plain scalar: as it is, or what it is in base64.
fn verbatim<'a>(
    text: Cow<'a, str>,
    tag: Option<&Tag>,
    span: Span,
) -> Result<Cow<'a, str>, SyntaxError> {
    if !tag.is_some_and(|tag| is_tag(tag, "binary")) {
        return Ok(text);
    }
    let base64: String = text.split_whitespace().collect();
    let bytes = STANDARD.decode(base64).ok();
    let decoded = bytes.and_then(|bytes| String::from_utf8(bytes).ok());
    Ok(decoded.ok_or_else(|| error_at(span, "not text in base64"))?.into())
}
