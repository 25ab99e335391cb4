//! The fields of a configuration as data: their effect, or the reason for having none.

use serde_json::Value;

use crate::source::spanned_yaml::{Diagnostic, FieldPath, Segment, Severity, describe};

/// A field of `KubeProxyConfiguration`, or of its section `shunt`.
#[derive(Debug)]
pub struct Field {
    /// The path in the file, such as `conntrack.min`.
    pub path: &'static str,
    /// The effect in shunt, which may differ from kube-proxy's.
    pub effect: Effect,
}

/// The effect of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// The effect of kube-proxy. The text is a remark for the reference; it may be empty.
    Honoured(&'static str),
    /// No effect, for this reason.
    None(&'static str),
}

const fn honoured(path: &'static str, remark: &'static str) -> Field {
    Field { path, effect: Effect::Honoured(remark) }
}

const fn idle(path: &'static str, reason: &'static str) -> Field {
    Field { path, effect: Effect::None(reason) }
}

const NO_OPTIONS: &str = "these log formats have no options";
const NOT_IPVS: &str = "shunt programs nftables in every mode";
const NOT_WINDOWS: &str = "Windows only";

/// All fields, in the order of [`Configuration`](super::raw::Configuration).
pub const FIELDS: [Field; 64] = [
    honoured("apiVersion", ""),
    honoured("kind", ""),
    honoured(
        "featureGates",
        "`AllowServiceExternalIPs: false` turns `spec.externalIPs` of all Services off; a warning names \
         any other gate away from kube-proxy's default",
    ),
    honoured("clientConnection.kubeconfig", "without one, the Pod's service account"),
    honoured(
        "clientConnection.acceptContentTypes",
        "by default `contentType`; the first known type is preferred, JSON is always accepted",
    ),
    honoured(
        "clientConnection.contentType",
        "or `application/json`, of lists and watches; Events are JSON",
    ),
    idle("clientConnection.qps", "a node makes few requests"),
    idle("clientConnection.burst", "a node makes few requests"),
    honoured("logging.format", "`text` or `json`"),
    idle("logging.flushFrequency", "log lines are written at once"),
    honoured("logging.verbosity", "see [Logs](#logs-and-signals)"),
    idle("logging.vmodule", "patterns name source files of kube-proxy; use -v"),
    idle("logging.options.text.splitStream", NO_OPTIONS),
    idle("logging.options.text.infoBufferSize", NO_OPTIONS),
    idle("logging.options.json.splitStream", NO_OPTIONS),
    idle("logging.options.json.infoBufferSize", NO_OPTIONS),
    honoured("hostnameOverride", "trimmed and lower-cased"),
    honoured("bindAddress", "the node's primary address of its family; nothing listens on it"),
    honoured("healthzBindAddress", ""),
    honoured("metricsBindAddress", ""),
    honoured(
        "bindAddressHardFail",
        "exit code 1 if the port for health or metrics cannot be bound; otherwise a retry every 5 s",
    ),
    idle("enableProfiling", "shunt serves no profiles; use perf"),
    idle("showHiddenMetricsForVersion", "no metrics are hidden"),
    honoured("mode", "shunt accepts `iptables` and `ipvs`, and programs nftables"),
    honoured("iptables.masqueradeBit", "if `mode` is not `nftables` and `nftables` has none"),
    honoured("iptables.masqueradeAll", "if `mode` is not `nftables`"),
    honoured(
        "iptables.localhostNodePorts",
        "if `mode` is `iptables` or empty; see [Node ports on localhost](local-node-ports.md)",
    ),
    honoured("iptables.syncPeriod", "if `mode` is `iptables` or empty and `nftables` has none"),
    honoured("iptables.minSyncPeriod", "if `mode` is `iptables` or empty and `nftables` has none"),
    honoured("ipvs.syncPeriod", "if `mode` is `ipvs` and `nftables` has none"),
    honoured("ipvs.minSyncPeriod", "if `mode` is `ipvs` and `nftables` has none"),
    honoured(
        "ipvs.scheduler",
        "if `mode` is `ipvs`: `sh` and `mh` are `shunt.loadBalancing: source-hash`, others `random`",
    ),
    idle("ipvs.excludeCIDRs", NOT_IPVS),
    idle("ipvs.strictARP", NOT_IPVS),
    idle("ipvs.tcpTimeout", NOT_IPVS),
    idle("ipvs.tcpFinTimeout", NOT_IPVS),
    idle("ipvs.udpTimeout", NOT_IPVS),
    honoured("nftables.masqueradeBit", "the bit of the packet mark, 0 to 31"),
    honoured("nftables.masqueradeAll", ""),
    honoured("nftables.syncPeriod", "a change that waits twice as long makes the agent unhealthy"),
    honoured(
        "nftables.minSyncPeriod",
        "minimum time between two commits; kube-proxy's default is 1s",
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
        "prefixes, and the words `primary`, `localhost` and `all`; with `mode: nftables` the default is \
         `primary`; see [Node ports on localhost](local-node-ports.md)",
    ),
    honoured("oomScoreAdj", "the OOM score of the agent"),
    honoured("conntrack.maxPerCore", "0 leaves the limit unchanged"),
    honoured("conntrack.min", "the minimum of the limit"),
    honoured("conntrack.tcpEstablishedTimeout", "0s leaves it unchanged"),
    honoured("conntrack.tcpCloseWaitTimeout", "0s leaves it unchanged"),
    honoured("conntrack.tcpBeLiberal", ""),
    honoured("conntrack.udpTimeout", "0s leaves it unchanged"),
    honoured("conntrack.udpStreamTimeout", "0s leaves it unchanged"),
    idle("configSyncPeriod", "shunt does not resync without a reason"),
    idle("portRange", "Kubernetes no longer uses it"),
    idle("windowsRunAsService", NOT_WINDOWS),
    honoured("shunt.resetGoneEndpoints", "see [Resets](resets.md)"),
    honoured(
        "shunt.loadBalancing",
        "`random`, `source-hash` or `source-and-port-hash`; see [Load balancing](load-balancing.md)",
    ),
];

/// Returns why a field has no effect; `None` if it has one, or is unknown. A section stands for its
/// fields.
pub(super) fn without_effect_because(path: &str) -> Option<&'static str> {
    FIELDS.iter().find(|field| is_within(field.path, path) || is_within(path, field.path)).and_then(
        |field| match field.effect {
            Effect::Honoured(_) => None,
            Effect::None(reason) => Some(reason),
        },
    )
}

/// Returns true for the field itself and all fields in it.
fn is_within(path: &str, outer: &str) -> bool {
    let rest = path.strip_prefix(outer);
    !outer.is_empty() && rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}

/// Returns the sections of a file, some of them several times.
pub(super) fn sections() -> impl Iterator<Item = &'static str> {
    FIELDS.iter().filter_map(|field| Some(field.path.rsplit_once('.')?.0))
}

/// Returns a note for each field that is set and has no effect.
pub(super) fn notes(document: &Value) -> impl Iterator<Item = Diagnostic> {
    let mut set = Vec::new();
    leaves(document, &FieldPath::default(), &mut set);
    set.into_iter().filter_map(|(path, value)| {
        let name = path.to_string();
        let field = FIELDS.iter().find(|field| is_within(&name, field.path))?;
        let Effect::None(why) = field.effect else { return None };
        let mut note = Diagnostic::new(Severity::Note, path, format!("has no effect: {why}"));
        note.value = Some(describe(value));
        Some(note)
    })
}

/// Collects the fields whose value is not Go's zero. Does not look into lists or into fields such
/// as `featureGates`.
fn leaves<'v>(value: &'v Value, path: &FieldPath, set: &mut Vec<(FieldPath, &'v Value)>) {
    let name = path.to_string();
    match value {
        Value::Object(fields) if !FIELDS.iter().any(|field| field.path == name) => {
            for (name, value) in fields {
                let mut path = path.clone();
                path.push(Segment::Field((&**name).into()));
                leaves(value, &path, set);
            }
        }
        _ if is_zero(value) => {}
        _ => set.push((path.clone(), value)),
    }
}

fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(value) => !value,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => matches!(&**text, "" | "0" | "0s"),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.values().all(is_zero),
    }
}

/// Returns the known field with the most similar name.
pub(super) fn similar(field: &FieldPath) -> Option<&'static str> {
    let name = field.to_string();
    let distance = |known: &&str| strsim::osa_distance(known, &name);
    if name.len() > 100 {
        return None;
    }
    let sections = FIELDS.iter().filter_map(|field| Some(field.path.split_once('.')?.0));
    let known = FIELDS.iter().map(|field| field.path).chain(sections);
    // A short name resembles many.
    let limit = 3.min(name.len() / 3);
    known.min_by_key(distance).filter(|known| distance(known) <= limit)
}
