//! The presence of an agent in a network namespace.
//!
//! Owns: the lock that permits one agent at a time, and the address at which that agent serves its
//! status.
//!
//! The lock consists of netlink sockets of netfilter with reserved port numbers. The kernel has
//! each number once per network namespace, independent of containers, file systems and process
//! numbers. It frees the number when the process ends, however it ends. Any process may take a
//! number, but only one with CAP_NET_ADMIN over the network namespace may join a multicast group of
//! netfilter (`netlink_bind`). The same capability permits changes of the rules. So a number counts
//! as taken only if its socket is in the lock's group, to which the kernel sends nothing.
//! /proc/net/netlink shows both. A process without the capability can occupy numbers, but an agent
//! skips these.

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::Duration;

use nfnetlink::socket::{Bus, NetlinkSocket, sockets};
use nix::errno::Errno;
use nix::sys::socket::sockopt::{PeerCredentials, SendTimeout};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, UnixAddr, bind, connect, getpeername, getsockopt,
    setsockopt, socket,
};
use nix::sys::time::TimeVal;

/// The first port number of the lock. The kernel itself assigns process numbers, and numbers near
/// the largest.
pub const FIRST_PORT: u32 = 0x7368_0000;
/// The number of port numbers of the lock.
pub const PORTS: u32 = 8;
/// The multicast groups of the sockets of the lock, and of the socket of its holder. Netlink has at
/// least 32 groups; netfilter uses the first ten.
const LOCK: u32 = 1 << 31;
const HOLDER: u32 = 1 << 30;
/// The group of a command that proves its capability to the agent.
const PROOF: u32 = 1 << 29;
/// The pause between two checks of a port number whose socket is outside of the lock's groups: a
/// starting agent joins them within a moment.
const LOOK_AGAIN: Duration = Duration::from_millis(10);
const LOOKS: usize = 3;

/// A guard of the lock of a network namespace. Its drop releases the lock.
#[derive(Debug)]
pub struct Presence {
    _lock: Vec<NetlinkSocket>,
    _holder: NetlinkSocket,
    /// The listener for requests of the status.
    pub listener: UnixListener,
}

impl Presence {
    /// Takes the lock of this thread's network namespace. Returns `None` if another agent holds it.
    ///
    /// # Errors
    /// If the holder cannot be determined, mainly without CAP_NET_ADMIN.
    pub fn take() -> io::Result<Option<Presence>> {
        let mut lock = Vec::new();
        for port in FIRST_PORT..FIRST_PORT + PORTS {
            match take_port(port)? {
                Port::Taken(socket) => lock.push(socket),
                Port::Occupied => {}
                Port::Locked => return Ok(None),
            }
        }
        // The name is random, so that no other process can have taken it before.
        let (port, listener, holder) = loop {
            let port = random();
            let Some(holder) = open(port, HOLDER)? else { continue };
            match UnixListener::bind_addr(&address(port)?) {
                Ok(listener) => break (port, listener, holder),
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
                Err(error) => return Err(error),
            }
        };
        // If other processes occupy all numbers, this socket alone is the lock.
        if lock.is_empty() && holders()?.into_iter().any(|other| other != port) {
            return Ok(None);
        }
        Ok(Some(Presence { _lock: lock, _holder: holder, listener }))
    }
}

/// A port number of the lock.
enum Port {
    /// This process has the number.
    Taken(NetlinkSocket),
    /// Another agent has the number.
    Locked,
    /// Another process has the number, possibly not an agent.
    Occupied,
}

fn take_port(port: u32) -> io::Result<Port> {
    let mut looks = 0;
    loop {
        if let Some(socket) = open(port, LOCK)? {
            return Ok(Port::Taken(socket));
        }
        match sockets(Bus::Netfilter)?.get(&port) {
            Some(groups) if groups & LOCK != 0 => return Ok(Port::Locked),
            // An agent between two steps here finds the next number taken by this process, and
            // waits.
            Some(_) if looks == LOOKS => return Ok(Port::Occupied),
            Some(_) => looks += 1,
            // Its process has just ended.
            None => {}
        }
        std::thread::sleep(LOOK_AGAIN);
    }
}

/// Opens a socket with this port number in this group. Returns `None` if another socket has the
/// number.
fn open(port: u32, group: u32) -> io::Result<Option<NetlinkSocket>> {
    match NetlinkSocket::bind(Bus::Netfilter, port, group).map_err(io::Error::from) {
        Ok(socket) => Ok(Some(socket)),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns the port numbers of agents. Except for moments, there is one at most.
fn holders() -> io::Result<Vec<u32>> {
    let sockets = sockets(Bus::Netfilter)?.into_iter();
    Ok(sockets.filter(|(_, groups)| groups & HOLDER != 0).map(|(port, _)| port).collect())
}

/// Names a process, of which 0 is not visible here, for a message.
#[must_use]
pub fn name_of(process: i32) -> String {
    match process {
        0 => "in another container or PID namespace".to_owned(),
        process => format!("process {process}"),
    }
}

/// The proof that this process has CAP_NET_ADMIN over its network namespace: a port number of netlink
/// in the group of proofs, and a Unix socket with that number as its name. The name is taken first and
/// freed last, so the process that connects from it has taken the number, too. Ends with its drop.
#[derive(Debug)]
pub struct Proof {
    _number: NetlinkSocket,
    socket: OwnedFd,
}

impl Proof {
    /// Takes a number that no process can guess.
    ///
    /// # Errors
    /// Without the capability.
    pub fn give() -> io::Result<Proof> {
        loop {
            let number = random();
            let named = unnamed()?;
            match bind(named.as_raw_fd(), &proof_name(number)?) {
                Err(Errno::EADDRINUSE) => continue,
                result => result?,
            }
            if let Some(_number) = open(number, PROOF)? {
                // When a process is killed, the kernel closes its largest descriptor last.
                let socket = named.try_clone()?;
                return Ok(Proof { _number, socket });
            }
        }
    }

    /// Connects to the agent in this thread's network namespace, as [`connect_to_agent`] does.
    ///
    /// # Errors
    /// If the kernel refuses the listing or the connection.
    pub fn connect(&self, patience: Duration) -> io::Result<Option<(UnixStream, i32)>> {
        connect_from(self.socket.try_clone()?, patience)
    }
}

/// Returns true if the process at the other end of `stream` proves CAP_NET_ADMIN over this thread's
/// network namespace.
///
/// # Errors
/// If the kernel refuses the listing.
pub fn is_proved(stream: &impl AsFd) -> io::Result<bool> {
    let peer: UnixAddr = getpeername(stream.as_fd().as_raw_fd())?;
    let Some(name) = peer.as_abstract() else { return Ok(false) };
    for (number, groups) in sockets(Bus::Netfilter)? {
        if groups & PROOF != 0 && proof_name(number)?.as_abstract() == Some(name) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn proof_name(number: u32) -> nix::Result<UnixAddr> {
    UnixAddr::new_abstract(format!("shunt/client/{number:08x}").as_bytes())
}

/// Connects to the agent in this thread's network namespace: only a process with CAP_NET_ADMIN has a
/// port number of agents. Returns the connection and the agent's process ID, 0 if it is not visible here
/// (`SO_PEERCRED`); `None` without an agent. Fails after the timeout if the agent does not accept.
///
/// # Errors
/// If the kernel refuses the listing or the connection.
pub fn connect_to_agent(patience: Duration) -> io::Result<Option<(UnixStream, i32)>> {
    connect_from(unnamed()?, patience)
}

fn unnamed() -> nix::Result<OwnedFd> {
    socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)
}

fn connect_from(socket: OwnedFd, patience: Duration) -> io::Result<Option<(UnixStream, i32)>> {
    let seconds = patience.as_secs().try_into().unwrap_or(i64::MAX);
    setsockopt(&socket, SendTimeout, &TimeVal::new(seconds, patience.subsec_micros().into()))?;
    for port in holders()? {
        match connect(socket.as_raw_fd(), &UnixAddr::new_abstract(name(port).as_bytes())?) {
            Ok(()) => {
                let process = getsockopt(&socket, PeerCredentials)?.pid();
                return Ok(Some((UnixStream::from(socket), process)));
            }
            // The agent is ending, or serves no status.
            Err(Errno::ECONNREFUSED) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(None)
}

/// Returns the address of the agent with this port number. It is an abstract one (unix(7)): unique
/// per network namespace, and independent of the file system.
fn address(port: u32) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(name(port))
}

fn name(port: u32) -> String {
    format!("shunt/status/{port:08x}")
}

/// Returns a port number that no process can guess; the standard library's hash keys are random.
fn random() -> u32 {
    // Neither a number of the lock nor one that the kernel assigns.
    (RandomState::new().hash_one(()) as u32 & 0x1fff_ffff) | 0x2000_0000
}
