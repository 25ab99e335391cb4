//! Objects: as kubectl takes them, or in the short forms `service` and `slices`.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use shunt_testbed::{Host, Protocol};

use crate::language::{Frontend, Selection, endpoint_fields};

/// The port that servers listen on.
pub(crate) const TARGET: u16 = 8080;
/// The number of a Service whose name has none.
const NUMBER: u16 = 10;

/// A Service on all kinds of frontends, protocols and families, whose addresses follow from its number:
/// 10 has the ClusterIPs 10.96.0.10 and fd00:96::10, the externalIPs 198.51.100.10 and
/// 2001:db8:51::10, the VIPs 203.0.113.10 and 2001:db8:113::10, port 80 and node port 30080.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
struct ShortService {
    service: String,
    /// Otherwise that at the end of the name, as in `web-11`.
    number: Option<u16>,
    /// Words of a [`Selection`]: which of its frontends, protocols and families it has.
    only: String,
    metadata: Map<String, Value>,
    spec: Map<String, Value>,
    status: Map<String, Value>,
    /// With slices of these endpoints.
    endpoints: Option<Vec<String>>,
}

/// A slice for each family, called `<slices>-v4` and `<slices>-v6`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct ShortSlices {
    slices: String,
    /// The Service, if it has another name than the slices.
    of: Option<String>,
    #[serde(default)]
    only: String,
    #[serde(default)]
    metadata: Map<String, Value>,
    ports: Option<Value>,
    endpoints: Vec<String>,
}

/// Returns objects in full.
pub(crate) fn expand(object: &Value, hosts: &[&Host]) -> Result<Vec<Value>> {
    let short = |key: &str| object.get(key).is_some();
    if short("service") {
        let service: ShortService = serde_path_to_error::deserialize(object.clone())?;
        let mut objects = vec![service.object()?];
        if let Some(endpoints) = service.endpoints {
            let ShortService { service: name, only, .. } = service;
            let (metadata, ports) = (Map::new(), None);
            let slices = ShortSlices { slices: name, of: None, only, metadata, ports, endpoints };
            objects.extend(slices.objects(hosts)?);
        }
        Ok(objects)
    } else if short("slices") {
        let slices: ShortSlices = serde_path_to_error::deserialize(object.clone())?;
        slices.objects(hosts)
    } else if short("kind") {
        Ok(vec![object.clone()])
    } else {
        bail!("neither an object with a kind, nor a short form, service or slices: {object}")
    }
}

impl ShortService {
    fn object(&self) -> Result<Value> {
        let selection = Selection::parse(self.only.split_whitespace())?;
        let has = |frontend| selection.frontends.contains(&frontend);
        let ips = |frontend| addresses(frontend, self.number(), &selection);
        let ports = selection.protocols.iter().map(|protocol| {
            let mut port = port(*protocol, 80);
            if has(Frontend::NodePort) {
                port["nodePort"] = (30_070 + self.number()).into();
            }
            port
        });
        let cluster_ips = ips(Frontend::ClusterIp);
        let kind = match (has(Frontend::LoadBalancer), has(Frontend::NodePort)) {
            (true, _) => "LoadBalancer",
            (false, true) => "NodePort",
            (false, false) => "ClusterIP",
        };
        let policy = if cluster_ips.len() > 1 { "RequireDualStack" } else { "SingleStack" };
        let mut object = json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"name": self.service, "namespace": "default"},
            "spec": {
                "type": kind, "clusterIP": cluster_ips[0], "clusterIPs": cluster_ips,
                "ipFamilyPolicy": policy, "ports": ports.collect::<Vec<_>>(),
            },
        });
        if has(Frontend::ExternalIp) {
            object["spec"]["externalIPs"] = json!(ips(Frontend::ExternalIp));
        }
        if has(Frontend::LoadBalancer) {
            let ingress: Vec<Value> =
                ips(Frontend::LoadBalancer).iter().map(|ip| json!({"ip": ip})).collect();
            object["status"]["loadBalancer"]["ingress"] = ingress.into();
        }
        for (key, fields) in
            [("metadata", &self.metadata), ("spec", &self.spec), ("status", &self.status)]
        {
            for (name, value) in fields {
                object[key][name] = value.clone();
            }
        }
        Ok(object)
    }

    fn number(&self) -> u16 {
        let suffix = self.service.rsplit_once('-').and_then(|(_, number)| number.parse().ok());
        self.number.or(suffix).unwrap_or(NUMBER)
    }
}

impl ShortSlices {
    fn objects(&self, hosts: &[&Host]) -> Result<Vec<Value>> {
        let Selection { protocols, ipv4, ipv6, .. } =
            Selection::parse(self.only.split_whitespace())?;
        let own = || protocols.iter().map(|protocol| port(*protocol, TARGET)).collect();
        let ports = self.ports.clone().unwrap_or_else(own);
        let families = [(ipv4, "v4", "IPv4"), (ipv6, "v6", "IPv6")];
        let families = families.into_iter().filter(|(wanted, ..)| *wanted);
        families
            .map(|(_, suffix, family)| {
                let endpoints = self
                    .endpoints
                    .iter()
                    .map(|text| endpoint(text, hosts, family == "IPv4"))
                    .collect::<Result<Vec<_>>>()?;
                let mut object = json!({
                    "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
                    "metadata": {"name": format!("{}-{suffix}", self.slices), "namespace": "default"},
                    "addressType": family, "ports": ports, "endpoints": endpoints,
                });
                let service = self.of.as_ref().unwrap_or(&self.slices);
                object["metadata"]["labels"]["kubernetes.io/service-name"] = json!(service);
                for (name, value) in &self.metadata {
                    object["metadata"][name] = value.clone();
                }
                Ok(object)
            })
            .collect()
    }
}

fn endpoint(text: &str, hosts: &[&Host], ipv4: bool) -> Result<Value> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let [name, words @ ..] = &words[..] else { bail!("an endpoint without a host") };
    let host = hosts.iter().find(|host| host.name == *name);
    let host = host.with_context(|| format!("there is no host {name:?}"))?;
    let address = host.ips().find(|ip| ip.is_ipv4() == ipv4).context("no address")?;
    let mut fields = endpoint_fields(words)?;
    fields["addresses"] = json!([address.to_string()]);
    if let (Some(node), None) = (&host.node, fields.get("nodeName")) {
        fields["nodeName"] = json!(node);
    }
    Ok(fields)
}

/// A port with the name of its protocol.
fn port(protocol: Protocol, port: u16) -> Value {
    let protocol = protocol.to_string();
    json!({"name": protocol.to_lowercase(), "protocol": protocol, "port": port})
}

fn addresses(frontend: Frontend, number: u16, selection: &Selection) -> Vec<String> {
    let (v4, v6) = match frontend {
        Frontend::ClusterIp => ("10.96.0.", "fd00:96::"),
        Frontend::ExternalIp => ("198.51.100.", "2001:db8:51::"),
        Frontend::LoadBalancer => ("203.0.113.", "2001:db8:113::"),
        Frontend::NodePort => return NODE.map(str::to_owned).into(),
    };
    let both =
        [(selection.ipv4, format!("{v4}{number}")), (selection.ipv6, format!("{v6}{number}"))];
    both.into_iter().filter(|(wanted, _)| *wanted).map(|(_, ip)| ip).collect()
}

/// Primary addresses of the node.
pub(crate) const NODE: [&str; 2] = ["192.0.2.10", "2001:db8:2::10"];

/// Where the frontends of a Service are.
pub(crate) fn frontends(
    service: &Value,
    selection: &Selection,
) -> Result<Vec<(Protocol, SocketAddr)>> {
    let texts = |list: &Value, field: Option<&str>| -> Vec<String> {
        let list = list.as_array().into_iter().flatten();
        list.filter_map(|item| field.map_or(item, |field| &item[field]).as_str())
            .map(str::to_owned)
            .collect()
    };
    let spec = &service["spec"];
    let mut found = Vec::new();
    for port in spec["ports"].as_array().into_iter().flatten() {
        let protocol = Protocol::ALL
            .into_iter()
            .find(|protocol| port["protocol"].as_str().unwrap_or("TCP") == protocol.to_string());
        let protocol = protocol.context("an unknown protocol")?;
        if !selection.protocols.contains(&protocol) {
            continue;
        }
        for frontend in &selection.frontends {
            let (ips, port) = match frontend {
                Frontend::ClusterIp => (texts(&spec["clusterIPs"], None), &port["port"]),
                Frontend::ExternalIp => (texts(&spec["externalIPs"], None), &port["port"]),
                Frontend::LoadBalancer => (
                    texts(&service["status"]["loadBalancer"]["ingress"], Some("ip")),
                    &port["port"],
                ),
                Frontend::NodePort => (NODE.map(str::to_owned).into(), &port["nodePort"]),
            };
            let Some(port) = port.as_u64().and_then(|port| u16::try_from(port).ok()) else {
                continue;
            };
            for ip in ips {
                let ip: IpAddr = ip.parse().with_context(|| format!("{ip:?} is no address"))?;
                if if ip.is_ipv4() { selection.ipv4 } else { selection.ipv6 } {
                    found.push((protocol, SocketAddr::new(ip, port)));
                }
            }
        }
    }
    Ok(found)
}

/// Where the frontends of the Service of this number are, whether or not there is one.
pub(crate) fn frontends_of(
    number: u16,
    selection: &Selection,
) -> Result<Vec<(Protocol, SocketAddr)>> {
    let service = ShortService { number: Some(number), ..ShortService::default() };
    frontends(&service.object()?, selection)
}
