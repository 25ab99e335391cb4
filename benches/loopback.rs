//! Node ports on localhost, which a proxy in the agent serves, beside connections of the node to the
//! endpoint itself: new connections a second, a bulk transfer, and the agent's memory with many open
//! connections.

use std::fs;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use shunt_testbed::{Agent, EndpointSlice, ManifestDir, Netns, Node, Protocol, Service, Topology};

use super::Size;
use super::process::memory;
use super::table::{Figure, SHUNT, Table, Unit, Value};

/// The rows have one Service with one endpoint.
const SIZE: Size = (1, 1);
const DIRECT: &str = "without the proxy";
const ROUNDS: usize = 5;
/// How long a round opens connections, and how long it transfers.
const ROUND: Duration = Duration::from_secs(1);
/// The number of open connections, if the limit of open files permits it.
const MANY: usize = 10_000;
const PATIENCE: Duration = Duration::from_secs(60);

const NODE_PORT: u16 = 30_090;
const TARGET: u16 = 9000;
const LOCALHOST: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), NODE_PORT);

/// The first byte of a client says what it wants: an answer, the same on a connection that stays
/// open, or a transfer.
const ONCE: u8 = b'o';
const STAY: u8 = b's';
const BULK: u8 = b'b';

pub(crate) fn measure(table: &mut Table, _: &[Size]) {
    measure_all(table).expect("figures of node ports on localhost");
}

fn measure_all(table: &mut Table) -> Result<()> {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, most, most)?;
    let (lab, manifests) = (Topology::new()?, ManifestDir::new()?);
    let endpoint = SocketAddr::new(lab.pod1.ips().next().context("no address")?, TARGET);
    let listener = lab.pod1.run(|| Ok(TcpListener::bind(endpoint)?))?;
    thread::spawn(move || {
        let mut open = Vec::new();
        listener.incoming().flatten().for_each(|client| serve(client, &mut open));
    });
    let service = Service::new("raw").cluster_ips(&["10.96.0.30"]);
    let service = service.node_port("tcp", Protocol::Tcp, 80, NODE_PORT);
    let slice = EndpointSlice::v4("raw").port("tcp", Protocol::Tcp, TARGET).hosts(&[&lab.pod1]);
    let node = Node::of(&lab.node);
    manifests.write("all.yaml", format!("{node}{service}{slice}"))?;
    let agent = Agent::builder(env!("CARGO_BIN_EXE_shunt"), &lab.node)
        .manifests(&manifests)
        .config("mode: nftables\nnodePortAddresses: [primary, localhost]\n")?
        .start()?;
    let started = Instant::now();
    while connect(&lab.node, LOCALHOST).is_err() {
        ensure!(started.elapsed() < PATIENCE, "the agent does not listen");
    }

    let subjects = [(SHUNT, LOCALHOST), (DIRECT, endpoint)];
    let (mut rates, mut bulks) = ([Vec::new(), Vec::new()], [Vec::new(), Vec::new()]);
    // The first round is not counted.
    for round in 0..=ROUNDS {
        for (n, (_, to)) in subjects.iter().enumerate() {
            let (rate, bulk) = lab.node.run(|| Ok((rate(*to)?, bulk(*to)?)))?;
            if round > 0 {
                rates[n].push(rate);
                bulks[n].push(bulk);
            }
        }
    }
    for (what, unit, mut numbers) in [
        ("new connections a second, one after the other", Unit::PerSecond, rates),
        ("bulk transfer, one TCP stream", Unit::GigabitsPerSecond, bulks),
    ] {
        let mut median = |n: usize| {
            numbers[n].sort_unstable_by(f64::total_cmp);
            Value { number: numbers[n][numbers[n].len() / 2], unit }
        };
        let figures = [0, 1].map(|n| Figure::new(subjects[n].0, median(n), ROUNDS));
        table.figures(what, SIZE, &figures);
    }
    measure_memory(table, &lab.node, &agent)
}

fn measure_memory(table: &mut Table, node: &Netns, agent: &Agent) -> Result<()> {
    // The agent has two sockets of each connection, and this process the others.
    let (files, _) = getrlimit(Resource::RLIMIT_NOFILE)?;
    let permitted = usize::try_from(files * 3 / 4 / 6).unwrap_or(usize::MAX);
    let count = MANY.min(permitted);
    let (before, kernel_before) = (memory(agent.pid())?.resident, tcp_pages()?);
    let mut connections = Vec::new();
    for _ in 0..count {
        connections.push(open(node, LOCALHOST)?);
    }
    let (after, kernel_after) = (memory(agent.pid())?.resident, tcp_pages()?);
    let each = after.saturating_sub(before) / u64::try_from(count)?;
    let what = format!("memory with {count} idle connections");
    table.figures(&what, SIZE, &[Figure::new(SHUNT, Value::bytes(after), 1)]);
    let what = "memory for each of them";
    table.figures(what, SIZE, &[Figure::new(SHUNT, Value::bytes(each), 1)]);
    println!("pages of the kernel for TCP: {kernel_before} before, {kernel_after} with them");
    Ok(())
}

/// The pages that sockets of all namespaces have for data.
fn tcp_pages() -> Result<u64> {
    let text = fs::read_to_string("/proc/net/sockstat")?;
    let line = text.lines().find(|line| line.starts_with("TCP:")).context("no line of TCP")?;
    Ok(line.rsplit(' ').next().context("no number")?.parse()?)
}

fn connect(node: &Netns, to: SocketAddr) -> Result<TcpStream> {
    node.run(|| Ok(TcpStream::connect_timeout(&to, PATIENCE)?))
}

/// Opens a connection that stays open.
fn open(node: &Netns, to: SocketAddr) -> Result<TcpStream> {
    let mut stream = connect(node, to)?;
    ask(&mut stream, STAY)?;
    Ok(stream)
}

fn ask(stream: &mut TcpStream, what: u8) -> Result<()> {
    stream.write_all(&[what])?;
    Ok(stream.read_exact(&mut [0])?)
}

/// Returns the number of connections a second, with an answer on each.
fn rate(to: SocketAddr) -> Result<f64> {
    let started = Instant::now();
    let mut count = 0_u32;
    while started.elapsed() < ROUND {
        ask(&mut TcpStream::connect(to)?, ONCE)?;
        count += 1;
    }
    Ok(f64::from(count) / started.elapsed().as_secs_f64())
}

/// Returns gigabits a second.
fn bulk(to: SocketAddr) -> Result<f64> {
    let mut stream = TcpStream::connect(to)?;
    stream.write_all(&[BULK])?;
    let piece = vec![0; 256 << 10];
    let started = Instant::now();
    let mut sent = 0_u64;
    while started.elapsed() < ROUND {
        stream.write_all(&piece)?;
        sent += piece.len() as u64;
    }
    stream.shutdown(std::net::Shutdown::Write)?;
    // The endpoint has read all.
    stream.read_exact(&mut [0])?;
    Ok(sent as f64 * 8.0 / 1e9 / started.elapsed().as_secs_f64())
}

/// Serves a client of the endpoint. One that is cut off has a round that fails.
fn serve(mut client: TcpStream, open: &mut Vec<TcpStream>) {
    let mut first = [0];
    if client.read_exact(&mut first).is_err() {
        return;
    }
    if first == [BULK] {
        thread::spawn(move || {
            let mut buffer = vec![0; 256 << 10];
            while client.read(&mut buffer)? > 0 {}
            client.write_all(&first)
        });
        return;
    }
    if client.write_all(&first).is_ok() && first == [STAY] {
        open.push(client);
    }
}
