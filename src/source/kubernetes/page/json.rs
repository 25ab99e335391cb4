//! The items of a page in JSON, read when the page is complete: protobuf is the default.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::super::failure::Failure;
use super::ListMetadata;
use crate::source::spanned_yaml::excerpt;

/// The size limit of a page. Most have 250 items.
const MAX_PAGE_BYTES: usize = 1 << 30;

#[derive(Deserialize)]
struct List {
    #[serde(default)]
    metadata: ListMeta,
    items: Option<Vec<Box<RawValue>>>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ListMeta {
    resource_version: String,
    #[serde(rename = "continue")]
    next: Option<String>,
}

/// Collects a page.
#[derive(Debug, Default)]
pub(in crate::source::kubernetes) struct Items {
    page: Vec<u8>,
    pub(super) is_complete: bool,
    metadata: ListMetadata,
    /// The items after the current one.
    rest: std::vec::IntoIter<Box<RawValue>>,
    current: Option<Box<RawValue>>,
}

impl Items {
    pub(super) fn push(&mut self, data: &[u8]) -> Result<(), Failure> {
        self.page.extend_from_slice(data);
        match self.page.len() > MAX_PAGE_BYTES {
            true => Err(garbage("too long", &self.page)),
            false => Ok(()),
        }
    }

    /// Reads the complete page.
    pub(super) fn complete(&mut self) -> Result<(), Failure> {
        self.is_complete = true;
        let page = std::mem::take(&mut self.page);
        let list: List =
            serde_json::from_slice(&page).map_err(|error| garbage(&error.to_string(), &page))?;
        let ListMeta { resource_version: version, next } = list.metadata;
        if version.is_empty() {
            return Err(garbage("no list", &page));
        }
        self.metadata = ListMetadata { version, next: next.filter(|next| !next.is_empty()) };
        self.rest = list.items.unwrap_or_default().into_iter();
        Ok(())
    }

    pub(super) fn advance(&mut self) -> bool {
        self.current = self.rest.next();
        self.current.is_some()
    }

    pub(super) fn current(&self) -> &str {
        self.current.as_ref().map_or("null", |item| item.get())
    }

    pub(super) fn end(self) -> ListMetadata {
        self.metadata
    }
}

fn garbage(what: &str, bytes: &[u8]) -> Failure {
    Failure::Garbage(format!("{} ({what})", excerpt(&String::from_utf8_lossy(bytes))))
}
