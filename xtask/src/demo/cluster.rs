//! The cluster of the demo: the testbed's topology, with the objects of `examples/demo`.

use std::fmt;
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use anyhow::{Context as _, Result};
use shunt_testbed::{Echo, EndpointSlice, Host, ManifestDir, Protocol, Tally, Topology};

use super::page::Page;
use crate::command::repository;

/// The manifests, from the root of the repository.
pub(super) const EXAMPLE: &str = "examples/demo";

/// The file among them that lists the backends.
pub(super) const ENDPOINTS: &str = "endpoints.yaml";

/// The backends it lists, and the port that they listen on.
pub(super) const BACKENDS: [&str; 3] = ["pod-1", "pod-2", "pod-3"];
const TARGET_PORT: u16 = 8080;

/// The one that goes away, and the others.
pub(super) const GONE: &str = "pod-2";
pub(super) const REMAINING: [&str; 2] = ["pod-1", "pod-3"];

/// Where `service.yaml` is reached.
const CLUSTER_IPS: [&str; 2] = ["10.96.0.10:80", "[fd00:96::10]:80"];
const NODE_PORT: u16 = 30080;

/// The namespaces, with a server in each backend, a client inside of the cluster, and a copy of the
/// manifests.
pub(super) struct Cluster {
    lab: Topology,
    frontend: Host,
    manifests: ManifestDir,
    _servers: Vec<Echo>,
}

impl Cluster {
    pub(super) fn new() -> Result<Self> {
        let lab = Topology::new()?;
        let frontend = lab.add_pod(&lab.node, "frontend", [10, 244, 0, 10], "fd00:244::10")?;
        Ok(Self { frontend, manifests: copy(EXAMPLE)?, _servers: lab.serve(TARGET_PORT)?, lab })
    }

    /// The node that the agent runs on.
    pub(super) fn node(&self) -> &Host {
        &self.lab.node
    }

    /// The folder that the agent watches.
    pub(super) fn manifests(&self) -> &Path {
        self.manifests.path()
    }

    /// Say who is there.
    pub(super) fn introduce(&self, page: &Page) {
        let lab = &self.lab;
        for (host, role) in [
            (&lab.node, "a node; shunt runs here"),
            (&lab.pod1, "a backend on node-1"),
            (&lab.pod2, "a backend on node-1"),
            (&self.frontend, "a pod on node-1 that connects to the ClusterIPs"),
            (&lab.node2, "another node"),
            (&lab.pod3, "a backend on node-2"),
            (&lab.client, "outside of the cluster; connects to the node ports"),
        ] {
            let (v4, v6) = (host.ipv4[0].to_string(), host.ipv6[0].to_string());
            page.line(format!("{:<9} {v4:<12} {v6:<16} {role}", host.name));
        }
    }

    /// Everywhere that the Service is reached.
    pub(super) fn targets(&self) -> Result<Vec<Target<'_>>> {
        let mut targets = Vec::new();
        for address in CLUSTER_IPS {
            targets.push(Target {
                kind: Kind::ClusterIp,
                client: &self.frontend,
                address: address.parse()?,
            });
        }
        let node = self.node();
        for address in [IpAddr::from(node.ipv4[0]), IpAddr::from(node.ipv6[0])] {
            targets.push(Target {
                kind: Kind::NodePort,
                client: &self.lab.client,
                address: (address, NODE_PORT).into(),
            });
        }
        Ok(targets)
    }

    /// Replace the file that lists the backends by one without the one that goes away.
    pub(super) fn remove_backend(&self) -> Result<()> {
        let remaining = [&self.lab.pod1, &self.lab.pod3];
        let slice = |empty: EndpointSlice, name: &str| {
            empty
                .namespace("demo")
                .name(name)
                .port("http", Protocol::Tcp, TARGET_PORT)
                .hosts(&remaining)
        };
        let ipv4 = slice(EndpointSlice::v4("web"), "web-ipv4");
        let ipv6 = slice(EndpointSlice::v6("web"), "web-ipv6");
        self.manifests.write(ENDPOINTS, format!("{ipv4}{ipv6}"))
    }
}

/// A copy of a folder of manifests, to change without changing the repository.
fn copy(folder: &str) -> Result<ManifestDir> {
    let copy = ManifestDir::new()?;
    let entries = fs::read_dir(repository().join(folder));
    for entry in entries.with_context(|| format!("cannot read {folder}"))? {
        let file = entry?;
        let text = fs::read_to_string(file.path())
            .with_context(|| format!("cannot read {}", file.path().display()))?;
        copy.write(&file.file_name().to_string_lossy(), text)?;
    }
    Ok(copy)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    ClusterIp,
    NodePort,
}

/// An address of the Service, and who connects to it.
pub(super) struct Target<'a> {
    kind: Kind,
    pub(super) client: &'a Host,
    pub(super) address: SocketAddr,
}

impl Target<'_> {
    /// Whether the backends saw the source that they have to take for the client.
    pub(super) fn sources_are_right(&self, tally: &Tally) -> bool {
        let expected = match self.kind {
            Kind::ClusterIp => self.client.ip_like(self.address.ip()),
            Kind::NodePort => Some(self.address.ip()),
        };
        tally.sources().into_iter().eq(expected)
    }
}

impl fmt::Display for Target<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, from) = match self.kind {
            Kind::ClusterIp => ("ClusterIP", "a pod"),
            Kind::NodePort => ("NodePort", "outside"),
        };
        write!(f, "{:<46}", format!("{kind} {}, from {from}:", self.address))
    }
}
