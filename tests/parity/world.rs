//! Two equal testbeds with one kube-apiserver: kube-proxy in one of them, the agent in the other.

use std::cell::Cell;
use std::fmt::Display;

use anyhow::{Context, Result};
use serde_json::{Value, json};
use shunt_fake_apiserver::{Gate, Kubeconfig, Kubernetes, Marker};
use shunt_testbed::{Agent, Echo, Host, Program, TempDir, Topology};

/// The port that servers listen on, and others that endpoints may have.
pub(crate) const TARGET: u16 = 8080;
pub(crate) const OTHER_TARGET: u16 = 8081;

/// The configuration of both: pods are known by their addresses.
pub(crate) const CLUSTER_CIDR: &str =
    "detectLocalMode: ClusterCIDR\nclusterCIDR: 10.244.0.0/16,fd00:244::/48\n";

/// The primary addresses of the node, with their types.
pub(crate) const ADDRESSES: [(&str, &str); 2] =
    [("InternalIP", "192.0.2.10"), ("InternalIP", "2001:db8:2::10")];

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
        lab.route_services(&lab.node2)?;
        let (gate, kubeconfig) = kubernetes.reach(&lab.node)?;
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
    marker: Marker,
    zone: Cell<Option<&'static str>>,
    addresses: &'a [(&'a str, &'a str)],
    _folder: TempDir,
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
        let folder = TempDir::new()?;
        let of_kube_proxy =
            format!("logging: {{verbosity: 4}}\n{}", configuration(&reference, settings));
        let node = &reference.lab.node;
        let kube_proxy = kubernetes.kube_proxy(node, &of_kube_proxy, folder.path())?;
        let agent = Agent::builder(env!("CARGO_BIN_EXE_shunt"), &shunt.lab.node)
            .config(&configuration(&shunt, settings))?
            .start()?;
        let (marker, zone) = (Marker::default(), Cell::new(None));
        let world = Self {
            kubernetes,
            reference,
            shunt,
            agent,
            kube_proxy,
            marker,
            zone,
            addresses,
            _folder: folder,
        };
        Kubernetes::wait_for_kube_proxy(&world.kube_proxy, &world.reference.lab.node)?;
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

    /// Waits until both have done all that was written before.
    pub(crate) fn settle(&self) -> Result<()> {
        for object in self.marker.next(self.zone.get()) {
            self.put(object)?;
        }
        for side in self.sides() {
            self.marker
                .wait(side.lab.from(&side.lab.client))
                .with_context(|| format!("{}\n{}", side.name, self.logs()))?;
        }
        Ok(())
    }

    /// What both have logged.
    pub(crate) fn logs(&self) -> String {
        let kube_proxy = self.kube_proxy.log();
        let lines: Vec<&str> = kube_proxy.lines().collect();
        let end = lines[lines.len().saturating_sub(60)..].join("\n");
        format!("── kube-proxy ──\n{end}\n── shunt ──\n{}", self.agent.log())
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
