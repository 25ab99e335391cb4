//! Clients that connect and then stay idle, are slow, or never read: they delay no others.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::socket::sockopt::{RcvBuf, ReuseAddr};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrIn, bind, connect, setsockopt, socket,
};
use shunt_testbed::{Agent, HEALTH_PORT, Host, METRICS_PORT, Netns, Node, Protocol, Service};

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
    let start = Instant::now();
    while !ask(world, NODE, CHECKED).is_ok_and(|status| status == 200) {
        ensure!(start.elapsed() < Duration::from_secs(60), "{}", agent.log());
        thread::sleep(Duration::from_millis(5));
    }
    Ok(agent)
}

/// The status of an answer.
fn ask(world: &World, ip: Ipv4Addr, port: u16) -> Result<u16> {
    world.lab.node.run(|| get(TcpStream::connect((ip, port))?, port))
}

/// The same over a connection to the server of that port.
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

/// Asserts that each server answers in time.
#[track_caller]
fn assert_answers(world: &World, agent: &Agent) {
    for (ip, port) in SERVERS {
        let asked = world.lab.node.run(|| {
            let own = Path::new("/proc/thread-self/schedstat");
            let lost = || without_processor(own) + agent_without_processor(agent);
            let (lost_before, start) = (lost(), Instant::now());
            let status = TcpStream::connect((ip, port)).map_err(Into::into);
            let status = status.and_then(|stream| get(stream, port));
            let took = start.elapsed();
            Ok((status, took.saturating_sub(lost().saturating_sub(lost_before))))
        });
        let (status, took) = asked.unwrap_or_else(|error| (Err(error), Duration::MAX));
        assert!(took < TIMEOUT, "port {port} took {took:?}: {status:?}\n{}", agent.log());
        assert!(status.as_ref().is_ok_and(|status| *status == 200), "{port}: {status:?}");
    }
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

/// Asserts that clients cost the agent no more than a bounded amount.
#[track_caller]
fn assert_bounded(agent: &Agent, before: (u64, usize)) {
    // A process that has ended has more than anything.
    let now = holdings(agent).unwrap_or((u64::MAX, usize::MAX));
    assert!(now.0 < before.0 + (32 << 20), "{before:?} bytes and files, then {now:?}");
    assert!(now.1 < before.1 + 1_100, "{before:?} bytes and files, then {now:?}");
}

#[test]
fn idle_clients_delay_no_others() -> Result<()> {
    let world = World::empty()?;
    let agent = start(&world, &[])?;
    let before = holdings(&agent)?;
    for count in [1, 40] {
        for (ip, port) in SERVERS {
            let _crowd = crowd(&world.lab.node, &sources(count), SocketAddrV4::new(ip, port))?;
            assert_answers(&world, &agent);
            assert_bounded(&agent, before);
        }
    }
    agent.stop()
}

/// One of the crowd must not push out those of other addresses.
#[test]
fn a_crowd_from_one_address_closes_no_connection_from_another() -> Result<()> {
    let world = World::empty()?;
    let agent = start(&world, &[])?;
    let to = SocketAddrV4::new(Ipv4Addr::LOCALHOST, HEALTH_PORT);
    let [one, other] = [1, 2].map(|host| Ipv4Addr::new(127, 7, 7, host));
    let patient = world.lab.node.run(|| open(one, to, true))?;
    let _crowd = crowd(&world.lab.node, &[other], to)?;
    assert_eq!(get(patient, HEALTH_PORT)?, 200);
    agent.stop()
}

/// Runs `act` on the connections of a crowd, again and again, while `check` is at work. Connections
/// that the agent closes are opened anew.
fn harassed(
    node: &Netns,
    from: &[Ipv4Addr],
    to: SocketAddrV4,
    reads: bool,
    act: impl Fn(&mut TcpStream) -> std::io::Result<()> + Sync,
    check: impl FnOnce(),
) -> Result<()> {
    /// Unwinding, too, ends the clients.
    struct Over<'a>(&'a AtomicBool);
    impl Drop for Over<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    let (over, rounds) = (AtomicBool::new(false), AtomicBool::new(false));
    thread::scope(|scope| {
        let clients = scope.spawn(|| {
            node.run(|| {
                let mut crowd: Vec<Option<TcpStream>> = (0..CROWD / 4).map(|_| None).collect();
                while !over.load(Ordering::Relaxed) {
                    for (nth, client) in crowd.iter_mut().enumerate() {
                        let fresh = match client.take() {
                            Some(stream) => stream,
                            None => {
                                let stream = open(from[nth % from.len()], to, reads)?;
                                stream.set_nonblocking(true)?;
                                stream
                            }
                        };
                        *client = Some(fresh);
                        let gone = client.as_mut().is_some_and(|stream| match act(stream) {
                            Ok(()) => false,
                            Err(error) => error.kind() != std::io::ErrorKind::WouldBlock,
                        });
                        if gone {
                            *client = None;
                        }
                    }
                    rounds.store(true, Ordering::Relaxed);
                    // A client is slow, but they are many.
                    thread::sleep(Duration::from_millis(10));
                }
                Ok(())
            })
        });
        let guard = Over(&over);
        while !rounds.load(Ordering::Relaxed) && !clients.is_finished() {
            thread::yield_now();
        }
        check();
        drop(guard);
        clients.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Asserts that the agent answers, with bounded memory, while clients of this server write these
/// bytes again and again.
#[track_caller]
fn assert_withstands(port: u16, reads: bool, bytes: &[u8]) -> Result<()> {
    let world = World::empty()?;
    let agent = start(&world, &[])?;
    let before = holdings(&agent)?;
    let to = SocketAddrV4::new(Ipv4Addr::LOCALHOST, port);
    for count in [1, 40] {
        let write = |stream: &mut TcpStream| stream.write_all(bytes);
        harassed(&world.lab.node, &sources(count), to, reads, write, || {
            for _ in 0..20 {
                assert_answers(&world, &agent);
                assert_bounded(&agent, before);
            }
        })?;
    }
    agent.stop()
}

#[test]
fn clients_that_send_a_byte_now_and_then_delay_no_others() -> Result<()> {
    assert_withstands(HEALTH_PORT, true, b"G")
}

#[test]
fn clients_that_never_read_cost_a_bounded_amount_of_memory() -> Result<()> {
    assert_withstands(METRICS_PORT, false, b"GET /metrics HTTP/1.1\r\nHost: node\r\n\r\n")
}

/// The agent has other things to open: manifests, sockets.
#[test]
fn clients_leave_the_agent_enough_files() -> Result<()> {
    let world = World::empty()?;
    let agent = start(&world, &["prlimit", "--nofile=128:128"])?;
    let to = SocketAddrV4::new(Ipv4Addr::LOCALHOST, HEALTH_PORT);
    let _crowd = crowd(&world.lab.node, &sources(40), to)?;
    assert_answers(&world, &agent);
    world.manifests.write("web.yaml", http_service("web", &["10.96.0.10"]))?;
    agent.wait_for_sample("shunt_services", &[], |it| it == 2.0)?;
    assert_answers(&world, &agent);
    agent.stop()
}
