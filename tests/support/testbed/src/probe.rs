//! One question to a server, and what became of it.

use std::collections::BTreeMap;
use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::BuildHasher;
use std::io::{BufRead, BufReader, ErrorKind, IoSliceMut, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, ControlMessageOwned, MsgFlags, SockFlag, SockType, SockaddrStorage, bind,
    connect, getsockopt, recv, recvmsg, send, setsockopt, socket, sockopt,
};

use crate::datagram::{after_ipv4_header, sctp_socket, wildcard_like};
use crate::netns;
use crate::patience::patience;
use crate::sctp::{self, Init, InitAck};

/// A transport protocol that Services know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// SCTP.
    Sctp,
}

impl Protocol {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Tcp, Self::Udp, Self::Sctp];
}

impl fmt::Display for Protocol {
    /// The name as in manifests, `TCP`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
            Self::Sctp => "SCTP",
        })
    }
}

/// What became of a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A server answered.
    Reached {
        /// What it calls itself.
        server: String,
        /// The source address it saw.
        source: IpAddr,
    },
    /// Somebody said at once that nobody listens: a TCP reset or ICMP "port unreachable".
    Refused,
    /// Nothing came back while the probe waited.
    Dropped,
    /// Anything else the network or the own kernel reports, such as "administratively prohibited"
    /// (`EHOSTUNREACH` for IPv4, `EACCES` for IPv6) or a missing route (`ENETUNREACH`).
    Unreachable(Errno),
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reached { server, source } => write!(f, "reached {server}, which saw {source}"),
            Self::Refused => f.write_str("refused"),
            Self::Dropped => f.write_str("no answer"),
            Self::Unreachable(errno) => write!(f, "unreachable ({errno})"),
        }
    }
}

/// Asks the server at `to` who it is, from a new source port, in the network namespace of the
/// calling thread (see [`Netns::run`](crate::Netns::run)). `source` is the address to ask from,
/// if not the one that routing selects. An answer that takes longer than `patience` is
/// [`Outcome::Dropped`].
///
/// # Errors
/// Only what says nothing about the network, such as a source address that is not ours.
pub fn probe(
    protocol: Protocol,
    source: Option<IpAddr>,
    to: SocketAddr,
    patience: Duration,
) -> Result<Outcome> {
    let deadline = Instant::now() + patience;
    let source = source.unwrap_or_else(|| wildcard_like(to.ip()));
    match protocol {
        Protocol::Tcp => tcp(source, to, deadline),
        Protocol::Udp => udp(source, to, deadline),
        Protocol::Sctp => sctp(source, to, deadline),
    }
}

/// A TCP connection to an echo server that stays open.
pub struct Connection {
    /// The server that took it.
    pub server: String,
    /// The source address the server saw.
    pub source: IpAddr,
    stream: BufReader<TcpStream>,
}

impl Connection {
    /// Connects, in the network namespace of the calling thread.
    pub fn open(to: SocketAddr) -> Result<Self> {
        // A machine that has much to do lets programs wait.
        const PATIENCE: Duration = Duration::from_secs(30);
        let stream = TcpStream::connect_timeout(&to, patience(PATIENCE))
            .with_context(|| format!("cannot connect to {to}"))?;
        stream.set_read_timeout(Some(patience(PATIENCE)))?;
        let mut stream = BufReader::new(stream);
        let mut line = String::new();
        stream.read_line(&mut line).with_context(|| format!("no greeting from {to}"))?;
        let (server, source) = parse_greeting(&line)?;
        Ok(Self { server, source, stream })
    }

    /// Sends a line and returns the answer, without the server's name in front of it. An answer
    /// from another server, or none, is an error.
    pub fn echo(&mut self, line: &str) -> Result<String> {
        self.stream.get_mut().write_all(format!("{line}\n").as_bytes())?;
        let mut answer = String::new();
        self.stream.read_line(&mut answer).context("the connection is dead")?;
        let answer = answer.trim_end_matches('\n');
        match answer.strip_prefix(&self.server).and_then(|rest| rest.strip_prefix(' ')) {
            Some(echoed) => Ok(echoed.to_owned()),
            None => bail!("{} answered {answer:?}", self.server),
        }
    }
}

fn tcp(source: IpAddr, to: SocketAddr, deadline: Instant) -> Result<Outcome> {
    let socket = bound_socket(SockType::Stream, source)?;
    // Reset instead of TIME_WAIT: the port is free again for one of the next thousands.
    setsockopt(&socket, sockopt::Linger, &libc::linger { l_onoff: 1, l_linger: 0 })?;
    report_all_errors(&socket, to.ip())?;
    match connect(socket.as_raw_fd(), &SockaddrStorage::from(to)) {
        Ok(()) | Err(Errno::EINPROGRESS) => {}
        Err(errno) => return Ok(failure(errno)),
    }
    // In the testbed an ICMP error can arrive before `connect` is through: the kernel, which
    // cannot fail the socket at that moment, would wait for the answer to the second SYN, but it
    // also puts the error into the queue.
    if let Some((errno, _)) = next_icmp_error(&socket) {
        return Ok(failure(errno));
    }
    if !wait_for(&socket, PollFlags::POLLOUT, deadline)? {
        return Ok(Outcome::Dropped);
    }
    if let Some(errno) = pending_error(&socket)? {
        return Ok(failure(errno));
    }
    let mut greeting = Vec::new();
    let mut buffer = [0; 256];
    let mut stream = TcpStream::from(socket);
    while !greeting.ends_with(b"\n") {
        if !wait_for(&stream, PollFlags::POLLIN, deadline)? {
            return Ok(Outcome::Dropped);
        }
        match stream.read(&mut buffer) {
            Ok(0) => return Ok(Outcome::Refused),
            Ok(length) => greeting.extend(&buffer[..length]),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => {
                return Ok(Outcome::Refused);
            }
            Err(error) => return Ok(failure(errno_of(&error))),
        }
    }
    reached(&greeting)
}

fn udp(source: IpAddr, to: SocketAddr, deadline: Instant) -> Result<Outcome> {
    let socket = bound_socket(SockType::Datagram, source)?;
    report_all_errors(&socket, to.ip())?;
    if let Err(errno) = connect(socket.as_raw_fd(), &SockaddrStorage::from(to)) {
        return Ok(failure(errno));
    }
    let socket = UdpSocket::from(socket);
    // The number makes a late answer to somebody else's datagram stand out.
    let question = format!("probe {}", random());
    if let Err(error) = socket.send(question.as_bytes())
        && !dropped_on_output(errno_of(&error))
    {
        return Ok(failure(errno_of(&error)));
    }
    let mut buffer = [0; 2048];
    while wait_for(&socket, PollFlags::POLLIN, deadline)? {
        match socket.recv(&mut buffer) {
            Ok(length) => {
                if let Some(greeting) = buffer[..length].strip_suffix(question.as_bytes()) {
                    return reached(greeting);
                }
            }
            Err(error) => return Ok(failure(errno_of(&error))),
        }
    }
    Ok(Outcome::Dropped)
}

fn sctp(source: IpAddr, to: SocketAddr, deadline: Instant) -> Result<Outcome> {
    let family = family_of(to.ip());
    let socket = sctp_socket(family)?;
    report_all_errors(&socket, to.ip())?;
    // Raw sockets have no ports. A connected one hears only packets and errors from its peer.
    bind(socket.as_raw_fd(), &SockaddrStorage::from(SocketAddr::new(source, 0)))
        .with_context(|| cannot_use(source))?;
    let peer = SockaddrStorage::from(SocketAddr::new(to.ip(), 0));
    if let Err(errno) = connect(socket.as_raw_fd(), &peer) {
        return Ok(failure(errno));
    }
    let init =
        Init { source_port: next_port()?, destination_port: to.port(), tag: random().max(1) };
    if let Err(errno) = send(socket.as_raw_fd(), &init.encode(), MsgFlags::empty())
        && !dropped_on_output(errno)
    {
        return Ok(failure(errno));
    }
    let mut buffer = [0; 2048];
    while wait_for(&socket, PollFlags::POLLIN, deadline)? {
        while let Some((errno, packet)) = next_icmp_error(&socket) {
            // Raw sockets have no ports: an error may be about another probe.
            if sctp::ports(&packet) == Some((init.source_port, init.destination_port)) {
                return Ok(failure(errno));
            }
        }
        while let Ok(length) = recv(socket.as_raw_fd(), &mut buffer, MsgFlags::empty()) {
            let packet = &buffer[..length];
            let packet = if to.is_ipv4() { after_ipv4_header(packet) } else { packet };
            let answer = InitAck::decode(packet).filter(|answer| {
                (answer.tag, answer.source_port, answer.destination_port)
                    == (init.tag, init.destination_port, init.source_port)
            });
            if let Some(answer) = answer {
                return reached(&answer.cookie);
            }
        }
    }
    Ok(Outcome::Dropped)
}

/// The next error in the socket's queue, with the packet that caused it.
pub(crate) fn next_icmp_error(socket: &OwnedFd) -> Option<(Errno, Vec<u8>)> {
    let mut buffer = [0; 512];
    let mut space = nix::cmsg_space!(libc::sock_extended_err, libc::sockaddr_in6);
    let mut parts = [IoSliceMut::new(&mut buffer)];
    let message = recvmsg::<SockaddrStorage>(
        socket.as_raw_fd(),
        &mut parts,
        Some(&mut space),
        MsgFlags::MSG_ERRQUEUE,
    )
    .ok()?;
    let errno = message.cmsgs().ok()?.find_map(|control| match control {
        ControlMessageOwned::Ipv4RecvErr(error, _) | ControlMessageOwned::Ipv6RecvErr(error, _) => {
            Some(Errno::from_raw(error.ee_errno as i32))
        }
        _ => None,
    })?;
    let length = message.bytes;
    Some((errno, buffer[..length].to_vec()))
}

/// A packet that a rule dropped on its way out fails the system call, but what the rule wants the
/// sender to know (refused, or nothing) still follows.
pub(crate) fn dropped_on_output(errno: Errno) -> bool {
    errno == Errno::EPERM
}

fn failure(errno: Errno) -> Outcome {
    match errno {
        Errno::ECONNREFUSED => Outcome::Refused,
        other => Outcome::Unreachable(other),
    }
}

fn reached(greeting: &[u8]) -> Result<Outcome> {
    let (server, source) = parse_greeting(&String::from_utf8_lossy(greeting))?;
    Ok(Outcome::Reached { server, source })
}

pub(crate) fn parse_greeting(line: &str) -> Result<(String, IpAddr)> {
    let mut words = line.split_whitespace();
    let (Some(server), Some(source)) = (words.next(), words.next()) else {
        bail!("no echo server greets like this: {line:?}");
    };
    let source = source.parse().with_context(|| format!("strange greeting {line:?}"))?;
    Ok((server.to_owned(), source))
}

/// A non-blocking socket, bound to this address and a port of its own.
pub(crate) fn bound_socket(kind: SockType, source: IpAddr) -> Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket(family_of(source), kind, flags, None)?;
    loop {
        let source = SocketAddr::new(source, next_port()?);
        match bind(socket.as_raw_fd(), &SockaddrStorage::from(source)) {
            Ok(()) => return Ok(socket),
            Err(Errno::EADDRINUSE) => {}
            Err(errno) => return Err(errno).with_context(|| cannot_use(source.ip())),
        }
    }
}

pub(crate) fn cannot_use(source: IpAddr) -> String {
    format!("cannot use the source address {source}")
}

/// The next source port in the network namespace of this thread. The kernel would choose at random,
/// and sometimes one that was used a moment ago: connection tracking would take the probe for more of
/// the earlier one, and send it to the same server. So each namespace has a sequence of its own,
/// which comes around only after more probes than a test sends.
pub(crate) fn next_port() -> Result<u16> {
    const FIRST: u16 = 32_768;
    static USED: Mutex<BTreeMap<u64, u16>> = Mutex::new(BTreeMap::new());
    let namespace = netns::current()?;
    let mut used = USED.lock().unwrap_or_else(PoisonError::into_inner);
    let count = used.entry(namespace).or_default();
    *count = (*count + 1) % (u16::MAX - FIRST);
    Ok(FIRST + *count)
}

/// Also reports ICMP errors that a datagram socket would not consider final.
pub(crate) fn report_all_errors(socket: &OwnedFd, like: IpAddr) -> Result<()> {
    if like.is_ipv4() {
        setsockopt(socket, sockopt::Ipv4RecvErr, &true)?;
    } else {
        setsockopt(socket, sockopt::Ipv6RecvErr, &true)?;
    }
    Ok(())
}

pub(crate) fn family_of(ip: IpAddr) -> AddressFamily {
    if ip.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 }
}

/// Waits until the socket is ready or has failed; false when the deadline comes first.
fn wait_for(socket: &impl AsFd, what: PollFlags, deadline: Instant) -> Result<bool> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        // Rounded up: a timeout of 0 before the deadline would spin.
        let timeout =
            PollTimeout::try_from(left.as_micros().div_ceil(1000)).unwrap_or(PollTimeout::MAX);
        match poll(&mut [PollFd::new(socket.as_fd(), what)], timeout) {
            Ok(0) if left.is_zero() => return Ok(false),
            Ok(0) | Err(Errno::EINTR) => {}
            Ok(_) => return Ok(true),
            Err(errno) => return Err(errno).context("poll"),
        }
    }
}

pub(crate) fn pending_error(socket: &OwnedFd) -> Result<Option<Errno>> {
    let error = getsockopt(socket, sockopt::SocketError)?;
    Ok((error != 0).then(|| Errno::from_raw(error)))
}

pub(crate) fn errno_of(error: &std::io::Error) -> Errno {
    Errno::from_raw(error.raw_os_error().unwrap_or(libc::EIO))
}

pub(crate) fn random() -> u32 {
    RandomState::new().hash_one(()) as u32
}
