//! The items of a page in JSON: the elements of the array `items` of an object.

use std::ops::Range;

use serde::Deserialize;

use super::super::failure::Failure;
use super::{ListMetadata, MAX_ITEM_BYTES};
use crate::source::spanned_yaml::excerpt;

/// The size limit of a page without its items.
const MAX_FRAME_BYTES: usize = 1 << 20;

#[derive(Deserialize)]
struct List {
    #[serde(default)]
    metadata: ListMeta,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ListMeta {
    resource_version: String,
    #[serde(rename = "continue")]
    next: Option<String>,
}

/// Splits the bytes of a page into items.
#[derive(Debug, Default)]
pub(in crate::source::kubernetes) struct Items {
    buffer: Vec<u8>,
    /// The offset of the first byte that was not scanned.
    scanned: usize,
    /// The page without its items.
    frame: Vec<u8>,
    /// The offset of the current item in the array `items`.
    start: Option<usize>,
    item: Range<usize>,
    depth: usize,
    in_text: bool,
    escaped: bool,
}

impl Items {
    pub(super) fn push(&mut self, data: &[u8]) {
        let read = self.start.unwrap_or(self.scanned);
        self.buffer.drain(..read);
        self.scanned -= read;
        self.start = self.start.map(|start| start - read);
        self.buffer.extend_from_slice(data);
    }

    pub(super) fn advance(&mut self) -> Result<bool, Failure> {
        while let Some(&byte) = self.buffer.get(self.scanned) {
            let offset = self.scanned;
            self.scanned += 1;
            if self.in_text {
                match byte {
                    _ if self.escaped => self.escaped = false,
                    b'\\' => self.escaped = true,
                    b'"' => self.in_text = false,
                    _ => {}
                }
            } else {
                match byte {
                    b'"' => self.in_text = true,
                    b'{' | b'[' => self.depth += 1,
                    b'}' | b']' => {
                        let Some(depth) = self.depth.checked_sub(1) else {
                            return Err(garbage("a closing bracket too many", &self.frame));
                        };
                        self.depth = depth;
                    }
                    _ => {}
                }
                match (self.start, byte) {
                    (None, b'[') if self.depth == 2 && begins_items(&self.frame) => {
                        self.frame.push(byte);
                        self.start = Some(self.scanned);
                        continue;
                    }
                    (Some(start), b']') if self.depth == 1 => {
                        self.start = None;
                        self.frame.push(byte);
                        if self.is_item(start..offset) {
                            return Ok(true);
                        }
                        continue;
                    }
                    (Some(start), b',') if self.depth == 2 => {
                        self.start = Some(self.scanned);
                        if self.is_item(start..offset) {
                            return Ok(true);
                        }
                        continue;
                    }
                    _ => {}
                }
            }
            match self.start {
                None => self.frame.push(byte),
                Some(start) if offset - start > MAX_ITEM_BYTES => {
                    let what = format!("an item of more than {MAX_ITEM_BYTES} bytes");
                    return Err(Failure::Garbage(what));
                }
                Some(_) => {}
            }
            if self.frame.len() > MAX_FRAME_BYTES {
                return Err(garbage("no list", &self.frame));
            }
        }
        Ok(false)
    }

    /// Moves to an item, unless it is only the space in an empty array.
    fn is_item(&mut self, item: Range<usize>) -> bool {
        self.item = item;
        !self.buffer[self.item.clone()].trim_ascii().is_empty()
    }

    pub(super) fn current(&mut self) -> Result<&str, Failure> {
        let item = self.buffer[self.item.clone()].trim_ascii();
        std::str::from_utf8(item).map_err(|error| garbage(&error.to_string(), item))
    }

    pub(super) fn end(self) -> Result<ListMetadata, Failure> {
        let list: List = serde_json::from_slice(&self.frame)
            .map_err(|error| garbage(&error.to_string(), &self.frame))?;
        let ListMeta { resource_version, next } = list.metadata;
        if resource_version.is_empty() {
            return Err(garbage("no list", &self.frame));
        }
        Ok(ListMetadata { version: resource_version, next: next.filter(|next| !next.is_empty()) })
    }
}

/// Returns true if the next value of an object is that of the key `items`.
fn begins_items(frame: &[u8]) -> bool {
    let key = frame.trim_ascii_end().strip_suffix(b":").map(<[u8]>::trim_ascii_end);
    let before = key.and_then(|key| key.strip_suffix(b"\"items\""));
    before.is_some_and(|before| !before.ends_with(b"\\"))
}

fn garbage(what: &str, bytes: &[u8]) -> Failure {
    Failure::Garbage(format!("{} ({what})", excerpt(&String::from_utf8_lossy(bytes))))
}
