//! Manifests: small builders for the objects the agent reads, and a directory to put them in.
//!
//! Each object displays as one YAML document that begins with `---`, so objects are put into one
//! file by writing them one after the other: `format!("{service}{slice}")`.

use std::fmt::{self, Display};
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

/// An object of one of the [`KINDS`]: texts of YAML, by their places in it.
#[derive(Clone, Debug, Default)]
pub struct Object<const KIND: usize> {
    name: String,
    /// Empty for objects that are not in a namespace.
    namespace: String,
    labels: String,
    metadata: String,
    spec: String,
    ports: String,
    node_ports: bool,
    /// The items of its own list: load-balancer addresses, endpoints, or addresses of the Node.
    items: Vec<String>,
    /// Of a slice.
    ipv4: bool,
}

/// A Service. Its type follows from what it has: load-balancer addresses, node ports, or neither.
pub type Service = Object<0>;
/// An EndpointSlice.
pub type EndpointSlice = Object<1>;
/// A Node.
pub type Node = Object<2>;

const KINDS: [&str; 3] = [
    "apiVersion: v1\nkind: Service",
    "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice",
    "apiVersion: v1\nkind: Node",
];

impl<const KIND: usize> Object<KIND> {
    fn named(name: &str, namespace: &str) -> Self {
        Self { name: name.to_owned(), namespace: namespace.to_owned(), ..Self::default() }
    }

    /// Gives it another name.
    pub fn name(mut self, name: &str) -> Self {
        name.clone_into(&mut self.name);
        self
    }

    /// Puts it into another namespace.
    pub fn namespace(mut self, namespace: &str) -> Self {
        namespace.clone_into(&mut self.namespace);
        self
    }

    /// Adds a label.
    pub fn label(mut self, key: &str, value: &str) -> Self {
        self.labels += &format!("{key:?}: {value:?}, ");
        self
    }

    /// Adds a line to `metadata`, such as `annotations: {shunt.dev/weight: "2"}`.
    pub fn metadata(mut self, line: &str) -> Self {
        self.metadata += &format!("  {line}\n");
        self
    }

    /// Adds a line to `spec`, such as `internalTrafficPolicy: Local`.
    pub fn spec(mut self, line: &str) -> Self {
        self.spec += &format!("  {line}\n");
        self
    }

    /// Adds a port; the name of a slice's port is that of the Service's.
    pub fn port(mut self, name: &str, protocol: Protocol, port: u16) -> Self {
        self.ports += &format!("{{name: {name:?}, protocol: {protocol}, port: {port}}}, ");
        self
    }
}

impl Service {
    /// A Service in the namespace `default`, without addresses and ports.
    pub fn new(name: &str) -> Self {
        Self::named(name, "default")
    }

    /// Sets its cluster IPs, one or one of each family.
    pub fn cluster_ips(self, ips: &[&str]) -> Self {
        let first = ips.first().map_or("", |first| first);
        self.spec(&format!("clusterIP: {first:?}\n  clusterIPs: {ips:?}"))
    }

    /// Sets its external IPs.
    pub fn external_ips(self, ips: &[&str]) -> Self {
        self.spec(&format!("externalIPs: {ips:?}"))
    }

    /// Sets the load-balancer addresses in its status.
    pub fn load_balancer(mut self, ips: &[&str]) -> Self {
        self.items = ips.iter().map(|ip| format!("{{ip: {ip:?}}}")).collect();
        self
    }

    /// Adds a port that also has a node port.
    pub fn node_port(mut self, name: &str, protocol: Protocol, port: u16, node_port: u16) -> Self {
        self.node_ports = true;
        self.ports += &format!(
            "{{name: {name:?}, protocol: {protocol}, port: {port}, nodePort: {node_port}}}, "
        );
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
        let ips =
            [("10.96.0", "fd00:96"), ("198.51.100", "2001:db8:51"), ("203.0.113", "2001:db8:113")]
                .map(|(v4, v6)| ips(v4, v6));
        let [cluster, external, vips] =
            ips.each_ref().map(|ips| ips.each_ref().map(String::as_str));
        Self::new(name)
            .all_protocols(80, Some(30_070 + number))
            .spec("ipFamilyPolicy: RequireDualStack")
            .cluster_ips(&cluster)
            .external_ips(&external)
            .load_balancer(&vips)
    }
}

impl EndpointSlice {
    /// An empty IPv4 slice of the Service of this name; it is called `<service>-v4`.
    pub fn v4(service: &str) -> Self {
        Self { ipv4: true, ..Self::of_service(service, "v4") }
    }

    /// An empty IPv6 slice of the Service of this name; it is called `<service>-v6`.
    pub fn v6(service: &str) -> Self {
        Self::of_service(service, "v6")
    }

    /// The manifests of an IPv4 slice and an IPv6 slice of the same Service, each as `fill` makes it.
    pub fn pair(service: &str, fill: impl Fn(Self) -> Self) -> String {
        format!("{}{}", fill(Self::v4(service)), fill(Self::v6(service)))
    }

    /// Slices of a Service with these ready endpoints, on port 8080 for all protocols.
    pub fn of(service: &str, hosts: &[&Host]) -> String {
        Self::pair(service, |slice| slice.all_protocols(8080).hosts(hosts))
    }

    fn of_service(service: &str, suffix: &str) -> Self {
        let slice = Self::named(&format!("{service}-{suffix}"), "default");
        slice.label("kubernetes.io/service-name", service)
    }

    /// Adds a port for each protocol, as [`Service::all_protocols`] names it.
    pub fn all_protocols(self, port: u16) -> Self {
        let add = |slice: Self, protocol| slice.port(&lower(protocol), protocol, port);
        Protocol::ALL.into_iter().fold(self, add)
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
        let node = host.node.as_ref().map(|node| format!("nodeName: {node:?}, "));
        self.endpoint(&address, &(node.unwrap_or_default() + fields))
    }

    /// Adds an endpoint with these fields, which may be empty.
    pub fn endpoint(mut self, address: &str, fields: &str) -> Self {
        self.items.push(format!("{{addresses: [{address:?}], {fields}}}"));
        self
    }
}

impl Node {
    /// The Node object of a host: its name and, as internal IPs, the primary address of each family.
    pub fn of(host: &Host) -> Self {
        let v4 = host.ipv4.first().map(ToString::to_string);
        let ips = v4.into_iter().chain(host.ipv6.first().map(ToString::to_string));
        let items = ips.map(|ip| format!("{{type: InternalIP, address: {ip:?}}}")).collect();
        Self { items, ..Self::without_addresses(host) }
    }

    /// The same, as long as nothing has written its addresses.
    pub fn without_addresses(host: &Host) -> Self {
        Self::named(&host.name, "")
    }
}

impl<const KIND: usize> Display for Object<KIND> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, namespace, labels, metadata, spec, ports, .. } = self;
        writeln!(f, "---\n{}\nmetadata:\n  name: {name:?}", KINDS[KIND])?;
        if !namespace.is_empty() {
            writeln!(f, "  namespace: {namespace:?}")?;
        }
        writeln!(f, "  labels: {{{labels}}}\n{metadata}")?;
        if KIND == 0 || !spec.is_empty() {
            writeln!(f, "spec:\n{spec}")?;
        }
        let items = self.items.join(", ");
        let family = if self.ipv4 { "IPv4" } else { "IPv6" };
        match KIND {
            0 => {
                let kind = match (self.items.is_empty(), self.node_ports) {
                    (false, _) => "LoadBalancer",
                    (true, true) => "NodePort",
                    (true, false) => "ClusterIP",
                };
                let status = format!("status: {{loadBalancer: {{ingress: [{items}]}}}}");
                writeln!(f, "  type: {kind}\n  ports: [{ports}]\n{status}")
            }
            1 => writeln!(f, "addressType: {family}\nports: [{ports}]\nendpoints: [{items}]"),
            _ => writeln!(f, "status: {{addresses: [{items}]}}"),
        }
    }
}

fn lower(protocol: Protocol) -> String {
    protocol.to_string().to_lowercase()
}
