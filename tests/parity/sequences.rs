//! Random Services, slices and zones in a small universe, changed step by step.
//!
//! `SHUNT_SEED` and `SHUNT_PARITY_STEPS` make a run another one, or a longer one.

use std::collections::BTreeMap;
use std::env;

use anyhow::{Context, Result};
use serde_json::{Value, json};
use shunt_fake_apiserver::{Key, Kind, Kubernetes};
use shunt_testbed::{Random, seed};

use crate::flows::say;
use crate::world::{CLUSTER_CIDR, World};

const STEPS: usize = 10;
/// The same each time, unless more steps are asked for.
const SEED: u64 = 1;
const SERVICES: usize = 4;

const PORTS: [(&str, &str, u16); 6] = [
    ("a", "TCP", 80),
    ("b", "UDP", 80),
    ("c", "TCP", 81),
    ("d", "SCTP", 80),
    ("e", "UDP", 53),
    ("", "TCP", 80),
];
/// Addresses and node of all that can be an endpoint.
const HOSTS: [(&str, &str, &str); 5] = [
    ("10.244.0.11", "fd00:244::11", "node-1"),
    ("10.244.0.12", "fd00:244::12", "node-1"),
    ("10.244.1.21", "fd00:244:1::21", "node-2"),
    ("192.0.2.10", "2001:db8:2::10", "node-1"),
    ("192.0.2.20", "2001:db8:2::20", "node-2"),
];
const RANGES: [&str; 8] = [
    "192.0.2.0/24",
    "192.0.2.100/32",
    "10.244.0.0/16",
    "0.0.0.0/0",
    "2001:db8:2::/64",
    "fd00::/8",
    "::/0",
    " 192.0.2.10/32",
];

/// How both are configured: one of these.
const SETTINGS: [&str; 4] = [
    CLUSTER_CIDR,
    "",
    "detectLocalMode: InterfaceNamePrefix\ndetectLocal: {interfaceNamePrefix: veth-}\n\
     nftables: {masqueradeAll: true, minSyncPeriod: 1ms}\n",
    "detectLocalMode: NodeCIDR\nnodePortAddresses: ['192.0.2.0/24', '::/0']\n",
];

/// What the generator remembers of what there is.
struct Universe {
    random: Random,
    /// Whether Services may have session affinity.
    affinity: bool,
    /// Addresses, which a Service keeps as long as it is there.
    services: BTreeMap<usize, Vec<String>>,
}

/// Compares after each of many random steps.
pub(crate) fn sequences(kubernetes: &Kubernetes) -> Result<()> {
    let steps = env::var("SHUNT_PARITY_STEPS").ok().and_then(|text| text.parse().ok());
    let seed = seed(if steps.is_some() { None } else { Some(SEED) })?;
    let steps = steps.unwrap_or(STEPS);
    let mut random = Random::new(seed);
    let settings = *random.one_of(&SETTINGS);
    // Without knowing the pods nothing is masqueraded for a ClusterIP, so that some endpoints cannot
    // answer: with which of them a client stays is chance.
    let affinity = !settings.is_empty();
    let mut universe = Universe { random, affinity, services: BTreeMap::new() };
    let world = World::configured(kubernetes, settings)?;
    let mut history = Vec::new();
    for step in 0..steps {
        for _ in 0..1 + universe.random.below(4) {
            history.push(universe.change(&world)?);
        }
        let recent = || history[history.len().saturating_sub(12)..].join("\n");
        let compared = world.compare(&format!("step {step}"));
        let cells = compared
            .with_context(|| format!("SHUNT_SEED={seed}, {settings:?}, after:\n{}", recent()))?;
        if env::var_os("SHUNT_PARITY_VERBOSE").is_some() {
            let last = history.last().map_or("", |last| last.as_str());
            say(&format!("SHUNT_SEED={seed}, step {step}: {cells} cells; {last:.120}"))?;
        }
    }
    Ok(())
}

impl Universe {
    fn chance(&mut self, of_ten: usize) -> bool {
        self.random.below(10) < of_ten
    }

    /// Changes something, and says what.
    fn change(&mut self, world: &World<'_>) -> Result<String> {
        match self.random.below(20) {
            0..8 => self.change_service(world),
            8..17 => self.change_slice(world),
            17 => {
                let zone = *self.random.one_of(&[Some("a"), Some("b"), None]);
                world.set_zone(zone)?;
                Ok(format!("zone {zone:?}"))
            }
            18 => {
                let n = self.random.below(SERVICES);
                self.delete_service(world, n)
            }
            _ => {
                let (n, k) = (self.random.below(SERVICES), self.random.below(2));
                let family = *self.random.one_of(&["v4", "v6"]);
                let key = Key::new(Kind::EndpointSlice, &format!("s{n}-{k}-{family}"));
                // It need not be there.
                let gone = world.kubernetes.delete(&key).is_ok();
                Ok(format!("delete {key}: {gone}"))
            }
        }
    }

    fn delete_service(&mut self, world: &World<'_>, n: usize) -> Result<String> {
        if self.services.remove(&n).is_some() {
            world.kubernetes.delete(&Key::new(Kind::Service, &format!("s{n}")))?;
        }
        Ok(format!("delete s{n}"))
    }

    fn change_service(&mut self, world: &World<'_>) -> Result<String> {
        let n = self.random.below(SERVICES);
        let known = self.services.get(&n).cloned();
        let ips = known.unwrap_or_else(|| self.addresses(n));
        let service = self.service(n, &ips);
        // The API server knows what a Service may not be or become.
        match world.put(&service) {
            Ok(()) => drop(self.services.insert(n, ips)),
            Err(error) => return Ok(format!("not taken: {error:#}")),
        }
        Ok(service.to_string())
    }

    /// Addresses of one family or both, which are used again by Services of this number.
    fn addresses(&mut self, n: usize) -> Vec<String> {
        let place = self.random.below(2);
        let (v4, v6) = (format!("10.96.1.1{n}{place}"), format!("fd00:96::1:1{n}{place}"));
        match self.random.below(6) {
            0 => vec![v4],
            1 => vec![v6],
            2 => vec![v6, v4],
            _ => vec![v4, v6],
        }
    }

    fn service(&mut self, n: usize, ips: &[String]) -> Value {
        let kind = *self.random.one_of(&["ClusterIP", "NodePort", "LoadBalancer", "LoadBalancer"]);
        let mut ports = Vec::new();
        let alone = self.chance(1);
        let wanted: Vec<usize> = (0..5).filter(|_| self.random.below(2) == 0).collect();
        let wanted = if alone || wanted.is_empty() { vec![5] } else { wanted };
        for i in wanted {
            let (name, protocol, port) = PORTS[i];
            let mut entry = json!({"name": name, "protocol": protocol, "port": port});
            if kind != "ClusterIP" {
                entry["nodePort"] = json!(30_100 + n * 20 + i * 2 + self.random.below(2));
            }
            ports.push(entry);
        }
        let families: Vec<&str> =
            ips.iter().map(|ip| if ip.contains(':') { "IPv6" } else { "IPv4" }).collect();
        let policy = if ips.len() == 2 { "RequireDualStack" } else { "SingleStack" };
        let mut spec = json!({
            "type": kind, "clusterIP": ips[0], "clusterIPs": ips, "ports": ports,
            "ipFamilies": families, "ipFamilyPolicy": policy,
        });
        let mut external: Vec<String> = Vec::new();
        for ip in [format!("198.51.100.{n}"), format!("2001:db8:51::{n}"), format!("203.0.113.{n}")]
        {
            if self.chance(3) {
                external.push(ip);
            }
        }
        if n == 0 && self.chance(3) {
            external.extend(["192.0.2.11".to_owned(), "2001:db8:2::10".to_owned()]);
        }
        if self.chance(1) {
            external.push(ips[0].clone());
        }
        let local = self.chance(5);
        if kind != "ClusterIP" || !external.is_empty() {
            spec["externalTrafficPolicy"] = json!(if local { "Local" } else { "Cluster" });
        }
        spec["externalIPs"] = json!(external);
        if self.chance(4) {
            spec["internalTrafficPolicy"] = json!("Local");
        }
        if self.chance(2) && self.affinity {
            spec["sessionAffinity"] = json!("ClientIP");
        }
        let mut object = json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"name": format!("s{n}"), "namespace": "default"},
        });
        if self.chance(1) {
            let label = "service.kubernetes.io/service-proxy-name";
            object["metadata"]["labels"] = json!({label: "other"});
        }
        if kind == "LoadBalancer" {
            if self.chance(4) {
                let ranges: Vec<&str> = RANGES.into_iter().filter(|_| self.chance(3)).collect();
                spec["loadBalancerSourceRanges"] = json!(ranges);
            }
            let mut ingress = Vec::new();
            for ip in [format!("203.0.113.{n}"), format!("2001:db8:113::{n}")] {
                let mode = *self.random.one_of(&["VIP", "VIP", "VIP", "Proxy"]);
                if self.chance(8) {
                    ingress.push(json!({"ip": ip, "ipMode": mode}));
                }
            }
            object["status"] = json!({"loadBalancer": {"ingress": ingress}});
        }
        object["spec"] = spec;
        object
    }

    fn change_slice(&mut self, world: &World<'_>) -> Result<String> {
        let (n, k) = (self.random.below(SERVICES), self.random.below(2));
        let v4 = self.chance(5);
        let slice = self.slice(n, k, v4);
        world.put(&slice)?;
        Ok(slice.to_string())
    }

    /// Conditions, node and hints of an endpoint.
    fn endpoint(&mut self, host: usize) -> (Value, Option<&'static str>, Value) {
        let conditions = match self.random.below(10) {
            0..5 => json!({"ready": true, "serving": true, "terminating": false}),
            5 => json!({"ready": false, "serving": false, "terminating": false}),
            6 => json!({"ready": false, "serving": true, "terminating": true}),
            7 => json!({"ready": false, "serving": false, "terminating": true}),
            8 => json!({"ready": true, "serving": true, "terminating": true}),
            _ => json!({}),
        };
        let node = (!self.chance(1)).then_some(HOSTS[host].2);
        let zones = match self.random.below(4) {
            0 => json!([{"name": "a"}]),
            1 => json!([{"name": "b"}]),
            2 => json!([{"name": "a"}, {"name": "b"}]),
            _ => json!([]),
        };
        let mut hints = json!({"forZones": zones});
        if self.chance(2) {
            hints["forNodes"] = json!([{"name": HOSTS[host].2}]);
        }
        (conditions, node, hints)
    }

    fn slice(&mut self, n: usize, k: usize, v4: bool) -> Value {
        // Two slices never have the same address and port: of copies that differ kube-proxy takes any.
        let target = if k == 0 { 8080 } else { 8081 };
        let mut ports = Vec::new();
        for (name, protocol, _) in PORTS {
            if self.chance(8) {
                ports.push(json!({"name": name, "protocol": protocol, "port": target}));
            }
        }
        let mut endpoints = Vec::new();
        for (host, (ip4, ip6, _)) in HOSTS.into_iter().enumerate() {
            if !self.chance(4) {
                continue;
            }
            let (conditions, node, hints) = self.endpoint(host);
            let mut endpoint = json!({
                "addresses": [if v4 { ip4 } else { ip6 }],
                "conditions": conditions, "hints": hints,
            });
            if let Some(node) = node {
                endpoint["nodeName"] = json!(node);
            }
            endpoints.push(endpoint);
        }
        let family = if v4 { "v4" } else { "v6" };
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {
                "name": format!("s{n}-{k}-{family}"), "namespace": "default",
                "labels": {"kubernetes.io/service-name": format!("s{n}")},
            },
            "addressType": if v4 { "IPv4" } else { "IPv6" },
            "ports": ports, "endpoints": endpoints,
        })
    }
}
