//! The parameters of lists and watches. Pure.

use std::time::Duration;

use super::request::{Request, Verb};
use super::status::Refusal;

const NOT_OLDER: &str = "NotOlderThan";
const EXACT: &str = "Exact";

/// What a list or a watch asks for, with only such combinations as the API server takes.
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
    pub(super) fn read(request: &Request) -> Result<Self, Refusal> {
        let number = |name: &str| match request.parameter(name) {
            "" => Ok(None),
            text => text.parse::<i64>().map(Some).map_err(|_| {
                Refusal::bad_request(format!("strconv.ParseInt: parsing {text:?}: invalid syntax"))
            }),
        };
        let (limit, seconds) = (number("limit")?, number("timeoutSeconds")?);
        let errors = match request.verb {
            Verb::Watch => watch_errors(request),
            _ => list_errors(request),
        };
        if !errors.is_empty() {
            return Err(Refusal::invalid("ListOptions.meta.k8s.io", "", &errors));
        }
        let revision = revision(request)?;
        let limit = limit.and_then(|limit| usize::try_from(limit).ok()).filter(|&limit| limit > 0);
        let is_exact = match request.parameter("resourceVersionMatch") {
            // A page is of one revision, and the cache has no pages.
            "" => limit.is_some() && revision.is_some_and(|revision| revision != 0),
            matching => matching == EXACT,
        };
        Ok(Self {
            revision,
            is_exact,
            limit,
            token: request.parameter("continue").to_owned(),
            timeout: seconds.map(|seconds| Duration::from_secs(seconds.try_into().unwrap_or(0))),
            bookmarks: request.flag("allowWatchBookmarks") == Some(true),
        })
    }
}

fn list_errors(request: &Request) -> Vec<String> {
    let mut errors = Vec::new();
    let matching = request.parameter("resourceVersionMatch");
    let version = request.parameter("resourceVersion");
    let mut forbidden = |field: &str, why: &str| errors.push(format!("{field}: Forbidden: {why}"));
    if !matching.is_empty() && version.is_empty() {
        let why = "resourceVersionMatch is forbidden unless resourceVersion is provided";
        forbidden("resourceVersionMatch", why);
    }
    if !matching.is_empty() && !request.parameter("continue").is_empty() {
        let why = "resourceVersionMatch is forbidden when continue is provided";
        forbidden("resourceVersionMatch", why);
    }
    if matching == EXACT && version == "0" {
        let why = r#"resourceVersionMatch "exact" is forbidden for resourceVersion "0""#;
        forbidden("resourceVersionMatch", why);
    }
    if !["", EXACT, NOT_OLDER].contains(&matching) {
        errors.push(unsupported(matching, r#""Exact", "NotOlderThan", """#));
    }
    errors
}

fn watch_errors(request: &Request) -> Vec<String> {
    let mut errors = Vec::new();
    let matching = request.parameter("resourceVersionMatch");
    let mut forbidden = |field: &str, why: &str| errors.push(format!("{field}: Forbidden: {why}"));
    if !matching.is_empty() {
        let why =
            "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided";
        forbidden("resourceVersionMatch", why);
    }
    if !request.parameter("continue").is_empty() {
        let why = "resourceVersionMatch is forbidden when continue is provided";
        forbidden("resourceVersionMatch", why);
    }
    if !["", NOT_OLDER].contains(&matching) {
        errors.push(unsupported(matching, r#""NotOlderThan""#));
    }
    errors
}

fn unsupported(matching: &str, supported: &str) -> String {
    format!("resourceVersionMatch: Unsupported value: {matching:?}: supported values: {supported}")
}

fn revision(request: &Request) -> Result<Option<u64>, Refusal> {
    let text = request.parameter("resourceVersion");
    if text.is_empty() {
        return Ok(None);
    }
    text.parse().map(Some).map_err(|_| {
        let message = format!(
            "resourceVersion: Invalid value: {text:?}: strconv.ParseUint: parsing {text:?}: \
             invalid syntax"
        );
        match request.verb {
            Verb::Watch => Refusal::new(500, "", message),
            _ => Refusal::bad_request(format!("invalid resource version: {message}")),
        }
    })
}
