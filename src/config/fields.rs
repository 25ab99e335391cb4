//! The fields of a configuration as data: which have an effect, and why the others have none.

use crate::document::{FieldPath, Node, Problem, Segment, Severity, Value};

/// A field of `KubeProxyConfiguration`.
#[derive(Debug)]
pub struct Field {
    /// Its path, with dots.
    pub path: &'static str,
    /// Whether it does something.
    pub effect: Effect,
}

/// What a field does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// What it says. The text says what is to be known beyond that, if anything.
    Honoured(&'static str),
    /// Nothing, and why.
    None(&'static str),
}

const fn honoured(path: &'static str, remark: &'static str) -> Field {
    Field { path, effect: Effect::Honoured(remark) }
}

const fn idle(path: &'static str, reason: &'static str) -> Field {
    Field { path, effect: Effect::None(reason) }
}

const NO_OPTIONS: &str = "there are none for these log formats";
const NOT_IPVS: &str = "nftables is programmed, whatever the mode";
const NOT_WINDOWS: &str = "this is not Windows";

/// All of them, in the order of the type.
pub const FIELDS: [Field; 62] = [
    honoured("apiVersion", "`kubeproxy.config.k8s.io/v1alpha1`"),
    honoured("kind", "`KubeProxyConfiguration`"),
    idle("featureGates", "there are no feature gates"),
    honoured("clientConnection.kubeconfig", "if it is not set, the Pod's service account"),
    idle("clientConnection.acceptContentTypes", "we speak JSON"),
    idle("clientConnection.contentType", "we speak JSON"),
    idle("clientConnection.qps", "a node makes few requests"),
    idle("clientConnection.burst", "a node makes few requests"),
    honoured("logging.format", "`text` or `json`"),
    idle("logging.flushFrequency", "log lines are written at once"),
    honoured("logging.verbosity", "see [Logs](#logs)"),
    idle("logging.vmodule", "its patterns are about source files of kube-proxy; use -v"),
    idle("logging.options.text.splitStream", NO_OPTIONS),
    idle("logging.options.text.infoBufferSize", NO_OPTIONS),
    idle("logging.options.json.splitStream", NO_OPTIONS),
    idle("logging.options.json.infoBufferSize", NO_OPTIONS),
    honoured("hostnameOverride", "blanks around it are removed, and it is lower-cased"),
    honoured("bindAddress", "the node's primary address of its family; nothing listens on it"),
    honoured("healthzBindAddress", ""),
    honoured("metricsBindAddress", ""),
    honoured(
        "bindAddressHardFail",
        "exit code 1 if a port of the two before cannot be bound; otherwise it is tried every 5 s",
    ),
    idle("enableProfiling", "there are no profiles to serve; use perf"),
    idle("showHiddenMetricsForVersion", "no metrics are hidden"),
    honoured("mode", "`iptables` and `ipvs` are accepted; nftables is programmed all the same"),
    honoured("iptables.masqueradeBit", "if `mode` is not `nftables` and `nftables` has none"),
    honoured("iptables.masqueradeAll", "if `mode` is not `nftables`"),
    idle("iptables.localhostNodePorts", "node ports are not offered on loopback addresses"),
    honoured("iptables.syncPeriod", "if `mode` is `iptables` or empty and `nftables` has none"),
    honoured("iptables.minSyncPeriod", "if `mode` is `iptables` or empty and `nftables` has none"),
    honoured("ipvs.syncPeriod", "if `mode` is `ipvs` and `nftables` has none"),
    honoured("ipvs.minSyncPeriod", "if `mode` is `ipvs` and `nftables` has none"),
    idle("ipvs.scheduler", NOT_IPVS),
    idle("ipvs.excludeCIDRs", NOT_IPVS),
    idle("ipvs.strictARP", NOT_IPVS),
    idle("ipvs.tcpTimeout", NOT_IPVS),
    idle("ipvs.tcpFinTimeout", NOT_IPVS),
    idle("ipvs.udpTimeout", NOT_IPVS),
    honoured("nftables.masqueradeBit", "14 if it is not set"),
    honoured("nftables.masqueradeAll", ""),
    honoured("nftables.syncPeriod", "what waits for twice this time makes the agent unhealthy"),
    honoured(
        "nftables.minSyncPeriod",
        "the least time between two commits; 0 if it is not set, unlike kube-proxy's 1s",
    ),
    idle("winkernel.networkName", NOT_WINDOWS),
    idle("winkernel.sourceVip", NOT_WINDOWS),
    idle("winkernel.enableDSR", NOT_WINDOWS),
    idle("winkernel.rootHnsEndpointName", NOT_WINDOWS),
    idle("winkernel.forwardHealthCheckVip", NOT_WINDOWS),
    honoured("detectLocalMode", ""),
    honoured("detectLocal.bridgeInterface", ""),
    honoured("detectLocal.interfaceNamePrefix", ""),
    honoured("clusterCIDR", ""),
    honoured(
        "nodePortAddresses",
        "if it is empty, `primary` with mode nftables, else every local address except loopback",
    ),
    honoured("oomScoreAdj", "-999 if it is not set"),
    honoured("conntrack.maxPerCore", "32768 if it is not set; 0 leaves the limit alone"),
    honoured("conntrack.min", "131072 if it is not set"),
    honoured("conntrack.tcpEstablishedTimeout", "24h if it is not set; 0s leaves it alone"),
    honoured("conntrack.tcpCloseWaitTimeout", "1h if it is not set; 0s leaves it alone"),
    honoured("conntrack.tcpBeLiberal", ""),
    honoured("conntrack.udpTimeout", ""),
    honoured("conntrack.udpStreamTimeout", ""),
    idle("configSyncPeriod", "objects are not fetched again without a reason"),
    idle("portRange", "Kubernetes does not use it any more"),
    idle("windowsRunAsService", NOT_WINDOWS),
];

/// Why a field does nothing; none if it does something, or if there is no such field. A section
/// stands for its fields.
pub(super) fn without_effect_because(path: &str) -> Option<&'static str> {
    FIELDS.iter().find(|field| is_within(field.path, path) || is_within(path, field.path)).and_then(
        |field| match field.effect {
            Effect::Honoured(_) => None,
            Effect::None(reason) => Some(reason),
        },
    )
}

/// True for the field itself and what is in it.
fn is_within(path: &str, outer: &str) -> bool {
    let rest = path.strip_prefix(outer);
    !outer.is_empty() && rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}

/// Notes on all fields that are set and do nothing.
pub(super) fn notes(document: &Node<'_>) -> impl Iterator<Item = Problem> {
    let mut set = Vec::new();
    leaves(document, &FieldPath::default(), &mut set);
    set.into_iter().filter_map(|(path, node)| {
        let name = path.to_string();
        let field = FIELDS.iter().find(|field| is_within(&name, field.path))?;
        let Effect::None(why) = field.effect else { return None };
        let mut note = Problem::new(Severity::Note, path, format!("has no effect: {why}"));
        note.value = Some(node.describe());
        Some(note)
    })
}

/// The fields that have another value than Go's zero, without what is in fields such as
/// `featureGates` or in lists.
fn leaves<'n, 'a>(node: &'n Node<'a>, path: &FieldPath, set: &mut Vec<(FieldPath, &'n Node<'a>)>) {
    let name = path.to_string();
    match &node.value {
        Value::Mapping(entries) if !FIELDS.iter().any(|field| field.path == name) => {
            for entry in entries {
                let mut path = path.clone();
                path.push(Segment::Field((&*entry.key).into()));
                leaves(&entry.node, &path, set);
            }
        }
        _ if is_zero(node) => {}
        _ => set.push((path.clone(), node)),
    }
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

/// A field that exists and that was likely meant instead of this one.
pub(super) fn similar(field: &FieldPath) -> Option<&'static str> {
    let name = field.to_string();
    let distance = |known: &&str| strsim::osa_distance(known, &name);
    if name.len() > 100 {
        return None;
    }
    let sections = FIELDS.iter().filter_map(|field| Some(field.path.split_once('.')?.0));
    let known = FIELDS.iter().map(|field| field.path).chain(sections);
    known.min_by_key(distance).filter(|known| distance(known) <= 3)
}
