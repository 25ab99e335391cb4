//! Which fields of a configuration have an effect.

use crate::document::{FieldPath, Node, Problem, Segment, Severity, Value};

/// The fields that do something, as `section.field`.
const HONOURED: [&str; 27] = [
    "apiVersion",
    "kind",
    "clientConnection.kubeconfig",
    "hostnameOverride",
    "bindAddress",
    "healthzBindAddress",
    "mode",
    "iptables.masqueradeBit",
    "iptables.masqueradeAll",
    "nftables.masqueradeBit",
    "nftables.masqueradeAll",
    "nftables.syncPeriod",
    "nftables.minSyncPeriod",
    "detectLocalMode",
    "detectLocal.bridgeInterface",
    "detectLocal.interfaceNamePrefix",
    "clusterCIDR",
    "nodePortAddresses",
    "logging.format",
    "logging.verbosity",
    "conntrack.maxPerCore",
    "conntrack.min",
    "conntrack.tcpEstablishedTimeout",
    "conntrack.tcpCloseWaitTimeout",
    "conntrack.tcpBeLiberal",
    "conntrack.udpTimeout",
    "conntrack.udpStreamTimeout",
];

/// The others, and why they do nothing. A whole section stands for all of its fields.
const WITHOUT_EFFECT: [(&str, &str); 21] = [
    ("featureGates", "there are no feature gates"),
    ("clientConnection.acceptContentTypes", "we speak JSON"),
    ("clientConnection.contentType", "we speak JSON"),
    ("clientConnection.qps", "a node makes few requests"),
    ("clientConnection.burst", "a node makes few requests"),
    ("metricsBindAddress", "there is no metrics server yet"),
    ("bindAddressHardFail", "a port that cannot be bound is tried again"),
    ("enableProfiling", "there is no profiling server"),
    ("showHiddenMetricsForVersion", "no metrics are hidden"),
    ("iptables.localhostNodePorts", "node ports are not offered on loopback addresses"),
    ("iptables.syncPeriod", "write nftables.syncPeriod"),
    ("iptables.minSyncPeriod", "write nftables.minSyncPeriod"),
    ("ipvs", "nftables is programmed, whatever the mode"),
    ("winkernel", "this is not Windows"),
    ("oomScoreAdj", "the score of the process is left alone"),
    ("configSyncPeriod", "objects are not fetched again without a reason"),
    ("portRange", "Kubernetes does not use it any more"),
    ("windowsRunAsService", "this is not Windows"),
    ("logging.flushFrequency", "log lines are written at once"),
    ("logging.vmodule", "use -v"),
    ("logging.options", "there are none for these log formats"),
];

/// Notes on all fields that are set and do nothing.
pub(super) fn notes(document: &Node<'_>) -> impl Iterator<Item = Problem> {
    let fields = sections(document);
    fields.into_iter().filter_map(|(path, node)| {
        let name = path.to_string();
        let (_, why) = WITHOUT_EFFECT.iter().find(|(field, _)| {
            name.strip_prefix(field).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        })?;
        let mut note = Problem::new(Severity::Note, path, format!("has no effect: {why}"));
        note.value = Some(node.describe());
        Some(note)
    })
}

/// The fields of the document and of its sections that have another value than Go's zero.
fn sections<'n, 'a>(document: &'n Node<'a>) -> Vec<(FieldPath, &'n Node<'a>)> {
    let mut fields = Vec::new();
    let Value::Mapping(entries) = &document.value else {
        return fields;
    };
    for entry in entries {
        let path = FieldPath::top(&entry.key);
        match &entry.node.value {
            Value::Mapping(inner) if entry.key != "featureGates" => {
                for inner in inner.iter().filter(|inner| !is_zero(&inner.node)) {
                    let mut path = path.clone();
                    path.push(Segment::Field((&*inner.key).into()));
                    fields.push((path, &inner.node));
                }
            }
            _ if is_zero(&entry.node) => {}
            _ => fields.push((path, &entry.node)),
        }
    }
    fields
}

fn is_zero(node: &Node<'_>) -> bool {
    match &node.value {
        Value::Scalar(scalar) => {
            scalar.is_null() || matches!(&*scalar.text, "" | "0" | "0s" | "false")
        }
        Value::Sequence(items) => items.is_empty(),
        Value::Mapping(entries) => entries.iter().all(|entry| is_zero(&entry.node)),
    }
}

/// True for fields that exist, also if nothing reads them.
pub(super) fn exists(field: &FieldPath) -> bool {
    let name = field.to_string();
    WITHOUT_EFFECT.iter().any(|(field, _)| *field == name)
}

/// A field that exists and that was likely meant instead of this one.
pub(super) fn similar(field: &FieldPath) -> Option<&'static str> {
    let name = field.to_string();
    let known = HONOURED.into_iter().chain(WITHOUT_EFFECT.map(|(field, _)| field));
    let distance = |known: &&str| strsim::osa_distance(known, &name);
    if name.len() > 100 {
        return None;
    }
    known.min_by_key(distance).filter(|known| distance(known) <= 3)
}
