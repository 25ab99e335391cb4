//! Servers that tell who they are and whom they saw.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, SockaddrStorage, bind, listen, setsockopt, socket,
    sockopt,
};

use crate::datagram::{Datagram, after_ipv4_header, sctp_socket, tell_destination};
use crate::netns::Netns;
use crate::sctp::{INIT, INIT_ACK, Packet};
use crate::topology::Host;

/// Bytes, as the kernel counts them: some thousand datagrams.
const RECEIVE_BUFFER: usize = 8 << 20;

/// An echo server: TCP, UDP and SCTP on one port, IPv4 and IPv6, on a thread of this process.
/// Stops on drop.
///
/// It greets every TCP connection, UDP datagram and SCTP INIT with a line
/// `<name> <source address> <source port>`. Behind such a greeting it sends back each line of a connection,
/// and the payload of a datagram; to an SCTP INIT, the greeting is the state cookie of the INIT ACK.
pub struct Echo {
    stop: Arc<EventFd>,
    thread: Option<JoinHandle<()>>,
}

impl Echo {
    /// Serves on all addresses of a host, under its name.
    pub fn on(host: &Host, port: u16) -> Result<Self> {
        Self::start(&host.ns, &host.name, port)
    }

    /// Serves on all addresses of a namespace. It takes connections as soon as this returns.
    pub fn start(ns: &Netns, name: &str, port: u16) -> Result<Self> {
        let server = ns
            .run(|| Server::new(name, port))
            .with_context(|| format!("cannot start the echo server {name} on port {port}"))?;
        let stop = Arc::new(EventFd::from_flags(EfdFlags::EFD_CLOEXEC)?);
        let stopped = Arc::clone(&stop);
        let thread = thread::Builder::new()
            .name(format!("echo-{name}"))
            .spawn(move || server.serve(&stopped))?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        let _ = self.stop.write(1);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

struct Server {
    name: String,
    port: u16,
    tcp: TcpListener,
    udp: OwnedFd,
    sctp_v4: OwnedFd,
    sctp_v6: OwnedFd,
}

impl Server {
    fn new(name: &str, port: u16) -> Result<Self> {
        let tcp = dual_stack(SockType::Stream, port)?;
        listen(&tcp, Backlog::MAXCONN)?;
        let udp = dual_stack(SockType::Datagram, port)?;
        tell_destination(&udp, AddressFamily::Inet6)?;
        let sctp_v4 = sctp_socket(AddressFamily::Inet)?;
        tell_destination(&sctp_v4, AddressFamily::Inet)?;
        let sctp_v6 = sctp_socket(AddressFamily::Inet6)?;
        tell_destination(&sctp_v6, AddressFamily::Inet6)?;
        for socket in [&udp, &sctp_v4, &sctp_v6] {
            // Room for what comes while the thread waits for its turn; only real root gets it.
            let _ = setsockopt(socket, sockopt::RcvBufForce, &RECEIVE_BUFFER);
        }
        Ok(Self { name: name.to_owned(), port, tcp: tcp.into(), udp, sctp_v4, sctp_v6 })
    }

    /// One thread for everything: what it does per event is too little to share.
    fn serve(self, stop: &EventFd) {
        let mut connections: Vec<Connection> = Vec::new();
        loop {
            let fixed = [
                stop.as_fd(),
                self.tcp.as_fd(),
                self.udp.as_fd(),
                self.sctp_v4.as_fd(),
                self.sctp_v6.as_fd(),
            ];
            let open = connections.iter().map(|connection| connection.stream.as_fd());
            let mut fds: Vec<_> = fixed
                .into_iter()
                .chain(open)
                .map(|fd| PollFd::new(fd, PollFlags::POLLIN))
                .collect();
            if poll(&mut fds, PollTimeout::NONE).is_err() {
                continue; // EINTR
            }
            let ready: Vec<bool> = fds.iter().map(|fd| fd.any() == Some(true)).collect();
            if ready[0] {
                return;
            }
            let mut ready_connections = ready[fixed.len()..].iter();
            connections.retain_mut(|connection| {
                !ready_connections.next().is_some_and(|ready| *ready) || connection.echo()
            });
            // One of what waits, and only where something does: on an emulated processor, tests spend
            // most of their time in system calls.
            if ready[1] {
                connections.extend(self.accept());
            }
            if ready[2] {
                self.answer_udp();
            }
            if ready[3] {
                self.answer_sctp(&self.sctp_v4, after_ipv4_header);
            }
            if ready[4] {
                self.answer_sctp(&self.sctp_v6, |packet| packet);
            }
        }
    }

    fn accept(&self) -> Option<Connection> {
        let (mut stream, source) = self.tcp.accept().ok()?;
        let greeting = self.greeting(source.ip(), source.port());
        // A client that does not read must not hold up the others.
        let _ = stream.set_write_timeout(Some(Duration::from_secs(1)));
        writeln!(stream, "{greeting}").ok()?;
        Some(Connection { stream, greeting, unfinished: Vec::new() })
    }

    fn answer_udp(&self) {
        if let Some(datagram) = Datagram::receive(&self.udp) {
            let greeting = self.greeting(datagram.source.ip(), datagram.source.port());
            let answer = [greeting.as_bytes(), b" ", &datagram.payload].concat();
            datagram.answer(&self.udp, &answer);
        }
    }

    fn answer_sctp(&self, socket: &OwnedFd, payload: fn(&[u8]) -> &[u8]) {
        let Some(datagram) = Datagram::receive(socket) else { return };
        // A raw socket hears every packet of its protocol, whatever the port.
        if let Some(Packet { kind: INIT, ports: [client, port], tag, .. }) =
            Packet::decode(payload(&datagram.payload))
            && port == self.port
        {
            let cookie = self.greeting(datagram.source.ip(), client).into_bytes();
            // The client does not answer this, so the server's own tag may be any.
            let (kind, verification, tag) = (INIT_ACK, tag, 1);
            let answer = Packet { kind, ports: [port, client], verification, tag, cookie };
            datagram.answer(socket, &answer.encode());
        }
    }

    fn greeting(&self, source: IpAddr, port: u16) -> String {
        format!("{} {} {port}", self.name, source.to_canonical())
    }
}

struct Connection {
    stream: TcpStream,
    greeting: String,
    /// What has come of a line whose end is still to come.
    unfinished: Vec<u8>,
}

impl Connection {
    /// Reads what has arrived and sends complete lines back. Returns whether the connection lives.
    fn echo(&mut self) -> bool {
        let mut buffer = [0; 4096];
        let length = match self.stream.read(&mut buffer) {
            Ok(0) => return false,
            Ok(length) => length,
            Err(error) => return error.kind() == ErrorKind::Interrupted,
        };
        self.unfinished.extend(&buffer[..length]);
        while let Some(end) = self.unfinished.iter().position(|byte| *byte == b'\n') {
            let mut answer = format!("{} ", self.greeting).into_bytes();
            answer.extend(self.unfinished.drain(..=end));
            if self.stream.write_all(&answer).is_err() {
                return false;
            }
        }
        true
    }
}

/// A socket on all addresses of both families; IPv4 peers appear as mapped addresses.
fn dual_stack(kind: SockType, port: u16) -> Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket(AddressFamily::Inet6, kind, flags, None)?;
    setsockopt(&socket, sockopt::Ipv6V6Only, &false)?;
    setsockopt(&socket, sockopt::ReuseAddr, &true)?;
    let address = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port);
    bind(std::os::fd::AsRawFd::as_raw_fd(&socket), &SockaddrStorage::from(address))?;
    Ok(socket)
}
