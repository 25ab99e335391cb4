//! One kube-apiserver for all that are compared, with the objects of a cluster.

use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use anyhow::{Result, ensure};
use hyper::Method;
use serde_json::{Value, json};
use shunt_fake_apiserver::{Client, Connection, Key, Kind, Kubernetes};

use crate::Size;
use crate::objects::{self, http_service, http_slice};

/// Connections at a time while a server is filled.
const WRITERS: u32 = 16;

/// The addresses of pods: those of the testbed and those of the usual slices.
pub(crate) const CLUSTER_CIDR: &str = "10.244.0.0/14";

/// The pod of the testbed that serves the markers.
pub(crate) const SERVING_POD: &str = "10.244.0.12";

/// The ports of the two servers that a marker can lead to.
pub(crate) const SERVERS: [u16; 2] = [8080, 8081];

/// The port of each marker.
pub(crate) const MARKER_PORT: u16 = 80;

/// A Service with a real server behind it, among all those whose endpoints do not exist: a packet
/// shows that it is programmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Marker {
    /// Made before all others; its name comes first.
    First,
    /// Its name is in the middle of the others.
    Middle,
    /// Made after all others; its name comes last.
    Last,
}

impl Marker {
    pub(crate) const ALL: [Marker; 3] = [Marker::First, Marker::Middle, Marker::Last];

    pub(crate) fn address(self) -> Ipv4Addr {
        Ipv4Addr::new(10, 96, 0, 101 + self as u8)
    }

    fn name(self, services: u32) -> String {
        match self {
            Marker::First => "a-marker".to_owned(),
            Marker::Middle => format!("service-{:05}-marker", services / 2),
            Marker::Last => "zz-marker".to_owned(),
        }
    }

    fn service(self, services: u32) -> Value {
        http_service(&self.name(services), self.address(), MARKER_PORT)
    }

    /// The slice that leads to one of the servers.
    fn slice(self, services: u32, server: u16) -> Value {
        http_slice(&self.name(services), server, &[(SERVING_POD, "node-1")])
    }
}

/// The API server of a cluster, and nothing that acts on its objects.
pub(crate) struct Cluster {
    pub(crate) kubernetes: Kubernetes,
    /// Services, and endpoints of each, besides the markers.
    pub(crate) size: Size,
    /// Which of [`SERVERS`] each marker leads to.
    servers: [AtomicUsize; Marker::ALL.len()],
}

impl Cluster {
    /// Starts an API server and makes the objects of a cluster of this size.
    pub(crate) fn start(assets: &Path, size: Size) -> Result<Cluster> {
        Cluster::filled_by(assets, size, |admin| fill(admin, size.0, size.1))
    }

    /// The same with other Services than the usual ones. `size` is what the rows say.
    pub(crate) fn filled_by(
        assets: &Path,
        size: Size,
        fill: impl FnOnce(&Client) -> Result<()>,
    ) -> Result<Cluster> {
        let kubernetes = Kubernetes::start(assets)?;
        let node = json!({
            "apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-1"},
            "status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.10"}]},
        });
        kubernetes.put(&node.to_string())?;
        let mark = |marker: Marker| {
            post(kubernetes.admin(), Kind::Service, &marker.service(size.0))?;
            let slice = marker.slice(size.0, SERVERS[0]);
            post(kubernetes.admin(), Kind::EndpointSlice, &slice)
        };
        mark(Marker::First)?;
        fill(kubernetes.admin())?;
        mark(Marker::Middle)?;
        mark(Marker::Last)?;
        Ok(Cluster { kubernetes, size, servers: Default::default() })
    }

    /// The port of the server that connections to a marker should reach.
    pub(crate) fn server_behind(&self, marker: Marker) -> u16 {
        SERVERS[self.servers[marker as usize].load(Ordering::Relaxed)]
    }

    /// A slice whose only endpoint is the other server of a marker, to be written with [`replace`].
    /// From now on connections should reach that server.
    pub(crate) fn next_slice(&self, marker: Marker) -> Value {
        let other = 1 - self.servers[marker as usize].fetch_xor(1, Ordering::Relaxed);
        marker.slice(self.size.0, SERVERS[other])
    }

    /// Replaces an object. Returns when the API server has answered.
    pub(crate) fn replace(&self, object: &Value) -> Result<()> {
        replace(&mut self.kubernetes.admin().connection()?, object)
    }
}

/// Replaces an object by a connection that is open. Returns when the API server has answered.
pub(crate) fn replace(connection: &mut Connection<'_>, object: &Value) -> Result<()> {
    let key = Key::of(object)?;
    let reply = connection.call(Method::PUT, &key.path(), Some(object))?;
    ensure!(reply.status == 200, "{key} cannot be replaced: {reply:?}");
    Ok(())
}

/// Makes all objects.
pub(crate) fn fill(admin: &Client, services: u32, endpoints: u32) -> Result<()> {
    write_all(admin, services, |n| vec![objects::service(n), objects::slice(n, endpoints)])
}

/// Makes the objects of all numbers below a number, over several connections.
pub(crate) fn write_all(
    admin: &Client,
    numbers: u32,
    objects: impl Fn(u32) -> Vec<Value> + Sync,
) -> Result<()> {
    let objects = &objects;
    thread::scope(|scope| {
        let write = |first: u32| -> Result<()> {
            let mut connection = admin.connection()?;
            for object in (first..numbers).step_by(WRITERS as usize).flat_map(objects) {
                let key = Key::of(&object)?;
                let reply = connection.call(Method::POST, &key.collection(), Some(&object))?;
                ensure!(reply.status == 201, "{key} is not taken: {reply:?}");
            }
            Ok(())
        };
        let writers: Vec<_> = (0..WRITERS).map(|first| scope.spawn(move || write(first))).collect();
        writers.into_iter().try_for_each(|writer| {
            writer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    })
}

/// Makes an object that is not there yet.
pub(crate) fn post(admin: &Client, kind: Kind, object: &Value) -> Result<()> {
    let key = Key::new(kind, object["metadata"]["name"].as_str().unwrap_or_default());
    let reply = admin.call(Method::POST, &key.collection(), Some(object))?;
    ensure!(reply.status == 201, "{key} is not taken: {reply:?}");
    Ok(())
}
