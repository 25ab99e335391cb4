//! Services.

use std::net::IpAddr;

use ipnet::IpNet;
use shunt_core::model::{
    Balancing, Change, Family, Ignored, ObjectName, Protocol, Service, ServicePort, TrafficPolicy,
};

use crate::source::spanned_yaml::{At, parse_net};

use super::diagnostics::Diagnostics;
use super::{Converted, Kind, Names, raw, values};

const SPEC: At<'_> = At::top("spec");

/// The timeout of session affinity without a `timeoutSeconds`, and the longest that Kubernetes
/// allows.
const AFFINITY_DEFAULT: u32 = 10_800;
const AFFINITY_LONGEST: u32 = 86_400;

/// Converts a Service.
pub(super) fn service(raw: &raw::Service, names: &mut Names) -> Converted {
    let mut findings = Diagnostics::default();
    let key = findings.key(Kind::Service, &raw.metadata, names);
    if let Some(proxy) = raw.metadata.label("service.kubernetes.io/service-proxy-name") {
        // What is wrong with it is the other proxy's concern.
        let service = of_spec(raw, &key.name, &mut Diagnostics::default(), names);
        let reason = Ignored::OtherProxy(proxy.into(), service.into());
        let change = Change::ServiceIgnored(key.name.clone(), reason);
        return findings.finish(key, &raw.metadata, Some(change));
    }
    if let Some(reason) = ignored(&raw.spec, &mut findings) {
        let change = Change::ServiceIgnored(key.name.clone(), reason);
        return findings.finish(key, &raw.metadata, Some(change));
    }
    let service = of_spec(raw, &key.name, &mut findings, names);
    findings.finish(key, &raw.metadata, Some(Change::service(service)))
}

fn of_spec(
    raw: &raw::Service,
    name: &ObjectName,
    findings: &mut Diagnostics,
    names: &mut Names,
) -> Service {
    let spec = &raw.spec;
    let type_ = service_type(spec, findings);
    let LoadBalancerIps { mut vips, proxied } = load_balancer_ips(&raw.status, findings);
    let source_ranges = source_ranges(spec, findings);
    if spec.load_balancer_source_ranges.iter().any(|text| parse_net(text).is_err()) {
        // Without a range of its family, an address would be open to all clients, although the
        // mistyped range was to restrict them.
        let restricted = |address: &IpAddr| {
            source_ranges.iter().any(|net| Family::of_net(net) == Family::of(*address))
        };
        vips.retain(restricted);
    }
    let external_policy = policy("externalTrafficPolicy", &spec.external_traffic_policy, findings);
    Service {
        name: name.clone(),
        created: raw.metadata.creation_timestamp.as_ref().and_then(raw::Time::seconds),
        cluster_ips: cluster_ips(spec, findings),
        external_ips: external_ips(spec, findings),
        load_balancer_ips: vips,
        proxied_ips: proxied,
        source_ranges,
        ports: ports(spec, type_, findings, names),
        internal_policy: policy("internalTrafficPolicy", &spec.internal_traffic_policy, findings),
        external_policy,
        affinity_seconds: affinity(spec, findings),
        balancing: balancing(&raw.metadata, findings),
        health_check_node_port: health_check_port(spec, type_, external_policy, findings),
    }
}

/// Returns why shunt does not implement the Service; `None` if it does.
fn ignored(spec: &raw::ServiceSpec, findings: &mut Diagnostics) -> Option<Ignored> {
    if spec.type_ == "ExternalName" {
        return Some(Ignored::ExternalName);
    }
    let first = spec.cluster_ips.first().unwrap_or(&spec.cluster_ip);
    if first == "None" || spec.cluster_ip == "None" {
        return Some(Ignored::Headless);
    }
    if first.is_empty() && spec.cluster_ip.is_empty() {
        findings.note(
            SPEC.field("clusterIP"),
            "there is no ClusterIP, so nothing is programmed; only an API server allocates one, in \
             a manifest write it",
        );
    }
    first.is_empty().then_some(Ignored::NoClusterIp)
}

#[derive(Clone, Copy, PartialEq)]
enum Type {
    ClusterIp,
    NodePort,
    LoadBalancer,
}

fn service_type(spec: &raw::ServiceSpec, findings: &mut Diagnostics) -> Type {
    match &*spec.type_ {
        "ClusterIP" | "" => Type::ClusterIp,
        "NodePort" => Type::NodePort,
        "LoadBalancer" => Type::LoadBalancer,
        other => {
            findings.error(
                SPEC.field("type"),
                other,
                "not a type of Service; write ClusterIP, NodePort or LoadBalancer",
            );
            Type::ClusterIp
        }
    }
}

fn cluster_ips(spec: &raw::ServiceSpec, findings: &mut Diagnostics) -> Vec<IpAddr> {
    if spec.cluster_ips.is_empty() {
        return match values::service_ip(&spec.cluster_ip) {
            Ok(address) => vec![address],
            Err(reason) => {
                findings.error(SPEC.field("clusterIP"), &spec.cluster_ip, reason);
                Vec::new()
            }
        };
    }
    let at = SPEC.field("clusterIPs");
    if !spec.cluster_ip.is_empty() && spec.cluster_ips.first() != Some(&spec.cluster_ip) {
        findings.error(
            SPEC.field("clusterIP"),
            &spec.cluster_ip,
            "must be the same as the first of spec.clusterIPs",
        );
    }
    let mut addresses: Vec<IpAddr> = Vec::with_capacity(spec.cluster_ips.len());
    for (i, text) in spec.cluster_ips.iter().enumerate() {
        match values::service_ip(text) {
            Err(reason) => findings.error(at.index(i), text, reason),
            Ok(address) if addresses.iter().any(|a| Family::of(*a) == Family::of(address)) => {
                let reason =
                    format!("a second {} address; write one per family", Family::of(address));
                findings.error(at.index(i), text, reason);
            }
            Ok(address) => addresses.push(address),
        }
    }
    addresses
}

fn external_ips(spec: &raw::ServiceSpec, findings: &mut Diagnostics) -> Vec<IpAddr> {
    let at = SPEC.field("externalIPs");
    let mut addresses = Vec::new();
    for (i, text) in spec.external_ips.iter().enumerate() {
        match values::remote_ip(text) {
            Ok(address) if addresses.contains(&address) => {}
            Ok(address) => addresses.push(address),
            Err(reason) => {
                findings.ignored(at.index(i), text, reason, "this external IP is ignored");
            }
        }
    }
    addresses
}

/// The addresses of load balancers, by their `ipMode`.
#[derive(Default)]
struct LoadBalancerIps {
    vips: Vec<IpAddr>,
    proxied: Vec<IpAddr>,
}

fn load_balancer_ips(status: &raw::ServiceStatus, findings: &mut Diagnostics) -> LoadBalancerIps {
    let at = At::top("status");
    let at = at.field("loadBalancer");
    let at = at.field("ingress");
    let mut ips = LoadBalancerIps::default();
    for (i, ingress) in status.load_balancer.ingress.iter().enumerate() {
        let at = at.index(i);
        let effect = "this load-balancer address is ignored";
        let addresses = match &*ingress.ip_mode {
            // In this mode, packets must reach the load balancer itself.
            "Proxy" => &mut ips.proxied,
            "VIP" | "" => &mut ips.vips,
            other => {
                let reason = "not a mode; write VIP or Proxy";
                findings.ignored(at.field("ipMode"), other, reason, effect);
                continue;
            }
        };
        if ingress.ip.is_empty() {
            continue;
        }
        match values::service_ip(&ingress.ip) {
            Ok(address) if addresses.contains(&address) => {}
            Ok(address) => addresses.push(address),
            Err(reason) => findings.ignored(at.field("ip"), &ingress.ip, reason, effect),
        }
    }
    ips
}

fn source_ranges(spec: &raw::ServiceSpec, findings: &mut Diagnostics) -> Vec<IpNet> {
    findings.nets(
        &spec.load_balancer_source_ranges,
        &SPEC.field("loadBalancerSourceRanges"),
        "this range is ignored; addresses of a family without a valid range stay closed",
    )
}

fn policy(field: &str, text: &str, findings: &mut Diagnostics) -> TrafficPolicy {
    match text {
        "Cluster" | "" => TrafficPolicy::Cluster,
        "Local" => TrafficPolicy::Local,
        other => {
            findings.error(SPEC.field(field), other, "not a policy; write Cluster or Local");
            TrafficPolicy::Cluster
        }
    }
}

fn affinity(spec: &raw::ServiceSpec, findings: &mut Diagnostics) -> Option<u32> {
    match &*spec.session_affinity {
        "None" | "" => return None,
        "ClientIP" => {}
        other => {
            let reason = "not a session affinity; write ClientIP or None";
            findings.error(SPEC.field("sessionAffinity"), other, reason);
            return None;
        }
    }
    let Some(seconds) = spec.session_affinity_config.client_ip.timeout_seconds else {
        return Some(AFFINITY_DEFAULT);
    };
    let valid = u32::try_from(seconds).ok().filter(|s| (1..=AFFINITY_LONGEST).contains(s));
    if valid.is_none() {
        let at = SPEC.field("sessionAffinityConfig");
        let at = at.field("clientIP");
        let reason = format!("not a timeout; write 1 to {AFFINITY_LONGEST} seconds");
        findings.error(at.field("timeoutSeconds"), seconds, reason);
    }
    valid
}

fn balancing(metadata: &raw::Metadata, findings: &mut Diagnostics) -> Option<Balancing> {
    let text = metadata.annotation(super::LOAD_BALANCING)?;
    match text.parse() {
        Ok(balancing) => Some(balancing),
        Err(reason) => {
            let at = At::top("metadata");
            let at = at.field("annotations");
            let at = at.field(super::LOAD_BALANCING);
            findings.ignored(at, text, reason, "the configured default applies");
            None
        }
    }
}

fn health_check_port(
    spec: &raw::ServiceSpec,
    type_: Type,
    external_policy: TrafficPolicy,
    findings: &mut Diagnostics,
) -> Option<u16> {
    let number = spec.health_check_node_port;
    if number == 0 || type_ != Type::LoadBalancer || external_policy != TrafficPolicy::Local {
        return None;
    }
    match values::port(number) {
        Ok(port) => Some(port),
        Err(reason) => {
            findings.error(SPEC.field("healthCheckNodePort"), number, reason);
            None
        }
    }
}

fn ports(
    spec: &raw::ServiceSpec,
    type_: Type,
    findings: &mut Diagnostics,
    names: &mut Names,
) -> Vec<ServicePort> {
    let at = SPEC.field("ports");
    if spec.ports.is_empty() {
        findings.missing(at, "a Service needs at least one port");
    }
    let mut ports: Vec<ServicePort> = Vec::with_capacity(spec.ports.len());
    for (i, raw) in spec.ports.iter().enumerate() {
        let at = at.index(i);
        let Some(port) = port(raw, &at, type_, findings, names) else {
            continue;
        };
        if spec.ports.len() > 1 && port.name.is_empty() {
            findings.missing(at.field("name"), "each of several ports needs a name");
        } else if ports.iter().any(|other| other.name == port.name) {
            findings.error(at.field("name"), &port.name, "another port has this name");
        }
        let same = |p: Protocol, number: u16| p == port.protocol && number == port.port;
        if ports.iter().any(|other| same(other.protocol, other.port)) {
            let reason = "another port has this number and protocol";
            findings.error(at.field("port"), port.port, reason);
        }
        if let Some(number) = port.node_port {
            let taken =
                |p: &ServicePort| p.protocol == port.protocol && p.node_port == Some(number);
            if ports.iter().any(taken) {
                let reason = "another port has this node port and protocol";
                findings.error(at.field("nodePort"), number, reason);
            }
        }
        ports.push(port);
    }
    ports
}

fn port(
    raw: &raw::ServicePort,
    at: &At<'_>,
    type_: Type,
    findings: &mut Diagnostics,
    names: &mut Names,
) -> Option<ServicePort> {
    if !raw.name.is_empty()
        && let Err(reason) = values::dns_label(&raw.name)
    {
        findings.error(at.field("name"), &raw.name, reason);
    }
    let protocol = match values::protocol(&raw.protocol) {
        Ok(protocol) => Some(protocol),
        Err(reason) => {
            findings.error(at.field("protocol"), &raw.protocol, reason);
            None
        }
    };
    let port = match raw.port.map(values::port) {
        Some(Ok(port)) => Some(port),
        Some(Err(reason)) => {
            findings.error(at.field("port"), raw.port.unwrap_or_default(), reason);
            None
        }
        None => {
            findings.missing(at.field("port"), "a port needs a number");
            None
        }
    };
    let node_port = match (raw.node_port, type_) {
        (0, Type::NodePort) => {
            findings.note(
                at.field("nodePort"),
                "there is no node port, so none is programmed; only an API server allocates one, \
                 in a manifest write it",
            );
            None
        }
        (0, _) => None,
        (number, Type::ClusterIp) => {
            let reason = "only Services of type NodePort or LoadBalancer have node ports";
            findings.ignored(at.field("nodePort"), number, reason, "it is ignored");
            None
        }
        (number, _) => match values::port(number) {
            Ok(port) => Some(port),
            Err(reason) => {
                findings.error(at.field("nodePort"), number, reason);
                None
            }
        },
    };
    Some(ServicePort { name: names.get(&raw.name), protocol: protocol?, port: port?, node_port })
}
