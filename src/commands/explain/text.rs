//! The explanation as text: the verdict first, then the way of the packet step by step. The right
//! column says where a line comes from.

use std::fmt::{self, Display, Formatter};
use std::net::SocketAddr;

use shunt_core::explain::Code;
use shunt_core::model::Balancing;

use super::judge::Verdict;
use super::probe::ProbeOutcome;
use super::report::{EndpointReport, Explanation, ServiceExplanation};
use crate::serve::escape;

/// The maximum number of endpoints in the text; JSON has all.
const MAX_ENDPOINTS: usize = 20;

impl Display for Verdict {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let word = serde_json::to_value(self).unwrap_or_default();
        f.write_str(&word.as_str().unwrap_or_default().replace('-', " ").to_uppercase())
    }
}

impl Display for Explanation {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let verdict = match &self.probe {
            Some(probe)
                if probe.outcome == ProbeOutcome::NoAnswer && self.verdict == Verdict::Dropped =>
            {
                "NO ANSWER".to_owned()
            }
            _ => self.verdict.to_string(),
        };
        writeln!(f, "{verdict}  {}\n", escape::line(&self.summary))?;
        let mut rows = Rows { f, number: 0 };
        self.source(&mut rows)?;
        self.frontend(&mut rows)?;
        self.endpoints(&mut rows)?;
        if let Some(probe) = &self.probe {
            rows.row("probe", &probe.text, "sent now")?;
        }
        for finding in self.findings.iter().skip(1) {
            rows.row("finding", &finding.text, finding.code.as_str())?;
        }
        for change in &self.changes {
            rows.row("changed", &change.to_string(), "history")?;
        }
        for unknown in &self.unknown {
            rows.row("unknown", unknown, "not read")?;
        }
        if !self.from_kernel {
            rows.row("kernel", "not asked: this explains a plan", "plan")?;
        }
        Ok(())
    }
}

impl Explanation {
    fn source(&self, rows: &mut Rows<'_, '_>) -> fmt::Result {
        let packet = &self.packet;
        let text = match (&packet.interface, packet.from_node) {
            (_, true) => format!("{}, the node itself", packet.source),
            (Some(interface), false) => format!("{}, arrives on {interface}", packet.source),
            (None, false) => format!("{}, arrives on an unknown interface", packet.source),
        };
        rows.row("source", &text, "routes")
    }

    fn frontend(&self, rows: &mut Rows<'_, '_>) -> fmt::Result {
        let packet = &self.packet;
        let to = match packet.port {
            0 => packet.destination.to_string(),
            port => SocketAddr::new(packet.destination, port).to_string(),
        };
        let (Some(service), Some(frontend)) = (&self.service, &self.frontend) else {
            return rows.row("frontend", &format!("none for {to}"), "plan");
        };
        let policy = self.policy.unwrap_or_default();
        let text =
            format!("{service}, {} {to}/{}, policy {policy}", frontend.kind, frontend.protocol);
        let differs = self.has(Code::KernelDiffers) || self.has(Code::Quarantined);
        let from = match (self.from_kernel, differs) {
            (false, _) => "plan",
            (true, false) => "plan = kernel",
            (true, true) => "plan, not kernel",
        };
        rows.row("frontend", &text, from)?;
        if let Some(connections) = self.connections {
            rows.more(&format!("{connections} new connections so far"), "counter")?;
        }
        let sources = match self.has(Code::SourceNotAllowed) {
            true => "not allowed",
            false => "allowed",
        };
        rows.row("sources", sources, "rules")
    }

    fn endpoints(&self, rows: &mut Rows<'_, '_>) -> fmt::Result {
        if self.service.is_none() {
            return Ok(());
        }
        let used: Vec<&EndpointReport> = self.endpoints.iter().filter(|it| it.view.used).collect();
        let by_hash = self.load_balancing.is_some_and(|it| it != Balancing::Random.name());
        let text = match (used.len(), &self.affinity.endpoint, self.endpoints.len()) {
            (0, _, 0) => "none".to_owned(),
            (0, _, all) => format!("none of {all} is used"),
            (_, Some(endpoint), _) => format!("{endpoint}, by session affinity"),
            (1, ..) if by_hash => "one, by the hash of the source".to_owned(),
            (1, ..) => "one".to_owned(),
            (count, ..) if by_hash => {
                format!("one of {count}, by the hash of the source and its port")
            }
            (count, ..) => format!("one of {count} at random"),
        };
        rows.row("endpoints", &text, "rules")?;
        for endpoint in self.endpoints.iter().take(MAX_ENDPOINTS) {
            let (line, from) = endpoint_line(endpoint);
            rows.more(&format!("  {line}"), from)?;
        }
        if let more @ 1.. = self.endpoints.len().saturating_sub(MAX_ENDPOINTS) {
            rows.more(&format!("  … and {more} more (-o json)"), "")?;
        }
        if used.is_empty() {
            return Ok(());
        }
        let masquerade = match self.masquerade.reason {
            Some(reason) => format!("yes: {}", reason.replace('-', " ")),
            None if self.has(Code::LoopbackProxy) => {
                "no: the proxy connects from this node".to_owned()
            }
            None => "no".to_owned(),
        };
        rows.row("masquerade", &masquerade, "rules")?;
        for endpoint in used.iter().take(MAX_ENDPOINTS) {
            if let Some(route) = &endpoint.route {
                rows.row("route", &format!("{}: {route}", endpoint.view), "rtnetlink")?;
            }
        }
        Ok(())
    }
}

fn endpoint_line(endpoint: &EndpointReport) -> (String, &'static str) {
    let view = &endpoint.view;
    let here = if view.is_local { " (this node)" } else { "" };
    let node = format!("{}{here}", view.node.as_deref().unwrap_or("-"));
    let (text, from) = match (view.why, &endpoint.obstacle, endpoint.answered, endpoint.unanswered)
    {
        (Some(why), ..) => (format!("not used: {}", why.text()), "EndpointSlice"),
        _ if !view.used => ("not used".to_owned(), "rules"),
        _ if endpoint.probe.is_some() => (endpoint.probe.clone().unwrap_or_default(), "probe"),
        (_, Some(obstacle), ..) => {
            (obstacle.clone(), endpoint.obstacle_source.unwrap_or("rtnetlink"))
        }
        (_, _, Some(answered), Some(0)) if answered > 0 => {
            (format!("{answered} connections answered"), "connection tracking")
        }
        (_, _, Some(answered), Some(unanswered @ 1..)) => {
            (format!("{answered} connections answered, {unanswered} not"), "connection tracking")
        }
        _ => ("used".to_owned(), "rules"),
    };
    (format!("{:<22} {node:<24} {text}", view.to_string()), from)
}

/// Numbered rows in two columns.
struct Rows<'a, 'b> {
    f: &'a mut Formatter<'b>,
    number: usize,
}

impl Rows<'_, '_> {
    fn row(&mut self, name: &str, text: &str, from: &str) -> fmt::Result {
        self.number += 1;
        let text = escape::line(text);
        writeln!(self.f, "{:>2} {name:<11} {text:<72} {from}", self.number)
    }

    fn more(&mut self, text: &str, from: &str) -> fmt::Result {
        let line = format!("{:>14} {text:<72} {from}", "");
        writeln!(self.f, "{}", escape::line(line.trim_end()))
    }
}

impl Display for ServiceExplanation {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if self.frontends.is_empty() {
            writeln!(f, "{}  Service {} has no frontend", self.verdict, self.service)?;
        }
        for finding in &self.findings {
            writeln!(f, "{:<22} {}", finding.code.as_str(), escape::line(&finding.text))?;
        }
        for (number, frontend) in self.frontends.iter().enumerate() {
            if number > 0 || !self.findings.is_empty() {
                writeln!(f)?;
            }
            write!(f, "{frontend}")?;
        }
        let changes = self.changes.iter();
        changes.into_iter().try_for_each(|change| {
            writeln!(f, "{:<22} {}", "changed", escape::line(&change.to_string()))
        })
    }
}
