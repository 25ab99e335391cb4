//! Half-open TCP connections: the SYN was sent, and nothing came back. When their backend is gone, or
//! when the rules did not know the frontend yet, the next SYN of the same `connect()` is balanced
//! anew. Connections that were answered stay where they are.

use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrStorage, connect, getsockname, getsockopt, socket,
    sockopt,
};
use nix::unistd::Pid;
use shunt_testbed::{Exposition, Host, METRICS_PORT, Protocol};

use super::changes::{Changes, DYING, READY, SERVING, UNREADY, slices_of};
use crate::table::{Case, Table};
use crate::world::{CLUSTER_CIDR, TARGET, World, cluster_ip_service, web};

const TCP: Table = Table::ALL.on(&[Protocol::Tcp]);

/// Linux sends a SYN again after 1, 3, 7 and 15 s, and connection tracking keeps an unanswered one
/// for 120 s after the last: without the agent's help, no connection comes about within this.
const RESCUED: Duration = Duration::from_secs(10);
/// How long the kernel or the agent may take for what it does at once.
const AT_ONCE: Duration = Duration::from_secs(10);

/// A `connect()` that was not answered yet.
struct Pending<'a> {
    case: Case,
    host: &'a Host,
    socket: OwnedFd,
    from: SocketAddr,
    to: SocketAddr,
    began: Instant,
}

impl<'a> Pending<'a> {
    fn begin(case: Case, host: &'a Host) -> Result<Self> {
        Self::begin_to(case, host, case.address())
    }

    fn begin_to(case: Case, host: &'a Host, to: SocketAddr) -> Result<Self> {
        let began = Instant::now();
        let (socket, from) = host.run(|| {
            let family = if to.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
            let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
            let socket = socket(family, SockType::Stream, flags, None)?;
            match connect(socket.as_raw_fd(), &SockaddrStorage::from(to)) {
                Ok(()) | Err(Errno::EINPROGRESS) => {}
                Err(errno) => return Err(errno.into()),
            }
            let from: SockaddrStorage = getsockname(socket.as_raw_fd())?;
            let v4 = from.as_sockaddr_in().map(|from| SocketAddr::V4((*from).into()));
            let v6 = from.as_sockaddr_in6().map(|from| SocketAddr::V6((*from).into()));
            Ok((socket, v4.or(v6).context("no IP address")?))
        })?;
        Ok(Self { case, host, socket, from, to, began })
    }

    /// The entry of connection tracking on the node without what time changes; `None` if there is
    /// none, or it was answered.
    fn entry(&self, node: &Host) -> Result<Option<String>> {
        let family = if self.to.is_ipv4() { "ipv4" } else { "ipv6" };
        let port = self.from.port().to_string();
        let filter = ["-L", "-o", "id", "-f", family, "-p", "tcp", "--orig-port-src", &port];
        let list = node.output("conntrack", &filter)?;
        let from = format!("src={} dst={} ", self.from.ip(), self.to.ip());
        let mut lines = list.lines().filter(|line| line.contains(&from));
        let line = lines.find(|line| line.contains("SYN_SENT") && line.contains("[UNREPLIED]"));
        // "tcp 6 <seconds> SYN_SENT src=…"
        let words = |line: &str| line.split_whitespace().skip(3).collect::<Vec<_>>().join(" ");
        Ok(line.map(words))
    }

    /// The server that takes the connection; an error if there is none in time.
    fn server(&self) -> Result<String> {
        self.server_before(self.began + RESCUED)
    }

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
        stream.set_read_timeout(Some(AT_ONCE))?;
        let mut greeting = String::new();
        BufReader::new(stream).read_line(&mut greeting)?;
        Ok(greeting.split(' ').next().unwrap_or_default().to_owned())
    }

    /// True while nothing has come back.
    fn is_unanswered(&self) -> Result<bool> {
        let mut ready = [PollFd::new(self.socket.as_fd(), PollFlags::POLLOUT)];
        match poll(&mut ready, PollTimeout::ZERO) {
            Err(Errno::EINTR) | Ok(0) => Ok(true),
            Ok(_) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    }
}

/// Begins a connection for every cell of the table from outside, from a pod and from the node.
fn begin_all<'a>(world: &'a World, table: Table) -> Result<Vec<Pending<'a>>> {
    let lab = &world.lab;
    let mut all = Vec::new();
    for case in table.cases() {
        for host in [&lab.client, &lab.pod2, &lab.node] {
            let begun = Pending::begin(case, host);
            all.push(begun.with_context(|| format!("{case} from {host}"))?);
        }
    }
    Ok(all)
}

/// Waits until connection tracking has an unanswered entry for each; returns these.
fn half_open_entries(world: &World, all: &[Pending<'_>]) -> Result<Vec<String>> {
    let deadline = Instant::now() + AT_ONCE;
    let entry = |pending: &Pending<'_>| loop {
        if let Some(entry) = pending.entry(&world.lab.node)? {
            return Ok(entry);
        }
        let (case, host) = (pending.case, pending.host);
        ensure!(Instant::now() < deadline, "{case} from {host}: no half-open entry");
        thread::sleep(Duration::from_millis(5));
    };
    all.iter().map(entry).collect()
}

/// Asserts that all of them reach this server.
#[track_caller]
fn all_reach(all: &[Pending<'_>], server: &str, step: &str) {
    let failures: Vec<String> = all
        .iter()
        .filter_map(|pending| {
            let what = match pending.server() {
                Ok(reached) if reached == server => return None,
                Ok(reached) => format!("reached {reached}"),
                Err(error) => format!("{error:#}"),
            };
            Some(format!("  {} from {}: {what}", pending.case, pending.host))
        })
        .collect();
    assert!(failures.is_empty(), "{step}: not at {server}:\n{}", failures.join("\n"));
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

/// Nothing answers what is sent to a Service that does not exist: neither the gateway, nor the node
/// on a port where nobody listens. The rule on the node stands before connection tracking, which
/// would take the reset for an answer.
fn mute_surroundings(world: &World) -> Result<()> {
    world.lab.switch.nft(
        "table inet mute {
             chain forward {
                 type filter hook forward priority -10
                 tcp dport 80 drop
             }
         }",
    )?;
    world.lab.node.nft(
        "table inet mute {
             chain output {
                 type filter hook output priority -400
                 tcp sport 30080 drop
             }
         }",
    )
}

/// Clients that do not hear that they are refused, and send their SYN again.
fn deafen_clients(world: &World) -> Result<()> {
    for host in [&world.lab.client, &world.lab.pod2, &world.lab.node] {
        host.nft(
            "table inet deaf {
                 chain input {
                     type filter hook input priority 0
                     icmp type destination-unreachable drop
                     icmpv6 type destination-unreachable drop
                     tcp flags & rst == rst drop
                 }
             }",
        )?;
    }
    Ok(())
}

fn endpoints(world: &World, changes: &Changes, endpoints: &[(&Host, &str)]) -> Result<()> {
    changes.write(world, "slices.yaml", slices_of("web", "all", endpoints))
}

/// A world with web on the first pod, which does not answer.
fn on_silent_pod() -> Result<World> {
    let world = World::new()?;
    world.manifests.write("web.yaml", web())?;
    let slices = slices_of("web", "all", &[(&world.lab.pod1, READY)]);
    world.manifests.write("slices.yaml", slices)?;
    mute(&world.lab.pod1)?;
    Ok(world)
}

#[test]
fn half_open_connection_moves_when_its_backend_is_replaced() -> Result<()> {
    for gone in [None, Some(UNREADY), Some(DYING)] {
        let world = on_silent_pod()?;
        let changes = Changes::start(&world)?;
        let all = begin_all(&world, TCP)?;
        half_open_entries(&world, &all)?;
        let mut listed = vec![(&world.lab.pod3, READY)];
        listed.extend(gone.map(|conditions| (&world.lab.pod1, conditions)));
        endpoints(&world, &changes, &listed)?;
        all_reach(&all, "pod-3", gone.unwrap_or("gone from every slice"));
    }
    Ok(())
}

#[test]
fn half_open_connection_moves_when_its_backend_was_replaced_while_the_agent_was_down() -> Result<()>
{
    let world = on_silent_pod()?;
    let mut changes = Changes::start(&world)?;
    let all = begin_all(&world, TCP)?;
    half_open_entries(&world, &all)?;
    changes.kill()?;
    let slices = slices_of("web", "all", &[(&world.lab.pod3, READY)]);
    world.manifests.write("slices.yaml", slices)?;
    changes.restart(&world)?;
    all_reach(&all, "pod-3", "the agent is back");
    Ok(())
}

#[test]
fn half_open_connection_from_before_the_service_reaches_it() -> Result<()> {
    let world = World::new()?;
    mute_surroundings(&world)?;
    let _changes = Changes::start(&world)?;
    let all = begin_all(&world, TCP)?;
    half_open_entries(&world, &all)?;
    let slices = slices_of("web", "all", &[(&world.lab.pod3, READY)]);
    world.manifests.write("slices.yaml", slices)?;
    world.manifests.write("web.yaml", web())?;
    all_reach(&all, "pod-3", "the Service is there");
    Ok(())
}

#[test]
fn half_open_connection_from_before_a_repair_reaches_the_service() -> Result<()> {
    let world = World::new()?;
    let node = &world.lab.node;
    mute_surroundings(&world)?;
    let slices = slices_of("web", "all", &[(&world.lab.pod3, READY)]);
    world.manifests.write("web.yaml", format!("{}{slices}", web()))?;
    let agent = world.agent(CLUSTER_CIDR)?;
    let agent = agent.arg("--own-tables=false").arg("--drift-check-period=500ms").start()?;
    // The sweeps of the start, which would find the connections too.
    agent.wait_for_answer(METRICS_PORT, "/metrics", |answer| {
        let scraped = Exposition::parse(&answer.body).ok()?;
        let name = "kubeproxy_conntrack_reconciler_sync_duration_seconds_count";
        let sweeps = |family| scraped.value(name, &[("ip_family", family)]);
        (sweeps("IPv4") == Some(2.0) && sweeps("IPv6") == Some(2.0)).then_some(())
    })?;
    let process = Pid::from_raw(agent.pid());
    // The agent repairs damage within a moment.
    kill(process, Signal::SIGSTOP)?;
    node.nft("delete table ip shunt; delete table ip6 shunt")?;
    let all = begin_all(&world, TCP)?;
    half_open_entries(&world, &all)?;
    kill(process, Signal::SIGCONT)?;
    all_reach(&all, "pod-3", "the tables are there again");
    Ok(())
}

#[test]
fn connection_from_before_the_first_endpoint_reaches_it() -> Result<()> {
    let world = World::new()?;
    let lab = &world.lab;
    deafen_clients(&world)?;
    world.manifests.write("web.yaml", web())?;
    let _changes = Changes::start(&world)?;
    let all = begin_all(&world, TCP)?;
    for pending in &all {
        assert!(pending.is_unanswered()?, "{} from {}", pending.case, pending.host);
    }
    world.manifests.write("slices.yaml", slices_of("web", "all", &[(&lab.pod3, READY)]))?;
    all_reach(&all, "pod-3", "the first endpoint");
    Ok(())
}

#[test]
fn half_open_connection_to_a_service_that_is_gone_ends() -> Result<()> {
    let world = on_silent_pod()?;
    let changes = Changes::start(&world)?;
    let all = begin_all(&world, TCP)?;
    half_open_entries(&world, &all)?;
    endpoints(&world, &changes, &[])?;
    for pending in &all {
        let error = pending.server().unwrap_or_else(|error| format!("{error:#}"));
        assert!(error.contains("ECONNREFUSED"), "{} from {}: {error}", pending.case, pending.host);
    }
    Ok(())
}

/// A terminating pod that serves finishes its work, also what was asked of it a moment ago.
#[test]
fn half_open_connection_to_a_terminating_backend_stays() -> Result<()> {
    let world = on_silent_pod()?;
    let lab = &world.lab;
    let mut changes = Changes::start(&world)?;
    for host in [&lab.client, &lab.pod2, &lab.node] {
        // A SYN each second, where the kernel (6.5) can, so that the test does not wait for the next.
        let _ = host.sysctl(&[("net/ipv4/tcp_syn_linear_timeouts", "100")]);
    }
    let all = begin_all(&world, TCP)?;
    let entries = half_open_entries(&world, &all)?;

    // A half-open connection that does move shows that the agent has looked.
    let looked_at = |changes: &Changes, number: u8| -> Result<()> {
        let name = format!("witness-{number}");
        let ip = format!("10.96.0.{}", 100 + number);
        let witness = cluster_ip_service(&name, &[&ip]);
        let on = |pod| slices_of(&name, "all", &[(pod, READY)]);
        changes.write(&world, &format!("{name}.yaml"), format!("{witness}{}", on(&lab.pod1)))?;
        let case = all.first().context("no case")?.case;
        let to: SocketAddr = format!("{ip}:80").parse()?;
        let moving = Pending::begin_to(case, &lab.client, to)?;
        half_open_entries(&world, std::slice::from_ref(&moving))?;
        changes.write(&world, &format!("{name}.yaml"), format!("{witness}{}", on(&lab.pod2)))?;
        all_reach(&[moving], "pod-2", "the witness");
        Ok(())
    };
    endpoints(&world, &changes, &[(&lab.pod1, SERVING), (&lab.pod2, READY), (&lab.pod3, READY)])?;
    looked_at(&changes, 1)?;
    // An endpoint less: all entries of the frontends are looked at.
    endpoints(&world, &changes, &[(&lab.pod1, SERVING), (&lab.pod2, READY)])?;
    looked_at(&changes, 2)?;
    changes.kill()?;
    changes.restart(&world)?;
    looked_at(&changes, 3)?;
    let after: Vec<Option<String>> =
        all.iter().map(|pending| pending.entry(&lab.node)).collect::<Result<_>>()?;
    assert_eq!(after, entries.into_iter().map(Some).collect::<Vec<_>>());

    unmute(&lab.pod1)?;
    let deadline = Instant::now() + Duration::from_secs(70);
    for pending in &all {
        let answer = pending.server_before(deadline)?;
        assert_eq!(answer, "pod-1", "{} from {}", pending.case, pending.host);
    }
    Ok(())
}
