//! Manifests: small builders for the objects the agent reads, and a directory to put them in.
//!
//! Each object displays as one YAML document that begins with `---`, so objects are put into one
//! file by writing them one after the other: `format!("{service}{slice}")`.

use std::fmt::{self, Display, Write};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::probe::Protocol;
use crate::topology::Host;
use tempfile::TempDir;

/// A directory of manifests. It is gone when it is dropped.
pub struct ManifestDir {
    scratch: TempDir,
    path: PathBuf,
}

impl ManifestDir {
    /// Makes an empty one.
    pub fn new() -> Result<Self> {
        let scratch = TempDir::new()?;
        let path = scratch.path().join("manifests");
        fs::create_dir(&path)?;
        Ok(Self { scratch, path })
    }

    /// The directory, for `--manifests`.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes or replaces a file; a reader sees the old content or the new, never a part.
    pub fn write(&self, file: &str, content: impl Display) -> Result<()> {
        // The new file grows outside of the directory, on the same file system.
        let growing = self.scratch.path().join(file);
        fs::write(&growing, content.to_string())
            .and_then(|()| fs::rename(&growing, self.path.join(file)))
            .with_context(|| format!("cannot write the manifest {file}"))
    }

    /// Removes a file.
    pub fn remove(&self, file: &str) -> Result<()> {
        fs::remove_file(self.path.join(file))
            .with_context(|| format!("cannot remove the manifest {file}"))
    }
}

impl AsRef<Path> for ManifestDir {
    fn as_ref(&self) -> &Path {
        &self.path
    }
}

/// A Service. Its type follows from what it has: load-balancer addresses, node ports, or neither.
#[derive(Clone, Debug)]
pub struct Service {
    meta: Meta,
    ingress: Vec<String>,
    ports: Vec<String>,
    node_ports: bool,
    spec: Vec<String>,
}

impl Service {
    /// A Service in the namespace `default`, without addresses and ports.
    pub fn new(name: &str) -> Self {
        Self {
            meta: Meta::new(name),
            ingress: Vec::new(),
            ports: Vec::new(),
            node_ports: false,
            spec: Vec::new(),
        }
    }

    /// Puts it into another namespace.
    pub fn namespace(mut self, namespace: &str) -> Self {
        self.meta.namespace = namespace.to_owned();
        self
    }

    /// Adds a label.
    pub fn label(mut self, key: &str, value: &str) -> Self {
        self.meta.labels.push((key.to_owned(), value.to_owned()));
        self
    }

    /// Sets its cluster IPs, one or one of each family.
    pub fn cluster_ips(self, ips: &[&str]) -> Self {
        let first = ips.first().map_or("", |first| first);
        self.spec(&format!("clusterIP: {first:?}")).spec(&format!("clusterIPs: {ips:?}"))
    }

    /// Sets its external IPs.
    pub fn external_ips(self, ips: &[&str]) -> Self {
        self.spec(&format!("externalIPs: {ips:?}"))
    }

    /// Sets the load-balancer addresses in its status.
    pub fn load_balancer(mut self, ips: &[&str]) -> Self {
        self.ingress = ips.iter().map(|ip| format!("{{ip: {ip:?}}}")).collect();
        self
    }

    /// Adds a port.
    pub fn port(mut self, name: &str, protocol: Protocol, port: u16) -> Self {
        self.ports.push(format!("{{name: {name:?}, protocol: {protocol}, port: {port}}}"));
        self
    }

    /// Adds a port that also has a node port.
    pub fn node_port(mut self, name: &str, protocol: Protocol, port: u16, node_port: u16) -> Self {
        self.node_ports = true;
        self.ports.push(format!(
            "{{name: {name:?}, protocol: {protocol}, port: {port}, nodePort: {node_port}}}"
        ));
        self
    }

    /// Adds a port for each protocol, named after it.
    pub fn all_protocols(self, port: u16, node_port: Option<u16>) -> Self {
        Protocol::ALL.into_iter().fold(self, |service, protocol| match node_port {
            Some(node_port) => service.node_port(&lower(protocol), protocol, port, node_port),
            None => service.port(&lower(protocol), protocol, port),
        })
    }

    /// A Service with every kind of frontend, in both families and on all protocols. Its addresses and
    /// node port (30070 and more) follow from the number; the port is 80.
    pub fn everywhere(name: &str, number: u16) -> Self {
        let ips = |v4: &str, v6: &str| [format!("{v4}.{number}"), format!("{v6}::{number}")];
        let cluster = ips("10.96.0", "fd00:96");
        let external = ips("198.51.100", "2001:db8:51");
        let vips = ips("203.0.113", "2001:db8:113");
        Self::new(name)
            .all_protocols(80, Some(30_070 + number))
            .spec("ipFamilyPolicy: RequireDualStack")
            .cluster_ips(&[&cluster[0], &cluster[1]])
            .external_ips(&[&external[0], &external[1]])
            .load_balancer(&[&vips[0], &vips[1]])
    }

    /// Adds a line to `spec`, such as `internalTrafficPolicy: Local`.
    pub fn spec(mut self, line: &str) -> Self {
        self.spec.push(line.to_owned());
        self
    }

    /// Adds a line to `metadata`, such as `creationTimestamp: 2026-01-01T00:00:00Z`.
    pub fn metadata(mut self, line: &str) -> Self {
        self.meta.lines.push(line.to_owned());
        self
    }
}

impl Display for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match (self.ingress.is_empty(), self.node_ports) {
            (false, _) => "LoadBalancer",
            (true, true) => "NodePort",
            (true, false) => "ClusterIP",
        };
        write!(f, "---\napiVersion: v1\nkind: Service\n{}spec:\n  type: {kind}\n", self.meta)?;
        for line in &self.spec {
            writeln!(f, "  {line}")?;
        }
        writeln!(f, "  ports:{}", list(&self.ports, "  "))?;
        if !self.ingress.is_empty() {
            writeln!(f, "status:\n  loadBalancer:\n    ingress:{}", list(&self.ingress, "    "))?;
        }
        Ok(())
    }
}

/// An EndpointSlice.
#[derive(Clone, Debug)]
pub struct EndpointSlice {
    meta: Meta,
    ipv4: bool,
    ports: Vec<String>,
    endpoints: Vec<String>,
}

impl EndpointSlice {
    /// An empty IPv4 slice of the Service of this name; it is called `<service>-v4`.
    pub fn v4(service: &str) -> Self {
        Self::new(service, true)
    }

    /// An empty IPv6 slice of the Service of this name; it is called `<service>-v6`.
    pub fn v6(service: &str) -> Self {
        Self::new(service, false)
    }

    /// The manifests of an IPv4 slice and an IPv6 slice of the same Service, each as `fill` makes it.
    pub fn pair(service: &str, fill: impl Fn(Self) -> Self) -> String {
        format!("{}{}", fill(Self::v4(service)), fill(Self::v6(service)))
    }

    fn new(service: &str, ipv4: bool) -> Self {
        let suffix = if ipv4 { "v4" } else { "v6" };
        let mut meta = Meta::new(&format!("{service}-{suffix}"));
        meta.labels.push(("kubernetes.io/service-name".to_owned(), service.to_owned()));
        Self { meta, ipv4, ports: Vec::new(), endpoints: Vec::new() }
    }

    /// Gives it another name.
    pub fn name(mut self, name: &str) -> Self {
        self.meta.name = name.to_owned();
        self
    }

    /// Puts it into another namespace.
    pub fn namespace(mut self, namespace: &str) -> Self {
        self.meta.namespace = namespace.to_owned();
        self
    }

    /// Adds a line to `metadata`, such as `annotations: {shunt.dev/weight: "2"}`.
    pub fn metadata(mut self, line: &str) -> Self {
        self.meta.lines.push(line.to_owned());
        self
    }

    /// Adds a port; the name is that of the Service's port.
    pub fn port(mut self, name: &str, protocol: Protocol, port: u16) -> Self {
        self.ports.push(format!("{{name: {name:?}, protocol: {protocol}, port: {port}}}"));
        self
    }

    /// Adds a port for each protocol, as [`Service::all_protocols`] names it.
    pub fn all_protocols(self, port: u16) -> Self {
        Protocol::ALL
            .into_iter()
            .fold(self, |slice, protocol| slice.port(&lower(protocol), protocol, port))
    }

    /// Adds hosts as ready endpoints, by their address of the slice's family.
    pub fn hosts(self, hosts: &[&Host]) -> Self {
        hosts.iter().fold(self, |slice, host| slice.host(host, "conditions: {ready: true}"))
    }

    /// Adds a host as an endpoint with these fields, such as
    /// `conditions: {ready: false, serving: true, terminating: true}`.
    pub fn host(self, host: &Host, fields: &str) -> Self {
        let ip = host.ips().find(|ip| ip.is_ipv4() == self.ipv4);
        let address = ip.map(|ip| ip.to_string()).unwrap_or_default();
        match &host.node {
            Some(node) => self.endpoint(&address, &format!("nodeName: {node:?}, {fields}")),
            None => self.endpoint(&address, fields),
        }
    }

    /// Adds an endpoint with these fields, which may be empty.
    pub fn endpoint(mut self, address: &str, fields: &str) -> Self {
        self.endpoints.push(format!("{{addresses: [{address:?}], {fields}}}"));
        self
    }
}

impl Display for EndpointSlice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n{}addressType: {}\n\
             ports:{}\nendpoints:{}",
            self.meta,
            if self.ipv4 { "IPv4" } else { "IPv6" },
            list(&self.ports, ""),
            list(&self.endpoints, ""),
        )
    }
}

/// A Node.
#[derive(Clone, Debug)]
pub struct Node {
    meta: Meta,
    addresses: Vec<String>,
    spec: Vec<String>,
}

impl Node {
    /// The Node object of a host: its name and, as internal IPs, the primary address of each family.
    pub fn of(host: &Host) -> Self {
        let ips = host.ipv4.first().map(ToString::to_string).into_iter();
        let ips = ips.chain(host.ipv6.first().map(ToString::to_string));
        let addresses = ips.map(|ip| format!("{{type: InternalIP, address: {ip:?}}}")).collect();
        let mut meta = Meta::new(&host.name);
        meta.namespace.clear();
        Self { meta, addresses, spec: Vec::new() }
    }

    /// The same, as long as nothing has written its addresses.
    pub fn without_addresses(host: &Host) -> Self {
        Self { addresses: Vec::new(), ..Self::of(host) }
    }

    /// Adds a label.
    pub fn label(mut self, key: &str, value: &str) -> Self {
        self.meta.labels.push((key.to_owned(), value.to_owned()));
        self
    }

    /// Adds a line to `spec`, such as `podCIDRs: ["10.244.0.0/24"]`.
    pub fn spec(mut self, line: &str) -> Self {
        self.spec.push(line.to_owned());
        self
    }
}

impl Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "---\napiVersion: v1\nkind: Node\n{}", self.meta)?;
        if !self.spec.is_empty() {
            writeln!(f, "spec:\n  {}", self.spec.join("\n  "))?;
        }
        writeln!(f, "status:\n  addresses:{}", list(&self.addresses, "  "))
    }
}

/// The part called `metadata`.
#[derive(Clone, Debug)]
struct Meta {
    /// Empty for objects that are not in a namespace.
    namespace: String,
    name: String,
    labels: Vec<(String, String)>,
    lines: Vec<String>,
}

impl Meta {
    fn new(name: &str) -> Self {
        Self {
            namespace: "default".to_owned(),
            name: name.to_owned(),
            labels: Vec::new(),
            lines: Vec::new(),
        }
    }
}

impl Display for Meta {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "metadata:\n  name: {:?}", self.name)?;
        if !self.namespace.is_empty() {
            writeln!(f, "  namespace: {:?}", self.namespace)?;
        }
        for line in &self.lines {
            writeln!(f, "  {line}")?;
        }
        if !self.labels.is_empty() {
            writeln!(f, "  labels:")?;
        }
        self.labels.iter().try_for_each(|(key, value)| writeln!(f, "    {key:?}: {value:?}"))
    }
}

/// A YAML list below a key that has just been written.
fn list(items: &[String], indent: &str) -> String {
    if items.is_empty() {
        return " []".to_owned();
    }
    items.iter().fold(String::new(), |mut text, item| {
        let _ = write!(text, "\n{indent}- {item}");
        text
    })
}

fn lower(protocol: Protocol) -> String {
    protocol.to_string().to_lowercase()
}
