//! The probe: one connection attempt as the client would make it, traced through all rules.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockProtocol, SockType, SockaddrStorage, bind, connect, socket,
};
use shunt_core::explain::Packet;
use shunt_core::model::Protocol;

use super::source::within;
use crate::agent::kernel_errors;
use crate::commands::trace::{self, Tracer};

/// How long the probe waits for an answer: the time of three SYNs.
const TCP_TIMEOUT: Duration = Duration::from_secs(3);
/// When a client sends its SYN again (`TCP_TIMEOUT_INIT`, include/net/tcp.h).
const REPETITION: Duration = Duration::from_secs(1);
/// How long it waits for an answer to a datagram, which may need none.
const UDP_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a packet takes to its endpoint at most, as far as this node sees it.
const MOMENT: Duration = Duration::from_millis(50);

/// The result of a probe.
#[derive(Debug, Clone, PartialEq)]
pub struct Probe {
    /// The address and port of the client.
    pub client: SocketAddr,
    /// What the client saw.
    pub outcome: Outcome,
    /// The way of the packet; `None` if the kernel told nothing of it.
    pub trace: Option<trace::Report>,
    /// The time from the first packet to the outcome.
    pub took: Duration,
}

impl fmt::Display for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let took = self.took.as_secs_f64();
        match &self.outcome {
            Outcome::Answered => write!(f, "answered after {:.1} ms", took * 1000.0),
            Outcome::Refused(errno) => write!(f, "the client got: {}", errno.desc()),
            Outcome::NoAnswer => write!(f, "no answer within {took:.0} s"),
        }
    }
}

/// What the client of a probe saw.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The connection was established, or a datagram came back.
    Answered,
    /// An error came back at once: connection refused, or an ICMP error.
    Refused(Errno),
    /// Nothing came back, or only after the client had sent its SYN again.
    NoAnswer,
}

impl Probe {
    /// Sends the packet, follows it, and waits for what comes back. Returns `None` as soon as it is
    /// clear that the packet has gone to an endpoint that was asked before.
    ///
    /// # Errors
    /// If the packet cannot be sent from there, or the kernel does not trace it.
    pub fn send(
        packet: &Packet,
        namespace: Option<&Path>,
        was_asked: impl Fn(SocketAddr) -> bool,
    ) -> anyhow::Result<Option<Probe>> {
        let protocol =
            Protocol::from_number(packet.protocol).context("a probe needs TCP, UDP or SCTP")?;
        let from = SocketAddr::new(packet.source, 0);
        let to = SocketAddr::new(packet.destination, packet.port);
        let namespace = match namespace {
            None if !packet.from_node => Some(namespace_of(packet.source).with_context(|| {
                format!(
                    "no network namespace on this node has {}: give the client's --netns, or run \
                     this on the client's node with access to the host's /proc and /run/netns",
                    packet.source
                )
            })?),
            given => given.map(Path::to_owned),
        };
        let socket = match namespace {
            Some(path) => within(&path, || open(protocol, from))?,
            None => open(protocol, from),
        };
        let socket = socket.context("cannot send the probe")?;
        let own = socket.local_addr()?;
        let target = trace::Target { to, protocol, from: Some(own), count: 1 };
        let traced = |error| kernel_errors::explain(error).context("cannot trace the probe");
        let mut tracer = Tracer::begin(target).map_err(traced)?;
        let start = Instant::now();
        let is_repeated = || {
            // A packet that is not seen yet is not known.
            let destination = tracer.destination().ok().flatten();
            destination.is_some_and(&was_asked)
        };
        let outcome = attempt(&socket, protocol, to, is_repeated);
        let took = start.elapsed();
        let outcome = match outcome.context("cannot send the probe")? {
            None => return Ok(None),
            // The kernel may have chosen another endpoint for the repeated SYN.
            Some(Outcome::Answered | Outcome::Refused(Errno::ECONNREFUSED))
                if protocol == Protocol::Tcp && took >= REPETITION =>
            {
                Outcome::NoAnswer
            }
            Some(outcome) => outcome,
        };
        let trace = tracer.report().map_err(traced)?;
        Ok(Some(Probe { client: own, outcome, trace, took }))
    }
}

/// Opens a socket of the client in the network namespace of this thread.
fn open(protocol: Protocol, from: SocketAddr) -> io::Result<UdpSocket> {
    let family = match from {
        SocketAddr::V4(_) => AddressFamily::Inet,
        SocketAddr::V6(_) => AddressFamily::Inet6,
    };
    let (kind, number) = match protocol {
        Protocol::Tcp => (SockType::Stream, SockProtocol::Tcp),
        Protocol::Udp => (SockType::Datagram, SockProtocol::Udp),
        Protocol::Sctp => (SockType::Stream, SockProtocol::Sctp),
    };
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket(family, kind, flags, number)?;
    bind(socket.as_raw_fd(), &SockaddrStorage::from(from))?;
    // What it is used for, sockets of all protocols can do.
    Ok(UdpSocket::from(socket))
}

/// Makes the attempt. Returns `None` if `is_repeated` after a moment.
fn attempt(
    socket: &UdpSocket,
    protocol: Protocol,
    to: SocketAddr,
    mut is_repeated: impl FnMut() -> bool,
) -> io::Result<Option<Outcome>> {
    let timeout = if protocol == Protocol::Udp { UDP_TIMEOUT } else { TCP_TIMEOUT };
    let mut awaited = |event| -> io::Result<Option<bool>> {
        if wait(socket, event, MOMENT)? {
            return Ok(Some(true));
        }
        if is_repeated() { Ok(None) } else { wait(socket, event, timeout - MOMENT).map(Some) }
    };
    let failure = |error: io::Error| refusal(Errno::try_from(error)?).map(Some);
    let connected = match connect(socket.as_raw_fd(), &SockaddrStorage::from(to)) {
        Err(Errno::EINPROGRESS) => match awaited(PollFlags::POLLOUT)? {
            Some(true) => socket.take_error()?,
            Some(false) => return Ok(Some(Outcome::NoAnswer)),
            None => return Ok(None),
        },
        Err(errno) => Some(errno.into()),
        Ok(()) => None,
    };
    if let Some(error) = connected {
        return failure(error);
    }
    if protocol != Protocol::Udp {
        return Ok(Some(Outcome::Answered));
    }
    if let Err(error) = socket.send(&[]) {
        return failure(error);
    }
    match awaited(PollFlags::POLLIN)? {
        Some(true) => socket.take_error()?.map_or(Ok(Some(Outcome::Answered)), failure),
        Some(false) => Ok(Some(Outcome::NoAnswer)),
        None => Ok(None),
    }
}

/// Converts the error of an attempt into an outcome, if it came from the network.
fn refusal(errno: Errno) -> io::Result<Outcome> {
    match errno {
        Errno::ETIMEDOUT => Ok(Outcome::NoAnswer),
        Errno::ECONNREFUSED
        | Errno::ECONNRESET
        | Errno::ECONNABORTED
        | Errno::EHOSTUNREACH
        | Errno::ENETUNREACH
        | Errno::EPERM
        | Errno::EACCES
        | Errno::EPROTO => Ok(Outcome::Refused(errno)),
        other => Err(other.into()),
    }
}

/// Waits for an event. Returns false after the timeout.
fn wait(socket: &UdpSocket, event: PollFlags, timeout: Duration) -> io::Result<bool> {
    let deadline = Instant::now() + timeout;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        match poll(&mut [PollFd::new(socket.as_fd(), event)], timeout) {
            Ok(count) => return Ok(count > 0),
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Finds the network namespace on this node that has an address: a named one, or a process's.
fn namespace_of(address: IpAddr) -> Option<PathBuf> {
    let mut seen: BTreeSet<(u64, u64)> = BTreeSet::new();
    seen.extend(identity(Path::new("/proc/thread-self/ns/net")));
    let named = entries("/run/netns").chain(entries("/var/run/netns"));
    let processes = entries("/proc")
        .filter(|path| {
            let name = path.file_name().and_then(|name| name.to_str());
            name.is_some_and(|name| name.bytes().all(|byte| byte.is_ascii_digit()))
        })
        .map(|path| path.join("ns/net"));
    named.chain(processes).find(|path| {
        let is_new = identity(path).is_some_and(|identity| seen.insert(identity));
        is_new && within(path, || has_address(address)).unwrap_or(false)
    })
}

fn has_address(address: IpAddr) -> bool {
    nfnetlink::route::addresses().is_ok_and(|addresses| addresses.contains(&address))
}

/// Returns device and inode of a namespace, which identify it.
fn identity(path: &Path) -> Option<(u64, u64)> {
    let metadata = fs::metadata(path).ok()?;
    Some((metadata.dev(), metadata.ino()))
}

fn entries(directory: &str) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten();
    entries.filter_map(|entry| Some(entry.ok()?.path()))
}
