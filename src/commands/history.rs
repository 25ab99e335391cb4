//! `shunt history`: what changed, and when the kernel had it.

use std::collections::BTreeMap;
use std::fmt;
use std::hash::{BuildHasher as _, RandomState};
use std::net::IpAddr;

use anyhow::Context as _;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use shunt_core::model::{Change, Dirty, Endpoint, EndpointSlice, Kind, Store};

use super::args::{Destination, History as Arguments, service_port};
use super::some_of;
use crate::agent::Failure;
use crate::serve::escape;
use crate::serve::history::What;
use crate::serve::query::{Objects, Selection, ask};
use crate::serve::status::{AgentStatus, Time, now, passed, span};

/// Prints what changed.
pub(super) fn history(arguments: &Arguments) -> Result<(), Failure> {
    arguments.here.enter()?;
    let selection = match arguments.about.as_deref() {
        None => Selection::All,
        Some(about) => match about.parse::<Destination>() {
            Ok(to) => Selection::Address { address: to.address, port: to.port },
            Err(_) => Selection::Service(service_port(about, None)?.0),
        },
    };
    let (objects, _) = ask(selection, true).map_err(anyhow::Error::from)?;
    let mut history = HistoryText::of(objects);
    if let Some(since) = arguments.since {
        history.changes.retain(|line| line.at >= since);
    }
    if arguments.anonymous {
        history = history.anonymous()?;
    }
    Ok(super::output(arguments.output, &history)?)
}

/// What changed, for people, with the objects of now and of before for other commands.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct HistoryText {
    /// How far back it reaches.
    since: Time,
    changes: Vec<HistoryLine>,
    pub(super) objects: Objects,
}

/// A change in words.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct HistoryLine {
    at: Time,
    service: Option<String>,
    what: String,
    /// The seconds until the kernel had it.
    committed_after_seconds: Option<f64>,
}

impl HistoryText {
    fn of(mut objects: Objects) -> HistoryText {
        let AgentStatus { version, node, started, told, .. } = objects.status;
        // The rest is of this moment, and may name servers and files.
        objects.status = AgentStatus { version, node, started, told, ..AgentStatus::default() };
        HistoryText { since: objects.since, changes: lines(&objects), objects }
    }

    /// Returns it with a random word in place of each name, the same for the same name.
    fn anonymous(&self) -> anyhow::Result<HistoryText> {
        let mut json = serde_json::to_value(self).context("cannot find the names")?;
        let mut names = BTreeMap::from([(self.objects.status.node.clone(), String::new())]);
        each_text(&mut json, "", &mut |field, text| {
            if NAMES.contains(&field) {
                names.extend(text.split(is_between).map(|it| (it.to_owned(), String::new())));
            }
        });
        let random = RandomState::new();
        for (name, word) in &mut names {
            // A name of DNS begins with a letter.
            *word = format!("n{:016x}", random.hash_one(name));
        }
        // The rest has words of shunt's own.
        for place in ["/changes", "/objects/changes", "/objects/history", "/objects/status/node"] {
            let Some(json) = json.pointer_mut(place) else { continue };
            each_text(json, "", &mut |_, text| {
                let parts = text.split_inclusive(is_between).map(|part| {
                    let name = part.trim_end_matches(is_between);
                    let word = names.get(name).filter(|_| !name.is_empty());
                    format!("{}{}", word.map_or(name, String::as_str), &part[name.len()..])
                });
                *text = parts.collect();
            });
        }
        serde_json::from_value(json).context("cannot replace the names")
    }
}

/// The fields of objects that have names.
const NAMES: [&str; 8] =
    ["namespace", "name", "service", "node", "nodes", "zone", "zones", "OtherProxy"];

/// Passes each text to `with`, with the name of the field that has it.
fn each_text(json: &mut Value, field: &str, with: &mut impl FnMut(&str, &mut String)) {
    match json {
        Value::Object(fields) => {
            fields.iter_mut().for_each(|(field, value)| each_text(value, field, with));
        }
        Value::Array(values) => values.iter_mut().for_each(|it| each_text(it, field, with)),
        Value::String(text) => with(field, text),
        _ => {}
    }
}

/// Returns true if a letter is in no name.
fn is_between(letter: char) -> bool {
    !letter.is_ascii_alphanumeric() && !matches!(letter, '-' | '.' | '_')
}

/// Returns what changed, the oldest first.
pub(super) fn lines(objects: &Objects) -> Vec<HistoryLine> {
    let (mut store, _) = objects.store();
    let mut lines = Vec::new();
    for entry in objects.history.iter().rev() {
        let (mut texts, seconds) = match &entry.what {
            What::Noticed(text) => (vec![text.clone()], None),
            What::Changed(before, seconds) => {
                let texts = differences(before, &store);
                store.apply(before.clone(), &mut Dirty::default());
                (texts, Some(*seconds))
            }
        };
        texts.reverse();
        lines.extend(texts.into_iter().map(|what| HistoryLine {
            at: entry.at,
            service: entry.service.as_ref().map(ToString::to_string),
            what,
            committed_after_seconds: seconds,
        }));
    }
    lines.reverse();
    lines
}

/// Returns the differences between a former object and the present one.
fn differences(before: &Change, after: &Store) -> Vec<String> {
    match before {
        Change::Slice(before) => slices(Some(before), after.slice(&before.name)),
        Change::Gone(Kind::EndpointSlice, name) => slices(None, after.slice(name)),
        Change::Service(before) => {
            fields("the Service", Some(&**before), after.service(&before.name))
        }
        Change::Gone(Kind::Service, name) | Change::ServiceIgnored(name, _) => {
            fields("the Service", None, after.service(name))
        }
        Change::Node(before) => fields("the Node", Some(&**before), after.node()),
        Change::Gone(Kind::Node, _) => fields("the Node", None, after.node()),
        Change::ServiceCidr(name, _) | Change::Gone(Kind::ServiceCidr, name) => {
            vec![format!("the ServiceCIDR {} changed", name.name)]
        }
        _ => Vec::new(),
    }
}

/// Returns the changes of an object, field by field.
fn fields<T: Serialize>(what: &str, before: Option<&T>, after: Option<&T>) -> Vec<String> {
    let (Some(before), Some(after)) = (before, after) else {
        return match (before, after) {
            (None, None) => vec![format!("{what} changed, and shunt still ignores it")],
            (None, _) => vec![format!("{what} appeared")],
            (_, None) => vec![format!("{what} is gone")],
            _ => Vec::new(),
        };
    };
    let value = |object| serde_json::to_value(object).unwrap_or_default();
    let (Value::Object(before), Value::Object(after)) = (value(before), value(after)) else {
        return Vec::new();
    };
    let differ = after.iter().filter(|(name, value)| before.get(*name) != Some(value));
    let text = |(name, value): (&String, &Value)| {
        let before = before.get(name).unwrap_or(&Value::Null);
        format!("{what}: {} {before} -> {value}", name.replace('_', " "))
    };
    differ.map(text).collect()
}

/// Returns the changes of a slice's endpoints.
fn slices(before: Option<&EndpointSlice>, after: Option<&EndpointSlice>) -> Vec<String> {
    let Some(slice) = after.or(before) else { return Vec::new() };
    let endpoints = |slice: Option<&EndpointSlice>| -> BTreeMap<IpAddr, Endpoint> {
        let all = slice.into_iter().flat_map(|slice| &slice.endpoints);
        all.map(|endpoint| (endpoint.address, endpoint.clone())).collect()
    };
    let (old, new) = (endpoints(before), endpoints(after));
    let mut changed: BTreeMap<String, Vec<IpAddr>> = BTreeMap::new();
    for address in old.keys().chain(new.keys().filter(|address| !old.contains_key(*address))) {
        let (old, new) = (old.get(address), new.get(address));
        let what = match (old.map(condition), new.map(condition)) {
            (None, Some("ready")) => "added".to_owned(),
            (None, Some(condition)) => format!("added, {condition}"),
            (Some("ready"), None) => "removed".to_owned(),
            (Some(condition), None) => format!("removed, was {condition}"),
            (Some(before), Some(after)) if before != after => format!("is {after}, was {before}"),
            _ if old != new => "changed its node or hints".to_owned(),
            _ => continue,
        };
        changed.entry(what).or_default().push(*address);
    }
    let mut texts: Vec<String> = changed
        .into_iter()
        .map(|(what, addresses)| format!("{} {what}", some_of(addresses)))
        .collect();
    if let (Some(before), Some(after)) = (before, after) {
        let differ = [
            ("ports", before.ports != after.ports),
            ("Service", before.service != after.service),
            ("weight", before.weight != after.weight),
        ];
        let differ = differ.into_iter().filter(|(_, differs)| *differs);
        texts.extend(differ.map(|(what, _)| format!("{}: its {what} changed", slice.name.name)));
    }
    texts
}

/// Returns the condition of an endpoint in the words of EndpointSlices.
fn condition(endpoint: &Endpoint) -> &'static str {
    match (endpoint.terminating, endpoint.serving, endpoint.ready) {
        (true, true, _) => "terminating, still serving",
        (true, false, _) => "terminating",
        (false, _, true) => "ready",
        (false, ..) => "not ready",
    }
}

impl fmt::Display for HistoryLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {} ago", self.what, span(passed(self.at, now())))
    }
}

impl fmt::Display for HistoryText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "changes since {:.3} (earlier ones are unknown)", self.since)?;
        let name = |line: &HistoryLine| line.service.clone().unwrap_or_else(|| "-".to_owned());
        let width = self.changes.iter().map(|line| name(line).chars().count()).max();
        for line in &self.changes {
            let text = format!(
                "{:.3}  {:<width$}  {}{}",
                line.at,
                name(line),
                line.what,
                line.committed_after_seconds
                    .map(|seconds| format!("  (in the kernel after {:.1} ms)", seconds * 1e3))
                    .unwrap_or_default(),
                width = width.unwrap_or_default(),
            );
            writeln!(f, "{}", escape::line(&text))?;
        }
        Ok(())
    }
}
