//! Clients that connect and then stay idle, are slow, or never read: they delay no others.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::socket::sockopt::{RcvBuf, ReuseAddr};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrIn, bind, connect, setsockopt, socket,
};
use shunt_testbed::{
    Agent, HEALTH_PORT, Host, METRICS_PORT, Node, Protocol, Service, eventually, http_get,
};

use crate::world::{World, allow_files, http_service, http_slices};

const CROWD: usize = 2_000;
/// The time for an answer: the kubelet's default.
const TIMEOUT: Duration = Duration::from_secs(1);
/// `healthCheckNodePort` of [`local_service`], and where it is served.
const CHECKED: u16 = 31_007;
const NODE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 10);
/// Where the agent listens.
const SERVERS: [(Ipv4Addr, u16); 3] =
    [(Ipv4Addr::LOCALHOST, HEALTH_PORT), (NODE, CHECKED), (Ipv4Addr::LOCALHOST, METRICS_PORT)];

fn local_service() -> String {
    let local = Service::new("local")
        .node_port("http", Protocol::Tcp, 80, 30_007)
        .cluster_ips(&["10.96.0.7"])
        .load_balancer(&["203.0.113.7"])
        .spec("externalTrafficPolicy: Local")
        .spec(&format!("healthCheckNodePort: {CHECKED}"));
    local.to_string()
}

/// An agent that serves health, metrics and a `healthCheckNodePort` with one local endpoint.
fn start(world: &World, wrapper: &[&str]) -> Result<Agent> {
    // As many connections as the tests need.
    allow_files(4 * CROWD as u64)?;
    world.manifests.write("node.yaml", Node::of(&world.lab.node))?;
    world.manifests.write(
        "local.yaml",
        format!("{}{}", local_service(), http_slices("local", &[&world.lab.pod1])),
    )?;
    let agent = world.plain_agent().wrapper(wrapper).start()?;
    let to = (NODE, CHECKED).into();
    eventually("a local endpoint", || {
        let answer = http_get(&world.lab.node, to, "/");
        Ok(answer.is_ok_and(|answer| answer.status == 200).then_some(()))
    })?;
    Ok(agent)
}

/// The status of an answer over a connection to the server of that port.
fn get(mut stream: TcpStream, port: u16) -> Result<u16> {
    let path = if port == METRICS_PORT { "/metrics" } else { "/livez" };
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    answer.split(' ').nth(1).and_then(|code| code.parse().ok()).context("no status")
}

/// For how long threads were ready to run and had no processor, which other programs had: time that
/// says nothing about the agent. `file` is a `schedstat` of proc(5).
fn without_processor(file: &Path) -> Duration {
    let stat = fs::read_to_string(file).unwrap_or_default();
    let delay = stat.split_whitespace().nth(1).and_then(|nanoseconds| nanoseconds.parse().ok());
    Duration::from_nanos(delay.unwrap_or_default())
}

/// The same for all threads of the agent.
fn agent_without_processor(agent: &Agent) -> Duration {
    let threads = fs::read_dir(format!("/proc/{}/task", agent.pid()));
    let threads = threads.into_iter().flatten().flatten();
    threads.map(|thread| without_processor(&thread.path().join("schedstat"))).sum()
}

/// Fails unless each server answers in time.
fn answers(world: &World, agent: &Agent) -> Result<()> {
    for (ip, port) in SERVERS {
        let (status, took) = world.lab.node.run(|| {
            let own = Path::new("/proc/thread-self/schedstat");
            let lost = || without_processor(own) + agent_without_processor(agent);
            let (lost_before, start) = (lost(), Instant::now());
            let status = get(TcpStream::connect((ip, port))?, port)?;
            Ok((status, start.elapsed().saturating_sub(lost().saturating_sub(lost_before))))
        })?;
        ensure!(took < TIMEOUT, "port {port} took {took:?}\n{}", agent.log());
        ensure!(status == 200, "{port}: {status}");
    }
    Ok(())
}

/// Source addresses, as if each were another pod.
fn sources(count: u8) -> Vec<Ipv4Addr> {
    (1..=count).map(|host| Ipv4Addr::new(127, 7, 7, host)).collect()
}

/// A connection from this address, with a small receive buffer if it is not going to read.
fn open(from: Ipv4Addr, to: SocketAddrV4, reads: bool) -> Result<TcpStream> {
    let flags = SockFlag::SOCK_CLOEXEC;
    let socket: OwnedFd = socket(AddressFamily::Inet, SockType::Stream, flags, None)?;
    setsockopt(&socket, ReuseAddr, &true)?;
    if !reads {
        setsockopt(&socket, RcvBuf, &4096)?;
    }
    bind(socket.as_raw_fd(), &SockaddrIn::from(SocketAddrV4::new(from, 0)))?;
    connect(socket.as_raw_fd(), &SockaddrIn::from(to)).with_context(|| format!("from {from}"))?;
    Ok(TcpStream::from(socket))
}

/// Idle connections to a server.
fn crowd(host: &Host, from: &[Ipv4Addr], to: SocketAddrV4) -> Result<Vec<TcpStream>> {
    host.run(|| (0..CROWD).map(|nth| open(from[nth % from.len()], to, true)).collect())
}

/// What a process has: bytes of memory, and open files.
fn holdings(agent: &Agent) -> Result<(u64, usize)> {
    Ok((agent.resident()?, fs::read_dir(format!("/proc/{}/fd", agent.pid()))?.count()))
}

/// Fails unless clients cost the agent no more than a bounded amount.
fn is_bounded(agent: &Agent, before: (u64, usize)) -> Result<()> {
    let now = holdings(agent)?;
    let is_so = now.0 < before.0 + (32 << 20) && now.1 < before.1 + 1_100;
    ensure!(is_so, "{before:?} bytes and files, then {now:?}");
    Ok(())
}

#[test]
fn idle_clients_delay_no_others() -> Result<()> {
    let world = World::empty()?;
    let agent = start(&world, &[])?;
    let before = holdings(&agent)?;
    for count in [1, 40] {
        for (ip, port) in SERVERS {
            let _crowd = crowd(&world.lab.node, &sources(count), SocketAddrV4::new(ip, port))?;
            answers(&world, &agent)?;
            is_bounded(&agent, before)?;
        }
    }
    agent.stop()
}

/// Writes these bytes on the connections of a crowd until it is over. Connections that the agent closes
/// are opened anew.
fn harass(
    to: SocketAddrV4,
    from: &[Ipv4Addr],
    reads: bool,
    bytes: &[u8],
    (rounds, over): (&AtomicUsize, &AtomicBool),
) -> Result<()> {
    let open = |nth: usize| -> Result<TcpStream> {
        let stream = open(from[nth % from.len()], to, reads)?;
        stream.set_nonblocking(true)?;
        Ok(stream)
    };
    let mut crowd = (0..CROWD / 4).map(open).collect::<Result<Vec<_>>>()?;
    while !over.load(Ordering::Relaxed) {
        for (nth, client) in crowd.iter_mut().enumerate() {
            let written = client.write_all(bytes);
            if written.is_err_and(|error| error.kind() != ErrorKind::WouldBlock) {
                *client = open(nth)?;
            }
        }
        rounds.fetch_add(1, Ordering::Relaxed);
        // A client is slow, but they are many.
        thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// The agent answers, with bounded memory, while clients of this server write these bytes again and again.
fn withstands(port: u16, reads: bool, bytes: &[u8]) -> Result<()> {
    let world = World::empty()?;
    let agent = start(&world, &[])?;
    let before = holdings(&agent)?;
    let to = SocketAddrV4::new(Ipv4Addr::LOCALHOST, port);
    for count in [1, 40] {
        let (rounds, over) = (&AtomicUsize::new(0), &AtomicBool::new(false));
        let from = sources(count);
        thread::scope(|scope| {
            let node = &world.lab.node;
            let clients =
                scope.spawn(|| node.run(|| harass(to, &from, reads, bytes, (rounds, over))));
            while rounds.load(Ordering::Relaxed) == 0 && !clients.is_finished() {
                thread::yield_now();
            }
            let withstood = (0..20).try_for_each(|_| {
                answers(&world, &agent)?;
                is_bounded(&agent, before)
            });
            over.store(true, Ordering::Relaxed);
            let harassed = clients.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            withstood.and(harassed)
        })?;
    }
    agent.stop()
}

#[test]
fn clients_that_send_a_byte_now_and_then_delay_no_others() -> Result<()> {
    withstands(HEALTH_PORT, true, b"G")
}

#[test]
fn clients_that_never_read_cost_a_bounded_amount_of_memory() -> Result<()> {
    withstands(METRICS_PORT, false, b"GET /metrics HTTP/1.1\r\nHost: node\r\n\r\n")
}

/// The agent has other things to open: manifests, sockets.
#[test]
fn clients_leave_the_agent_enough_files() -> Result<()> {
    let world = World::empty()?;
    let agent = start(&world, &["prlimit", "--nofile=128:128"])?;
    let to = SocketAddrV4::new(Ipv4Addr::LOCALHOST, HEALTH_PORT);
    let _crowd = crowd(&world.lab.node, &sources(40), to)?;
    answers(&world, &agent)?;
    world.manifests.write("web.yaml", http_service("web", &["10.96.0.10"]))?;
    agent.wait_for_sample("shunt_services", &[], |it| it == 2.0)?;
    answers(&world, &agent)?;
    agent.stop()
}
