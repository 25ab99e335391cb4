//! The status as text, problems first.

use std::collections::BTreeSet;
use std::fmt::{self, Display, Formatter};
use std::net::IpAddr;
use std::time::Duration;

use shunt_core::plan::OVERSIZED;

use super::{
    AgentStatus, Conflict, Families, NodePortStatus, Problem, Rules, SourceStatus, Sync, Time,
    WithoutNode, passed,
};
use crate::serve::escape;
use crate::serve::loopback::LoopbackReport;
use crate::serve::unbound_ports::Server;

/// The maximum number of problems of a kind in the text; JSON has all.
const MAX_SHOWN: usize = 10;

impl Display for AgentStatus {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.wrong(f)?;
        let AgentStatus { version, process, node, .. } = self;
        let since = span(passed(self.started, self.told));
        writeln!(f, "shunt {version} on node {node}, process {process}, running for {since}\n")?;
        row(f, "source", &self.source)?;
        if self.loopback != LoopbackReport::default() {
            row(f, "loopback", &self.loopback)?;
        }
        self.rules.describe(f, self.told)
    }
}

impl AgentStatus {
    /// Writes a line for each problem and warning, or `OK`.
    fn wrong(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for (word, all) in [("PROBLEM", &self.problems), ("WARNING", &self.warnings)] {
            for same in all.chunk_by(|one, other| one.code == other.code) {
                for problem in same.iter().take(MAX_SHOWN) {
                    writeln!(f, "{word}  {}", escape::line(&problem.text))?;
                }
                if let more @ 1.. = same.len().saturating_sub(MAX_SHOWN) {
                    writeln!(f, "{word}  … and {more} more of this kind (-o json)")?;
                }
            }
        }
        if self.problems.is_empty() && self.warnings.is_empty() {
            writeln!(f, "OK  all changes are in the kernel")?;
        }
        writeln!(f)
    }

    /// Derives problems and warnings from the other fields.
    pub fn judge(&mut self) {
        let Rules { failure, quarantined, conflicts, oversized, last_sync, .. } = &self.rules;
        let (mut problems, mut warnings) = (Vec::new(), Vec::new());
        let mut problem = |code, text| problems.push(Problem { code, text });
        let mut warning = |code, text| warnings.push(Problem { code, text });
        if let Some(failure) = failure {
            let since = span(passed(failure.at, self.told));
            let reason = &failure.reason;
            problem(
                "sync-failed",
                format!("the last sync failed {since} ago, the previous rules stay: {reason}"),
            );
        } else if !self.healthy && self.waiting_seconds > self.unswept_seconds {
            let waited = age(self.waiting_seconds);
            problem(
                "dataplane-hangs",
                format!("a change has waited for {waited}: the dataplane hangs"),
            );
        }
        let stay = "stale flows are not deleted, so clients of a removed endpoint may continue to \
                    send to it";
        if !self.healthy && self.unswept_seconds > self.waiting_seconds {
            let trouble = self.sweep_trouble.as_deref().unwrap_or("the thread \"conntrack\" hangs");
            problem("stale-flows", format!("{stay}, for {}: {trouble}", age(self.unswept_seconds)));
        } else if let Some(trouble) = &self.sweep_trouble {
            warning("stale-flows", format!("{stay}: {trouble}"));
        }
        if let SourceStatus::Api { trouble: Some(trouble), .. } = &self.source {
            let lasts = age(Some(trouble.seconds));
            problem("api-stale", format!("{}, for {lasts}; the rules stay", trouble.reason));
        }
        let is_held = self.without_node == Some(WithoutNode::Held);
        if last_sync.is_none() && failure.is_none() && !is_held {
            let text = "nothing has been programmed yet: the source has not listed all objects";
            problem("not-programmed", text.to_owned());
        }
        if let Some(without) = self.without_node {
            problem("no-node", without.describe(&self.node, self.missing_node));
        }
        for super::QuarantinedFrontend { what, reason, retry_at, .. } in quarantined {
            let wait = span(passed(self.told, *retry_at));
            problem(
                "frontend-refused",
                format!("the kernel refuses {what}: {reason}; retry in {wait}"),
            );
        }
        if let lost @ 1.. = self.lost_log_lines {
            warning(
                "log-lines-lost",
                format!(
                    "{lost} log lines were lost since the start: nothing read standard error in \
                     time"
                ),
            );
        }
        if let Some(reason) = &self.refused_configuration {
            warning(
                "configuration-refused",
                format!("the last written configuration is not in effect (see the log): {reason}"),
            );
        }
        if !self.kube_proxy.is_nothing() {
            let found = &self.kube_proxy;
            warning(
                "kube-proxy-present",
                format!(
                    "kube-proxy or its leftovers: {found}; run `shunt cleanup --kube-proxy \
                     --keep-own`"
                ),
            );
        }
        if let Some(trouble) = &self.taken_node_ports.trouble {
            warning(
                "processes-unknown",
                format!("cannot look for other processes on node ports: {trouble}"),
            );
        }
        for taken in &self.taken_node_ports.ports {
            warning("node-port-taken", format!("{taken}; {}", taken.remedy()));
        }
        for conflict in conflicts {
            warning("frontend-conflict", conflict.to_string());
        }
        for service in oversized {
            warning("too-many-elements", format!("Service {service}: {OVERSIZED}"));
        }
        for unbound in &self.unbound_ports {
            match (&unbound.service, &*unbound.field) {
                (None, _) => problem("port-unbound", unbound.to_string()),
                (_, Server::NODE_PORT_FIELD) => warning("loopback-port-taken", unbound.to_string()),
                _ => warning("port-unbound", unbound.to_string()),
            }
        }
        (self.problems, self.warnings) = (problems, warnings);
    }
}

impl Rules {
    fn describe(&self, f: &mut Formatter<'_>, now: Time) -> fmt::Result {
        let sync = |sync: &Option<Sync>| match sync {
            None => "never".to_owned(),
            Some(sync) => {
                let Sync { seconds, added, deleted, bytes, .. } = sync;
                let took = Duration::from_secs_f64(seconds.max(0.0));
                let wrote = match bytes {
                    0 => "nothing to write".to_owned(),
                    _ => format!("{added} elements added, {deleted} deleted, {bytes} bytes"),
                };
                format!("{} ago, in {took:.1?}: {wrote}", span(passed(sync.at, now)))
            }
        };
        row(f, "last sync", &sync(&self.last_sync))?;
        row(f, "last commit", &sync(&self.last_commit))?;
        let owner = if self.owns_tables { "owned by the agent" } else { "shared" };
        let families = match self.ipv4_only {
            true => "; for IPv4 only: the kernel has no nf_tables for IPv6",
            false => "",
        };
        row(f, "tables", &format_args!("{owner}{families}"))?;
        match &self.last_drift_repair {
            None => row(f, "repairs", &"none")?,
            Some(repair) => {
                let (times, ago) = (self.drift_repairs, span(passed(repair.at, now)));
                let text = format!("{times}, the last {ago} ago; modified by: {}", repair.writers);
                row(f, "repairs", &text)?;
            }
        }
        if let Some(node_ports) = &self.node_ports {
            row(f, "node ports", &format_args!("on {node_ports}"))?;
        }
        let super::Counts { services, service_ports, endpoint_slices, endpoints, .. } = self.counts;
        let objects = format!(
            "{services} Services with {service_ports} ports, {endpoints} endpoints in \
             {endpoint_slices} EndpointSlices"
        );
        row(f, "objects", &objects)?;
        // They are normal in a cluster, so they are neither problems nor warnings.
        for (Families { v4, v6 }, name, what) in [
            (self.counts.without_endpoints, "no endpoint", "they reject connections"),
            (
                self.counts.no_local_internal,
                "no local",
                "internalTrafficPolicy Local, endpoints on other nodes",
            ),
            (
                self.counts.no_local_external,
                "no local",
                "externalTrafficPolicy Local, endpoints on other nodes",
            ),
        ] {
            if v4 + v6 > 0 {
                row(f, name, &format_args!("Service ports: {v4} IPv4, {v6} IPv6; {what}"))?;
            }
        }
        writeln!(f, "\n{:<22} {:>9} {:>9}", "in the kernel", "IPv4", "IPv6")?;
        let line = |f: &mut Formatter<'_>, name: &str, Families { v4, v6 }: Families| {
            writeln!(f, "  {name:<20} {v4:>9} {v6:>9}")
        };
        line(f, "frontends", self.counts.frontends)?;
        for (set, count) in self.counts.elements.iter().filter(|(_, count)| count.v4 + count.v6 > 0)
        {
            line(f, set, *count)?;
        }
        Ok(())
    }
}

impl Display for NodePortStatus {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        const ALL: &str = "every local address except loopback";
        let list = |addresses: &BTreeSet<IpAddr>| match addresses.len() {
            0 => "no address".to_owned(),
            _ => addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
        };
        match (&self.v4, &self.v6) {
            (None, None) => f.write_str(ALL)?,
            (Some(v4), Some(v6)) if v4.is_empty() == v6.is_empty() => {
                f.write_str(&list(&(v4 | v6)))?;
            }
            (v4, v6) => {
                let list = |addresses: &Option<_>| addresses.as_ref().map_or(ALL.to_owned(), list);
                write!(f, "{} (IPv4), {} (IPv6)", list(v4), list(v6))?;
            }
        }
        match self.loopback.is_empty() {
            true => Ok(()),
            false => write!(f, "; for TCP also on {}", list(&self.loopback)),
        }
    }
}

impl Display for Conflict {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Conflict { frontend, winner, loser, reason } = self;
        write!(
            f,
            "Service {loser} does not get {frontend}, which belongs to Service {winner}: {reason}"
        )
    }
}

impl Display for LoopbackReport {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let LoopbackReport { listening, connections, max_connections } = self;
        write!(
            f,
            "{listening} node ports served by the proxy; {connections} connections, at most \
             {max_connections}"
        )
    }
}

impl Display for SourceStatus {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            SourceStatus::None => f.write_str("none yet"),
            SourceStatus::Manifests { paths } => {
                let paths: Vec<String> = paths.iter().map(|p| p.display().to_string()).collect();
                write!(f, "manifests in {}", paths.join(", "))
            }
            SourceStatus::Api { server, trouble: None } => {
                write!(f, "API server {server}, connected")
            }
            SourceStatus::Api { server, .. } => {
                write!(f, "API server {server}, failing")
            }
        }
    }
}

fn age(seconds: Option<f64>) -> String {
    span(Duration::from_secs_f64(seconds.unwrap_or_default().max(0.0)))
}

fn row(f: &mut Formatter<'_>, name: &str, value: &dyn Display) -> fmt::Result {
    writeln!(f, "{name:<12} {}", escape::line(&value.to_string()))
}

/// Writes a duration in its two largest units.
pub(crate) fn span(time: Duration) -> String {
    let seconds = time.as_secs();
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3_600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) if seconds == 0 => "less than a second".to_owned(),
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, _) => format!("{minutes} min {} s", seconds % 60),
        (0, ..) => format!("{hours} h {minutes} min"),
        _ => format!("{days} d {hours} h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stale_flows_are_a_problem_once_they_are_overdue() {
        let findings = |healthy, waiting, unswept, trouble: Option<&str>| {
            let mut status = AgentStatus {
                healthy,
                waiting_seconds: waiting,
                unswept_seconds: unswept,
                sweep_trouble: trouble.map(str::to_owned),
                rules: Rules { last_sync: Some(Sync::default()), ..Rules::default() },
                ..AgentStatus::default()
            };
            status.judge();
            let texts = |all: Vec<Problem>| {
                all.into_iter().map(|it| it.text).collect::<Vec<_>>().join("\n")
            };
            [texts(status.problems), texts(status.warnings)]
        };
        let [problem, _] = findings(false, None, Some(75.0), None);
        assert!(problem.ends_with(", for 1 min 15 s: the thread \"conntrack\" hangs"), "{problem}");
        let [problem, _] = findings(false, Some(2.0), Some(75.0), Some("EPERM"));
        assert!(problem.ends_with(", for 1 min 15 s: EPERM"), "{problem}");
        let [problem, _] = findings(false, Some(75.0), Some(2.0), None);
        assert_eq!(problem, "a change has waited for 1 min 15 s: the dataplane hangs");
        let [problem, warning] = findings(true, None, Some(2.0), Some("EPERM"));
        assert!(problem.is_empty() && warning.ends_with("send to it: EPERM"), "{warning}");
        assert_eq!(findings(true, None, Some(2.0), None), ["", ""]);
    }

    #[test]
    fn kernel_without_ipv6_is_named() {
        let rules = Rules { ipv4_only: true, ..Rules::default() };
        let text = AgentStatus { rules, ..AgentStatus::default() }.to_string();
        assert!(text.contains("\ntables       shared; for IPv4 only"));
    }

    #[test]
    fn node_ports_are_named_by_family_where_they_differ() {
        let list = |text: &str| Some(text.split_whitespace().map(|a| a.parse().unwrap()).collect());
        for (v4, v6, text) in [
            (None, None, "every local address except loopback"),
            (list("192.0.2.1"), list("2001:db8::1"), "192.0.2.1, 2001:db8::1"),
            (list(""), list(""), "no address"),
            (
                list("192.0.2.1 192.0.2.2"),
                list(""),
                "192.0.2.1, 192.0.2.2 (IPv4), no address (IPv6)",
            ),
            (
                list("192.0.2.1"),
                None,
                "192.0.2.1 (IPv4), every local address except loopback (IPv6)",
            ),
        ] {
            assert_eq!(NodePortStatus { v4, v6, ..NodePortStatus::default() }.to_string(), text);
        }
        let loopback = list("127.0.0.1 ::1").unwrap_or_default();
        assert_eq!(
            NodePortStatus { loopback, ..NodePortStatus::default() }.to_string(),
            "every local address except loopback; for TCP also on 127.0.0.1, ::1"
        );
    }
}
