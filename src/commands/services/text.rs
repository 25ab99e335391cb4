//! The picture as text.

use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use shunt_core::explain::EndpointView;

use super::{Frontend, Picture, ServiceRow};
use crate::serve::escape;

/// The maximum number of problems in the text; JSON has all.
const MAX_PROBLEMS: usize = 3;

impl fmt::Display for Picture {
    /// Problems first. `{:#}`, and one Service, has more columns: masquerade, topology hints, session
    /// affinity, source ranges and short circuit.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (mut text, wide) = (String::new(), f.alternate() || self.detailed);
        self.write_problems(&mut text);
        self.write_frontends(&mut text, wide);
        if !self.detailed && !self.states.is_empty() {
            let (all, states) = (self.states.values().sum::<usize>(), counts(&self.states));
            line(&mut text, format_args!("{all} frontends: {states}"));
        }
        for service in self.services.iter().filter(|_| self.detailed) {
            write_reasons(&mut text, service);
            write_endpoints(&mut text, service);
        }
        self.write_ignored(&mut text, wide);
        f.write_str(&text)
    }
}

impl Picture {
    fn write_problems(&self, text: &mut String) {
        for problem in self.problems.iter().take(MAX_PROBLEMS) {
            line(text, format_args!("PROBLEM  {}", problem.text));
        }
        if let more @ 1.. = self.problems.len().saturating_sub(MAX_PROBLEMS) {
            line(text, format_args!("… and {more} more problems (shunt status)"));
        }
        if !self.problems.is_empty() {
            text.push('\n');
        }
    }

    fn write_frontends(&self, text: &mut String, wide: bool) {
        let frontends: Vec<&Frontend> =
            self.services.iter().flat_map(|service| &service.frontends).collect();
        if self.states.is_empty() && self.ignored.is_empty() {
            line(text, format_args!("no Service has a frontend"));
        }
        if frontends.is_empty() {
            return;
        }
        let mut heads = vec!["SERVICE", "KIND", "FRONTEND", "POLICY", "ENDPOINTS", "CONNECTIONS"];
        let has_rate = frontends.iter().any(|it| it.new_connections_per_second.is_some());
        heads.extend(has_rate.then_some("RATE"));
        heads.push("STATE");
        if wide {
            heads.extend(["MASQUERADE", "TOPOLOGY", "AFFINITY", "SOURCES", "SHORT CIRCUIT"]);
        }
        let rows = frontends.into_iter().map(|frontend| cells(frontend, has_rate, wide, self));
        write_table(text, &heads, &rows.collect::<Vec<_>>());
    }

    fn write_ignored(&self, text: &mut String, all: bool) {
        if self.ignored.is_empty() {
            return;
        }
        if !self.services.is_empty() {
            text.push('\n');
        }
        if all {
            for ignored in &self.ignored {
                line(text, format_args!("IGNORED  {}", ignored.reason));
            }
            return;
        }
        let mut codes: BTreeMap<&str, usize> = BTreeMap::new();
        for ignored in &self.ignored {
            *codes.entry(ignored.code).or_default() += 1;
        }
        let (total, counts) = (self.ignored.len(), counts(&codes));
        line(text, format_args!("{total} Services without frontends: {counts} (-o wide)"));
    }
}

fn counts(counts: &BTreeMap<&str, usize>) -> String {
    counts.iter().map(|(code, count)| format!("{count} {code}")).collect::<Vec<_>>().join(", ")
}

fn line(text: &mut String, line: std::fmt::Arguments<'_>) {
    // Writing to a String does not fail.
    let _ = writeln!(text, "{}", escape::line(&line.to_string()));
}

fn cells(frontend: &Frontend, has_rate: bool, wide: bool, picture: &Picture) -> Vec<String> {
    let Frontend { endpoints_used: used, endpoints_listed: listed, .. } = frontend;
    let mut cells = vec![
        frontend.service.clone(),
        frontend.kind.to_owned(),
        address(frontend),
        frontend.policy.to_owned(),
        format!("{used}/{listed}"),
        frontend.new_connections.map_or("-".to_owned(), |count| count.to_string()),
    ];
    if has_rate {
        let rate = frontend.new_connections_per_second;
        cells.push(rate.map_or("-".to_owned(), |rate| format!("{rate:.1}/s")));
    }
    cells.push(frontend.state.to_string());
    if wide {
        let none = || "-".to_owned();
        cells.extend([
            if frontend.masquerade { "always" } else { "by source" }.to_owned(),
            match (frontend.topology, picture.zone.as_deref()) {
                (Some("zone"), Some(zone)) => format!("zone {zone}"),
                (Some(hints), _) => hints.to_owned(),
                (None, _) => none(),
            },
            frontend.session_affinity_seconds.map_or_else(none, |seconds| format!("{seconds} s")),
            match &frontend.allowed_sources {
                None => none(),
                Some(ranges) if ranges.is_empty() => "nobody".to_owned(),
                Some(ranges) => ranges.join(","),
            },
            frontend
                .short_circuit
                .as_ref()
                .map_or_else(none, |it| format!("{} endpoints", it.endpoints_used)),
        ]);
    }
    cells
}

/// Writes address, port and protocol. A node port has the node's address, if it is only one.
fn address(frontend: &Frontend) -> String {
    let Frontend { port, protocol, family, .. } = frontend;
    let mut more = String::new();
    let address = match (frontend.address, frontend.node_addresses.as_deref()) {
        (Some(address), _) => address,
        (None, None) if family == "IPv4" => Ipv4Addr::UNSPECIFIED.into(),
        (None, None) => Ipv6Addr::UNSPECIFIED.into(),
        (None, Some([])) => return format!("none:{port}/{protocol}"),
        (None, Some([first, others @ ..])) => {
            if !others.is_empty() {
                more = format!(" (+{})", others.len());
            }
            *first
        }
    };
    format!("{}/{protocol}{more}", SocketAddr::new(address, *port))
}

fn write_reasons(text: &mut String, service: &ServiceRow) {
    let mut before = "\n";
    for frontend in service.frontends.iter().filter(|it| it.state != "ok") {
        let Some(reason) = &frontend.reason else { continue };
        text.push_str(std::mem::take(&mut before));
        line(text, format_args!("{} {}: {reason}", address(frontend), frontend.state));
    }
}

/// Writes a table for each group of frontends of a Service port with the same endpoints.
fn write_endpoints(text: &mut String, service: &ServiceRow) {
    let mut groups: Vec<(&Frontend, Vec<&str>)> = Vec::new();
    for frontend in service.frontends.iter().filter(|it| it.endpoints.is_some()) {
        let is_same = |(first, _): &&mut (&Frontend, _)| {
            first.service == frontend.service && first.endpoints == frontend.endpoints
        };
        match groups.iter_mut().find(is_same) {
            Some((_, kinds)) => kinds.push(frontend.kind),
            None => groups.push((frontend, vec![frontend.kind])),
        }
    }
    for (Frontend { service, family, endpoints, .. }, mut kinds) in groups {
        kinds.dedup();
        text.push('\n');
        line(text, format_args!("endpoints of {service} ({}, {family})", kinds.join(", ")));
        let rows: Vec<_> = endpoints.iter().flatten().map(endpoint_cells).collect();
        match rows.is_empty() {
            true => line(text, format_args!("  none")),
            false => {
                write_table(text, &["ADDRESS", "NODE", "ZONE HINTS", "CONDITION", "USED"], &rows);
            }
        }
    }
}

fn endpoint_cells(view: &EndpointView) -> Vec<String> {
    let node = match view.node.as_deref() {
        None => "-".to_owned(),
        Some(node) if view.is_local => format!("{node} (this node)"),
        Some(node) => node.to_owned(),
    };
    let hints = match view.zone_hints.is_empty() {
        true => "-".to_owned(),
        false => view.zone_hints.join(","),
    };
    let condition = match (view.terminating, view.ready) {
        (true, true) => "ready, terminating",
        (true, false) => "terminating",
        (false, true) => "ready",
        (false, false) => "not ready",
    };
    let used = match view.why {
        _ if view.used => format!("{:.1} %", view.probability * 100.0),
        Some(why) => format!("no: {}", why.text()),
        None => "no".to_owned(),
    };
    vec![view.to_string(), node, hints, condition.to_owned(), used]
}

/// The columns of numbers, which are aligned at the right.
const NUMBERS: [&str; 3] = ["ENDPOINTS", "CONNECTIONS", "RATE"];

/// Writes a table with aligned columns.
fn write_table(text: &mut String, heads: &[&str], rows: &[Vec<String>]) {
    let width = |(place, head): (usize, &&str)| {
        let cells = rows.iter().filter_map(|row| row.get(place));
        cells.map(|cell| cell.chars().count()).chain([head.len()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = heads.iter().enumerate().map(width).collect();
    let first = heads.iter().map(|head| (*head).to_owned()).collect();
    for row in std::iter::once(&first).chain(rows) {
        let mut written = String::new();
        for ((cell, width), head) in row.iter().zip(&widths).zip(heads) {
            let _ = match NUMBERS.contains(head) {
                true => write!(written, "{cell:>width$}  "),
                false => write!(written, "{cell:<width$}  "),
            };
        }
        line(text, format_args!("{}", written.trim_end()));
    }
}
