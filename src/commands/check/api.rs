//! The API server: its address, the permissions of the agent, and the Node.

use std::net::IpAddr;

use shunt_core::plan::NodeContext;

use super::{Judgement, NodeFacts, fail, ok, warn};
use crate::source::kubernetes::{Inspection, RequestFailure, rule};
use crate::source::objects::Kind;

/// The findings about the API server.
pub(super) enum Api {
    /// The reason why it is not asked.
    NotAsked(String),
    /// The credentials or the address cannot be used.
    Unusable(String),
    Asked(ApiAnswers),
}

/// What the API server says.
pub(super) struct ApiAnswers {
    /// The URL of the server.
    pub(super) server: String,
    /// The host in that URL.
    pub(super) host: String,
    /// The ClusterIP of the API server in the environment of a Pod. The chart sets
    /// `KUBERNETES_SERVICE_HOST` to another address, and leaves this one alone.
    pub(super) pod_variable: Option<String>,
    /// The answers.
    pub(super) inspection: Inspection,
}

impl Api {
    fn asked(&self) -> Result<&ApiAnswers, String> {
        match self {
            Api::NotAsked(why) => Err(why.clone()),
            Api::Unusable(_) => Err(UNASKED.into()),
            Api::Asked(asked) => Ok(asked),
        }
    }

    /// Returns the answers of a server that accepts the credentials.
    fn answers(&self) -> Result<&Inspection, String> {
        let asked = self.asked()?;
        if asked.failure().is_some() { Err(UNASKED.into()) } else { Ok(&asked.inspection) }
    }
}

impl ApiAnswers {
    /// Why the server cannot be asked.
    fn failure(&self) -> Option<&RequestFailure> {
        let mut all = self.inspection.refused.iter().map(|(_, failure)| failure);
        all.find(|it| {
            matches!(it, RequestFailure::Unreachable(_) | RequestFailure::Refused { code: 401, .. })
        })
    }
}

const UNASKED: &str = "the API server was not asked";

pub(super) fn server(facts: &NodeFacts<'_>) -> Judgement {
    if let Api::Unusable(error) = &facts.api {
        return fail(error, "correct the kubeconfig, --master or the Pod's service account");
    }
    let asked = facts.api.asked()?;
    let server = &asked.server;
    match asked.failure() {
        Some(RequestFailure::Unreachable(reason)) => fail(
            format!("{server} does not answer: {reason}"),
            "use an address of the API server that this node reaches without a Service: apiServer \
             in the chart, or the server of the kubeconfig",
        ),
        Some(RequestFailure::Refused { message, .. }) => fail(
            format!("{server} rejects the credentials: {message} (401)"),
            "correct the token or certificate of the kubeconfig or service account",
        ),
        _ => ok(format!("{server} answers")),
    }
}

pub(super) fn address(facts: &NodeFacts<'_>) -> Judgement {
    let asked = facts.api.asked()?;
    let host = &asked.host;
    match cluster_ip(asked, &facts.node_context) {
        Some(what) => fail(
            format!("{host} is {what}: it works only once shunt has programmed it"),
            "set the address that the kubelets use: apiServer.host in the chart, or the server of \
             the kubeconfig",
        ),
        None if asked.failure().is_some() => Err("the ClusterIPs are unknown".into()),
        None => ok(format!("{host} is not a ClusterIP")),
    }
}

pub(super) fn node(facts: &NodeFacts<'_>) -> Judgement {
    let inspection = facts.api.answers()?;
    let NodeContext { node, node_name, .. } = &facts.node_context;
    match node {
        Some(_) => ok(format!("the Node {node_name} exists")),
        None if inspection.refused.iter().any(|(kind, _)| *kind == Kind::Node) => {
            Err("cannot list the Node".into())
        }
        None => warn(
            format!("the API has no Node {node_name}"),
            "set hostnameOverride or --hostname-override to the name of the Node, or register it; \
             until then /healthz answers 503, and a new node has no node ports",
        ),
    }
}

pub(super) fn permissions(facts: &NodeFacts<'_>) -> Judgement {
    let inspection = facts.api.answers()?;
    let refused = &inspection.refused;
    let texts: Vec<String> = refused
        .iter()
        .map(|(kind, failure)| match failure {
            RequestFailure::Refused { code: 403, message, .. } => {
                format!("{kind}: {message} (403)")
            }
            other => format!("{kind}: {}", other.told(*kind)),
        })
        .collect();
    let is_forbidden =
        |failure: &RequestFailure| matches!(failure, RequestFailure::Refused { code: 403, .. });
    let rules = refused.iter().filter(|(_, failure)| is_forbidden(failure));
    let rules: Vec<String> = rules.map(|(kind, _)| rule(*kind)).collect();
    let remedy = match rules.is_empty() {
        true => "check the log of the API server".to_owned(),
        false => format!(
            "bind the agent's user to the ClusterRole system:node-proxier, or add {}",
            rules.join(" and ")
        ),
    };
    if refused.is_empty() {
        return ok("the agent may list and watch Services, EndpointSlices, Nodes and ServiceCIDRs");
    }
    let text = texts.join("; ");
    match refused.iter().any(|(kind, _)| *kind != Kind::ServiceCidr) {
        true => fail(text, remedy),
        // Only packets to unused addresses pass without them.
        false => warn(text, remedy),
    }
}

/// Returns a description of the host if only the rules of Services make it work.
fn cluster_ip(asked: &ApiAnswers, node_context: &NodeContext) -> Option<String> {
    let ApiAnswers { host, pod_variable, inspection, .. } = asked;
    let Ok(address) = host.parse::<IpAddr>() else {
        let is_service = host == "kubernetes"
            || host == "kubernetes.default"
            || host.ends_with(".svc")
            || host.contains(".svc.");
        return is_service
            .then(|| "a name in the cluster's DNS, which is a Service, too".to_owned());
    };
    let is_same = |other: &str| other.parse() == Ok(address);
    let of_kubernetes = inspection.kubernetes_ips.iter().any(|ip| is_same(ip));
    if of_kubernetes || pod_variable.as_deref().is_some_and(is_same) {
        return Some("the ClusterIP of the Service default/kubernetes".to_owned());
    }
    let net = node_context.service_cidrs.iter().find(|net| net.contains(&address));
    net.map(|net| format!("an address of the service CIDR {net}"))
}

#[cfg(test)]
mod tests {
    use shunt_core::model::Store;
    use shunt_core::plan::Options;

    use super::*;

    #[test]
    fn names_of_services_are_no_addresses_of_the_server() {
        let node_context = NodeContext::of(&Store::new(), &Options::default(), "node-1");
        for (host, expected) in [
            ("api.example.net", false),
            ("kubernetes", true),
            ("kubernetes.default.svc", true),
            ("kubernetes.default.svc.cluster.local", true),
        ] {
            let (server, host, pod_variable) = (String::new(), host.to_owned(), None);
            let asked =
                ApiAnswers { server, host, pod_variable, inspection: Inspection::default() };
            let found = cluster_ip(&asked, &node_context).is_some();
            assert_eq!(found, expected, "{}", asked.host);
        }
    }
}
