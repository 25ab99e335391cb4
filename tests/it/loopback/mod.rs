//! Node ports on the node's loopback addresses, which a TCP proxy in the agent serves.

mod next_agent;
mod ports;
mod traffic;

use std::fs;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use shunt_testbed::{
    Agent, EndpointSlice, Exposition, Host, METRICS_PORT, Protocol, Service, http_get, patience,
};

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
    let stream = wait_for("a listener", || {
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

/// Repeats a question until it has an answer.
fn wait_for<T>(what: &str, mut question: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let start = Instant::now();
    loop {
        if let Some(answer) = question()? {
            return Ok(answer);
        }
        ensure!(start.elapsed() < patience(PATIENCE), "{what} did not come");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Returns the value of a metric.
fn metric(world: &World, name: &str, labels: &[(&str, &str)]) -> Result<f64> {
    let address = SocketAddr::from(([127, 0, 0, 1], METRICS_PORT));
    let answer = http_get(&world.lab.node, address, "/metrics")?;
    Exposition::parse(&answer.body)?
        .value(name, labels)
        .with_context(|| format!("no {name}{labels:?} in\n{}", answer.body))
}

/// Waits until a metric has a value.
fn wait_for_metric(world: &World, name: &str, labels: &[(&str, &str)], value: f64) -> Result<()> {
    wait_for(&format!("{name}{labels:?} {value}"), || {
        Ok((metric(world, name, labels)? == value).then_some(()))
    })
}

/// Returns true if the agent has the thread of the proxy.
fn has_thread(agent: &Agent) -> Result<bool> {
    for task in fs::read_dir(format!("/proc/{}/task", agent.pid()))? {
        // A thread may end meanwhile.
        let name = fs::read_to_string(task?.path().join("comm")).unwrap_or_default();
        if name.trim() == "loopback" {
            return Ok(true);
        }
    }
    Ok(false)
}
