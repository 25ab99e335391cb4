//! Where packets are sent: to everything that the Services in the API server have, and beside it.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use anyhow::Result;
use serde_json::Value;
use shunt_fake_apiserver::{Kind, Kubernetes, Marker};
use shunt_testbed::Protocol;

/// The node's addresses, primary, secondary and loopback.
const NODE: [&str; 6] =
    ["192.0.2.10", "192.0.2.11", "127.0.0.1", "2001:db8:2::10", "2001:db8:2::11", "::1"];
/// The pods of the node.
const PODS: [(&str, [&str; 2]); 2] =
    [("pod-1", ["10.244.0.11", "fd00:244::11"]), ("pod-2", ["10.244.0.12", "fd00:244::12"])];
/// In the ServiceCIDRs, and of no Service.
const UNALLOCATED: [&str; 2] = ["10.96.77.77", "fd00:96::7777"];
const UNLISTED: u16 = 9;
const NO_NODE_PORT: u16 = 32_700;

/// Where a packet is sent, and what is known about the answer.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Target {
    pub(crate) protocol: Protocol,
    pub(crate) to: SocketAddr,
    /// The name of the Service.
    pub(crate) service: String,
    /// A client stays with the endpoint it had first.
    pub(crate) sticky: bool,
    /// The pods of the node that are endpoints in any slice, ready or not.
    pub(crate) pods: BTreeSet<String>,
}

/// Everything that can be tried on the Services that there are.
pub(crate) fn targets(kubernetes: &Kubernetes) -> Result<Vec<Target>> {
    let reply = kubernetes.admin().get(&Kind::Service.path())?;
    let slices = kubernetes.admin().get(&Kind::EndpointSlice.path())?;
    let mut targets = Targets::default();
    for service in reply.body["items"].as_array().into_iter().flatten() {
        targets.add_service(service);
    }
    for slice in slices.body["items"].as_array().into_iter().flatten() {
        targets.add_pods(slice);
    }
    for ip in UNALLOCATED {
        targets.add(Protocol::Tcp, ip, 80, "no Service", false);
        targets.add(Protocol::Udp, ip, 80, "no Service", false);
    }
    for ip in NODE {
        targets.add(Protocol::Tcp, ip, NO_NODE_PORT, "no Service", false);
        targets.add(Protocol::Udp, ip, NO_NODE_PORT, "no Service", false);
    }
    // Services that want the same are judged once.
    let mut seen = BTreeSet::new();
    Ok(targets.0.into_iter().filter(|target| seen.insert((target.protocol, target.to))).collect())
}

#[derive(Default)]
struct Targets(BTreeSet<Target>);

impl Targets {
    fn add(&mut self, protocol: Protocol, ip: &str, port: u16, service: &str, sticky: bool) {
        if let Ok(ip) = ip.parse::<IpAddr>() {
            let to = SocketAddr::new(ip, port);
            let (service, pods) = (service.to_owned(), BTreeSet::new());
            self.0.insert(Target { protocol, to, service, sticky, pods });
        }
    }

    fn add_pods(&mut self, slice: &Value) {
        let service = slice["metadata"]["labels"]["kubernetes.io/service-name"].as_str();
        let endpoints = slice["endpoints"].as_array().into_iter().flatten();
        let addresses: BTreeSet<&str> =
            endpoints.filter_map(|endpoint| endpoint["addresses"][0].as_str()).collect();
        let pods = PODS.iter().filter(|(_, ips)| ips.iter().any(|ip| addresses.contains(ip)));
        let pods: BTreeSet<String> = pods.map(|(name, _)| (*name).to_owned()).collect();
        let add = |mut target: Target| {
            if Some(target.service.as_str()) == service {
                target.pods.extend(pods.iter().cloned());
            }
            target
        };
        self.0 = std::mem::take(&mut self.0).into_iter().map(add).collect();
    }

    fn add_service(&mut self, service: &Value) {
        let name = service["metadata"]["name"].as_str().unwrap_or_default();
        // It changes all the time, and is looked at by who changes it.
        if name == Marker::NAME {
            return;
        }
        let spec = &service["spec"];
        let sticky = spec["sessionAffinity"] == "ClientIP";
        let ingress = service["status"]["loadBalancer"]["ingress"].as_array();
        let ips: Vec<&str> = [&spec["clusterIPs"], &spec["externalIPs"]]
            .into_iter()
            .filter_map(Value::as_array)
            .flatten()
            .chain(ingress.into_iter().flatten().map(|ingress| &ingress["ip"]))
            .filter_map(Value::as_str)
            .collect();
        for port in spec["ports"].as_array().into_iter().flatten() {
            let protocol = match port["protocol"].as_str() {
                Some("UDP") => Protocol::Udp,
                Some("SCTP") => Protocol::Sctp,
                _ => Protocol::Tcp,
            };
            let number = |field: &str| port[field].as_u64().and_then(|n| u16::try_from(n).ok());
            for ip in &ips {
                self.add(protocol, ip, number("port").unwrap_or_default(), name, sticky);
                self.add(protocol, ip, UNLISTED, name, false);
            }
            for ip in NODE {
                if let Some(node_port) = number("nodePort") {
                    self.add(protocol, ip, node_port, name, sticky);
                }
            }
        }
    }
}
