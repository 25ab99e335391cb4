//! Services.

use std::net::IpAddr;

use shunt_core::model::{
    Balancing, Change, Family, Ignored, ObjectName, Service, ServicePort, TrafficPolicy,
};

use crate::source::spanned_yaml::{Diagnostics, parse_net};

use super::{Converted, Kind, Names, raw, values};

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
    let type_ = findings.valid("spec.type", &spec.type_, service_type(&spec.type_));
    let type_ = type_.unwrap_or(Type::ClusterIp);
    let (mut vips, proxied_ips) = load_balancer_ips(&raw.status, findings);
    let source_ranges = findings.list(
        &spec.load_balancer_source_ranges,
        "spec.loadBalancerSourceRanges",
        parse_net,
        "this range is ignored; addresses of a family without a valid range stay closed",
    );
    let mut closed = Vec::new();
    if spec.load_balancer_source_ranges.iter().any(|text| parse_net(text).is_err()) {
        // Without a range of its family, an address would be open to all clients, although the
        // mistyped range was to restrict them.
        let restricted = |address: &IpAddr| {
            source_ranges.iter().any(|net| Family::of_net(net) == Family::of(*address))
        };
        (vips, closed) = vips.into_iter().partition(restricted);
    }
    let mut policy = |field: &str, text: &String| {
        findings.valid(field, text, traffic_policy(text)).unwrap_or(TrafficPolicy::Cluster)
    };
    let internal_policy = policy("spec.internalTrafficPolicy", &spec.internal_traffic_policy);
    let external_policy = policy("spec.externalTrafficPolicy", &spec.external_traffic_policy);
    Service {
        name: name.clone(),
        created: raw.metadata.creation_timestamp.as_ref().and_then(raw::Time::seconds),
        cluster_ips: cluster_ips(spec, findings),
        external_ips: {
            let (at, effect) = ("spec.externalIPs", "this external IP is ignored");
            let mut ips = findings.list(&spec.external_ips, at, values::remote_ip, effect);
            ips.retain(|address| !closed.contains(address));
            ips
        },
        load_balancer_ips: vips,
        proxied_ips,
        source_ranges,
        ports: ports(spec, type_, findings, names),
        internal_policy,
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
            "spec.clusterIP",
            "no ClusterIP, so nothing is programmed; only an API server allocates one: write it \
             into the manifest",
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

fn service_type(text: &str) -> Result<Type, &'static str> {
    match text {
        "ClusterIP" | "" => Ok(Type::ClusterIp),
        "NodePort" => Ok(Type::NodePort),
        "LoadBalancer" => Ok(Type::LoadBalancer),
        _ => Err("not a Service type; write ClusterIP, NodePort or LoadBalancer"),
    }
}

fn traffic_policy(text: &str) -> Result<TrafficPolicy, &'static str> {
    match text {
        "Cluster" | "" => Ok(TrafficPolicy::Cluster),
        "Local" => Ok(TrafficPolicy::Local),
        _ => Err("not a policy; write Cluster or Local"),
    }
}

fn cluster_ips(spec: &raw::ServiceSpec, findings: &mut Diagnostics) -> Vec<IpAddr> {
    let single = &spec.cluster_ip;
    let Some(first) = spec.cluster_ips.first() else {
        let address = findings.valid("spec.clusterIP", single, values::service_ip(single));
        return address.into_iter().collect();
    };
    if !single.is_empty() && first != single {
        let reason = "must be the same as the first of spec.clusterIPs";
        findings.error("spec.clusterIP", single, reason);
    }
    let mut addresses: Vec<IpAddr> = Vec::with_capacity(spec.cluster_ips.len());
    for (i, text) in spec.cluster_ips.iter().enumerate() {
        let parsed = values::service_ip(text).and_then(|address| {
            let family = Family::of(address);
            match addresses.iter().any(|other| Family::of(*other) == family) {
                true => Err(format!("a second {family} address; write one per family")),
                false => Ok(address),
            }
        });
        addresses.extend(findings.valid(format_args!("spec.clusterIPs[{i}]"), text, parsed));
    }
    addresses
}

/// Returns the addresses of load balancers with `ipMode` VIP, and those with Proxy.
fn load_balancer_ips(
    status: &raw::ServiceStatus,
    findings: &mut Diagnostics,
) -> (Vec<IpAddr>, Vec<IpAddr>) {
    let (mut vips, mut proxied) = (Vec::new(), Vec::new());
    for (i, raw::Ingress { ip, ip_mode }) in status.load_balancer.ingress.iter().enumerate() {
        let effect = "this load-balancer address is ignored";
        let addresses = match &**ip_mode {
            // In this mode, packets must reach the load balancer itself.
            "Proxy" => &mut proxied,
            "VIP" | "" => &mut vips,
            other => {
                let at = format_args!("status.loadBalancer.ingress[{i}].ipMode");
                findings.ignored(at, other, "not a mode; write VIP or Proxy", effect);
                continue;
            }
        };
        if !ip.is_empty() {
            let at = format_args!("status.loadBalancer.ingress[{i}].ip");
            let address = findings.usable(at, ip, values::service_ip(ip), effect);
            addresses.extend(address.filter(|address| !addresses.contains(address)));
        }
    }
    (vips, proxied)
}

fn affinity(spec: &raw::ServiceSpec, findings: &mut Diagnostics) -> Option<u32> {
    match &*spec.session_affinity {
        "None" | "" => return None,
        "ClientIP" => {}
        other => {
            let reason = "not a session affinity; write ClientIP or None";
            findings.error("spec.sessionAffinity", other, reason);
            return None;
        }
    }
    let Some(seconds) = spec.session_affinity_config.client_ip.timeout_seconds else {
        return Some(AFFINITY_DEFAULT);
    };
    let valid = u32::try_from(seconds).ok().filter(|s| (1..=AFFINITY_LONGEST).contains(s));
    let reason = || format!("not a timeout; write 1 to {AFFINITY_LONGEST} seconds");
    let at = "spec.sessionAffinityConfig.clientIP.timeoutSeconds";
    findings.valid(at, seconds, valid.ok_or_else(reason))
}

fn balancing(metadata: &raw::Metadata, findings: &mut Diagnostics) -> Option<Balancing> {
    let text = metadata.annotation(super::LOAD_BALANCING)?;
    let at = format_args!("metadata.annotations[{}]", super::LOAD_BALANCING);
    findings.usable(at, &text, text.parse(), "the configured default applies")
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
    findings.valid("spec.healthCheckNodePort", number, values::port(number))
}

fn ports(
    spec: &raw::ServiceSpec,
    type_: Type,
    findings: &mut Diagnostics,
    names: &mut Names,
) -> Vec<ServicePort> {
    if spec.ports.is_empty() {
        findings.missing("spec.ports", "a Service needs at least one port");
    }
    let mut ports: Vec<ServicePort> = Vec::with_capacity(spec.ports.len());
    for (i, raw) in spec.ports.iter().enumerate() {
        let Some(port) = port(raw, i, type_, findings, names) else {
            continue;
        };
        let name = format_args!("spec.ports[{i}].name");
        if spec.ports.len() > 1 && port.name.is_empty() {
            findings.missing(name, "each of several ports needs a name");
        } else if ports.iter().any(|other| other.name == port.name) {
            findings.error(name, &port.name, "another port has this name");
        }
        let mut same = ports.iter().filter(|other| other.protocol == port.protocol);
        if same.clone().any(|other| other.port == port.port) {
            let reason = "another port has this number and protocol";
            findings.error(format_args!("spec.ports[{i}].port"), port.port, reason);
        }
        if let Some(number) = port.node_port
            && same.any(|other| other.node_port == Some(number))
        {
            let reason = "another port has this node port and protocol";
            findings.error(format_args!("spec.ports[{i}].nodePort"), number, reason);
        }
        ports.push(port);
    }
    ports
}

fn port(
    raw: &raw::ServicePort,
    i: usize,
    type_: Type,
    findings: &mut Diagnostics,
    names: &mut Names,
) -> Option<ServicePort> {
    if !raw.name.is_empty() {
        let at = format_args!("spec.ports[{i}].name");
        findings.valid(at, &raw.name, values::dns_label(&raw.name));
    }
    let at = format_args!("spec.ports[{i}].protocol");
    let protocol = findings.valid(at, &raw.protocol, values::protocol(&raw.protocol));
    let at = format_args!("spec.ports[{i}].port");
    let port = match raw.port {
        Some(number) => findings.valid(at, number, values::port(number)),
        None => {
            findings.missing(at, "a port needs a number");
            None
        }
    };
    let at = format_args!("spec.ports[{i}].nodePort");
    let node_port = match (raw.node_port, type_) {
        (0, Type::NodePort) => {
            findings.note(
                at,
                "no node port, so none is programmed; only an API server allocates one: write it \
                 into the manifest",
            );
            None
        }
        (0, _) => None,
        (number, Type::ClusterIp) => {
            let reason = "only Services of type NodePort or LoadBalancer have node ports";
            findings.ignored(at, number, reason, "it is ignored");
            None
        }
        (number, _) => findings.valid(at, number, values::port(number)),
    };
    Some(ServicePort { name: names.get(&raw.name), protocol: protocol?, port: port?, node_port })
}
