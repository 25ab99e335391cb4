//! The parameters of lists and watches. Pure.

use std::time::Duration;

use super::request::Request;

/// What a list or a watch asks for, as far as the agent asks for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Options {
    /// `resourceVersion`, if it is given.
    pub(super) revision: Option<u64>,
    /// Whether a list has to be of just that revision.
    pub(super) is_exact: bool,
    /// How many objects a page may have.
    pub(super) limit: Option<usize>,
    /// Where a page goes on; empty for the first one.
    pub(super) token: String,
    /// How long a watch may last.
    pub(super) timeout: Option<Duration>,
    /// Whether a watch may be sent bookmarks.
    pub(super) bookmarks: bool,
}

impl Options {
    pub(super) fn of(request: &Request) -> Self {
        let number = |name: &str| request.parameter(name).parse::<u64>().ok();
        let revision = number("resourceVersion");
        let limit = number("limit").filter(|&limit| limit > 0);
        let is_exact = match request.parameter("resourceVersionMatch") {
            // A page is of one revision, and the cache has no pages.
            "" => limit.is_some() && revision.is_some_and(|revision| revision != 0),
            matching => matching == "Exact",
        };
        Self {
            revision,
            is_exact,
            limit: limit.and_then(|limit| limit.try_into().ok()),
            token: request.parameter("continue").to_owned(),
            timeout: number("timeoutSeconds").map(Duration::from_secs),
            bookmarks: request.parameter("allowWatchBookmarks") == "true",
        }
    }
}
