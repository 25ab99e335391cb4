//! The language of scenario files: what a document may say. `README.md` in this folder teaches it.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use shunt_testbed::Protocol;

/// One document.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Scenario {
    /// A plain fact, as the name of a test.
    pub(crate) scenario: String,
    /// Fields of the KubeProxyConfiguration.
    pub(crate) config: Map<String, Value>,
    /// Flags of the agent.
    pub(crate) flags: Vec<String>,
    /// Shell commands of the process that then becomes the agent.
    #[serde(default)]
    pub(crate) prelude: String,
    /// The objects come from an API server in any case, and kube-proxy need not do the same.
    pub(crate) api: Option<ApiServer>,
    /// Hosts with a server on port 8080, or another port, as `node-1:30080`.
    pub(crate) servers: Vec<String>,
    /// Commands for `ip -batch`, by host, before the agent starts.
    pub(crate) ip: BTreeMap<String, String>,
    /// Both pods of the node are on one bridge, `cbr0`.
    pub(crate) bridge: bool,
    /// The addresses of the Node, if they are not the primary ones; without any there is no Node.
    pub(crate) internal_ips: Option<Vec<String>>,
    /// Why kube-proxy is not expected to do the same, if it is not.
    pub(crate) not_kube_proxy: Option<String>,
    /// Why neither shunt nor kube-proxy can do it with kube-apiserver, if so.
    pub(crate) not_api: Option<String>,
    /// Objects that exist before the agent starts.
    pub(crate) objects: Vec<Value>,
    pub(crate) steps: Vec<Step>,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum ApiServer {
    /// The stand-in, which does wrong on command.
    StandIn,
    /// The stand-in, and kube-apiserver.
    Both,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) enum Step {
    /// Makes or replaces objects, and waits until the agent has programmed them.
    Apply(Vec<Value>),
    /// Makes, replaces or, if only their names are given, deletes objects, and waits for nothing.
    Write(Vec<Value>),
    /// Deletes objects, named as `Service/web`; `web` is a Service with its slices.
    Delete(Vec<String>),
    /// What becomes of packets, now.
    Expect(Value),
    /// The same, within half a minute.
    Eventually(Value),
    /// What `shunt explain` says of packets, and what becomes of them then.
    Explain(Value),
    Agent(AgentStep),
    /// Waits for a line of the log with all of these words.
    Log(Vec<String>),
    /// The same, and no other line has them.
    LogOnce(Vec<String>),
    /// Waits until these samples of `/metrics` have these values.
    Metrics(BTreeMap<String, f64>),
    /// From now on, the further servers are these.
    Servers(Vec<String>),
    /// Writes another configuration, and waits until shunt has applied it.
    Config(Map<String, Value>),
    /// Waits until a command of `shunt` on the node says so.
    Shunt(Run),
    /// What a shell says.
    Sh(Run),
    /// The same, within half a minute.
    ShBecomes(Run),
    /// Does this while `shunt trace` runs, and reads what that has seen.
    Trace(Run),
    /// Commands of shells on hosts, which run until the next such step.
    Programs(BTreeMap<String, String>),
    /// Waits until a GET of the client is answered with these texts.
    Http(BTreeMap<String, Vec<String>>),
    /// Changes rules of hosts.
    Nft(BTreeMap<String, String>),
    /// Changes links, addresses and routes of hosts.
    Ip(BTreeMap<String, String>),
    /// Sets sysctls of hosts.
    Sysctl(BTreeMap<String, BTreeMap<String, String>>),
    /// Text that `nft list ruleset` on the node prints, and text that it does not.
    Rules(Text),
    /// The same, within half a minute.
    RulesBecome(Text),
    /// So many transactions were committed on the node since the last such step.
    Transactions(Option<u32>),
    /// Whether another process owns the table `ip shunt`.
    Occupied(bool),
    /// What happens to the connections between the agent and the API server.
    Gate(GateStep),
    /// What the stand-in does wrong from now on: requests and answers in words.
    Faults(Vec<String>),
    /// Waits until exactly one Event has all of these words.
    Events(Vec<Vec<String>>),
    /// Opens UDP sockets or TCP connections to all frontends of a target, from the client or another
    /// host; they keep this name.
    Open(BTreeMap<String, String>),
    /// The next answers that open sockets get, without another try.
    Flows(BTreeMap<String, String>),
    /// The answers that open sockets get within half a minute.
    FlowsBecome(BTreeMap<String, String>),
    /// Open sockets have entries in connection tracking, the same as at the last such step.
    Tracked(Vec<String>),
    /// Waits until open sockets have no entries any more, without sending.
    Untracked(Vec<String>),
}

/// Text that must be there, and text that must not.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Text {
    pub(crate) with: Vec<String>,
    pub(crate) without: Vec<String>,
}

/// A command, and what it must say.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Run {
    pub(crate) run: String,
    pub(crate) on: Option<String>,
    /// What it reads.
    pub(crate) stdin: String,
    pub(crate) exit: i32,
    pub(crate) with: Vec<String>,
    pub(crate) without: Vec<String>,
    /// Of a trace.
    pub(crate) steps: Vec<Step>,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum AgentStep {
    Start,
    Spawn,
    Stop,
    Kill,
    Restart,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum GateStep {
    Refuse,
    Block,
    Abandon,
    Cut,
    Reopen,
    Forget,
}

/// Returns the scenarios of a file. A document with `each`, a list of maps, stands for one scenario
/// for each of them: `$name` becomes its value.
pub(crate) fn parse(text: &str) -> Result<Vec<Scenario>> {
    let documents: Vec<Value> = serde_saphyr::from_multiple(text)?;
    let mut scenarios = Vec::new();
    for mut document in documents {
        let each = document.as_object_mut().and_then(|map| map.remove("each"));
        let variants: Vec<Map<String, Value>> = match each {
            None => vec![Map::new()],
            Some(each) => serde_json::from_value(each).context("each")?,
        };
        let several = variants.len() > 1;
        for (number, variables) in variants.into_iter().enumerate() {
            let name = document["scenario"].clone();
            let mut scenario: Scenario =
                serde_path(substitute(&document, &variables)).with_context(|| name.to_string())?;
            ensure!(!scenario.steps.is_empty(), "{name} has no steps");
            if several {
                scenario.scenario += &format!("_{}", number + 1);
            }
            scenarios.push(scenario);
        }
    }
    Ok(scenarios)
}

fn serde_path(value: Value) -> Result<Scenario> {
    Ok(serde_path_to_error::deserialize(value)?)
}

fn substitute(value: &Value, variables: &Map<String, Value>) -> Value {
    match value {
        Value::String(text) => match text.strip_prefix('$').and_then(|name| variables.get(name)) {
            Some(whole) => whole.clone(),
            None => Value::String(substitute_text(text, variables)),
        },
        Value::Array(list) => list.iter().map(|item| substitute(item, variables)).collect(),
        Value::Object(map) => {
            let pairs = map.iter();
            pairs
                .map(|(key, item)| (substitute_text(key, variables), substitute(item, variables)))
                .collect()
        }
        other => other.clone(),
    }
}

fn substitute_text(text: &str, variables: &Map<String, Value>) -> String {
    // A name may be the beginning of another one.
    let mut variables: Vec<_> = variables.iter().collect();
    variables.sort_by_key(|(name, _)| Reverse(name.len()));
    variables.into_iter().fold(text.to_owned(), |text, (name, value)| match value {
        Value::String(value) => text.replace(&format!("${name}"), value),
        Value::Number(value) => text.replace(&format!("${name}"), &value.to_string()),
        _ => text,
    })
}

/// A kind of frontend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Frontend {
    ClusterIp,
    ExternalIp,
    LoadBalancer,
    NodePort,
}

impl Frontend {
    pub(crate) const ALL: [Self; 4] =
        [Self::ClusterIp, Self::ExternalIp, Self::LoadBalancer, Self::NodePort];
}

/// Which of the frontends of a Service a line is about: words such as `nodePort v6 udp`.
#[derive(Clone, Debug)]
pub(crate) struct Selection {
    pub(crate) frontends: BTreeSet<Frontend>,
    pub(crate) protocols: BTreeSet<Protocol>,
    pub(crate) ipv4: bool,
    pub(crate) ipv6: bool,
}

impl Selection {
    pub(crate) fn parse<'a>(words: impl IntoIterator<Item = &'a str>) -> Result<Self> {
        let (mut frontends, mut protocols) = (BTreeSet::new(), BTreeSet::new());
        let (mut ipv4, mut ipv6) = (false, false);
        for word in words {
            match word {
                "all" => frontends.extend(Frontend::ALL),
                "external" => frontends.extend(&Frontend::ALL[1..]),
                "clusterIP" => drop(frontends.insert(Frontend::ClusterIp)),
                "externalIP" => drop(frontends.insert(Frontend::ExternalIp)),
                "loadBalancer" => drop(frontends.insert(Frontend::LoadBalancer)),
                "nodePort" => drop(frontends.insert(Frontend::NodePort)),
                "tcp" => drop(protocols.insert(Protocol::Tcp)),
                "udp" => drop(protocols.insert(Protocol::Udp)),
                "sctp" => drop(protocols.insert(Protocol::Sctp)),
                "v4" => ipv4 = true,
                "v6" => ipv6 = true,
                _ => bail!(
                    "{word:?} is no frontend (clusterIP, externalIP, loadBalancer, nodePort, external, all), protocol (tcp, udp, sctp) or family (v4, v6)"
                ),
            }
        }
        if frontends.is_empty() {
            frontends.extend(Frontend::ALL);
        }
        if protocols.is_empty() {
            protocols.extend(Protocol::ALL);
        }
        if ipv4 == ipv6 {
            (ipv4, ipv6) = (true, true);
        }
        Ok(Self { frontends, protocols, ipv4, ipv6 })
    }
}

/// What must become of packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Expected {
    /// They reach exactly these servers.
    Reach(Vec<String>, Source),
    /// They all reach the same of these servers: the one that they reached before, if it is among
    /// these.
    Stick(Vec<String>),
    /// They reach these servers, each as often as its number says.
    Share(Vec<(String, u32)>),
    /// The sender gets a reset or an ICMP error at once.
    Refused,
    /// The sender gets no answer.
    Dropped,
    /// No rule of the node touches them.
    Unhandled,
    /// Routing on the way answers with an ICMP error.
    Unreachable,
}

/// Which address servers must see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    Any,
    /// The sender's, except for a pod that reaches itself.
    Preserved,
    /// Another one of the node's.
    Masqueraded,
}

impl Expected {
    pub(crate) fn parse(text: &str) -> Result<Self> {
        if let Some(servers) = text.strip_prefix("sticks ") {
            return Ok(Self::Stick(servers.split_whitespace().map(str::to_owned).collect()));
        }
        if let Some(shares) = text.strip_prefix("shares ") {
            let share = |word: &str| -> Result<_> {
                let (server, share) = word.split_once('=').context("shares pod-1=2")?;
                Ok((server.to_owned(), share.parse()?))
            };
            return Ok(Self::Share(shares.split_whitespace().map(share).collect::<Result<_>>()?));
        }
        let mut servers = Vec::new();
        let mut source = Source::Any;
        for word in text.split_whitespace() {
            match word {
                "refused" | "dropped" | "unhandled" | "unreachable" => {
                    ensure!(text == word, "{text:?}: {word:?} stands alone");
                    return Ok(match word {
                        "refused" => Self::Refused,
                        "dropped" => Self::Dropped,
                        "unreachable" => Self::Unreachable,
                        _ => Self::Unhandled,
                    });
                }
                "preserved" => source = Source::Preserved,
                "masqueraded" => source = Source::Masqueraded,
                server => servers.push(server.to_owned()),
            }
        }
        ensure!(!servers.is_empty(), "{text:?} names no server, nor refused, dropped or unhandled");
        Ok(Self::Reach(servers, source))
    }
}

/// Returns the conditions and other fields of an endpoint, which follow its host: `pod-1 serving
/// zones=a,b nodes=node-1`.
pub(crate) fn endpoint_fields(words: &[&str]) -> Result<Value> {
    let conditions = |ready: bool, serving: bool, terminating: bool| json!({"ready": ready, "serving": serving, "terminating": terminating});
    let mut fields = json!({"conditions": {"ready": true}});
    let named =
        |names: &str| -> Value { names.split(',').map(|name| json!({"name": name})).collect() };
    for word in words {
        match word.split_once('=') {
            Some(("zones", zones)) => fields["hints"]["forZones"] = named(zones),
            Some(("nodes", nodes)) => fields["hints"]["forNodes"] = named(nodes),
            Some(("node", node)) => fields["nodeName"] = json!(node),
            Some(("weight", _)) => bail!("weights are annotations of slices"),
            _ => {
                fields["conditions"] = match *word {
                    "ready" => json!({"ready": true}),
                    "unready" => conditions(false, false, false),
                    "serving" => conditions(false, true, false),
                    "terminating" => conditions(false, true, true),
                    "dying" => conditions(false, false, true),
                    "published" => conditions(true, true, true),
                    "published-dying" => conditions(true, false, true),
                    "unconditional" => json!({}),
                    "nowhere" => {
                        fields["nodeName"] = Value::Null;
                        continue;
                    }
                    _ => bail!("{word:?} says nothing of an endpoint"),
                }
            }
        }
    }
    Ok(fields)
}
