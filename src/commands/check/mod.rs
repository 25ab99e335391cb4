//! `shunt check`: whether a node, its kernel and its cluster fit, before shunt runs there.
//!
//! Owns: one file per subject, which looks at the network namespace of this thread. The result is a
//! list of [`Line`]s.
//!
//! Guarantees: it changes nothing that stays. For a moment there are dormant tables named
//! `shunt-check-…`, which [`crate::dataplane`]'s probe creates and deletes. The kernel may load
//! modules, which the agent needs, too.
//!
//! Names of lines, results and the fields of the JSON are an interface: new ones may come, existing
//! ones stay.

mod api;
pub(in crate::commands) mod command;
mod configuration;
mod conntrack;
mod forward_policy;
mod kernel;
mod local_traffic;
mod node_port_listeners;
mod node_ports;
mod others;
mod ports;
mod privileges;
mod routing;

use std::fmt::{self, Display, Formatter};

use nfnetlink::route::links;
use serde::Serialize;
use shunt_core::model::{Change, Dirty, Store};
use shunt_core::plan::{NodeContext, Options};

use crate::agent::args::Run;
use crate::agent::health::families;
use crate::agent::settings::Effective;
use crate::serve::escape;
use crate::source::interfaces::interface_addresses;
use crate::source::spanned_yaml::Diagnostic;

pub use api::Api;

/// The result of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Outcome {
    /// Nothing to do.
    Ok,
    /// Not judged, for the reason in the text.
    Skip,
    /// shunt works, but a part may not do what is expected.
    Warn,
    /// shunt or its Services will not work.
    Fail,
}

impl Display for Outcome {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{self:?}").to_uppercase())
    }
}

/// The judgement on one subject.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Line {
    /// The stable name of the subject.
    pub name: &'static str,
    /// The judgement.
    pub result: Outcome,
    /// The findings, with the reason for the judgement.
    pub text: String,
    /// What to do, if there is something to do.
    pub remedy: Option<String>,
}

impl Line {
    fn ok(name: &'static str, text: impl Into<String>) -> Line {
        Line { name, result: Outcome::Ok, text: text.into(), remedy: None }
    }

    fn skip(name: &'static str, why: impl Into<String>) -> Line {
        Line { name, result: Outcome::Skip, text: why.into(), remedy: None }
    }

    fn warn(name: &'static str, text: impl Into<String>, remedy: impl Into<String>) -> Line {
        let remedy = Some(remedy.into());
        Line { name, result: Outcome::Warn, text: text.into(), remedy }
    }

    fn fail(name: &'static str, text: impl Into<String>, remedy: impl Into<String>) -> Line {
        let remedy = Some(remedy.into());
        Line { name, result: Outcome::Fail, text: text.into(), remedy }
    }
}

/// The lines of a check, in the order of their subjects.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Report(
    /// At least one per subject.
    pub Vec<Line>,
);

impl Report {
    /// Returns true if a line is a failure.
    #[must_use]
    pub fn has_failures(&self) -> bool {
        self.count(Outcome::Fail) > 0
    }

    fn count(&self, result: Outcome) -> usize {
        self.0.iter().filter(|line| line.result == result).count()
    }
}

impl Display for Report {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let width = self.0.iter().map(|line| line.name.len()).max().unwrap_or(0);
        for Line { name, result, text, remedy } in &self.0 {
            writeln!(f, "{result:<4}  {name:<width$}  {}", escape::line(text))?;
            if let Some(remedy) = remedy {
                writeln!(f, "{:width$}        → {}", "", escape::line(remedy))?;
            }
        }
        let counts = [Outcome::Fail, Outcome::Warn, Outcome::Skip, Outcome::Ok]
            .map(|result| format!("{} {result}", self.count(result)));
        writeln!(f, "{}", counts.join(", "))
    }
}

/// Checks this thread's network namespace.
///
/// `effective` is the configuration unless it is invalid, with its `problems`, and `options` are those
/// of the plan. `api` is what the API server said, and `objects` the ones that concern the node.
fn check(
    run: &Run,
    effective: Option<&Effective>,
    options: &Options,
    problems: &[Diagnostic],
    api: &Api,
    objects: Vec<Change>,
) -> Report {
    let node_name = effective.map_or("", |effective| &effective.node_name);
    let mut store = Store::new();
    let addresses = interface_addresses();
    let addresses_error = addresses.as_ref().err().map(ToString::to_string);
    for change in objects.into_iter().chain(addresses.ok()) {
        store.apply(change, &mut Dirty::default());
    }
    let node_context = NodeContext::of(&store, options, node_name);
    let links = links().map_err(|error| error.to_string());
    let others = others::Facts::gather(&links);

    let mut lines = vec![configuration::judge(effective.is_some(), problems)];
    lines.extend(privileges::check(&links));
    lines.extend(kernel::judge(&kernel::Facts::gather(&node_context, families(), run.own_tables)));
    lines.extend(others::judge(&others));
    lines.push(forward_policy::check());
    lines.extend(routing::check(&links, &node_context));
    let Some(Effective { config, full, .. }) = effective else {
        let names = ports::NAMES.iter().chain(&conntrack::NAMES).chain(&api::NAMES);
        let names =
            names.chain([&node_ports::NAME, &node_port_listeners::NAME, &local_traffic::NAME]);
        lines.extend(names.map(|name| Line::skip(name, "the configuration is invalid")));
        return Report(lines);
    };
    lines.extend(ports::judge(&ports::Facts::gather(config, &others)));
    lines.extend(conntrack::check(&config.conntrack, &run.net_sysctls));
    lines.extend(api::judge(api, &node_context));
    let has_node = store.last_known_node().is_some();
    lines.push(match addresses_error {
        Some(error) => Line::skip(node_ports::NAME, format!("the addresses are unknown: {error}")),
        None => node_ports::judge(
            &node_context,
            has_node,
            others.kube_proxy.as_ref().ok(),
            // kube-proxy answers on 127.0.0.1 by it.
            full.is("iptables.localhostNodePorts", true),
        ),
    });
    lines.push(node_port_listeners::check(&store, &node_context, &others));
    lines.push(local_traffic::judge(&node_context, has_node, links.as_deref().unwrap_or(&[])));
    Report(lines)
}

/// Joins the first few items of a list, and counts the others.
fn some_of<T: Display>(items: impl IntoIterator<Item = T>) -> String {
    const MAX_SHOWN: usize = 5;
    let items: Vec<String> = items.into_iter().map(|item| item.to_string()).collect();
    match items.len().checked_sub(MAX_SHOWN) {
        None | Some(0) => items.join(", "),
        Some(more) => format!("{} and {more} more", items[..MAX_SHOWN].join(", ")),
    }
}

/// An interface of this name and kind, for tests.
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_has_the_remedy_below_its_line_and_the_counts_at_the_end() {
        let report = Report(vec![
            Line::ok("nf-tables", "present"),
            Line::warn("kube-proxy", "a running process (7)", "stop it"),
        ]);
        let text = "OK    nf-tables   present\n\
                    WARN  kube-proxy  a running process (7)\n                  \
                    → stop it\n\
                    0 FAIL, 1 WARN, 0 SKIP, 1 OK\n";
        assert_eq!(report.to_string(), text);
        assert!(!report.has_failures());
    }

    #[test]
    fn long_lists_are_cut() {
        assert_eq!(some_of([1, 2]), "1, 2");
        assert_eq!(some_of(1..=8), "1, 2, 3, 4, 5 and 3 more");
    }
}
