//! The objects of `--with`: those of now as they would be after `kubectl apply` of these files.

use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, anyhow, ensure};
use ipnet::IpNet;
use shunt_core::model::{ObjectName, Store};

use crate::serve::query::Objects;
use crate::source::manifests::{Context, manifests_at, parse, read};
use crate::source::objects::raw::{Ingress, Service, Time};
use crate::source::spanned_yaml::{Diagnostic, Severity};

/// Applies the objects in files and directories to those of now. `-` is stdin.
pub(super) fn apply(paths: &[PathBuf], objects: &mut Objects) -> anyhow::Result<Examples> {
    let (store, _) = objects.planned();
    let mut server = ServerDefaults { store: &store, examples: Examples::default() };
    let mut complete = |service: &mut Service| server.complete(service);
    let node_name: Arc<str> = objects.status.node.as_str().into();
    let mut context = Context { node_name, complete: Some(&mut complete), ..Context::default() };
    let mut files = Vec::new();
    for path in paths {
        let name = path.display();
        let found = manifests_at(path).with_context(|| format!("cannot read {name}"))?;
        ensure!(!found.is_empty(), "{name} has no file whose name ends with .yaml, .yml or .json");
        files.extend(found);
    }
    for path in files {
        let name = path.display();
        let bytes = read(&path).map_err(|reason| anyhow!("{name}: {reason}"))?;
        let bytes = bytes.with_context(|| format!("{name} is not a file"))?;
        let file: Arc<Path> = path.as_path().into();
        let found = parse(&file, &bytes, &mut context).map_err(|problem| anyhow!("{problem}"))?;
        let is_wrong = |problem: &&Diagnostic| problem.severity != Severity::Note;
        found.problems.iter().filter(is_wrong).for_each(Diagnostic::log);
        let changes = found.objects.into_iter().filter_map(|object| object.change);
        objects.changes.extend(changes);
    }
    Ok(server.examples)
}

/// What only an API server allocates.
#[derive(Default)]
pub(super) struct Examples {
    pub(super) cluster_ips: Vec<IpAddr>,
    pub(super) node_ports: Vec<u16>,
}

/// What an API server adds to a Service that is applied.
struct ServerDefaults<'a> {
    /// The objects of now.
    store: &'a Store,
    examples: Examples,
}

impl ServerDefaults<'_> {
    /// Adds what the Service of now has and the file leaves out: its age, addresses and node ports.
    /// What is new gets examples.
    fn complete(&mut self, Service { metadata, spec, status }: &mut Service) {
        let namespace = Some(&*metadata.namespace).filter(|it| !it.is_empty()).unwrap_or("default");
        let now = self.store.service(&ObjectName::new(namespace, &*metadata.name));
        if spec.type_ == "ExternalName" {
            return;
        }
        if spec.cluster_ip.is_empty() && spec.cluster_ips.is_empty() {
            let addresses = match now {
                Some(now) => now.cluster_ips.clone(),
                None => self.cluster_ip().into_iter().collect(),
            };
            spec.cluster_ips = addresses.iter().map(ToString::to_string).collect();
        }
        let opens_node_ports = match &*spec.type_ {
            "" | "ClusterIP" => false,
            "LoadBalancer" => spec.allocate_load_balancer_node_ports != Some(false),
            _ => true,
        };
        let named: Vec<i64> = spec.ports.iter().map(|port| port.node_port).collect();
        for port in spec.ports.iter_mut().filter(|port| port.node_port == 0 && opens_node_ports) {
            let protocol = if port.protocol.is_empty() { "TCP" } else { &port.protocol };
            let same = now.into_iter().flat_map(|now| &now.ports).find(|it| {
                port.port == Some(it.port.into())
                    && protocol.eq_ignore_ascii_case(&it.protocol.to_string())
            });
            let same = same.and_then(|it| it.node_port);
            port.node_port = same.or_else(|| self.node_port(&named)).map_or(0, i64::from);
        }
        let Some(now) = now else { return };
        let created = now.created.map(|seconds| Time { seconds });
        metadata.creation_timestamp = metadata.creation_timestamp.take().or(created);
        if spec.health_check_node_port == 0 {
            spec.health_check_node_port = now.health_check_node_port.map_or(0, i64::from);
        }
        let ingress = &mut status.load_balancer.ingress;
        if spec.type_ == "LoadBalancer" && ingress.is_empty() {
            let entry =
                |ip: &IpAddr, mode: &str| Ingress { ip: ip.to_string(), ip_mode: mode.to_owned() };
            ingress.extend(now.load_balancer_ips.iter().map(|ip| entry(ip, "VIP")));
            ingress.extend(now.proxied_ips.iter().map(|ip| entry(ip, "Proxy")));
        }
    }

    /// Returns an address of the ServiceCIDRs that no Service has; of a range for documentation
    /// (RFC 5737) if they are not known.
    fn cluster_ip(&mut self) -> Option<IpAddr> {
        let unknown = IpNet::new_assert(Ipv4Addr::new(192, 0, 2, 0).into(), 24);
        let range = self.store.service_cidrs().next().copied().unwrap_or(unknown);
        let is_free = |address: &IpAddr| {
            let mut services = self.store.services();
            !self.examples.cluster_ips.contains(address)
                && !services.any(|service| service.cluster_ips.contains(address))
        };
        let address = range.hosts().find(is_free)?;
        self.examples.cluster_ips.push(address);
        Some(address)
    }

    /// Returns a port of the default range that no Service has, nor this one elsewhere.
    fn node_port(&mut self, named: &[i64]) -> Option<u16> {
        let taken = |port: &u16| {
            let services = self.store.services();
            services.flat_map(|service| &service.ports).any(|it| it.node_port == Some(*port))
        };
        let is_free = |port: &u16| {
            let examples = &self.examples.node_ports;
            !examples.contains(port) && !named.contains(&(*port).into()) && !taken(port)
        };
        let port = (30_000..=32_767).find(is_free)?;
        self.examples.node_ports.push(port);
        Some(port)
    }
}
