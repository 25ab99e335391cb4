//! Two equal testbeds with one kube-apiserver: kube-proxy in one of them, the agent in the other.

use std::cell::Cell;
use std::fmt::Display;
use std::net::{Ipv4Addr, SocketAddr};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use serde_json::{Value, json};
use shunt_fake_apiserver::{Gate, Kubeconfig, Kubernetes, Program, TOKEN};
use shunt_testbed::{Agent, Echo, Host, Protocol, Scratch, Topology, http_get, patience};

/// The port that servers listen on, and others that endpoints may have.
pub(crate) const TARGET: u16 = 8080;
pub(crate) const OTHER_TARGET: u16 = 8081;

/// The configuration of both: pods are known by their addresses.
pub(crate) const CLUSTER_CIDR: &str =
    "detectLocalMode: ClusterCIDR\nclusterCIDR: 10.244.0.0/16,fd00:244::/48\n";

/// The primary addresses of the node, with their types.
pub(crate) const ADDRESSES: [(&str, &str); 2] =
    [("InternalIP", "192.0.2.10"), ("InternalIP", "2001:db8:2::10")];

/// How long either may take until what was written is in the kernel.
const CONVERGENCE: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(10);

/// A testbed with servers in all hosts of the cluster, and a way to the API server.
pub(crate) struct Side {
    pub(crate) name: &'static str,
    pub(crate) lab: Topology,
    _gate: Gate,
    kubeconfig: Kubeconfig,
    _servers: Vec<Echo>,
}

impl Side {
    pub(crate) fn new(name: &'static str, kubernetes: &Kubernetes) -> Result<Self> {
        let lab = Topology::new()?;
        let mut servers = Vec::new();
        for host in [&lab.pod1, &lab.pod2, &lab.pod3, &lab.node, &lab.node2] {
            for port in [TARGET, OTHER_TARGET] {
                servers.push(Echo::start(&host.ns, &format!("{}:{port}", host.name), port)?);
            }
        }
        // Everybody can send to Services by way of the node.
        for network in ["10.96.0.0/12", "203.0.113.0/24", "198.51.100.0/24"] {
            lab.node2.ip(&format!("route add {network} via {}", lab.node.ipv4[0]))?;
        }
        for network in ["fd00:96::/108", "2001:db8:113::/64", "2001:db8:51::/64"] {
            lab.node2.ip(&format!("route add {network} via {}", lab.node.ipv6[0]))?;
        }
        let gate = Gate::open(&lab.node, kubernetes.connector())?;
        let kubeconfig = Kubeconfig::new(&format!("https://{}", gate.address()))?
            .authority(&kubernetes.authority().pem())?
            .token_file(TOKEN)?;
        Ok(Self { name, lab, _gate: gate, kubeconfig, _servers: servers })
    }

    /// Those who send packets; the node twice, since a masquerade does not show at an address that
    /// it would choose itself.
    pub(crate) fn origins(&self) -> [(&'static str, &Host, bool); 7] {
        let lab = &self.lab;
        [
            ("client", &lab.client, false),
            ("pod-1", &lab.pod1, false),
            ("pod-2", &lab.pod2, false),
            ("pod-3", &lab.pod3, false),
            ("node", &lab.node, false),
            ("node, second address", &lab.node, true),
            ("node-2", &lab.node2, false),
        ]
    }
}

/// Both sides.
pub(crate) struct World<'a> {
    pub(crate) kubernetes: &'a Kubernetes,
    pub(crate) reference: Side,
    pub(crate) shunt: Side,
    pub(crate) agent: Agent,
    pub(crate) kube_proxy: Program,
    marks: Cell<u16>,
    zone: Cell<Option<&'static str>>,
    addresses: &'a [(&'a str, &'a str)],
    _folder: Scratch,
}

impl<'a> World<'a> {
    /// With [`CLUSTER_CIDR`] for both.
    pub(crate) fn new(kubernetes: &'a Kubernetes) -> Result<Self> {
        Self::configured(kubernetes, CLUSTER_CIDR)
    }

    /// With these settings for both.
    pub(crate) fn configured(kubernetes: &'a Kubernetes, settings: &str) -> Result<Self> {
        Self::with_addresses(kubernetes, settings, &ADDRESSES)
    }

    /// With a Node that has these addresses, each behind its type.
    pub(crate) fn with_addresses(
        kubernetes: &'a Kubernetes,
        settings: &str,
        addresses: &'a [(&'a str, &'a str)],
    ) -> Result<Self> {
        let reference = Side::new("kube-proxy", kubernetes)?;
        let shunt = Side::new("shunt", kubernetes)?;
        put_node(kubernetes, None, addresses)?;
        let folder = Scratch::new()?;
        let file = folder.path().join("config.yaml");
        std::fs::write(
            &file,
            format!(
                "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n{}",
                configuration(&reference, settings)
            ),
        )?;
        let kube_proxy = Program::start(
            &reference.lab.node,
            &kubernetes.assets().join("kube-proxy"),
            &[
                format!("--config={}", file.display()),
                format!("--hostname-override={}", reference.lab.node.name),
                "-v=4".to_owned(),
            ],
            folder.path(),
        )?;
        let agent = Agent::builder(env!("CARGO_BIN_EXE_shunt"), &shunt.lab.node)
            .config(&configuration(&shunt, settings))?
            .start()?;
        let (marks, zone) = (Cell::new(0), Cell::new(None));
        let world = Self {
            kubernetes,
            reference,
            shunt,
            agent,
            kube_proxy,
            marks,
            zone,
            addresses,
            _folder: folder,
        };
        world.wait_for_kube_proxy()?;
        world.settle()?;
        Ok(world)
    }

    pub(crate) fn sides(&self) -> [&Side; 2] {
        [&self.reference, &self.shunt]
    }

    /// Makes or replaces objects.
    pub(crate) fn put(&self, manifest: impl Display) -> Result<()> {
        self.kubernetes.put(&manifest.to_string())
    }

    /// Puts the node into a zone, or out of all.
    pub(crate) fn set_zone(&self, zone: Option<&'static str>) -> Result<()> {
        self.zone.set(zone);
        put_node(self.kubernetes, zone, self.addresses)
    }

    /// Waits until both have done all that was written before: a Service and its slices, changed
    /// now, reach both by the same watches as what was changed before them. Hints show the zone.
    pub(crate) fn settle(&self) -> Result<()> {
        let mark = self.marks.get() + 1;
        self.marks.set(mark);
        let expected = if mark.is_multiple_of(2) { "pod-1:8080" } else { "pod-2:8080" };
        for object in marker(mark, self.zone.get()) {
            self.put(object)?;
        }
        for side in self.sides() {
            for ip in ["10.96.255.1", "[fd00:96::ff01]"] {
                let to = format!("{ip}:{}", 1000 + mark);
                let probe = side.lab.from(&side.lab.client).probe(Protocol::Tcp, &to);
                let start = Instant::now();
                // Enough that a second endpoint would show.
                while probe.tally(16, Duration::from_millis(500))?.reached(expected) < 16 {
                    if start.elapsed() > patience(CONVERGENCE) {
                        bail!("{} does not follow: {to}\n{}", side.name, self.logs());
                    }
                    thread::sleep(POLL);
                }
            }
        }
        Ok(())
    }

    /// What both have logged.
    pub(crate) fn logs(&self) -> String {
        let kube_proxy = self.kube_proxy.log().unwrap_or_default();
        let lines: Vec<&str> = kube_proxy.lines().collect();
        let end = lines[lines.len().saturating_sub(60)..].join("\n");
        format!("── kube-proxy ──\n{end}\n── shunt ──\n{}", self.agent.log())
    }

    fn wait_for_kube_proxy(&self) -> Result<()> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 10_256));
        let node = &self.reference.lab.node;
        let start = Instant::now();
        while !http_get(node, address, "/healthz").is_ok_and(|answer| answer.status == 200) {
            ensure!(
                start.elapsed() < patience(CONVERGENCE) && !self.kube_proxy.has_ended(),
                "kube-proxy does not start:\n{}",
                self.kube_proxy.log()?
            );
            thread::sleep(POLL);
        }
        Ok(())
    }
}

/// The configuration of one side. What a namespace cannot set is left alone, and kube-proxy need not
/// pause between two transactions.
pub(crate) fn configuration(side: &Side, settings: &str) -> String {
    // A section can be there only once.
    let nftables = if settings.contains("nftables:") {
        String::new()
    } else {
        "nftables: {minSyncPeriod: 1ms, syncPeriod: 1s}\n".to_owned()
    };
    format!(
        "mode: nftables\nconntrack: {{maxPerCore: 0, min: 0}}\n{nftables}\
         clientConnection: {{kubeconfig: {:?}}}\n{settings}",
        side.kubeconfig.path()
    )
}

/// The Node of both sides.
pub(crate) fn put_node(
    kubernetes: &Kubernetes,
    zone: Option<&str>,
    addresses: &[(&str, &str)],
) -> Result<()> {
    let labels = zone.map_or(json!({}), |zone| json!({"topology.kubernetes.io/zone": zone}));
    let addresses: Vec<Value> =
        addresses.iter().map(|(kind, address)| json!({"type": kind, "address": address})).collect();
    let node = json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": "node-1", "labels": labels},
        "spec": {"podCIDR": "10.244.0.0/24", "podCIDRs": ["10.244.0.0/24", "fd00:244::/64"]},
        "status": {"addresses": addresses},
    });
    kubernetes.put(&node.to_string())
}

/// A Service whose port and endpoint follow from a number.
fn marker(mark: u16, zone: Option<&str>) -> [Value; 3] {
    let service = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": "marker", "namespace": "default"},
        "spec": {
            "clusterIP": "10.96.255.1", "clusterIPs": ["10.96.255.1", "fd00:96::ff01"],
            "ipFamilyPolicy": "RequireDualStack",
            "ports": [{"name": "a", "protocol": "TCP", "port": 1000 + mark}],
        },
    });
    let slice = |family: &str, ips: [&str; 2]| {
        let (here, elsewhere) = (ips[usize::from(mark % 2)], ips[usize::from((mark + 1) % 2)]);
        let endpoint = |ip: &str, zone: Option<&str>| {
            let hints = zone.map_or(json!({}), |zone| json!({"forZones": [{"name": zone}]}));
            json!({"addresses": [ip], "conditions": {"ready": true}, "hints": hints})
        };
        let mut endpoints = vec![endpoint(here, zone)];
        endpoints.extend(zone.map(|_| endpoint(elsewhere, Some("elsewhere"))));
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {
                "name": format!("marker-{}", family.to_lowercase()), "namespace": "default",
                "labels": {"kubernetes.io/service-name": "marker"},
            },
            "addressType": family,
            "ports": [{"name": "a", "protocol": "TCP", "port": TARGET}],
            "endpoints": endpoints,
        })
    };
    [
        service,
        slice("IPv4", ["10.244.0.11", "10.244.0.12"]),
        slice("IPv6", ["fd00:244::11", "fd00:244::12"]),
    ]
}
