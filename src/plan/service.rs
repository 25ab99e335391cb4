//! The plan of one Service.

use std::net::IpAddr;
use std::sync::Arc;

use super::{Frontend, FrontendKey, Outcome, Surroundings};
use crate::model::{
    Backend, EndpointSlice, Family, Selection, Service, ServicePort, TrafficPolicy, select,
};

/// Everything that the kernel must hold for one Service, if it owns all its frontends.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServicePlan {
    /// Its frontends, each once.
    pub frontends: Vec<(FrontendKey, Frontend)>,
    /// Its ClusterIPs.
    pub cluster_ips: Vec<IpAddr>,
    /// Its backends on this node, which may reach themselves through it.
    pub hairpins: Vec<IpAddr>,
}

/// Plans one Service from its own objects and what all have in common.
#[must_use]
pub fn plan_service<'a>(
    service: &Service,
    slices: impl Iterator<Item = &'a EndpointSlice> + Clone,
    surroundings: &Surroundings,
) -> ServicePlan {
    let mut plan = ServicePlan {
        cluster_ips: service.cluster_ips.clone(),
        ..ServicePlan::default()
    };
    for cluster_ip in &service.cluster_ips {
        let family = Family::of(*cluster_ip);
        for port in &service.ports {
            let selection = select(slices.clone(), port, family, surroundings.locality());
            plan_port(service, *cluster_ip, port, &selection, &mut plan);
            plan.hairpins.extend(&selection.local_addresses);
        }
    }
    plan.hairpins.sort_unstable();
    plan.hairpins.dedup();
    // A Service can name one address twice, as ExternalIP and as VIP: the first mention counts.
    plan.frontends.sort_by_key(|(key, _)| *key);
    plan.frontends.dedup_by_key(|(key, _)| *key);
    plan
}

fn plan_port(
    service: &Service,
    cluster_ip: IpAddr,
    port: &ServicePort,
    selection: &Selection,
    plan: &mut ServicePlan,
) {
    let family = Family::of(cluster_ip);
    let label = label(service, port);
    let cluster: Arc<[Backend]> = selection.cluster.as_slice().into();
    let outcome = |policy| match policy {
        _ if cluster.is_empty() => Outcome::Reject,
        TrafficPolicy::Cluster => Outcome::Balance(cluster.clone()),
        TrafficPolicy::Local if selection.local.is_empty() => Outcome::Drop,
        TrafficPolicy::Local => Outcome::Balance(selection.local.as_slice().into()),
    };

    let internal = Frontend {
        label: label.clone(),
        outcome: outcome(service.internal_policy),
        masquerade: false,
    };
    plan.frontends.push((
        FrontendKey::Address(cluster_ip, port.protocol, port.port),
        internal,
    ));

    let external_outcome = outcome(service.external_policy);
    let external = Frontend {
        label,
        masquerade: service.external_policy == TrafficPolicy::Cluster
            && matches!(external_outcome, Outcome::Balance(_)),
        outcome: external_outcome,
    };
    let addresses = service
        .external_ips
        .iter()
        .chain(&service.load_balancer_ips);
    for address in addresses.filter(|a| Family::of(**a) == family) {
        let key = FrontendKey::Address(*address, port.protocol, port.port);
        plan.frontends.push((key, external.clone()));
    }
    if let Some(node_port) = port.node_port {
        let key = FrontendKey::NodePort(family, port.protocol, node_port);
        plan.frontends.push((key, external));
    }
}

/// How people refer to a service port: `namespace/name:port`, without the port if it has no name.
fn label(service: &Service, port: &ServicePort) -> Arc<str> {
    if port.name.is_empty() {
        service.name.to_string().into()
    } else {
        format!("{}:{}", service.name, port.name).into()
    }
}
