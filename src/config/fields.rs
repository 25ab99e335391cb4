//! The fields of a configuration as data: type and default, and their effect or the reason for having
//! none.

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::GoDuration;
use crate::source::spanned_yaml::{TypeError, typed};

/// A field of `KubeProxyConfiguration`, or of its section `shunt`.
#[derive(Debug)]
pub struct Field {
    /// The path in the file, such as `conntrack.min`.
    pub path: &'static str,
    pub(super) kind: FieldKind,
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

/// The type of a field, with its default where fields of one type differ in it.
#[derive(Debug, Clone, Copy)]
pub(super) enum FieldKind {
    Text(&'static str),
    Switch(bool),
    Number(i32),
    /// klog's level.
    Level,
    Rate,
    Duration(&'static str),
    /// A duration, or a bare number of nanoseconds as in older files.
    Frequency,
    /// A number of bytes such as `512` or `4Mi`.
    Bytes,
    /// Texts; in a flag with commas in between.
    List,
    /// Names with truth values.
    Gates,
    /// Patterns with levels.
    Patterns,
}

use FieldKind::{
    Bytes, Duration, Frequency, Gates, Level, List, Number, Patterns, Rate, Switch, Text,
};

/// An element of `logging.vmodule`.
#[derive(Default, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
struct VModule {
    file_pattern: String,
    verbosity: u32,
}

impl FieldKind {
    /// Returns the value of a field that a file does not set.
    pub(super) fn default(self) -> Value {
        match self {
            Text(text) | Duration(text) => text.into(),
            Switch(on) => on.into(),
            Number(number) => number.into(),
            Level => 0.into(),
            Rate => 5.0.into(),
            Frequency => "5s".into(),
            Bytes => "0".into(),
            List => json!([]),
            Gates => json!({}),
            Patterns => Value::Null,
        }
    }

    /// Returns the value of a file in the form in which it is written, or why it has another type.
    pub(super) fn value(self, found: &Value) -> Result<Value, TypeError> {
        fn as_type<T: DeserializeOwned + Serialize>(found: &Value) -> Result<Value, TypeError> {
            typed::<T>(&found.to_string()).map(|value| json!(value))
        }
        let value = match (self, found) {
            (Text(_), _) => return as_type::<String>(found),
            (Switch(_), _) => return as_type::<bool>(found),
            (Number(_), _) => return as_type::<i32>(found),
            (Level, _) => return as_type::<u32>(found),
            (Rate, _) => return as_type::<f32>(found),
            (List, _) => return as_type::<Vec<String>>(found),
            (Gates, _) => return as_type::<BTreeMap<String, bool>>(found),
            (Patterns, _) => return as_type::<Vec<VModule>>(found),
            (Bytes, Value::String(text)) => Ok(text.clone()),
            (Bytes, Value::Number(number)) => Ok(number.to_string()),
            (Bytes, _) => Err("must be a number of bytes such as 512 or 4Mi".to_owned()),
            (_, Value::String(text)) => GoDuration::parse(text).map(|_| text.clone()),
            (Frequency, Value::Number(number)) => Ok(format!("{number}ns")),
            // Kubernetes' own type takes only text, but some older files have a bare 0.
            (_, Value::Number(number)) if number.as_i64() == Some(0) => Ok("0s".to_owned()),
            (_, Value::Number(_)) => {
                Err("a number without a unit; write a duration such as 30s".to_owned())
            }
            _ => Err("must be a duration such as 30s or 1h2m3s".to_owned()),
        };
        value.map(Value::from).map_err(|reason| TypeError { field: String::new(), reason })
    }

    /// Returns the value of a flag in the form of a file.
    pub(super) fn parse(self, text: &str) -> Result<Value, String> {
        let number = "not a number in the valid range";
        let items = text.split(',').filter(|item| !item.is_empty());
        Ok(match self {
            Text(_) | Bytes => text.into(),
            Switch(_) => parse_bool(text)?.into(),
            Number(_) => text.parse::<i32>().map_err(|_| number)?.into(),
            Level => text.parse::<u32>().map_err(|_| number)?.into(),
            Rate => text.parse::<f32>().map_err(|_| number)?.into(),
            Duration(_) | Frequency => GoDuration::parse(text).map(|_| text.into())?,
            List => items.collect(),
            Gates => {
                let gate = |gate: &str| -> Result<(String, Value), String> {
                    let (name, on) = gate.split_once('=').ok_or("not a list such as Name=true")?;
                    Ok((name.trim().to_owned(), Value::from(parse_bool(on.trim())?)))
                };
                items.map(gate).collect::<Result<_, _>>().map(Value::Object)?
            }
            Patterns => {
                let pattern = |item: &str| {
                    let (pattern, level) = item.split_once('=')?;
                    let level = level.parse::<u32>().ok()?;
                    Some(json!({ "filePattern": pattern, "verbosity": level }))
                };
                let patterns = items.map(pattern).collect::<Option<_>>().map(Value::Array);
                patterns.ok_or("not a list such as pattern=2,other=4")?
            }
        })
    }
}

/// Parses a truth value as Go's `strconv.ParseBool` does.
///
/// # Errors
/// The values to write instead.
pub fn parse_bool(value: &str) -> Result<bool, String> {
    match value {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err("not a truth value; write true or false".to_owned()),
    }
}

const fn honoured(path: &'static str, kind: FieldKind, remark: &'static str) -> Field {
    Field { path, kind, effect: Effect::Honoured(remark) }
}

const fn idle(path: &'static str, kind: FieldKind, reason: &'static str) -> Field {
    Field { path, kind, effect: Effect::None(reason) }
}

const NO_OPTIONS: &str = "these log formats have no options";
const NOT_IPVS: &str = "shunt programs nftables in every mode";
const NOT_WINDOWS: &str = "Windows only";

/// Fields of which Go's zero value is a value. That of others means the default. An empty address turns
/// a server off.
const ZERO_COUNTS: [&str; 7] = [
    "conntrack.",
    "healthzBindAddress",
    "iptables.localhostNodePorts",
    "iptables.masqueradeBit",
    "metricsBindAddress",
    "nftables.masqueradeBit",
    "oomScoreAdj",
];

/// All fields, in the order of kube-proxy's documentation, and those of shunt's own section.
pub const FIELDS: [Field; 64] = [
    honoured("apiVersion", Text(super::API_VERSION), ""),
    honoured("kind", Text(super::KIND), ""),
    honoured(
        "featureGates",
        Gates,
        "`AllowServiceExternalIPs: false` turns `spec.externalIPs` of all Services off; other gates have \
         no effect",
    ),
    honoured("clientConnection.kubeconfig", Text(""), "without one, the Pod's service account"),
    honoured(
        "clientConnection.acceptContentTypes",
        Text(""),
        "by default `contentType`; the first known type is preferred, JSON is always accepted",
    ),
    honoured(
        "clientConnection.contentType",
        Text("application/vnd.kubernetes.protobuf"),
        "or `application/json`, of lists and watches; Events are JSON",
    ),
    idle("clientConnection.qps", Rate, "a node makes few requests"),
    idle("clientConnection.burst", Number(10), "a node makes few requests"),
    honoured("logging.format", Text("text"), "`text` or `json`"),
    idle("logging.flushFrequency", Frequency, "log lines are written at once"),
    honoured("logging.verbosity", Level, "see [Logs](#logs-and-signals)"),
    idle("logging.vmodule", Patterns, "patterns name source files of kube-proxy; use -v"),
    idle("logging.options.text.splitStream", Switch(false), NO_OPTIONS),
    idle("logging.options.text.infoBufferSize", Bytes, NO_OPTIONS),
    idle("logging.options.json.splitStream", Switch(false), NO_OPTIONS),
    idle("logging.options.json.infoBufferSize", Bytes, NO_OPTIONS),
    honoured("hostnameOverride", Text(""), "trimmed and lower-cased"),
    honoured(
        "bindAddress",
        Text("0.0.0.0"),
        "the node's primary address of its family; nothing listens on it",
    ),
    honoured("healthzBindAddress", Text(""), ""),
    honoured("metricsBindAddress", Text(""), ""),
    honoured(
        "bindAddressHardFail",
        Switch(false),
        "exit code 1 if the port for health or metrics cannot be bound; otherwise a retry every 5 s",
    ),
    idle("enableProfiling", Switch(false), "shunt serves no profiles; use perf"),
    idle("showHiddenMetricsForVersion", Text(""), "no metrics are hidden"),
    honoured(
        "mode",
        Text("nftables"),
        "shunt accepts `iptables` and `ipvs`, and programs nftables",
    ),
    honoured(
        "iptables.masqueradeBit",
        Number(14),
        "if `mode` is not `nftables` and `nftables` has none",
    ),
    honoured("iptables.masqueradeAll", Switch(false), "if `mode` is not `nftables`"),
    honoured(
        "iptables.localhostNodePorts",
        Switch(true),
        "if `mode` is `iptables` or empty; see [Node ports on localhost](local-node-ports.md)",
    ),
    honoured(
        "iptables.syncPeriod",
        Duration("30s"),
        "if `mode` is `iptables` or empty and `nftables` has none",
    ),
    honoured(
        "iptables.minSyncPeriod",
        Duration("1s"),
        "if `mode` is `iptables` or empty and `nftables` has none",
    ),
    honoured("ipvs.syncPeriod", Duration("30s"), "if `mode` is `ipvs` and `nftables` has none"),
    honoured("ipvs.minSyncPeriod", Duration("0s"), "if `mode` is `ipvs` and `nftables` has none"),
    honoured(
        "ipvs.scheduler",
        Text(""),
        "if `mode` is `ipvs`: `sh` and `mh` are `shunt.loadBalancing: source-hash`, others `random`",
    ),
    idle("ipvs.excludeCIDRs", List, NOT_IPVS),
    idle("ipvs.strictARP", Switch(false), NOT_IPVS),
    idle("ipvs.tcpTimeout", Duration("0s"), NOT_IPVS),
    idle("ipvs.tcpFinTimeout", Duration("0s"), NOT_IPVS),
    idle("ipvs.udpTimeout", Duration("0s"), NOT_IPVS),
    honoured("nftables.masqueradeBit", Number(14), "the bit of the packet mark, 0 to 31"),
    honoured("nftables.masqueradeAll", Switch(false), ""),
    honoured(
        "nftables.syncPeriod",
        Duration("30s"),
        "a change that waits twice as long makes the agent unhealthy",
    ),
    honoured(
        "nftables.minSyncPeriod",
        Duration("0s"),
        "minimum time between two commits; kube-proxy's default is 1s",
    ),
    idle("winkernel.networkName", Text(""), NOT_WINDOWS),
    idle("winkernel.sourceVip", Text(""), NOT_WINDOWS),
    idle("winkernel.enableDSR", Switch(false), NOT_WINDOWS),
    idle("winkernel.rootHnsEndpointName", Text(""), NOT_WINDOWS),
    idle("winkernel.forwardHealthCheckVip", Switch(false), NOT_WINDOWS),
    honoured("detectLocalMode", Text("ClusterCIDR"), ""),
    honoured("detectLocal.bridgeInterface", Text(""), ""),
    honoured("detectLocal.interfaceNamePrefix", Text(""), ""),
    honoured("clusterCIDR", Text(""), ""),
    honoured(
        "nodePortAddresses",
        List,
        "prefixes, and the words `primary`, `localhost` and `all`; with `mode: nftables` the default is \
         `primary`; see [Node ports on localhost](local-node-ports.md)",
    ),
    honoured("oomScoreAdj", Number(-999), "the OOM score of the agent"),
    honoured("conntrack.maxPerCore", Number(32_768), "0 leaves the limit unchanged"),
    honoured("conntrack.min", Number(131_072), "the minimum of the limit"),
    honoured("conntrack.tcpEstablishedTimeout", Duration("24h0m0s"), "0s leaves it unchanged"),
    honoured("conntrack.tcpCloseWaitTimeout", Duration("1h0m0s"), "0s leaves it unchanged"),
    honoured("conntrack.tcpBeLiberal", Switch(false), ""),
    honoured("conntrack.udpTimeout", Duration("0s"), "0s leaves it unchanged"),
    honoured("conntrack.udpStreamTimeout", Duration("0s"), "0s leaves it unchanged"),
    idle("configSyncPeriod", Duration("15m0s"), "shunt does not resync without a reason"),
    idle("portRange", Text(""), "Kubernetes no longer uses it"),
    idle("windowsRunAsService", Switch(false), NOT_WINDOWS),
    honoured("shunt.resetGoneEndpoints", Switch(false), "see [Resets](resets.md)"),
    honoured(
        "shunt.loadBalancing",
        Text("random"),
        "`random`, `source-hash` or `source-and-port-hash`; see [Load balancing](load-balancing.md)",
    ),
];

impl Field {
    /// Returns the field with that path.
    pub(super) fn at(path: &str) -> Option<&'static Field> {
        FIELDS.iter().find(|field| field.path == path)
    }

    /// Returns true for a value that means the default.
    pub(super) fn is_unset(&self, value: Option<&Value>) -> bool {
        match (value, self.kind) {
            (None, _) => true,
            _ if ZERO_COUNTS.iter().any(|path| self.path.starts_with(path)) => false,
            (Some(value), Text(_)) => value == "",
            (Some(value), _) => is_zero(value),
        }
    }
}

/// Returns why a field has no effect; `None` if it has one, or is unknown. A section stands for its
/// fields.
pub(super) fn without_effect_because(path: &str) -> Option<&'static str> {
    let field = FIELDS.iter().find(|field| field.path == path || is_section(path, field))?;
    match field.effect {
        Effect::Honoured(_) => None,
        Effect::None(reason) => Some(reason),
    }
}

/// Returns true for the path of a section with that field.
pub(super) fn is_section(path: &str, field: &Field) -> bool {
    !path.is_empty() && field.path.strip_prefix(path).is_some_and(|rest| rest.starts_with('.'))
}

pub(super) fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(value) => !value,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => {
            text.is_empty() || GoDuration::parse(text).is_ok_and(GoDuration::is_zero)
        }
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
    }
}

/// Returns the known field with the most similar name.
pub(super) fn similar(name: &str) -> Option<&'static str> {
    let distance = |known: &&str| strsim::osa_distance(known, name);
    if name.len() > 100 {
        return None;
    }
    let sections = FIELDS.iter().filter_map(|field| Some(field.path.split_once('.')?.0));
    let known = FIELDS.iter().map(|field| field.path).chain(sections);
    // A short name resembles many.
    let limit = 3.min(name.len() / 3);
    known.min_by_key(distance).filter(|known| distance(known) <= limit)
}
