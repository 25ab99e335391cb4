//! Nodes.

use std::net::IpAddr;

use shunt_core::model::{Change, Node};

use crate::source::spanned_yaml::{Diagnostics, parse_net};

use super::{Converted, Kind, Names, raw, values};

/// The taint that the cluster autoscaler sets on a Node before its removal.
const TO_BE_DELETED: &str = "ToBeDeletedByClusterAutoscaler";

/// Converts a Node. The caller selects the agent's Node.
pub(super) fn node(raw: &raw::Node, names: &mut Names) -> Converted {
    let mut findings = Diagnostics::default();
    let key = findings.key(Kind::Node, &raw.metadata, names);
    let doomed = raw.metadata.deletion_timestamp.as_ref().and_then(raw::Time::seconds).is_some()
        || raw.spec.taints.iter().any(|taint| taint.key == TO_BE_DELETED);
    let addresses = addresses(raw, &mut findings);
    let effect = "this prefix is ignored";
    let raw::NodeSpec { pod_cidr, pod_cidrs, .. } = &raw.spec;
    // A manifest may have the first alone, as Nodes of single-stack clusters once had.
    let only = std::slice::from_ref(pod_cidr);
    let nets = if pod_cidrs.is_empty() && !pod_cidr.is_empty() { only } else { pod_cidrs };
    let pod_cidrs = findings.list(nets, "spec.podCIDRs", parse_net, effect);
    let zone = raw.metadata.label("topology.kubernetes.io/zone").filter(|zone| !zone.is_empty());
    let node = Node {
        name: key.name.name.clone(),
        addresses,
        pod_cidrs,
        zone: zone.map(|zone| names.get(&zone)),
        eligible: !doomed,
    };
    findings.finish(key, &raw.metadata, Some(Change::node(node)))
}

fn addresses(raw: &raw::Node, findings: &mut Diagnostics) -> Vec<IpAddr> {
    let mut addresses = Vec::new();
    for wanted in ["InternalIP", "ExternalIP"] {
        for (i, raw::NodeAddress { type_, address }) in raw.status.addresses.iter().enumerate() {
            if type_ == wanted {
                let at = format_args!("status.addresses[{i}].address");
                let parsed = values::service_ip(address);
                let found = findings.usable(at, address, parsed, "it is ignored");
                addresses.extend(found.filter(|found| !addresses.contains(found)));
            }
        }
    }
    addresses
}
