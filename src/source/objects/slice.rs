//! EndpointSlices.

use std::net::IpAddr;

use shunt_core::model::{Change, Endpoint, EndpointPort, EndpointSlice, Family, Hints};

use crate::source::spanned_yaml::Diagnostics;

use super::{Converted, Kind, Names, raw, values};

/// Converts an EndpointSlice. An invalid endpoint or port affects no other one.
pub(super) fn endpoint_slice(raw: &raw::EndpointSlice, names: &mut Names) -> Converted {
    let mut findings = Diagnostics::default();
    let key = findings.key(Kind::EndpointSlice, &raw.metadata, names);
    let family = match &*raw.address_type {
        // FQDNs have no addresses, and clients find the endpoints of a headless Service by DNS.
        "FQDN" => return findings.finish(key, &raw.metadata, None),
        _ if raw.metadata.label("service.kubernetes.io/headless").is_some() => {
            return findings.finish(key, &raw.metadata, None);
        }
        "IPv4" => Family::V4,
        "IPv6" => Family::V6,
        "" => {
            let reason = "an EndpointSlice needs an address type; write IPv4 or IPv6";
            findings.missing("addressType", reason);
            Family::V4
        }
        other => {
            let reason = "not an address type; write IPv4 or IPv6";
            findings.error("addressType", other, reason);
            return findings.finish(key, &raw.metadata, None);
        }
    };
    let service = raw.metadata.label("kubernetes.io/service-name");
    let service = service.filter(|name| !name.is_empty());
    if service.is_none() {
        findings.note(
            "metadata.labels[kubernetes.io/service-name]",
            "without this label the EndpointSlice belongs to no Service and has no effect",
        );
    }
    let slice = EndpointSlice {
        name: key.name.clone(),
        service: service.map(|name| names.get(&name)),
        family,
        weight: weight(&raw.metadata, &mut findings),
        ports: ports(raw, &mut findings, names),
        endpoints: endpoints(raw, family, &mut findings, names),
    };
    findings.finish(key, &raw.metadata, Some(Change::slice(slice)))
}

/// Returns the weight of all endpoints, as Cilium understands it: 0 to 65535.
fn weight(metadata: &raw::Metadata, findings: &mut Diagnostics) -> Option<u16> {
    let (name, text) = [super::WEIGHT, "service.cilium.io/weight"]
        .into_iter()
        .find_map(|name| Some((name, metadata.annotation(name)?)))?;
    let weight = text.parse().map_err(|_| "not a weight; write a number from 0 to 65535");
    let at = format_args!("metadata.annotations[{name}]");
    findings.usable(at, &text, weight, "the weight is 1")
}

fn ports(
    raw: &raw::EndpointSlice,
    findings: &mut Diagnostics,
    names: &mut Names,
) -> Vec<EndpointPort> {
    let effect = "this port of the slice is ignored";
    let mut ports: Vec<EndpointPort> = Vec::with_capacity(raw.ports.len());
    for (i, raw::EndpointPort { name, protocol, port }) in raw.ports.iter().enumerate() {
        let at = format_args!("ports[{i}].port");
        let Some(number) = *port else {
            findings.ignored_without(at, "a port needs a number", effect);
            continue;
        };
        let port = findings.usable(at, number, values::port(number), effect);
        let Some(port) = port else { continue };
        let at = format_args!("ports[{i}].protocol");
        let protocol = findings.usable(at, protocol, values::protocol(protocol), effect);
        let Some(protocol) = protocol else { continue };
        if ports.iter().any(|p| *p.name == **name && p.protocol == protocol) {
            let reason = "another port of the slice has this name and protocol";
            findings.ignored(format_args!("ports[{i}].name"), name, reason, effect);
            continue;
        }
        ports.push(EndpointPort { name: names.get(name), protocol, port });
    }
    ports
}

fn endpoints(
    raw: &raw::EndpointSlice,
    family: Family,
    findings: &mut Diagnostics,
    names: &mut Names,
) -> Vec<Endpoint> {
    let mut endpoints = Vec::with_capacity(raw.endpoints.len());
    for (i, raw) in raw.endpoints.iter().enumerate() {
        let Some(address) = address(raw, i, family, findings) else {
            continue;
        };
        let mut hints =
            |hints: &[raw::Hint]| hints.iter().map(|hint| names.get(&hint.name)).collect();
        let hints = Hints::boxed(hints(&raw.hints.for_zones), hints(&raw.hints.for_nodes));
        endpoints.push(Endpoint {
            address,
            ready: raw.conditions.ready.unwrap_or(true),
            serving: raw.conditions.serving.unwrap_or(true),
            terminating: raw.conditions.terminating.unwrap_or(false),
            node: (!raw.node_name.is_empty()).then(|| names.get(&raw.node_name)),
            hints,
        });
    }
    endpoints
}

/// Returns the first address of an endpoint; the others have no meaning (KEP-752).
fn address(
    raw: &raw::Endpoint,
    i: usize,
    family: Family,
    findings: &mut Diagnostics,
) -> Option<IpAddr> {
    let effect = "this endpoint is ignored";
    let Some(text) = raw.addresses.first() else {
        let at = format_args!("endpoints[{i}].addresses");
        findings.ignored_without(at, "an endpoint needs an address", effect);
        return None;
    };
    let address = values::remote_ip(text).and_then(|address| match Family::of(address) == family {
        true => Ok(address),
        false => Err(format!("not an {family} address, which addressType requires")),
    });
    findings.usable(format_args!("endpoints[{i}].addresses[0]"), text, address, effect)
}
