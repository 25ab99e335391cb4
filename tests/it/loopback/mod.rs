//! Node ports on the node's loopback addresses, which a TCP proxy in the agent serves.

mod next_agent;
mod traffic;

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result};
use shunt_testbed::{EndpointSlice, Host, Protocol, Service, eventually, patience};

use crate::world::World;

/// The node port of [`web`](crate::world::web) on the loopback address of each family.
const V4: &str = "127.0.0.1:30080";
const V6: &str = "[::1]:30080";
const PODS: [&str; 3] = ["pod-1", "pod-2", "pod-3"];

/// Opts in for both families.
const BOTH: &str = "mode: nftables\nnodePortAddresses: [primary, localhost]\n";

/// The node port of [`raw_service`] on loopback, and the port of its endpoint.
const RAW: &str = "127.0.0.1:30090";
const RAW_TARGET: u16 = 9000;

/// How long a test waits for what the agent does at once.
const PATIENCE: Duration = Duration::from_secs(20);

/// A Service whose only endpoint is a server of the test on `host`.
fn raw_service(host: &Host) -> String {
    let service = Service::new("raw").cluster_ips(&["10.96.0.30"]);
    let service = service.node_port("tcp", Protocol::Tcp, 80, 30090);
    let slice = EndpointSlice::v4("raw").port("tcp", Protocol::Tcp, RAW_TARGET).hosts(&[host]);
    format!("{service}{slice}")
}

/// Starts a server for [`raw_service`].
fn raw_server(host: &Host) -> Result<TcpListener> {
    let address = SocketAddr::new(host.ips().next().context("no address")?, RAW_TARGET);
    host.run(|| TcpListener::bind(address).with_context(|| format!("cannot bind {address}")))
}

/// Connects from the node, as soon as the agent listens.
fn connect(world: &World, to: &str) -> Result<TcpStream> {
    let address: SocketAddr = to.parse()?;
    let stream = eventually("a listener", || {
        world.lab.node.run(|| Ok(TcpStream::connect_timeout(&address, PATIENCE).ok()))
    })?;
    stream.set_read_timeout(Some(patience(PATIENCE)))?;
    stream.set_write_timeout(Some(patience(PATIENCE)))?;
    Ok(stream)
}

/// Both ends of a connection through the proxy: the client's and the endpoint's.
fn pair(world: &World, server: &TcpListener) -> Result<(TcpStream, TcpStream)> {
    let client = connect(world, RAW)?;
    let (endpoint, _) = server.accept()?;
    endpoint.set_read_timeout(Some(patience(PATIENCE)))?;
    endpoint.set_write_timeout(Some(patience(PATIENCE)))?;
    Ok((client, endpoint))
}
