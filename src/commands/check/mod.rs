//! `shunt check`: whether a node, its kernel and its cluster fit, before shunt runs there.
//!
//! Owns: the [`CHECKS`], in one file per subject, which judge the [`NodeFacts`] and look at the network namespace
//! of this thread. The result is a list of [`CheckLine`]s.
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
mod node_ports;
mod others;
mod ports;
mod privileges;
mod routing;

use std::fmt::{self, Display, Formatter};

use nfnetlink::route::Link;
use serde::Serialize;
use shunt_core::model::Store;
use shunt_core::plan::NodeContext;

use crate::agent::args::Run;
use crate::commands::some_of;
use crate::config::Loaded;
use crate::dataplane::kube_proxy::KubeProxyTraces;
use crate::serve::escape;
use crate::source::spanned_yaml::Diagnostic;

use api::Api;

/// What all checks judge. An error is why something is not known here.
struct NodeFacts<'a> {
    run: &'a Run,
    effective: Result<Loaded, String>,
    /// The problems of the configuration.
    problems: Vec<Diagnostic>,
    api: Api,
    /// The objects that concern the node.
    store: Store,
    node_context: NodeContext,
    /// Whether the addresses of the node's interfaces are known.
    addresses: Result<(), String>,
    links: Result<Vec<Link>, String>,
    kube_proxy: Result<KubeProxyTraces, String>,
    /// The process ID of a running agent, 0 if it is not visible here.
    agent: Result<Option<i32>, String>,
}

/// The result of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "UPPERCASE")]
enum CheckOutcome {
    /// Nothing to do.
    Ok,
    /// Not judged, for the reason in the text.
    Skip,
    /// shunt works, but a part may not do what is expected.
    Warn,
    /// shunt or its Services will not work.
    Fail,
}

impl Display for CheckOutcome {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{self:?}").to_uppercase())
    }
}

/// A judgement with its reason and, if there is something to do, the remedy.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Finding {
    result: CheckOutcome,
    text: String,
    remedy: Option<String>,
}

/// What a check finds; an error is why it cannot judge.
type Judgement = Result<Finding, String>;

type Check = fn(&NodeFacts<'_>) -> Judgement;

fn ok(text: impl Into<String>) -> Judgement {
    Ok(Finding { result: CheckOutcome::Ok, text: text.into(), remedy: None })
}

fn warn(text: impl Into<String>, remedy: impl Into<String>) -> Judgement {
    Ok(Finding { result: CheckOutcome::Warn, text: text.into(), remedy: Some(remedy.into()) })
}

fn fail(text: impl Into<String>, remedy: impl Into<String>) -> Judgement {
    Ok(Finding { result: CheckOutcome::Fail, text: text.into(), remedy: Some(remedy.into()) })
}

/// All checks, by the stable names of their subjects.
const CHECKS: [(&str, Check); 27] = [
    ("configuration", configuration::check),
    ("capabilities", privileges::capabilities),
    ("user-namespace", privileges::user_namespace),
    ("network-namespace", privileges::network_namespace),
    ("nf-tables", kernel::nf_tables),
    ("kernel-features", kernel::features),
    ("table-ownership", kernel::table_ownership),
    ("connection-tracking", kernel::connection_tracking),
    ("ipv6", kernel::ipv6),
    ("kube-proxy", others::kube_proxy),
    ("other-agent", others::agent),
    ("service-implementation", others::plugins),
    ("forward-policy", forward_policy::check),
    ("ip-forwarding", routing::forwarding),
    ("rp-filter", routing::reverse_path_filter),
    ("bridge-netfilter", routing::bridge_netfilter),
    ("healthz-port", ports::healthz),
    ("metrics-port", ports::metrics),
    ("conntrack-sysctls", conntrack::sysctls),
    ("conntrack-table", conntrack::table),
    ("api-server", api::server),
    ("api-permissions", api::permissions),
    ("api-address", api::address),
    ("node", api::node),
    ("node-ports", node_ports::addresses),
    ("node-port-listeners", node_ports::listeners),
    ("local-traffic", local_traffic::check),
];

/// The judgement on one subject.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct CheckLine {
    name: &'static str,
    #[serde(flatten)]
    finding: Finding,
}

/// The lines of a check, in the order of their subjects.
#[derive(Debug, Serialize)]
#[serde(transparent)]
struct CheckReport(Vec<CheckLine>);

impl CheckReport {
    fn of(facts: &NodeFacts<'_>) -> CheckReport {
        let line = |(name, check): (&'static str, Check)| CheckLine {
            name,
            finding: check(facts).unwrap_or_else(|why| Finding {
                result: CheckOutcome::Skip,
                text: why,
                remedy: None,
            }),
        };
        CheckReport(CHECKS.map(line).into())
    }

    fn count(&self, result: CheckOutcome) -> usize {
        self.0.iter().filter(|line| line.finding.result == result).count()
    }
}

impl Display for CheckReport {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let width = self.0.iter().map(|line| line.name.len()).max().unwrap_or(0);
        for CheckLine { name, finding: Finding { result, text, remedy } } in &self.0 {
            writeln!(f, "{result:<4}  {name:<width$}  {}", escape::line(text))?;
            if let Some(remedy) = remedy {
                writeln!(f, "{:width$}        → {}", "", escape::line(remedy))?;
            }
        }
        let counts = [CheckOutcome::Fail, CheckOutcome::Warn, CheckOutcome::Skip, CheckOutcome::Ok]
            .map(|result| format!("{} {result}", self.count(result)));
        writeln!(f, "{}", counts.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_has_the_remedy_below_its_line_and_the_counts_at_the_end() {
        let line = |name, found: Judgement| CheckLine { name, finding: found.expect("a finding") };
        let report = CheckReport(vec![
            line("nf-tables", ok("present")),
            line("kube-proxy", warn("a running process (7)", "stop it")),
        ]);
        let text = "OK    nf-tables   present\n\
                    WARN  kube-proxy  a running process (7)\n                  \
                    → stop it\n\
                    0 FAIL, 1 WARN, 0 SKIP, 1 OK\n";
        assert_eq!(report.to_string(), text);
    }

    #[test]
    fn long_lists_are_cut() {
        assert_eq!(some_of([1, 2]), "1, 2");
        assert_eq!(some_of(1..=8), "1, 2, 3, 4, 5 and 3 more");
    }
}
