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
use serde::Serialize;
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
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Probe {
    /// What the client saw.
    #[serde(rename = "result")]
    pub outcome: ProbeOutcome,
    /// The result as a sentence.
    pub text: String,
    /// The endpoint that the kernel chose.
    pub endpoint: Option<SocketAddr>,
    /// The time from the first packet to the outcome, in seconds.
    pub seconds: f64,
    /// The way of the packet, as `shunt trace` shows it; `None` if the kernel told nothing of it.
    pub trace: Option<trace::TraceReport>,
}

impl fmt::Display for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.outcome {
            ProbeOutcome::Answered => write!(f, "answered after {:.1} ms", self.seconds * 1000.0),
            ProbeOutcome::Refused(errno) => write!(f, "the client got: {}", errno.desc()),
            ProbeOutcome::NoAnswer => write!(f, "no answer within {:.0} s", self.seconds),
        }
    }
}

/// What the client of a probe saw.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProbeOutcome {
    /// The connection was established, or a datagram came back.
    Answered,
    /// An error came back at once: connection refused, or an ICMP error.
    Refused(#[serde(skip)] Errno),
    /// Nothing came back, or only after the client had sent its SYN again.
    NoAnswer,
}

impl Probe {
    /// Sends the packet, follows it, and waits for what comes back; only for a moment if it has gone to
    /// an endpoint that `was_asked` before.
    ///
    /// # Errors
    /// If the packet cannot be sent from there, or the kernel does not trace it.
    pub fn send(
        packet: &Packet,
        namespace: Option<&Path>,
        was_asked: impl Fn(SocketAddr) -> bool,
    ) -> anyhow::Result<Probe> {
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
        let is_repeated = || tracer.destination().ok().flatten().is_some_and(&was_asked);
        let outcome = attempt(&socket, protocol, to, is_repeated);
        let took = start.elapsed();
        let outcome = match outcome.context("cannot send the probe")? {
            // The kernel may have chosen another endpoint for the repeated SYN.
            ProbeOutcome::Answered | ProbeOutcome::Refused(Errno::ECONNREFUSED)
                if protocol == Protocol::Tcp && took >= REPETITION =>
            {
                ProbeOutcome::NoAnswer
            }
            outcome => outcome,
        };
        let trace = tracer.report().map_err(traced)?;
        let endpoint = trace.as_ref().and_then(|trace| trace.backend);
        let what = if protocol == Protocol::Udp { "an empty datagram" } else { "a SYN" };
        let way = match endpoint {
            Some(endpoint) => format!("chose {endpoint}"),
            None if trace.is_none() => "was seen by no rule".to_owned(),
            None => "was not translated".to_owned(),
        };
        let by = trace.as_ref().and_then(|trace| trace.by.as_ref());
        let by = by.map(|by| format!("; it ended at {by}")).unwrap_or_default();
        let seconds = took.as_secs_f64();
        let mut probe = Probe { outcome, text: String::new(), endpoint, seconds, trace };
        probe.text = format!("{what} from {own} {way}, {probe}{by}");
        Ok(probe)
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

/// Makes the attempt, which has no answer if `is_repeated` after a moment.
fn attempt(
    socket: &UdpSocket,
    protocol: Protocol,
    to: SocketAddr,
    mut is_repeated: impl FnMut() -> bool,
) -> io::Result<ProbeOutcome> {
    let is_datagram = protocol == Protocol::Udp;
    let timeout = if is_datagram { UDP_TIMEOUT } else { TCP_TIMEOUT };
    let mut comes = |event| -> io::Result<bool> {
        Ok(wait(socket, event, MOMENT)? || (!is_repeated() && wait(socket, event, timeout)?))
    };
    match connect(socket.as_raw_fd(), &SockaddrStorage::from(to)) {
        Err(Errno::EINPROGRESS) if !comes(PollFlags::POLLOUT)? => {
            return Ok(ProbeOutcome::NoAnswer);
        }
        Ok(()) | Err(Errno::EINPROGRESS) => {}
        Err(errno) => return refusal(errno),
    }
    let mut failure = socket.take_error()?;
    if is_datagram && failure.is_none() {
        failure = match socket.send(&[]) {
            Ok(_) if !comes(PollFlags::POLLIN)? => return Ok(ProbeOutcome::NoAnswer),
            Ok(_) => socket.take_error()?,
            Err(error) => Some(error),
        };
    }
    failure.map_or(Ok(ProbeOutcome::Answered), |error| refusal(Errno::try_from(error)?))
}

/// Converts the error of an attempt into an outcome, if it came from the network.
fn refusal(errno: Errno) -> io::Result<ProbeOutcome> {
    match errno {
        Errno::ETIMEDOUT => Ok(ProbeOutcome::NoAnswer),
        Errno::ECONNREFUSED
        | Errno::ECONNRESET
        | Errno::ECONNABORTED
        | Errno::EHOSTUNREACH
        | Errno::ENETUNREACH
        | Errno::EPERM
        | Errno::EACCES
        | Errno::EPROTO => Ok(ProbeOutcome::Refused(errno)),
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
    let processes = entries("/proc")
        .filter(|path| {
            let name = path.file_name().and_then(|name| name.to_str());
            name.is_some_and(|name| name.bytes().all(|byte| byte.is_ascii_digit()))
        })
        .map(|path| path.join("ns/net"));
    entries("/run/netns").chain(processes).find(|path| {
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
