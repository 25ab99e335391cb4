//! What becomes of a question to a server, and the sockets that ask it.

use std::collections::BTreeMap;
use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::BuildHasher;
use std::io::IoSliceMut;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use nix::errno::Errno;
use nix::poll::{PollFd, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, ControlMessageOwned, MsgFlags, SockFlag, SockType, SockaddrStorage, bind,
    getsockopt, recvmsg, setsockopt, socket, sockopt,
};

use crate::netns;

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

/// What became of a question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A server answered.
    Reached {
        /// What it calls itself.
        server: String,
        /// The source address it saw.
        source: IpAddr,
    },
    /// The other side reset the connection: a host that has the address, but no server there.
    Reset,
    /// An ICMP error came back, which means this to a program.
    Icmp(Errno),
    /// The own kernel did not even send it.
    NotSent(Errno),
    /// Nothing came back in time.
    Dropped,
}

impl Outcome {
    /// Refused at once: nothing listens there.
    pub fn is_refused(&self) -> bool {
        matches!(self, Self::Reset | Self::Icmp(Errno::ECONNREFUSED))
    }

    /// Any other error, such as "administratively prohibited" (`EHOSTUNREACH` for IPv4, `EACCES` for
    /// IPv6) or a missing route (`ENETUNREACH`).
    pub fn error(&self) -> Option<Errno> {
        match self {
            Self::Icmp(errno) | Self::NotSent(errno) if !self.is_refused() => Some(*errno),
            _ => None,
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reached { server, source } => write!(f, "reached {server}, which saw {source}"),
            Self::Reset => f.write_str("reset"),
            Self::Icmp(Errno::ECONNREFUSED) => f.write_str("refused"),
            Self::Icmp(errno) => write!(f, "unreachable ({errno})"),
            Self::NotSent(errno) => write!(f, "not sent ({errno})"),
            Self::Dropped => f.write_str("no answer"),
        }
    }
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

pub(crate) fn parse_greeting(line: &str) -> Result<(String, IpAddr)> {
    let mut words = line.split_whitespace();
    let (Some(server), Some(source)) = (words.next(), words.next()) else {
        bail!("no echo server greets like this: {line:?}");
    };
    let source = source.parse().with_context(|| format!("strange greeting {line:?}"))?;
    Ok((server.to_owned(), source))
}

/// A non-blocking socket, bound to this address and, for port 0, to a port of its own.
pub(crate) fn bound_socket(kind: SockType, source: SocketAddr) -> Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket(family_of(source.ip()), kind, flags, None)?;
    loop {
        let port = if source.port() == 0 { next_port()? } else { source.port() };
        match bind(socket.as_raw_fd(), &SockaddrStorage::from(SocketAddr::new(source.ip(), port))) {
            Ok(()) => return Ok(socket),
            Err(Errno::EADDRINUSE) if source.port() == 0 => {}
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

/// Waits until a socket is ready or has failed, at most until the deadline. True for each that is.
pub(crate) fn wait_for(fds: &mut [PollFd<'_>], deadline: Instant) -> Result<Vec<bool>> {
    let left = deadline.saturating_duration_since(Instant::now());
    // Rounded up: a timeout of 0 before the deadline would spin.
    let timeout =
        PollTimeout::try_from(left.as_micros().div_ceil(1000)).unwrap_or(PollTimeout::MAX);
    match poll(fds, timeout) {
        Ok(_) | Err(Errno::EINTR) => {}
        Err(errno) => return Err(errno).context("poll"),
    }
    Ok(fds.iter().map(|fd| fd.any() == Some(true)).collect())
}

pub(crate) fn pending_error(socket: &OwnedFd) -> Result<Option<Errno>> {
    let error = getsockopt(socket, sockopt::SocketError)?;
    Ok((error != 0).then(|| Errno::from_raw(error)))
}

pub(crate) fn random() -> u32 {
    RandomState::new().hash_one(()) as u32
}
