//! The plan of one Service.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

use super::slots::Slots;
use super::{Frontend, FrontendKey, FrontendKind, NodeContext, Outcome, SourceRange};
use crate::model::{
    Backend, Balancing, EndpointSlice, Family, ObjectName, Selection, Service, ServicePort,
    TrafficPolicy, select,
};

/// The desired state of one Service, if it owns all its frontends.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServicePlan {
    /// The creation time in seconds since 1970; `i64::MAX` without one, so that the Service counts
    /// as the youngest.
    pub created: i64,
    /// The frontends, sorted by key, without duplicates.
    pub frontends: Vec<(FrontendKey, Frontend)>,
    /// The ClusterIPs, at most one per family.
    pub cluster_ips: Vec<IpAddr>,
    /// The VIPs and ExternalIPs of its service ports, sorted, without duplicates.
    pub external_addresses: Vec<IpAddr>,
    /// The `externalIPs` that are neither ClusterIPs nor VIPs of the Service, sorted.
    pub external_ips: Vec<IpAddr>,
    /// The addresses of its backends on this node, which may reach themselves through the Service.
    pub hairpins: Vec<IpAddr>,
    /// The backends to which existing flows of UDP may stay ([`Selection::serving`]), sorted by key.
    pub flows: Vec<(FrontendKey, Arc<[Backend]>)>,
    /// The health checks for load balancers, one per family.
    pub health_checks: Vec<HealthCheck>,
    /// The numbers of its service ports without an endpoint for some traffic.
    pub unserved: Unserved,
    /// Hash tables or weights would need more than [`MAX_ELEMENTS`](super::MAX_ELEMENTS), so each
    /// backend has one slot, which the kernel chooses at random.
    pub is_oversized: bool,
}

/// The numbers of service ports without an endpoint for some traffic. The index is the family, as in
/// [`Family::ALL`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Unserved {
    /// The service ports without any endpoint, which reject connections.
    pub without_endpoints: [usize; 2],
    /// The service ports with `internalTrafficPolicy: Local` and endpoints on other nodes only.
    pub no_local_internal: [usize; 2],
    /// The service ports with `externalTrafficPolicy: Local` and endpoints on other nodes only.
    pub no_local_external: [usize; 2],
}

impl Unserved {
    fn note(&mut self, service: &Service, family: Family, selection: &Selection) {
        let family = family as usize;
        if selection.cluster.is_empty() {
            self.without_endpoints[family] += 1;
        } else if selection.local.is_empty() {
            let local = |policy| usize::from(policy == TrafficPolicy::Local);
            self.no_local_internal[family] += local(service.internal_policy);
            self.no_local_external[family] += local(service.external_policy);
        }
    }

    pub(super) fn add(&mut self, other: &Unserved) {
        self.change(other, |number, by| *number += by);
    }

    pub(super) fn subtract(&mut self, other: &Unserved) {
        self.change(other, |number, by| *number -= by);
    }

    fn change(&mut self, other: &Unserved, change: fn(&mut usize, usize)) {
        for family in 0..2 {
            change(&mut self.without_endpoints[family], other.without_endpoints[family]);
            change(&mut self.no_local_internal[family], other.no_local_internal[family]);
            change(&mut self.no_local_external[family], other.no_local_external[family]);
        }
    }
}

impl ServicePlan {
    /// Returns the planned frontend with that key, if the Service has it.
    #[must_use]
    pub fn frontend(&self, key: FrontendKey) -> Option<&Frontend> {
        let place = self.frontends.binary_search_by_key(&key, |(key, _)| *key).ok()?;
        Some(&self.frontends[place].1)
    }

    /// Returns the backends to which existing flows of a frontend may stay. `None` for TCP and
    /// SCTP.
    #[must_use]
    pub fn serving(&self, key: FrontendKey) -> Option<Arc<[Backend]>> {
        let place = self.flows.binary_search_by_key(&key, |(key, _)| *key).ok()?;
        Some(self.flows[place].1.clone())
    }

    /// Returns the kind of a frontend. An address that is also a ClusterIP of the Service counts as
    /// ClusterIP, because the Service owns it.
    #[must_use]
    pub fn kind(&self, key: FrontendKey) -> FrontendKind {
        match key {
            FrontendKey::NodePort(..) => FrontendKind::NodePort,
            FrontendKey::Address(ip, ..) if self.cluster_ips.contains(&ip) => {
                FrontendKind::ClusterIp
            }
            FrontendKey::Address(ip, ..) if self.external_ips.binary_search(&ip).is_ok() => {
                FrontendKind::ExternalIp
            }
            FrontendKey::Address(..) => FrontendKind::Vip,
        }
    }
}

/// The health check at a Service's `healthCheckNodePort`, which shows load balancers whether this
/// node has endpoints.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct HealthCheck {
    /// The Service with the `healthCheckNodePort`.
    pub service: ObjectName,
    /// The family of the counted endpoints.
    pub family: Family,
    /// The TCP port to listen on, the `healthCheckNodePort`.
    pub port: u16,
    /// The number of ready endpoints on this node, over all service ports.
    pub local_endpoints: usize,
}

/// Plans one Service from its own objects and the node context.
#[must_use]
pub fn plan_service<'a>(
    service: &Service,
    slices: impl Iterator<Item = &'a EndpointSlice> + Clone,
    node_context: &NodeContext,
) -> ServicePlan {
    let plan = plan_with(service, slices.clone(), node_context, None);
    let balancing = service.balancing.unwrap_or(node_context.options.balancing);
    if balancing == Balancing::Random && slices.clone().all(|slice| slice.weight.is_none()) {
        return plan;
    }
    match Slots::of(&plan, balancing) {
        Some(slots) => plan_with(service, slices, node_context, Some(slots)),
        None => ServicePlan { is_oversized: true, ..plan },
    }
}

/// Plans one Service with this number of slots; without, each backend has one slot.
fn plan_with<'a>(
    service: &Service,
    slices: impl Iterator<Item = &'a EndpointSlice> + Clone,
    node_context: &NodeContext,
    slots: Option<Slots>,
) -> ServicePlan {
    let options = &node_context.options;
    let own =
        |ip: &&IpAddr| !service.cluster_ips.contains(ip) && !service.load_balancer_ips.contains(ip);
    let in_kernel = |ip: &IpAddr| options.has(Family::of(*ip));
    let cluster_ips = || service.cluster_ips.iter().copied().filter(in_kernel);
    let mut plan = ServicePlan {
        created: service.created.unwrap_or(i64::MAX),
        cluster_ips: cluster_ips().collect(),
        external_ips: options.external_ips(service).iter().filter(own).copied().collect(),
        ..ServicePlan::default()
    };
    plan.external_ips.sort_unstable();
    for cluster_ip in cluster_ips() {
        let family = Family::of(cluster_ip);
        let mut local_ready = BTreeSet::new();
        for port in &service.ports {
            let locality = node_context.locality();
            let mut selection = select(slices.clone(), port, family, locality);
            plan.unserved.note(service, family, &selection);
            let is_plain = |it: &Slots| it.balancing == Balancing::Random;
            let slots = slots.filter(|it| !selection.weights.is_empty() || !is_plain(it));
            if let Some(slots) = slots {
                slots.fill(&mut selection);
            }
            let known = plan.frontends.len();
            plan_port(service, cluster_ip, port, &selection, slots, node_context, &mut plan);
            let added = plan.frontends[known..].iter().filter(|(key, _)| key.is_swept());
            plan.flows.extend(added.map(|(key, _)| (*key, selection.serving.clone())));
            plan.hairpins.extend(&selection.local_addresses);
            local_ready.extend(selection.local_ready);
        }
        let local = service.external_policy == TrafficPolicy::Local;
        plan.health_checks.extend(service.health_check_node_port.filter(|_| local).map(|port| {
            HealthCheck {
                service: service.name.clone(),
                family,
                port,
                local_endpoints: local_ready.len(),
            }
        }));
    }
    for addresses in [&mut plan.hairpins, &mut plan.external_addresses] {
        addresses.sort_unstable();
        addresses.dedup();
    }
    // A Service can list one address twice, even its own ClusterIP. The VIP wins, since it may have
    // source ranges, then the ExternalIP, then the ClusterIP: the order in which `plan_port` adds
    // them.
    plan.frontends.sort_by_key(|(key, _)| *key);
    plan.frontends.dedup_by_key(|(key, _)| *key);
    // There are many plans, and a Vec with one frontend has capacity for four.
    plan.frontends.shrink_to_fit();
    plan.flows.sort_by_key(|(key, _)| *key);
    plan.flows.dedup_by_key(|(key, _)| *key);
    plan
}

fn plan_port(
    service: &Service,
    cluster_ip: IpAddr,
    port: &ServicePort,
    selection: &Selection,
    slots: Option<Slots>,
    node_context: &NodeContext,
    plan: &mut ServicePlan,
) {
    let family = Family::of(cluster_ip);
    let cluster = &selection.cluster;
    let outcome = |policy| match policy {
        _ if cluster.is_empty() => Outcome::Reject,
        TrafficPolicy::Cluster => Outcome::Balance(cluster.clone()),
        TrafficPolicy::Local if selection.local.is_empty() => Outcome::Drop,
        TrafficPolicy::Local => Outcome::Balance(selection.local.clone()),
    };
    let internal_outcome = outcome(service.internal_policy);
    let is_balanced = |outcome: &Outcome| matches!(outcome, Outcome::Balance(_));
    let balancing = slots.map_or(Balancing::Random, |slots| slots.balancing);
    let balancing = |has_pool: bool| if has_pool { balancing } else { Balancing::Random };
    let internal = Frontend {
        label: label(service, port),
        balancing: balancing(is_balanced(&internal_outcome)),
        outcome: internal_outcome,
        masquerade: false,
        short_circuit: Arc::default(),
        affinity: service.affinity_seconds.filter(|_| !cluster.is_empty()),
        sources: None,
        larger: slots.and_then(|slots| slots.larger(selection)),
    };
    let at = |address: IpAddr| FrontendKey::Address(address, port.protocol, port.port);
    let of_family = |address: &&IpAddr| Family::of(**address) == family;
    let vips = || service.load_balancer_ips.iter().filter(of_family).copied();
    let external_ips =
        || node_context.options.external_ips(service).iter().filter(of_family).copied();
    let external_outcome = outcome(service.external_policy);
    let external = Frontend {
        masquerade: is_balanced(&external_outcome)
            && service.external_policy == TrafficPolicy::Cluster,
        outcome: external_outcome,
        balancing: balancing(!cluster.is_empty()),
        short_circuit: match service.external_policy {
            TrafficPolicy::Cluster => Arc::default(),
            TrafficPolicy::Local => cluster.clone(),
        },
        ..internal.clone()
    };
    let sources = allowed_sources(service, family, node_context);
    plan.external_addresses.extend(vips().chain(external_ips()));
    let vip = |address| (at(address), Frontend { sources: sources.clone(), ..external.clone() });
    plan.frontends.extend(vips().map(vip));
    plan.frontends.extend(external_ips().map(|address| (at(address), external.clone())));
    plan.frontends.push((at(cluster_ip), internal));
    let node_port = port.node_port.map(|it| FrontendKey::NodePort(family, port.protocol, it));
    plan.frontends.extend(node_port.map(|key| (key, external)));
}

/// Returns the sources that may use the VIPs; `None` for all sources. If the node's address is
/// among them, the VIPs are, too: the node may use a VIP as the source of connections to it.
fn allowed_sources(
    service: &Service,
    family: Family,
    node_context: &NodeContext,
) -> Option<Arc<[SourceRange]>> {
    let own = service.source_ranges.iter().filter(|net| Family::of_net(net) == family).copied();
    let mut nets: Vec<IpNet> = own.collect();
    if nets.is_empty() || nets.iter().any(|net| net.prefix_len() == 0) {
        return None;
    }
    let node = node_context.node_address(family);
    if node.is_some_and(|node| nets.iter().any(|net| net.contains(&node))) {
        let vips = service.load_balancer_ips.iter().filter(|vip| Family::of(**vip) == family);
        nets.extend(vips.copied().map(IpNet::from));
    }
    let mut ranges: Vec<SourceRange> = IpNet::aggregate(&nets)
        .into_iter()
        .map(|net| SourceRange { first: net.network(), last: net.broadcast() })
        .collect();
    ranges.sort_unstable();
    Some(ranges.into())
}

/// Returns the label of a service port: `namespace/name:port`, without the port if it has no name.
#[must_use]
pub fn label(service: &Service, port: &ServicePort) -> Arc<str> {
    let ObjectName { namespace, name } = &service.name;
    if port.name.is_empty() {
        [namespace, "/", name].concat().into()
    } else {
        [namespace, "/", name, ":", &*port.name].concat().into()
    }
}
