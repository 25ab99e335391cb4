//! The parameters of lists and watches. Pure.

use std::time::Duration;

use super::request::Request;

/// What a list or a watch asks for, as far as the agent asks for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Options {
    /// `resourceVersion`, if it is given.
    pub(super) revision: Option<u64>,
    /// How long a watch may last.
    pub(super) timeout: Option<Duration>,
    /// Whether a watch may be sent bookmarks.
    pub(super) bookmarks: bool,
}

impl Options {
    pub(super) fn of(request: &Request) -> Self {
        let number = |name: &str| request.parameter(name).parse::<u64>().ok();
        Self {
            revision: number("resourceVersion"),
            timeout: number("timeoutSeconds").map(Duration::from_secs),
            bookmarks: request.parameter("allowWatchBookmarks") == "true",
        }
    }
}
