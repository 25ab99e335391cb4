//! EndpointSlices.

use std::net::IpAddr;

use shunt_core::model::{Change, Endpoint, EndpointPort, EndpointSlice, Family, Hints};

use crate::source::spanned_yaml::At;

use super::diagnostics::Diagnostics;
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
            findings.missing(At::top("addressType"), reason);
            Family::V4
        }
        other => {
            let reason = "not an address type; write IPv4 or IPv6";
            findings.error(At::top("addressType"), other, reason);
            return findings.finish(key, &raw.metadata, None);
        }
    };
    let service = raw.metadata.label("kubernetes.io/service-name");
    let service = service.filter(|name| !name.is_empty());
    if service.is_none() {
        let at = At::top("metadata");
        let at = at.field("labels");
        findings.note(
            at.field("kubernetes.io/service-name"),
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
    let weight = text.parse().ok();
    if weight.is_none() {
        let at = At::top("metadata");
        let at = at.field("annotations");
        let reason = "not a weight; write a number from 0 to 65535";
        findings.ignored(at.field(name), text, reason, "the weight is 1");
    }
    weight
}

fn ports(
    raw: &raw::EndpointSlice,
    findings: &mut Diagnostics,
    names: &mut Names,
) -> Vec<EndpointPort> {
    let at = At::top("ports");
    let effect = "this port of the slice is ignored";
    let mut ports: Vec<EndpointPort> = Vec::with_capacity(raw.ports.len());
    for (i, raw) in raw.ports.iter().enumerate() {
        let at = at.index(i);
        let Some(number) = raw.port else {
            findings.ignored_without(at.field("port"), "a port needs a number", effect);
            continue;
        };
        let port = match values::port(number) {
            Ok(port) => port,
            Err(reason) => {
                findings.ignored(at.field("port"), number, reason, effect);
                continue;
            }
        };
        let protocol = match values::protocol(&raw.protocol) {
            Ok(protocol) => protocol,
            Err(reason) => {
                findings.ignored(at.field("protocol"), &raw.protocol, reason, effect);
                continue;
            }
        };
        if ports.iter().any(|p| *p.name == *raw.name && p.protocol == protocol) {
            let reason = "another port of the slice has this name and protocol";
            findings.ignored(at.field("name"), &raw.name, reason, effect);
            continue;
        }
        ports.push(EndpointPort { name: names.get(&raw.name), protocol, port });
    }
    ports
}

fn endpoints(
    raw: &raw::EndpointSlice,
    family: Family,
    findings: &mut Diagnostics,
    names: &mut Names,
) -> Vec<Endpoint> {
    let at = At::top("endpoints");
    let mut endpoints = Vec::with_capacity(raw.endpoints.len());
    for (i, raw) in raw.endpoints.iter().enumerate() {
        let Some(address) = address(raw, &at.index(i), family, findings) else {
            continue;
        };
        let hints = |hints: &[raw::Hint], names: &mut Names| {
            hints.iter().map(|hint| names.get(&hint.name)).collect()
        };
        endpoints.push(Endpoint {
            address,
            ready: raw.conditions.ready.unwrap_or(true),
            serving: raw.conditions.serving.unwrap_or(true),
            terminating: raw.conditions.terminating.unwrap_or(false),
            node: (!raw.node_name.is_empty()).then(|| names.get(&raw.node_name)),
            hints: Hints::boxed(
                hints(&raw.hints.for_zones, names),
                hints(&raw.hints.for_nodes, names),
            ),
        });
    }
    endpoints
}

/// Returns the first address of an endpoint; the others have no meaning (KEP-752).
fn address(
    raw: &raw::Endpoint,
    at: &At<'_>,
    family: Family,
    findings: &mut Diagnostics,
) -> Option<IpAddr> {
    let effect = "this endpoint is ignored";
    let at = at.field("addresses");
    let Some(text) = raw.addresses.first() else {
        findings.ignored_without(at, "an endpoint needs an address", effect);
        return None;
    };
    match values::remote_ip(text) {
        Ok(address) if Family::of(address) == family => Some(address),
        Ok(_) => {
            let reason = format!("not an {family} address, which addressType requires");
            findings.ignored(at.index(0), text, reason, effect);
            None
        }
        Err(reason) => {
            findings.ignored(at.index(0), text, reason, effect);
            None
        }
    }
}
