//! What both tell over HTTP.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use shunt_fake_apiserver::Kubernetes;
use shunt_testbed::{EndpointSlice, Exposition, HttpAnswer, Service, http_get, patience};

use crate::world::{Side, World};

const HEALTH: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 10_256);
const METRICS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 10_249);

/// Settings that are not the same, and why.
const OTHER_SETTINGS: [&str; 9] = [
    // Each has its own.
    ".clientConnection.kubeconfig",
    // Only kube-proxy is asked for more of a log.
    ".logging.verbosity",
    // Sysctls are set where the configuration asks for them.
    ".conntrack.tcpCloseWaitTimeout",
    ".conntrack.tcpEstablishedTimeout",
    // Periods of modes that are not in use: kube-proxy shows none, we what they would be.
    ".iptables.minSyncPeriod",
    ".iptables.syncPeriod",
    ".ipvs.minSyncPeriod",
    ".ipvs.syncPeriod",
    // An empty list and none are the same.
    ".ipvs.excludeCIDRs",
];

/// The answers of health checks for a Service.
pub(crate) fn health_checks(kubernetes: &Kubernetes) -> Result<()> {
    let world = World::new(kubernetes)?;
    let lab = &world.shunt.lab;
    let service = |port: u16| {
        Service::everywhere("s", 11)
            .spec("externalTrafficPolicy: Local")
            .spec(&format!("healthCheckNodePort: {port}"))
    };
    world.put(service(31_999))?;
    for hosts in [&[][..], &[&lab.pod1], &lab.pods(), &[&lab.pod3]] {
        world.put(EndpointSlice::of("s", hosts))?;
        world.settle()?;
        for address in ["192.0.2.10", "192.0.2.11", "2001:db8:2::10", "2001:db8:2::11"] {
            for path in ["/", "/healthz"] {
                let to = SocketAddr::new(address.parse()?, 31_999);
                let ask = |side: &Side| http_get(&side.lab.client, to, path).map(|a| shown(&a));
                same(&world, &format!("{to}{path}, {} endpoints", hosts.len()), ask)?;
            }
        }
    }
    Ok(())
}

/// `/healthz` and `/livez`, while the node is well, tainted and gone.
pub(crate) fn health(kubernetes: &Kubernetes) -> Result<()> {
    let world = World::new(kubernetes)?;
    let compare = |state: &str| {
        for path in ["/healthz", "/livez", "/", "/other"] {
            let ask = |side: &Side| http_get(&side.lab.node, HEALTH, path).map(|a| keys_of(&a));
            same(&world, &format!("{path}, {state}"), ask)?;
        }
        Ok::<_, anyhow::Error>(())
    };
    compare("well")?;
    let taint = |taints: Value| {
        json!({
            "apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-1"},
            "spec": {
                "podCIDR": "10.244.0.0/24", "podCIDRs": ["10.244.0.0/24", "fd00:244::/64"],
                "taints": taints,
            },
        })
    };
    let key = "ToBeDeletedByClusterAutoscaler";
    world.put(taint(json!([{"key": key, "value": "1", "effect": "NoSchedule"}])))?;
    compare("about to be deleted")?;
    world.put(taint(json!([{"key": "other", "effect": "NoSchedule"}])))?;
    compare("with another taint")?;
    Ok(())
}

/// The metrics of kube-proxy, and what else its server offers.
pub(crate) fn metrics(kubernetes: &Kubernetes) -> Result<()> {
    let world = World::new(kubernetes)?;
    world.put(Service::everywhere("s", 11))?;
    world.put(EndpointSlice::of("s", &[&world.shunt.lab.pod1, &world.shunt.lab.pod3]))?;
    world.settle()?;
    let families = |side: &Side| {
        let answer = http_get(&side.lab.node, METRICS, "/metrics")?;
        let own = answer.body.lines().filter(|line| line.contains("kubeproxy_"));
        let own: String = own.flat_map(|line| [line, "\n"]).collect();
        let families = Exposition::parse(&own)?.families.into_iter();
        let described = families.map(|family| {
            let labels = family.samples.iter().flat_map(|sample| sample.labels.keys().cloned());
            (family.name, (family.kind, labels.collect::<BTreeSet<String>>()))
        });
        Ok::<BTreeMap<_, _>, anyhow::Error>(described.collect())
    };
    let (reference, shunt) = (families(&world.reference)?, families(&world.shunt)?);
    let different: Vec<String> = reference
        .iter()
        .filter(|(name, described)| shunt.get(*name) != Some(described))
        .map(|(name, described)| format!("{name}: {described:?}, {:?}", shunt.get(name)))
        .collect();
    ensure!(different.is_empty(), "metrics, kube-proxy's and ours:\n{}", different.join("\n"));
    for path in ["/healthz", "/proxyMode"] {
        let ask = |side: &Side| http_get(&side.lab.node, METRICS, path).map(|a| shown(&a));
        same(&world, path, ask)?;
    }
    let settings = |side: &Side| {
        let answer = http_get(&side.lab.node, METRICS, "/configz")?;
        let body: Value = serde_json::from_str(&answer.body)?;
        Ok::<_, anyhow::Error>(leaves(&body["kubeproxy.config.k8s.io"], ""))
    };
    let (reference, shunt) = (settings(&world.reference)?, settings(&world.shunt)?);
    let meant = |leaf: &&String| !OTHER_SETTINGS.iter().any(|field| leaf.starts_with(field));
    let missing: Vec<&String> = reference.difference(&shunt).filter(meant).collect();
    ensure!(missing.is_empty(), "/configz of kube-proxy has, ours has not: {missing:#?}");
    Ok(())
}

/// Fails unless both say the same before long.
fn same(world: &World<'_>, what: &str, ask: impl Fn(&Side) -> Result<String>) -> Result<()> {
    let deadline = Instant::now() + patience(Duration::from_secs(10));
    loop {
        let [reference, shunt] = world.sides().map(|side| match ask(side) {
            Ok(answer) => answer,
            Err(error) => format!("{}", error.root_cause()),
        });
        if reference == shunt {
            return Ok(());
        }
        ensure!(
            Instant::now() < deadline,
            "{what}\n── kube-proxy ──\n{reference}\n── shunt ──\n{shunt}"
        );
        thread::sleep(Duration::from_millis(20));
    }
}

/// An answer without what changes all the time.
fn shown(answer: &HttpAnswer) -> String {
    format!("{}\n{}", headers(answer), answer.body)
}

fn headers(answer: &HttpAnswer) -> String {
    let changing = ["date:", "content-length:", "connection:", "transfer-encoding:"];
    let kept = answer.headers.lines().skip(1).map(str::to_lowercase);
    let kept: BTreeSet<String> =
        kept.filter(|line| !changing.iter().any(|name| line.starts_with(name))).collect();
    format!("{}\n{}", answer.status, kept.into_iter().collect::<Vec<_>>().join("\n"))
}

/// The same with the times of a JSON answer left out.
fn keys_of(answer: &HttpAnswer) -> String {
    let Ok(body) = serde_json::from_str::<Value>(&answer.body) else { return shown(answer) };
    let leaves = leaves(&body, "").into_iter();
    let leaves = leaves.map(|leaf| match leaf.split_once('=') {
        Some((key, _)) if key.ends_with("Updated") || key.ends_with("Time") => key.to_owned(),
        _ => leaf,
    });
    format!("{}\n{}", headers(answer), leaves.collect::<Vec<_>>().join("\n"))
}

/// Everything in a JSON value, as paths with their values.
fn leaves(value: &Value, path: &str) -> BTreeSet<String> {
    match value {
        Value::Object(fields) => {
            let below = fields.iter();
            below.flat_map(|(key, value)| leaves(value, &format!("{path}.{key}"))).collect()
        }
        Value::Array(items) => {
            let below = items.iter().enumerate();
            below.flat_map(|(i, value)| leaves(value, &format!("{path}[{i}]"))).collect()
        }
        Value::Number(number) => {
            BTreeSet::from([format!("{path}={}", number.as_f64().unwrap_or_default())])
        }
        leaf => BTreeSet::from([format!("{path}={leaf}")]),
    }
}
