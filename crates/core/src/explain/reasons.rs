//! The reasons in the objects for what becomes of a packet.

use std::sync::Arc;

use crate::model::{
    Balancing, Family, Ignored, ObjectName, Protocol, Service, ServicePort, Store, TrafficPolicy,
};
use crate::plan::{
    ChainName, Desired, Frontend, FrontendKey, FrontendKind, NodeContext, Outcome, loopback_address,
};

use super::endpoints::{EndpointView, NotUsed, choices_of, endpoints};
use super::findings::{Code, Finding};
use super::walk::{Choice, End, Packet, Walk};

/// The policy that selects the endpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// All endpoints.
    Cluster,
    /// The endpoints of this node.
    Local,
    /// All endpoints despite policy Local: the client is a local pod or the node.
    ShortCircuit,
}

impl Policy {
    /// Returns the word in JSON.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Policy::Cluster => "Cluster",
            Policy::Local => "Local",
            Policy::ShortCircuit => "ShortCircuit",
        }
    }
}

/// The frontend that a packet is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// The key.
    pub key: FrontendKey,
    /// The kind.
    pub kind: FrontendKind,
    /// The service port as `namespace/name:port`.
    pub label: Arc<str>,
    /// The Service that owns the frontend.
    pub service: ObjectName,
    /// The service port.
    pub port: ServicePort,
    /// The policy that selects the endpoints.
    pub policy: Policy,
    /// The timeout of session affinity in seconds.
    pub affinity: Option<u32>,
    /// How the kernel chooses an endpoint.
    pub balancing: Balancing,
}

/// Describes a frontend and the endpoints of its service port. `policy` replaces the Service's, and
/// `choices` are the backends that a connection may get. Returns `None` if no Service owns it.
pub(super) fn target(
    key: FrontendKey,
    policy: Option<Policy>,
    store: &Store,
    desired: &Desired,
    choices: &[Choice],
) -> Option<(Target, Vec<EndpointView>)> {
    let service = store.service(desired.service_of(key)?)?;
    let (frontend, kind) = (desired.frontend(key)?, desired.kind_of(&service.name, key)?);
    let port = port_of(service, key)?;
    let policy = policy.unwrap_or_else(|| policy_of(service, kind));
    let locality = desired.node_context()?.locality();
    let target = Target {
        key,
        kind,
        label: frontend.label.clone(),
        service: service.name.clone(),
        port: port.clone(),
        policy,
        affinity: frontend.affinity,
        balancing: frontend.balancing,
    };
    let endpoints = endpoints(store, &target, locality, choices);
    Some((target, endpoints))
}

/// The reasons for the end of a packet's way.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Reasons {
    /// The frontend, if the packet is for one.
    pub target: Option<Target>,
    /// The endpoints of the service port.
    pub endpoints: Vec<EndpointView>,
    /// The findings, most important first.
    pub findings: Vec<Finding>,
    /// True if not the rules decide, but the agent's proxy for node ports on loopback addresses.
    pub is_proxied: bool,
}

/// Finds the reasons. `walk` is the way of the packet through the tables of the kernel, or through
/// the planned ones.
#[must_use]
pub fn reasons(packet: &Packet, store: &Store, desired: &Desired, walk: &Walk) -> Reasons {
    let Some(context) = desired.node_context() else { return Reasons::default() };
    let Some((key, frontend)) = frontend_of(packet, desired, context) else {
        if let Some(reasons) = proxied(packet, store, desired, context) {
            return reasons;
        }
        let findings = without_frontend(packet, store, desired, context);
        return Reasons { findings, ..Reasons::default() };
    };
    let is_short = matches!(
        &walk.end,
        End::Translated { pools: Some(pools), .. } if pools.is_short_circuit()
    );
    let policy = is_short.then_some(Policy::ShortCircuit);
    let Some((target, views)) = target(key, policy, store, desired, walk.choices()) else {
        return Reasons::default();
    };
    let mut findings = Vec::new();
    match walk.end {
        End::Dropped(ChainName::External) => {
            findings.extend(not_allowed(store.service(&target.service), &target, packet));
        }
        // Without the plan's consent, the tables differ: the rules for unused addresses and ports
        // end the way of a packet that has lost its frontend.
        End::Dropped(_) if target.policy == Policy::Local && frontend.outcome == Outcome::Drop => {
            findings.push(no_local(&target, &views, DROPPED));
        }
        End::Rejected(_) if frontend.outcome == Outcome::Reject => {
            findings.push(no_endpoints(store, &target, &views));
        }
        _ => {}
    }
    let claims = desired.conflicts().filter(|conflict| conflict.frontend == key);
    findings.extend(claims.map(|conflict| {
        let text = format!(
            "Service {} also claims {key}, which belongs to Service {}: {}",
            conflict.loser, conflict.winner, conflict.reason
        );
        Finding::new(Code::ClaimedByOtherService, text)
    }));
    Reasons { target: Some(target), endpoints: views, findings, is_proxied: false }
}

/// Returns the reasons for a connection that the agent's proxy on a loopback address accepts.
fn proxied(
    packet: &Packet,
    store: &Store,
    desired: &Desired,
    context: &NodeContext,
) -> Option<Reasons> {
    let family = packet.family();
    let is_there = context.options.node_port_addresses.has_loopback(family)
        && packet.destination == loopback_address(family)
        && packet.from_node;
    let key = packet.node_port_key()?;
    if !is_there || key.protocol() != Protocol::Tcp {
        return None;
    }
    let served = match key {
        FrontendKey::NodePort(family, _, port) => desired.loopback_port((family, port)),
        FrontendKey::Address(..) => None,
    };
    let pool = served.map(|served| served.pool).unwrap_or_default();
    let (target, views) = target(key, None, store, desired, &choices_of(&pool))?;
    let finding = match (pool.is_empty(), &desired.frontend(key)?.outcome) {
        (true, Outcome::Drop) => no_local(&target, &views, "the connection is refused"),
        (true, _) => no_endpoints(store, &target, &views),
        (false, _) => Finding::new(
            Code::LoopbackProxy,
            format!(
                "the agent's proxy accepts connections to node port {} on {}, and connects to an \
                 endpoint from an address of the node",
                packet.port, packet.destination
            ),
        ),
    };
    Some(Reasons {
        target: Some(target),
        endpoints: views,
        findings: vec![finding],
        is_proxied: true,
    })
}

/// Returns the frontend that the packet is for, in the order of the rules.
fn frontend_of<'a>(
    packet: &Packet,
    desired: &'a Desired,
    context: &NodeContext,
) -> Option<(FrontendKey, &'a Frontend)> {
    let by_address = packet.address_key()?;
    if let Some(frontend) = desired.frontend(by_address) {
        return Some((by_address, frontend));
    }
    let node_port = packet.node_port_key().filter(|_| has_node_ports(packet, context))?;
    Some((node_port, desired.frontend(node_port)?))
}

/// Returns true if the destination is an address with node ports.
fn has_node_ports(packet: &Packet, context: &NodeContext) -> bool {
    let address = packet.destination;
    match context.node_port_addresses(packet.family()) {
        Some(addresses) => addresses.contains(&address),
        None => context.interface_addresses.contains(&address) && !address.is_loopback(),
    }
}

fn port_of(service: &Service, key: FrontendKey) -> Option<&ServicePort> {
    service.ports.iter().find(|port| key.is_of(port))
}

/// Returns the policy for clients without a short circuit.
fn policy_of(service: &Service, kind: FrontendKind) -> Policy {
    let policy = match kind {
        FrontendKind::ClusterIp => service.internal_policy,
        FrontendKind::Vip | FrontendKind::ExternalIp | FrontendKind::NodePort => {
            service.external_policy
        }
    };
    match policy {
        TrafficPolicy::Cluster => Policy::Cluster,
        TrafficPolicy::Local => Policy::Local,
    }
}

fn not_allowed(service: Option<&Service>, target: &Target, packet: &Packet) -> Option<Finding> {
    let ranges: Vec<String> = service?.source_ranges.iter().map(ToString::to_string).collect();
    let text = format!(
        "{} may not use {}: spec.loadBalancerSourceRanges of Service {} allows only {}",
        packet.source,
        target.key,
        target.service,
        ranges.join(", ")
    );
    Some(Finding::new(Code::SourceNotAllowed, text))
}

/// What becomes of a packet by the rules if policy Local leaves no endpoint.
pub(super) const DROPPED: &str = "the packet is dropped without an answer";

pub(super) fn no_local(target: &Target, views: &[EndpointView], effect: &str) -> Finding {
    let field = match target.kind {
        FrontendKind::ClusterIp => "internalTrafficPolicy",
        _ => "externalTrafficPolicy",
    };
    let others = views.iter().filter(|view| view.why == Some(NotUsed::NotLocal)).count();
    let text = format!(
        "spec.{field} of Service {} is Local, and no endpoint on this node is ready ({others} ready \
         on other nodes): {effect}",
        target.service
    );
    Finding::new(Code::NoLocalEndpoints, text)
}

/// Finds out why a service port has no endpoint.
pub(super) fn no_endpoints(store: &Store, target: &Target, views: &[EndpointView]) -> Finding {
    let label = &target.label;
    let all = |why: &[NotUsed]| {
        !views.is_empty() && views.iter().all(|view| view.why.is_some_and(|it| why.contains(&it)))
    };
    let service = &target.service;
    let slices = || store.slices(service);
    let family = target.key.family();
    if views.is_empty() {
        let text = match slices().count() {
            0 => format!(
                "Service port {label} has no endpoint: no EndpointSlice belongs to Service {} \
                 (does spec.selector match any pod?)",
                service
            ),
            _ => format!(
                "Service port {label} has no endpoint: the EndpointSlices of Service {} are empty \
                 (does spec.selector match any pod with an address?)",
                service
            ),
        };
        return Finding::new(Code::NoEndpoints, text);
    }
    if all(&[NotUsed::OtherFamily]) {
        let text = format!(
            "Service port {label} has no {family} endpoint: its EndpointSlices contain only \
             addresses of the other family"
        );
        return Finding::new(Code::EndpointsOtherFamily, text);
    }
    if all(&[NotUsed::PortMissing, NotUsed::OtherFamily]) {
        let of_family = || slices().filter(|slice| slice.family == family);
        let ports: Vec<String> = of_family()
            .flat_map(|slice| &slice.ports)
            .map(|port| format!("\"{}\" ({} {})", port.name, port.port, port.protocol))
            .collect();
        let same_name = |slice: &crate::model::EndpointSlice| {
            slice.ports.iter().any(|port| port.name == target.port.name)
        };
        let listed = if ports.is_empty() { "no port".to_owned() } else { ports.join(", ") };
        if of_family().any(same_name) {
            let text = format!(
                "Service port {label} uses {}, but its EndpointSlices have {listed}: the protocols \
                 differ",
                target.port.protocol
            );
            return Finding::new(Code::SelectsOtherProtocol, text);
        }
        let text = format!(
            "no port of the EndpointSlices has the name \"{}\" of Service port {label}: they have \
             {listed}; does targetPort name a port of the pods?",
            target.port.name
        );
        return Finding::new(Code::WrongPortName, text);
    }
    let unready = views.iter().filter(|view| view.why.is_some_and(is_unready)).count();
    if let drained @ 1.. = views.iter().filter(|view| view.why == Some(NotUsed::Drained)).count() {
        let text = format!(
            "no endpoint of Service port {label} takes new connections: {drained} drained (an \
             annotation sets the weight of their EndpointSlice to 0), {unready} not ready or \
             terminating"
        );
        return Finding::new(Code::EndpointsDrained, text);
    }
    let text = format!(
        "no endpoint of Service port {label} is ready ({unready} not ready or terminating): check \
         the readiness probes of the pods"
    );
    Finding::new(Code::EndpointsNotReady, text)
}

fn is_unready(why: NotUsed) -> bool {
    matches!(why, NotUsed::NotReady | NotUsed::Terminating)
}

/// Finds out why a destination has no frontend.
fn without_frontend(
    packet: &Packet,
    store: &Store,
    desired: &Desired,
    context: &NodeContext,
) -> Vec<Finding> {
    let address = packet.destination;
    let mut findings = Vec::new();
    let Some(key) = packet.address_key() else {
        let is_service = store.services().any(|service| {
            let external_ips = context.options.external_ips(service);
            [&*service.cluster_ips, &*service.load_balancer_ips, external_ips]
                .into_iter()
                .any(|addresses| addresses.contains(&address))
        });
        if is_service {
            let text = format!(
                "Services forward only TCP, UDP and SCTP: IP protocol {} to {address}, such as a \
                 ping, reaches no endpoint; test a port",
                packet.protocol
            );
            findings.push(Finding::new(Code::NotAServiceProtocol, text));
        }
        return findings;
    };
    for service in store.services() {
        let has = |addresses: &[std::net::IpAddr]| addresses.contains(&address);
        if has(&service.proxied_ips) {
            let text = format!(
                "{address} is a load balancer address of Service {} with ipMode Proxy: packets go to \
                 the load balancer itself, not to an endpoint",
                service.name
            );
            findings.push(Finding::new(Code::IpModeProxy, text));
        } else if has(&service.cluster_ips)
            || has(&service.load_balancer_ips)
            || has(context.options.external_ips(service))
        {
            let ports: Vec<String> = service
                .ports
                .iter()
                .map(|port| format!("{}/{}", port.port, port.protocol))
                .collect();
            let text = format!(
                "Service {} owns {address}, but has no port {}/{}; its ports are {}",
                service.name,
                packet.port,
                key.protocol(),
                ports.join(", ")
            );
            findings.push(Finding::new(Code::PortNotInService, text));
        } else if has(&service.external_ips) {
            let text = format!(
                "{address} is in spec.externalIPs of Service {}, but featureGates: \
                 {{AllowServiceExternalIPs: false}} turns externalIPs off",
                service.name
            );
            findings.push(Finding::new(Code::ExternalIpsIgnored, text));
        }
    }
    let own = &context.interface_addresses;
    let is_own = own.contains(&address) || own.is_empty() || address.is_loopback();
    let node_port = packet.node_port_key().filter(|_| is_own);
    if let Some(owner) = node_port.and_then(|key| desired.service_of(key)) {
        let text = format!(
            "node port {} of Service {owner} is not served on {address}: {}",
            packet.port,
            why_not_there(packet, context)
        );
        findings.push(Finding::new(Code::NodePortAddressNotSelected, text));
    }
    for (name, reason) in store.ignored() {
        let Ignored::OtherProxy(_, service) = reason else { continue };
        let mut addresses =
            [&service.cluster_ips, &service.load_balancer_ips, &service.external_ips]
                .into_iter()
                .flatten();
        if addresses.any(|own| *own == address)
            || node_port.is_some_and(|key| port_of(service, key).is_some())
        {
            findings.extend(why_ignored(name, store));
        }
    }
    if findings.is_empty() && context.service_cidrs.iter().any(|net| net.contains(&address)) {
        let text = format!(
            "{address} is in a ServiceCIDR, but belongs to no Service (headless Services and \
             Services of another proxy do not count)"
        );
        findings.push(Finding::new(Code::AddressWithoutService, text));
    }
    findings
}

/// Returns why an address of the node has no node ports.
fn why_not_there(packet: &Packet, context: &NodeContext) -> String {
    let (family, address) = (packet.family(), packet.destination);
    let proxy = loopback_address(family);
    match context.options.node_port_addresses.has_loopback(family) {
        _ if !address.is_loopback() => node_port_addresses(context, family),
        false => "nodePortAddresses does not include localhost".to_owned(),
        true if address != proxy => format!("{proxy} is the only loopback address with node ports"),
        true => "the proxy on loopback addresses serves TCP only".to_owned(),
    }
}

/// Returns the addresses with node ports as a reason why an address has none.
#[must_use]
pub fn node_port_addresses(context: &NodeContext, family: Family) -> String {
    match context.node_port_addresses(family) {
        _ if context.interface_addresses.is_empty() => {
            format!(
                "the node's addresses are unknown: the manifests contain no Node {}",
                context.node_name
            )
        }
        None => "node ports are on every other address".to_owned(),
        Some(addresses) if addresses.is_empty() => {
            format!("nodePortAddresses selects no {family} address")
        }
        Some(addresses) => {
            let all: Vec<String> = addresses.iter().map(ToString::to_string).collect();
            format!("nodePortAddresses selects {}", all.join(", "))
        }
    }
}

/// Finds out why a Service has no frontend, by its name. Returns nothing if it has one.
#[must_use]
pub fn why_ignored(name: &ObjectName, store: &Store) -> Option<Finding> {
    if store.service(name).is_some() {
        return None;
    }
    let Some(reason) = store.ignored().get(name) else {
        let text = format!("Service {name} not found: `kubectl get services -A` lists all");
        return Some(Finding::new(Code::NoSuchService, text));
    };
    Some(match reason {
        Ignored::Headless => Finding::new(
            Code::IgnoredHeadless,
            format!(
                "Service {name} is headless (spec.clusterIP is None): clients get the addresses of \
                 its endpoints from DNS, and no proxy is involved"
            ),
        ),
        Ignored::ExternalName => Finding::new(
            Code::IgnoredExternalName,
            format!("Service {name} is an ExternalName: an alias in DNS, without an address"),
        ),
        Ignored::OtherProxy(proxy, _) => Finding::new(
            Code::IgnoredOtherProxy,
            format!(
                "Service {name} has the label service.kubernetes.io/service-proxy-name={proxy}: \
                 that proxy implements it, shunt does not"
            ),
        ),
        Ignored::NoClusterIp => Finding::new(
            Code::NoClusterIp,
            format!("Service {name} has no ClusterIP: the API server has not allocated one"),
        ),
        Ignored::Invalid(reason) => {
            Finding::new(Code::IgnoredInvalid, format!("invalid: {reason}"))
        }
    })
}

/// Returns a finding for each frontend that a Service claims and another one has.
#[must_use]
pub fn lost_claims(name: &ObjectName, desired: &Desired) -> Vec<Finding> {
    let lost = desired.conflicts().filter(|conflict| conflict.loser == *name);
    lost.map(|conflict| {
        let text = format!(
            "Service {name} does not get {}, which belongs to Service {}: {}",
            conflict.frontend, conflict.winner, conflict.reason
        );
        Finding::new(Code::ClaimedByOtherService, text)
    })
    .collect()
}
