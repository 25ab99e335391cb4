//! Which agent is at work in a network namespace.
//!
//! Owns: the lock that lets one agent at a time work, and the address at which that agent tells its
//! status.
//!
//! The lock is made of netlink sockets of netfilter, with port numbers that are ours. The kernel has
//! each number once per network namespace, whatever the containers, file systems and process numbers
//! on both sides, and gives it back when the process ends, however it ends. Any process may take a
//! number, but only one with CAP_NET_ADMIN over the network namespace may join a multicast group of
//! netfilter (`netlink_bind`); that is who may change the rules, too. So a number counts as taken only
//! if its socket is in a group of ours, to which the kernel sends nothing. /proc/net/netlink shows
//! both. A process without that right can occupy numbers, but an agent passes over these.

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::fd::AsRawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::Duration;

use nfnetlink::socket::{Protocol, Socket, sockets};
use nix::errno::Errno;
use nix::sys::socket::sockopt::{PeerCredentials, SendTimeout};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, UnixAddr, connect, getsockopt, setsockopt, socket,
};
use nix::sys::time::TimeVal;
use nix::unistd::Uid;

/// The port numbers of the lock, from this one on. The kernel itself gives out process numbers, and
/// numbers near the largest.
pub const FIRST_PORT: u32 = 0x7368_0000;
/// How many there are.
pub const PORTS: u32 = 8;
/// The group of sockets that are part of the lock, and that of the one that says who has it. Netlink
/// has 32 groups at least; netfilter uses the first ten.
const LOCK: u32 = 1 << 31;
const HOLDER: u32 = 1 << 30;
/// The pause between two looks at a port number that is taken, by a socket that is in none of our
/// groups: an agent that is just starting joins them within a moment.
const LOOK_AGAIN: Duration = Duration::from_millis(10);
const LOOKS: usize = 3;

/// The right to work in a network namespace, for as long as it lives.
#[derive(Debug)]
pub struct Presence {
    _lock: Vec<Socket>,
    _holder: Socket,
    /// Where the status is told.
    pub listener: UnixListener,
}

impl Presence {
    /// Takes the right to work in the network namespace of this thread; `None` if another agent has it.
    ///
    /// # Errors
    /// If that cannot be found out: without CAP_NET_ADMIN, above all.
    pub fn take() -> io::Result<Option<Presence>> {
        let mut lock = Vec::new();
        for port in FIRST_PORT..FIRST_PORT + PORTS {
            match take_port(port)? {
                Port::Taken(socket) => lock.push(socket),
                Port::Occupied => {}
                Port::Locked => return Ok(None),
            }
        }
        // The name is random: nobody else can have taken it before.
        let (port, listener, holder) = loop {
            let port = random();
            let Some(holder) = open(port, HOLDER)? else { continue };
            match UnixListener::bind_addr(&address(port)?) {
                Ok(listener) => break (port, listener, holder),
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
                Err(error) => return Err(error),
            }
        };
        // Where all numbers are occupied, this is all there is.
        if lock.is_empty() && holders()?.into_iter().any(|other| other != port) {
            return Ok(None);
        }
        Ok(Some(Presence { _lock: lock, _holder: holder, listener }))
    }
}

/// A port number of the lock.
enum Port {
    /// It is ours.
    Taken(Socket),
    /// Another agent has it.
    Locked,
    /// A process has it that may be no agent.
    Occupied,
}

fn take_port(port: u32) -> io::Result<Port> {
    let mut looks = 0;
    loop {
        if let Some(socket) = open(port, LOCK)? {
            return Ok(Port::Taken(socket));
        }
        match sockets(Protocol::Netfilter)?.get(&port) {
            Some(groups) if groups & LOCK != 0 => return Ok(Port::Locked),
            // An agent that is between two steps here finds the next number taken by us and waits.
            Some(_) if looks == LOOKS => return Ok(Port::Occupied),
            Some(_) => looks += 1,
            // It was given back just now.
            None => {}
        }
        std::thread::sleep(LOOK_AGAIN);
    }
}

/// A socket with this port number, in this group; `None` if another one has the number.
fn open(port: u32, group: u32) -> io::Result<Option<Socket>> {
    match Socket::bind(Protocol::Netfilter, port, group).map_err(io::Error::from) {
        Ok(socket) => Ok(Some(socket)),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => Ok(None),
        Err(error) => Err(error),
    }
}

/// The port numbers of agents at work, of which there is one at most but for moments.
fn holders() -> io::Result<Vec<u32>> {
    let sockets = sockets(Protocol::Netfilter)?.into_iter();
    Ok(sockets.filter(|(_, groups)| groups & HOLDER != 0).map(|(port, _)| port).collect())
}

/// A connection to the agent at work in the network namespace of this thread, with its process and
/// its user; `None` if there is none. If it takes no connections, this fails after a while.
///
/// # Errors
/// If the kernel does not let us look, or connect.
pub fn connect_to_agent(patience: Duration) -> io::Result<Option<(UnixStream, i32, Uid)>> {
    for port in holders()? {
        let flags = SockFlag::SOCK_CLOEXEC;
        let socket = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
        let patience = TimeVal::new(0, i64::try_from(patience.as_micros()).unwrap_or(i64::MAX));
        setsockopt(&socket, SendTimeout, &normalized(patience))?;
        match connect(socket.as_raw_fd(), &UnixAddr::new_abstract(name(port).as_bytes())?) {
            Ok(()) => {
                let stream = UnixStream::from(socket);
                let peer = getsockopt(&stream, PeerCredentials)?;
                return Ok(Some((stream, peer.pid(), Uid::from_raw(peer.uid()))));
            }
            // It is ending, or does not tell.
            Err(Errno::ECONNREFUSED) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(None)
}

/// The same time with less than a second in microseconds, as the kernel wants it.
fn normalized(time: TimeVal) -> TimeVal {
    TimeVal::new(time.tv_sec() + time.tv_usec() / 1_000_000, time.tv_usec() % 1_000_000)
}

/// Where the agent with this port number tells its status. An abstract address (unix(7)): there is
/// one per network namespace, and it needs no folder that both can reach.
fn address(port: u32) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(name(port))
}

fn name(port: u32) -> String {
    format!("shunt/status/{port:08x}")
}

/// A port number that nobody can guess; the standard library's hash keys are random.
fn random() -> u32 {
    // Neither a number of the lock nor one that the kernel gives out.
    (RandomState::new().hash_one(()) as u32 & 0x1fff_ffff) | 0x2000_0000
}
