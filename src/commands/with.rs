//! The objects of `--with`: those of now as they would be after `kubectl apply` of these files.

use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, anyhow};
use ipnet::IpNet;
use serde_json::{Map, Value, json};
use shunt_core::model::{ObjectName, Protocol, Service, Store};

use crate::serve::query::Objects;
use crate::source::manifests::{Context, parse, read};
use crate::source::spanned_yaml::{self, Severity};

/// Applies the objects in files to those of now. `-` is stdin. Returns the ClusterIPs that are examples:
/// only an API server allocates them.
pub(super) fn apply(files: &[PathBuf], objects: &mut Objects) -> anyhow::Result<Vec<IpAddr>> {
    let (store, _) = objects.planned();
    let mut server = Server { store: &store, allocated: Vec::new() };
    for path in files {
        let name = path.display();
        let bytes = read(path).map_err(|reason| anyhow!("{name}: {reason}"))?;
        let bytes = bytes.with_context(|| format!("{name} is not a file"))?;
        let file: Arc<Path> = path.as_path().into();
        let node_name: Arc<str> = objects.status.node.as_str().into();
        let mut context = Context { node_name, ..Context::default() };
        let written = parse(&file, &bytes, &mut context).map_err(|problem| anyhow!("{problem}"))?;
        let is_wrong = |problem: &&spanned_yaml::Diagnostic| problem.severity != Severity::Note;
        written.problems.iter().filter(is_wrong).for_each(spanned_yaml::Diagnostic::log);
        let mut documents = Vec::new();
        for document in spanned_yaml::documents(&bytes).map_err(|it| anyhow!("{}", it.reason))? {
            let mut document = document.map_err(|it| anyhow!("{}", it.reason))?.value();
            match document.get_mut("items").map(Value::take) {
                Some(Value::Array(items)) => documents.extend(items),
                _ => documents.push(document),
            }
        }
        documents.iter_mut().for_each(|document| server.complete(document));
        let completed = json!({"apiVersion": "v1", "kind": "List", "items": documents});
        let completed = parse(&file, completed.to_string().as_bytes(), &mut context);
        let completed = completed.map_err(|problem| anyhow!("{problem}"))?;
        let changes = completed.objects.into_iter().filter_map(|object| object.change);
        objects.excerpt.changes.extend(changes);
    }
    Ok(server.allocated)
}

/// What an API server adds to a Service that is applied.
struct Server<'a> {
    /// The objects of now.
    store: &'a Store,
    /// The ClusterIPs of new Services.
    allocated: Vec<IpAddr>,
}

impl Server<'_> {
    /// Adds what the Service of now has and the file leaves out: its age, addresses and node ports. A
    /// new Service gets a ClusterIP.
    fn complete(&mut self, object: &mut Value) {
        let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str);
        let kind = (text("/apiVersion"), text("/kind"));
        let Some(name) = text("/metadata/name").filter(|_| kind == (Some("v1"), Some("Service")))
        else {
            return;
        };
        let name = ObjectName::new(text("/metadata/namespace").unwrap_or("default"), name);
        let type_ = text("/spec/type").unwrap_or("ClusterIP").to_owned();
        if type_ == "ExternalName" {
            return;
        }
        let now = self.store.service(&name);
        if let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) {
            if !["clusterIP", "clusterIPs"].into_iter().any(|field| is_given(spec, field)) {
                let addresses = match now {
                    Some(now) => now.cluster_ips.clone(),
                    None => self.allocate().into_iter().collect(),
                };
                spec.insert("clusterIP".to_owned(), json!(addresses.first()));
                spec.insert("clusterIPs".to_owned(), json!(addresses));
            }
            if let Some(now) = now.filter(|_| type_ != "ClusterIP") {
                keep_node_ports(spec, now);
                if let Some(port) = now.health_check_node_port {
                    spec.entry("healthCheckNodePort").or_insert_with(|| json!(port));
                }
            }
        }
        let (Some(now), Some(object)) = (now, object.as_object_mut()) else { return };
        let created = now.created.and_then(|it| jiff::Timestamp::from_second(it).ok());
        if let (Some(created), Some(Value::Object(metadata))) =
            (created, object.get_mut("metadata"))
        {
            metadata.entry("creationTimestamp").or_insert_with(|| json!(created.to_string()));
        }
        if type_ == "LoadBalancer" {
            let vips = now.load_balancer_ips.iter().map(|it| json!({"ip": it}));
            let proxied = now.proxied_ips.iter().map(|it| json!({"ip": it, "ipMode": "Proxy"}));
            let ingress: Vec<Value> = vips.chain(proxied).collect();
            let status = || json!({"loadBalancer": {"ingress": ingress}});
            object.entry("status").or_insert_with(status);
        }
    }

    /// Returns an address of the ServiceCIDRs that no Service has; of a range for documentation
    /// (RFC 5737) if they are not known.
    fn allocate(&mut self) -> Option<IpAddr> {
        let unknown = IpNet::new_assert(Ipv4Addr::new(192, 0, 2, 0).into(), 24);
        let range = self.store.service_cidrs().next().copied().unwrap_or(unknown);
        let is_free = |address: &IpAddr| {
            let mut services = self.store.services();
            !self.allocated.contains(address)
                && !services.any(|service| service.cluster_ips.contains(address))
        };
        let address = range.hosts().find(is_free)?;
        self.allocated.push(address);
        Some(address)
    }
}

fn is_given(spec: &Map<String, Value>, field: &str) -> bool {
    spec.get(field).is_some_and(|value| !value.is_null() && value != "" && value != &json!([]))
}

/// Keeps the node ports of ports with the same protocol and number.
fn keep_node_ports(spec: &mut Map<String, Value>, now: &Service) {
    let ports = spec.get_mut("ports").and_then(Value::as_array_mut);
    for port in ports.into_iter().flatten().filter_map(Value::as_object_mut) {
        let protocol = port.get("protocol").and_then(Value::as_str).unwrap_or("TCP");
        let protocol =
            Protocol::ALL.into_iter().find(|it| protocol.eq_ignore_ascii_case(&it.to_string()));
        let number = port.get("port").and_then(Value::as_u64);
        let same = now
            .ports
            .iter()
            .find(|it| Some(it.protocol) == protocol && Some(u64::from(it.port)) == number);
        if let Some(node_port) = same.and_then(|it| it.node_port) {
            port.entry("nodePort").or_insert_with(|| json!(node_port));
        }
    }
}
