//! Endpoints that do not answer, whether or not the API lists them as ready. An attempt to connect that
//! is not answered within a second is forgotten, so that the client's next SYN is balanced anew.
//! Connections that were answered stay where they are.

use std::io::{BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrStorage, bind, connect, getsockname, getsockopt,
    setsockopt, socket, sockopt,
};
use shunt_testbed::{Host, Protocol};

use crate::table::{Case, Table};
use crate::world::{CLUSTER_CIDR, TARGET, World, manifest, web};

const TCP: Table = Table::ALL.on(&[Protocol::Tcp]);

/// A socket of a client that sends its SYN twice: after a second, Linux sends it again.
const TWO_SYNS: Duration = Duration::from_millis(2_500);
/// In this time, a client sends 24 SYNs. With two endpoints, fewer than one client in ten million meets
/// the dead one each time.
const PATIENT: Duration = Duration::from_secs(30);
/// The number of clients of a kind. One of them meets the dead endpoint first, but for one time in
/// 65 000.
const CLIENTS: usize = 16;
/// How long a greeting may take.
const GREETING: Duration = Duration::from_secs(10);

/// A `connect()` that was not answered yet.
struct Pending {
    socket: OwnedFd,
    port: u16,
    began: Instant,
}

impl Pending {
    /// Begins to connect from a port, or from any with 0.
    fn begin(port: u16, host: &Host, to: SocketAddr) -> Result<Self> {
        let began = Instant::now();
        let (socket, port) = host.run(|| {
            let family = if to.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
            let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
            let socket = socket(family, SockType::Stream, flags, None)?;
            let any: IpAddr = if to.is_ipv4() {
                Ipv4Addr::UNSPECIFIED.into()
            } else {
                Ipv6Addr::UNSPECIFIED.into()
            };
            setsockopt(&socket, sockopt::ReuseAddr, &true)?;
            bind(socket.as_raw_fd(), &SockaddrStorage::from(SocketAddr::new(any, port)))?;
            match connect(socket.as_raw_fd(), &SockaddrStorage::from(to)) {
                Ok(()) | Err(Errno::EINPROGRESS) => {}
                Err(errno) => return Err(errno.into()),
            }
            let from: SockaddrStorage = getsockname(socket.as_raw_fd())?;
            let v4 = from.as_sockaddr_in().map(|from| from.port());
            let v6 = from.as_sockaddr_in6().map(|from| from.port());
            Ok((socket, v4.or(v6).context("no IP address")?))
        })?;
        Ok(Self { socket, port, began })
    }

    /// The server that takes the connection; an error if there is none in time.
    fn server_before(&self, deadline: Instant) -> Result<String> {
        loop {
            let left = deadline.saturating_duration_since(Instant::now()).as_millis();
            let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
            match poll(&mut [PollFd::new(self.socket.as_fd(), PollFlags::POLLOUT)], timeout) {
                Ok(0) => bail!("no connection {:?} after connect()", self.began.elapsed()),
                Ok(_) => break,
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        let error = getsockopt(&self.socket, sockopt::SocketError)?;
        ensure!(error == 0, "connect(): {}", Errno::from_raw(error));
        let stream = TcpStream::from(self.socket.try_clone()?);
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(GREETING))?;
        let mut greeting = String::new();
        BufReader::new(stream).read_line(&mut greeting)?;
        Ok(greeting.split(' ').next().unwrap_or_default().to_owned())
    }
}

/// Makes a pod drop all packets to its server.
fn mute(pod: &Host) -> Result<()> {
    pod.nft(&format!(
        "table inet mute {{
             chain input {{
                 type filter hook input priority 0
                 tcp dport {TARGET} drop
             }}
         }}"
    ))
}

fn unmute(pod: &Host) -> Result<()> {
    pod.nft("delete table inet mute")
}

/// What becomes of a client that connects from the same port again and again, with two SYNs each time:
/// the server that takes the connection, or the error if it was refused or reset, or ran out of time.
fn insist(host: &Host, case: Case, patience: Duration) -> Result<String> {
    let began = Instant::now();
    let mut port = 0;
    loop {
        // Another socket may have the port meanwhile.
        let attempt = Pending::begin(port, host, case.address())
            .or_else(|_| Pending::begin(0, host, case.address()))?;
        port = attempt.port;
        let last = match attempt.server_before(attempt.began + TWO_SYNS) {
            Ok(server) => return Ok(server),
            Err(error) => error,
        };
        let text = last.to_string();
        if text.contains("ECONNREFUSED") || text.contains("ECONNRESET") {
            return Err(last);
        }
        ensure!(began.elapsed() < patience, "no server in {patience:?}: {text}");
    }
}

/// Lets clients connect at the same time from outside, from a pod and from the node.
fn insist_all(world: &World, table: Table, each: usize, patience: Duration) -> Vec<Result<String>> {
    let lab = &world.lab;
    let hosts = [&lab.client, &lab.pod2, &lab.node];
    let cases = table.cases();
    let calls = cases.iter().flat_map(|case| hosts.map(|host| (host, *case)));
    let calls: Vec<_> = calls.flat_map(|call| vec![call; each]).collect();
    thread::scope(|scope| {
        let call = |(host, case)| scope.spawn(move || insist(host, case, patience));
        let clients: Vec<_> = calls.into_iter().map(call).collect();
        let join = |client: thread::ScopedJoinHandle<'_, Result<String>>| {
            client.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        clients.into_iter().map(join).collect()
    })
}

#[track_caller]
fn assert_all_reach(outcomes: Vec<Result<String>>, server: &str, step: &str) {
    let wrong: Vec<_> =
        outcomes.iter().filter(|it| !matches!(it, Ok(name) if name == server)).collect();
    assert!(wrong.is_empty(), "{step}: {} of {}: {wrong:?}", wrong.len(), outcomes.len());
}

/// A node with web on the first and the third pod.
fn on_two_pods() -> Result<World> {
    let world = World::new()?;
    let pods = [&world.lab.pod1, &world.lab.pod3];
    world.manifests.write("web.yaml", manifest(&web(), "web", &pods))?;
    Ok(world)
}

/// Programs the rules without an agent that stays, so that a test can change them.
fn program(world: &World) -> Result<()> {
    let output = world.agent(CLUSTER_CIDR)?.once()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

/// Empties a chain of both tables.
fn flush(world: &World, chain: &str) -> Result<()> {
    world.lab.node.nft(&format!("flush chain ip shunt {chain}; flush chain ip6 shunt {chain}"))
}

#[test]
fn each_frontend_reaches_the_other_endpoint_when_one_is_dead() -> Result<()> {
    let world = on_two_pods()?;
    let _agent = world.start()?;
    mute(&world.lab.pod3)?;
    assert_all_reach(insist_all(&world, TCP, CLIENTS / 4, PATIENT), "pod-1", "the port is silent");
    Ok(())
}

/// The ways in which an endpoint stops to answer.
#[test]
fn every_death_of_an_endpoint_is_survived() -> Result<()> {
    let deaths = [
        ("it drops all packets", ""),
        ("a policy blocks the clients", "meta l4proto tcp"),
        // As Linux does it: the handshakes of others may go on.
        ("its queue of connections is full", "tcp flags & (syn|ack) == syn"),
    ];
    let world = on_two_pods()?;
    let _agent = world.start()?;
    let pod = &world.lab.pod3;
    let table = Table::CLUSTER_IPS.on(&[Protocol::Tcp]);
    for (death, dropped) in deaths {
        pod.nft(&format!(
            "table inet dead {{
                 chain input {{ type filter hook input priority 0; {dropped} drop; }}
             }}"
        ))?;
        let outcomes = insist_all(&world, table, CLIENTS, PATIENT);
        assert_all_reach(outcomes, "pod-1", death);
        pod.nft("delete table inet dead")?;
    }
    world.lab.node2.ip("link set eth0 down")?;
    assert_all_reach(insist_all(&world, table, CLIENTS, PATIENT), "pod-1", "its link is dead");
    Ok(())
}

#[test]
fn endpoints_that_are_all_dead_serve_again_when_one_recovers() -> Result<()> {
    let world = on_two_pods()?;
    let _agent = world.start()?;
    let (pod1, pod3) = (&world.lab.pod1, &world.lab.pod3);
    let table = Table::CLUSTER_IPS.on(&[Protocol::Tcp]);
    mute(pod1)?;
    mute(pod3)?;
    for alive in [pod1, pod3, pod1] {
        let outcomes = insist_all(&world, table, 1, Duration::ZERO);
        assert!(outcomes.iter().all(Result::is_err), "{outcomes:?}");
        unmute(alive)?;
        assert_all_reach(insist_all(&world, table, 2, PATIENT), &alive.name, "one recovers");
        mute(alive)?;
    }
    Ok(())
}

/// A pod repeats its SYN-ACK when nothing came back, at the moment at which the kernel forgets the
/// attempt. It must not reach the client untranslated, whose reset would end the next attempt.
#[test]
fn lost_answers_reset_no_connection() -> Result<()> {
    let world = on_two_pods()?;
    program(&world)?;
    for pod in [&world.lab.pod1, &world.lab.pod3] {
        pod.nft(
            "table inet loss {
                 chain output {
                     type filter hook output priority 0
                     tcp flags & (syn|ack) == (syn|ack) numgen random mod 2 == 0 drop
                 }
             }",
        )?;
    }
    let table = Table::CLUSTER_IPS.on(&[Protocol::Tcp]);
    let resets = |outcomes: Vec<Result<String>>| {
        let is_reset = |it: &&Result<String>| {
            it.as_ref().is_err_and(|error| error.to_string().contains("ECONNRESET"))
        };
        outcomes.iter().filter(is_reset).count()
    };
    let connect = || insist_all(&world, table, 4 * CLIENTS, PATIENT);
    assert_eq!(resets(connect()), 0);
    flush(&world, "forward")?;
    assert!(resets(connect()) > 0, "without the rule, some are reset");
    Ok(())
}

/// A connection that the kernel picks up in mid-stream has the usual timeouts.
#[test]
fn idle_connection_survives_a_flush_of_connection_tracking() -> Result<()> {
    let world = World::new()?;
    world.manifests.write("web.yaml", manifest(&web(), "web", &[&world.lab.pod3]))?;
    let _agent = world.start()?;
    let lab = &world.lab;
    let mut connection = lab.from(&lab.pod2).connect("10.96.0.10:80")?;
    assert_eq!(connection.echo("before")?, "before");
    lab.node.output("conntrack", &["--flush"])?;
    assert_eq!(connection.echo("after")?, "after");
    let list = lab.node.output("conntrack", &["-L", "-p", "tcp", "--orig-dst", "10.96.0.10"])?;
    let seconds = |line: &str| line.split_whitespace().nth(2)?.parse::<u32>().ok();
    let left: Vec<u32> = list.lines().filter_map(seconds).collect();
    assert!(!left.is_empty() && left.iter().all(|left| *left > 60), "{list}");
    Ok(())
}
