//! Nodes.

use std::net::IpAddr;

use ipnet::IpNet;
use shunt_core::model::{Change, Node};

use crate::source::spanned_yaml::{At, parse_net};

use super::diagnostics::Diagnostics;
use super::{Converted, Kind, Names, raw, values};

/// The taint that the cluster autoscaler sets on a Node before its removal.
const TO_BE_DELETED: &str = "ToBeDeletedByClusterAutoscaler";

/// Converts a Node. The caller selects the agent's Node.
pub(super) fn node(raw: &raw::Node, names: &mut Names) -> Converted {
    let mut findings = Diagnostics::default();
    let key = findings.key(Kind::Node, &raw.metadata, names);
    let doomed = raw.metadata.deletion_timestamp.as_ref().and_then(raw::Time::seconds).is_some()
        || raw.spec.taints.iter().any(|taint| taint.key == TO_BE_DELETED);
    let zone = raw.metadata.label("topology.kubernetes.io/zone").filter(|zone| !zone.is_empty());
    let node = Node {
        name: key.name.name.clone(),
        addresses: addresses(raw, &mut findings),
        pod_cidrs: pod_cidrs(raw, &mut findings),
        zone: zone.map(|zone| names.get(&zone)),
        eligible: !doomed,
    };
    findings.finish(key, &raw.metadata, Some(Change::node(node)))
}

fn addresses(raw: &raw::Node, findings: &mut Diagnostics) -> Vec<IpAddr> {
    let at = At::top("status");
    let at = at.field("addresses");
    let mut addresses = Vec::new();
    for wanted in ["InternalIP", "ExternalIP"] {
        for (i, raw) in raw.status.addresses.iter().enumerate() {
            if raw.type_ != wanted {
                continue;
            }
            match values::service_ip(&raw.address) {
                Ok(address) if addresses.contains(&address) => {}
                Ok(address) => addresses.push(address),
                Err(reason) => {
                    let at = at.index(i);
                    findings.ignored(at.field("address"), &raw.address, reason, "it is ignored");
                }
            }
        }
    }
    addresses
}

fn pod_cidrs(raw: &raw::Node, findings: &mut Diagnostics) -> Vec<IpNet> {
    let spec = At::top("spec");
    let effect = "this prefix is ignored";
    if raw.spec.pod_cidrs.is_empty() && !raw.spec.pod_cidr.is_empty() {
        let net = parse_net(&raw.spec.pod_cidr);
        return net.map_or_else(
            |reason| {
                findings.ignored(spec.field("podCIDR"), &raw.spec.pod_cidr, reason, effect);
                Vec::new()
            },
            |net| vec![net],
        );
    }
    findings.nets(&raw.spec.pod_cidrs, &spec.field("podCIDRs"), effect)
}
