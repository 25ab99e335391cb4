//! The API server: its address, the permissions of the agent, and the Node.

use std::net::IpAddr;

use shunt_core::plan::NodeContext;

use super::Line;
use crate::source::kubernetes::{Failure, Inspection, rule};
use crate::source::objects::Kind;

/// The names of the lines.
pub(super) const NAMES: [&str; 4] = ["api-server", "api-permissions", "api-address", "node"];

/// The findings about the API server.
#[derive(Debug)]
pub enum Api {
    /// The reason why it is not asked.
    NotAsked(String),
    /// The credentials or the address cannot be used.
    Unusable(String),
    /// It was asked.
    Asked {
        /// The URL of the server.
        server: String,
        /// The host in that URL.
        host: String,
        /// The ClusterIP of the API server in the environment of a Pod. The chart sets
        /// `KUBERNETES_SERVICE_HOST` to another address, and leaves this one alone.
        pod_variable: Option<String>,
        /// The answers.
        inspection: Inspection,
    },
}

pub(super) fn judge(api: &Api, node_context: &NodeContext) -> [Line; 4] {
    let [server_name, permissions_name, address_name, node_name] = NAMES;
    let (server, host, pod_variable, inspection) = match api {
        Api::NotAsked(why) => return NAMES.map(|name| Line::skip(name, why)),
        Api::Unusable(error) => {
            let remedy = "correct the kubeconfig, --master or the Pod's service account";
            let server = Line::fail(server_name, error, remedy);
            let [_, others @ ..] = NAMES.map(|name| Line::skip(name, UNASKED));
            let [permissions, address, node] = others;
            return [server, permissions, address, node];
        }
        Api::Asked { server, host, pod_variable, inspection } => {
            (server, host, pod_variable, inspection)
        }
    };
    let lost = inspection.refused.iter().find_map(|(_, failure)| match failure {
        Failure::Unreachable(reason) => Some(Line::fail(
            server_name,
            format!("{server} does not answer: {reason}"),
            "use an address of the API server that this node reaches without a Service: apiServer \
             in the chart, or the server of the kubeconfig",
        )),
        Failure::Refused { code: 401, message, .. } => Some(Line::fail(
            server_name,
            format!("{server} rejects the credentials: {message} (401)"),
            "correct the token or certificate of the kubeconfig or service account",
        )),
        _ => None,
    });
    let is_lost = lost.is_some();
    let unasked = |name| Line::skip(name, UNASKED);
    let cluster_ip = cluster_ip(host, pod_variable.as_deref(), inspection, node_context);
    let address = match cluster_ip {
        Some(what) => Line::fail(
            address_name,
            format!("{host} is {what}, which works only once shunt has programmed it"),
            "set the address that the kubelets use: apiServer.host in the chart, or the server of \
             the kubeconfig",
        ),
        None if is_lost => Line::skip(address_name, "the ClusterIPs are not known"),
        None => Line::ok(address_name, format!("{host} is no ClusterIP")),
    };
    let is_refused = inspection.refused.iter().any(|(kind, _)| *kind == Kind::Node);
    let node = match &node_context.node {
        _ if is_lost => unasked(node_name),
        Some(_) => Line::ok(node_name, format!("the Node {} exists", node_context.node_name)),
        None if is_refused => Line::skip(node_name, "the Node cannot be listed"),
        None => Line::warn(
            node_name,
            format!("the API has no Node {}", node_context.node_name),
            "set hostnameOverride or --hostname-override to the name of the Node, or register it; \
             until then /healthz answers 503, and a new node has no node ports",
        ),
    };
    let permissions = match is_lost {
        true => unasked(permissions_name),
        false => permissions(inspection),
    };
    let server = lost.unwrap_or_else(|| Line::ok(server_name, format!("{server} answers")));
    [server, permissions, address, node]
}

const UNASKED: &str = "the API server was not asked";

fn permissions(inspection: &Inspection) -> Line {
    let [_, name, ..] = NAMES;
    let refused = &inspection.refused;
    let texts: Vec<String> = refused
        .iter()
        .map(|(kind, failure)| match failure {
            Failure::Refused { code: 403, message, .. } => format!("{kind}: {message} (403)"),
            other => format!("{kind}: {}", other.told(*kind)),
        })
        .collect();
    let is_forbidden = |failure: &Failure| matches!(failure, Failure::Refused { code: 403, .. });
    let rules = refused.iter().filter(|(_, failure)| is_forbidden(failure));
    let rules: Vec<String> = rules.map(|(kind, _)| rule(*kind)).collect();
    let remedy = match rules.is_empty() {
        true => "look at the API server".to_owned(),
        false => format!(
            "bind the agent's user to the ClusterRole system:node-proxier, or add {}",
            rules.join(" and ")
        ),
    };
    if refused.is_empty() {
        return Line::ok(
            name,
            "the agent may list and watch Services, EndpointSlices, Nodes and ServiceCIDRs",
        );
    }
    let text = texts.join("; ");
    match refused.iter().any(|(kind, _)| *kind != Kind::ServiceCidr) {
        true => Line::fail(name, text, remedy),
        // Only packets to unused addresses pass without them.
        false => Line::warn(name, text, remedy),
    }
}

/// Returns a description of `host` if only the rules of Services make it work.
fn cluster_ip(
    host: &str,
    pod_variable: Option<&str>,
    inspection: &Inspection,
    node_context: &NodeContext,
) -> Option<String> {
    let Ok(address) = host.parse::<IpAddr>() else {
        let is_service = host == "kubernetes"
            || host == "kubernetes.default"
            || host.ends_with(".svc")
            || host.contains(".svc.");
        return is_service.then(|| "a name of the cluster's DNS, a Service itself".to_owned());
    };
    let is_same = |other: &str| other.parse() == Ok(address);
    let of_kubernetes = inspection.kubernetes_ips.iter().any(|ip| is_same(ip));
    if of_kubernetes || pod_variable.is_some_and(is_same) {
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
        let inspection = Inspection::default();
        for (host, expected) in [
            ("api.example.net", false),
            ("kubernetes", true),
            ("kubernetes.default.svc", true),
            ("kubernetes.default.svc.cluster.local", true),
        ] {
            let found = cluster_ip(host, None, &inspection, &node_context).is_some();
            assert_eq!(found, expected, "{host}");
        }
    }
}
