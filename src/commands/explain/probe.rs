//! The probe: one connection attempt as the client would make it, followed in connection tracking.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context;
use nfnetlink::conntrack::{Conntrack, NewConnections, Tuple};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockProtocol, SockType, SockaddrStorage, bind, connect, socket,
};
use shunt_core::explain::{Code, Finding, Packet};
use shunt_core::model::Protocol;

use super::judge::Verdict;
use super::report::{EndpointReport, Explanation, ProbeReport};
use super::source::within;
use super::{Client, Origin};

/// How long the probe waits for an answer: the time of three SYNs.
const TCP_TIMEOUT: Duration = Duration::from_secs(3);
/// How long it waits for an answer to a datagram, which may need none.
const UDP_TIMEOUT: Duration = Duration::from_secs(1);

/// The result of a probe.
#[derive(Debug, Clone, PartialEq)]
pub struct Probe {
    /// The address and port of the client.
    pub client: SocketAddr,
    /// What the client saw.
    pub outcome: Outcome,
    /// The endpoint that the kernel chose; `None` without a translation.
    pub endpoint: Option<SocketAddr>,
    /// The time from the first packet to the outcome.
    pub took: Duration,
}

/// What the client of a probe saw.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The connection was established, or a datagram came back.
    Answered,
    /// An error came back at once: connection refused, or an ICMP error.
    Refused(Errno),
    /// Nothing came back.
    NoAnswer,
}

impl Probe {
    /// Sends the packet and waits for what comes back.
    ///
    /// # Errors
    /// If the packet cannot be sent from there.
    pub fn send(packet: &Packet, client: &Client) -> anyhow::Result<Probe> {
        let protocol =
            Protocol::from_number(packet.protocol).context("a probe needs TCP, UDP or SCTP")?;
        let from = SocketAddr::new(packet.source, 0);
        let to = SocketAddr::new(packet.destination, packet.port);
        let namespace = match (&client.namespace, &client.origin) {
            (Some(path), _) => Some(path.clone()),
            (None, Origin::Node) => None,
            (None, Origin::Interface(_)) => {
                Some(namespace_of(packet.source).with_context(|| {
                    format!(
                        "no network namespace on this node has {}: give --netns of the client, or run \
                         this on its node with access to /proc and /run/netns of the host",
                        packet.source
                    )
                })?)
            }
        };
        // Connection tracking forgets a refused attempt at once, so the entry is caught as it begins.
        let mut begun = NewConnections::open();
        let start = Instant::now();
        let sent = match namespace {
            Some(path) => within(&path, || attempt(protocol, from, to))?,
            None => attempt(protocol, from, to),
        };
        let took = start.elapsed();
        let (own, outcome) = sent.context("the probe cannot be sent")?;
        let original = Tuple { source: own, destination: to };
        let mut entry = None;
        if let Ok(begun) = &mut begun {
            // Lost notifications leave the lookup.
            let _ = begun.take(|connection| {
                if connection.protocol == packet.protocol && connection.original == original {
                    entry = Some(connection);
                }
            });
        }
        if entry.is_none() {
            let found = Conntrack::open()
                .and_then(|mut conntrack| conntrack.get(packet.protocol, &original));
            entry = found.ok().flatten();
        }
        // A connection without an entry has met no translation that connection tracking confirms.
        let endpoint = entry.filter(|entry| entry.is_translated()).map(|entry| entry.reply.source);
        Ok(Probe { client: own, outcome, endpoint, took })
    }

    /// Adds the result to an explanation: it decides the verdict.
    pub fn tell(&self, explanation: &mut Explanation) {
        let to = match self.endpoint {
            Some(endpoint) => format!("chose {endpoint}"),
            None => "was not translated".to_owned(),
        };
        let took = self.took.as_secs_f64();
        let is_datagram = explanation.packet.protocol == Protocol::Udp.number();
        let what = if is_datagram { "an empty datagram" } else { "a SYN" };
        let (result, outcome) = match &self.outcome {
            Outcome::Answered => ("answered", format!("answered after {:.1} ms", took * 1000.0)),
            Outcome::Refused(errno) => ("refused", format!("the client got: {}", errno.desc())),
            Outcome::NoAnswer => ("no-answer", format!("no answer within {took:.0} s")),
        };
        let text = format!("{what} from {} {to}, {outcome}", self.client);
        explanation.probe =
            Some(ProbeReport { result, text, endpoint: self.endpoint, seconds: took });
        let is_own = |endpoint: SocketAddr| {
            let is_used = |it: &EndpointReport| {
                it.view.used
                    && (it.view.address, it.view.port) == (endpoint.ip(), Some(endpoint.port()))
            };
            explanation.affinity.endpoint == Some(endpoint)
                || explanation.endpoints.iter().any(is_used)
        };
        let verdict = match (&self.outcome, self.endpoint) {
            (outcome, Some(foreign)) if !is_own(foreign) => {
                let text = format!(
                    "another program translated the connection to {foreign}, which is no endpoint \
                     of the Service: see `shunt trace`"
                );
                let verdict = match outcome {
                    Outcome::Answered => Verdict::Unknown,
                    Outcome::Refused(_) => Verdict::Refused,
                    Outcome::NoAnswer => Verdict::Dropped,
                };
                Some((verdict, Some((Code::ForeignTranslation, text))))
            }
            (Outcome::Answered, Some(_)) => Some((Verdict::Delivered, None)),
            // The agent itself has answered.
            (Outcome::Answered, None) if explanation.has(Code::LoopbackProxy) => {
                Some((Verdict::Delivered, None))
            }
            // Another program has answered, and no endpoint of the Service.
            (Outcome::Answered, None) => Some((Verdict::Unknown, None)),
            (
                Outcome::Refused(errno @ (Errno::EHOSTUNREACH | Errno::ENETUNREACH)),
                Some(endpoint),
            ) => {
                let text = format!("endpoint {endpoint} is unreachable: {}", errno.desc());
                Some((Verdict::Refused, Some((Code::EndpointUnreachable, text))))
            }
            (Outcome::Refused(_), Some(endpoint)) => {
                let text = format!(
                    "endpoint {endpoint} refuses the connection: nothing listens on that port, or a \
                     firewall rejects it"
                );
                Some((Verdict::Refused, Some((Code::EndpointRefuses, text))))
            }
            (Outcome::Refused(_), None) => Some((Verdict::Refused, None)),
            // A server need not answer an empty datagram.
            (Outcome::NoAnswer, _) if is_datagram => None,
            (Outcome::NoAnswer, Some(endpoint)) => {
                let text = format!("endpoint {endpoint} does not answer");
                Some((Verdict::Dropped, Some((Code::EndpointNotAnswering, text))))
            }
            (Outcome::NoAnswer, None) => Some((Verdict::Dropped, None)),
        };
        if let Some((verdict, finding)) = verdict
            && explanation.verdict != Verdict::NotAService
        {
            explanation.verdict = verdict;
            if let Some((code, text)) = finding {
                explanation.findings.retain(|finding| finding.code != code);
                explanation.findings.insert(0, Finding::new(code, text));
            }
        }
    }
}

/// Makes the attempt from the network namespace of this thread. Returns the client's own address.
fn attempt(
    protocol: Protocol,
    from: SocketAddr,
    to: SocketAddr,
) -> io::Result<(SocketAddr, Outcome)> {
    let family = match to {
        SocketAddr::V4(_) => AddressFamily::Inet,
        SocketAddr::V6(_) => AddressFamily::Inet6,
    };
    let (kind, number, timeout) = match protocol {
        Protocol::Tcp => (SockType::Stream, SockProtocol::Tcp, TCP_TIMEOUT),
        Protocol::Udp => (SockType::Datagram, SockProtocol::Udp, UDP_TIMEOUT),
        Protocol::Sctp => (SockType::Stream, SockProtocol::Sctp, TCP_TIMEOUT),
    };
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket(family, kind, flags, number)?;
    bind(socket.as_raw_fd(), &SockaddrStorage::from(from))?;
    let connected = connect(socket.as_raw_fd(), &SockaddrStorage::from(to));
    // What it is used for below, sockets of all protocols can do.
    let socket = UdpSocket::from(socket);
    let own = socket.local_addr()?;
    let failure = |error: io::Error| refusal(Errno::try_from(error)?);
    let connected = match connected {
        Err(Errno::EINPROGRESS) => {
            if !wait(&socket, PollFlags::POLLOUT, timeout)? {
                return Ok((own, Outcome::NoAnswer));
            }
            socket.take_error()?
        }
        Err(errno) => Some(errno.into()),
        Ok(()) => None,
    };
    let outcome = match connected {
        Some(error) => failure(error)?,
        None if protocol != Protocol::Udp => Outcome::Answered,
        None => match socket.send(&[]) {
            Err(error) => failure(error)?,
            Ok(_) if !wait(&socket, PollFlags::POLLIN, timeout)? => Outcome::NoAnswer,
            Ok(_) => socket.take_error()?.map_or(Ok(Outcome::Answered), failure)?,
        },
    };
    Ok((own, outcome))
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
