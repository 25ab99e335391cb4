//! Questions to echo servers: one, many at the same time, or one after the other over a flow that stays
//! open; with all that can be told apart about what becomes of them.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags};
use nix::sys::socket::{
    MsgFlags, SockType, SockaddrStorage, bind, connect, getsockname, recv, send, setsockopt,
    sockopt,
};

use crate::datagram::{after_ipv4_header, sctp_socket, socket_address, wildcard_like};
use crate::probe::{
    Outcome, Protocol, bound_socket, cannot_use, dropped_on_output, family_of, next_icmp_error,
    next_port, parse_greeting, pending_error, random, report_all_errors, wait_for,
};
use crate::sctp::{self, INIT, INIT_ACK, Packet};

/// Who is asked.
#[derive(Clone, Copy, Debug)]
pub struct Question {
    /// Over which protocol.
    pub protocol: Protocol,
    /// From which address, if not from the one that routing selects.
    pub source: Option<IpAddr>,
    /// Where.
    pub to: SocketAddr,
}

impl Question {
    fn open(self) -> Result<Flow> {
        let source = self.source.unwrap_or_else(|| wildcard_like(self.to.ip()));
        Flow::open(self.protocol, (source, 0), self.to)
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
    let mut flow = Question { protocol, source, to }.open()?;
    flow.send();
    answers(&mut [&mut flow], deadline)?;
    Ok(flow.reply.unwrap_or(Outcome::Dropped))
}

/// Asks all these at once, each from a new source port, in the network namespace of the calling
/// thread. What is not answered while nothing else was for `patience` is [`Outcome::Dropped`]: a busy
/// machine is late with all of them. Datagrams are sent three times until then, since many of them can be
/// too many for a server.
///
/// # Errors
/// Only what says nothing about the network, such as a source address that is not ours.
pub fn volley(questions: &[Question], patience: Duration) -> Result<Vec<Outcome>> {
    let mut flows = Vec::with_capacity(questions.len());
    for question in questions {
        flows.push(question.open()?);
    }
    for part in [patience / 4, patience / 4, patience / 2] {
        flows.iter_mut().for_each(Flow::send);
        let mut open: Vec<&mut Flow> = flows.iter_mut().collect();
        loop {
            open.retain(|flow| flow.reply.is_none());
            let before = open.len();
            answers(&mut open, Instant::now() + part)?;
            if open.iter().filter(|flow| flow.reply.is_none()).count() == before {
                break;
            }
        }
    }
    Ok(flows.into_iter().map(|flow| flow.reply.unwrap_or(Outcome::Dropped)).collect())
}

/// Takes what is answered until then.
fn answers(flows: &mut [&mut Flow], deadline: Instant) -> Result<()> {
    loop {
        let mut open: Vec<_> = flows.iter_mut().filter(|flow| flow.reply.is_none()).collect();
        if open.is_empty() || Instant::now() >= deadline {
            return Ok(());
        }
        let awaited = |flow: &Flow| {
            if flow.is_half_open() { PollFlags::POLLOUT } else { PollFlags::POLLIN }
        };
        let mut fds: Vec<PollFd<'_>> =
            open.iter().map(|flow| PollFd::new(flow.socket.as_fd(), awaited(flow))).collect();
        let ready = wait_for(&mut fds, deadline)?;
        for (flow, _) in open.iter_mut().zip(ready).filter(|(_, ready)| *ready) {
            flow.take()?;
        }
    }
}

/// A TCP connection, also one that is not established yet, or datagrams to and from one port.
pub struct Flow {
    protocol: Protocol,
    socket: OwnedFd,
    /// The client's address and port.
    pub source: SocketAddr,
    /// The address and port that the client uses.
    pub to: SocketAddr,
    /// TCP: whether the connection was established.
    connected: bool,
    /// TCP: the part of the stream that is not a whole line.
    received: Vec<u8>,
    /// Makes a late answer to somebody else's question stand out.
    tag: u32,
    questions: usize,
    /// The reply to the last question, if there is one.
    pub reply: Option<Outcome>,
}

impl Flow {
    /// Opens a flow from this address, and from a port of its own if that is 0, in the network
    /// namespace of the calling thread. TCP sends a SYN, and the kernel sends it again until there is an
    /// answer.
    pub fn open(protocol: Protocol, source: impl Into<SocketAddr>, to: SocketAddr) -> Result<Self> {
        let source = source.into();
        // Raw sockets have no ports.
        let mut peer = to;
        let socket = match protocol {
            Protocol::Tcp => bound_socket(SockType::Stream, source)?,
            Protocol::Udp => bound_socket(SockType::Datagram, source)?,
            Protocol::Sctp => {
                peer.set_port(0);
                let socket = sctp_socket(family_of(to.ip()))?;
                bind(socket.as_raw_fd(), &SockaddrStorage::from(source))
                    .with_context(|| cannot_use(source.ip()))?;
                socket
            }
        };
        report_all_errors(&socket, to.ip())?;
        if protocol == Protocol::Tcp {
            // Reset instead of TIME_WAIT: the port is free again for one of the next thousands.
            setsockopt(&socket, sockopt::Linger, &libc::linger { l_onoff: 1, l_linger: 0 })?;
        }
        let begun = connect(socket.as_raw_fd(), &SockaddrStorage::from(peer));
        let local: SockaddrStorage = getsockname(socket.as_raw_fd())?;
        let mut source = socket_address(&local).context("a socket without an address")?;
        if protocol == Protocol::Sctp {
            source.set_port(next_port()?);
        }
        let (connected, received, tag) = (false, Vec::new(), random().max(1));
        let (questions, reply) = (0, None);
        let mut flow =
            Self { protocol, socket, source, to, connected, received, tag, questions, reply };
        match begun {
            Ok(()) | Err(Errno::EINPROGRESS) => {}
            Err(errno) => flow.fail(errno),
        }
        // An error can come before `connect` is through; the socket does not fail then.
        flow.take_icmp_errors();
        Ok(flow)
    }

    /// Connects, from the address that routing selects.
    pub fn connect(to: SocketAddr, patience: Duration) -> Result<Self> {
        let mut flow = Question { protocol: Protocol::Tcp, source: None, to }.open()?;
        flow.server(patience).map(|_| flow)
    }

    /// The name of the server, which is asked anew if the flow is established.
    pub fn server(&mut self, patience: Duration) -> Result<String> {
        let deadline = Instant::now() + patience;
        self.ask();
        answers(&mut [self], deadline)?;
        match &self.reply {
            Some(Outcome::Reached { server, .. }) => Ok(server.clone()),
            reply => bail!("{reply:?} from {} after {patience:?} at the most", self.to),
        }
    }

    /// The protocol of the flow.
    pub fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// Whether this is a TCP connection without an answer to its SYN.
    pub fn is_half_open(&self) -> bool {
        self.protocol == Protocol::Tcp && !self.connected && !self.is_over()
    }

    /// Whether this is a TCP connection that has ended.
    pub fn is_over(&self) -> bool {
        let failed = |reply: &Outcome| !matches!(reply, Outcome::Reached { .. });
        self.protocol == Protocol::Tcp && self.reply.as_ref().is_some_and(failed)
    }

    /// Asks all these flows and waits for the replies. UDP asks three times, and only the last reply
    /// counts. A connection that is not established waits for the kernel to send another SYN.
    pub fn ask_all(flows: &mut [&mut Self], patience: Duration) -> Result<()> {
        const TIMES: u32 = 3;
        for part in 1..=TIMES {
            let deadline = Instant::now() + patience / TIMES;
            for flow in flows.iter_mut() {
                if part == 1 || flow.protocol == Protocol::Udp {
                    flow.ask();
                }
            }
            answers(flows, deadline)?;
            thread::sleep(deadline.saturating_duration_since(Instant::now()));
        }
        Ok(())
    }

    /// Asks once more. A connection is greeted before there is a question.
    fn ask(&mut self) {
        if self.protocol != Protocol::Tcp {
            // An error of the question before would be reported instead of sending.
            while next_icmp_error(&self.socket).is_some() {}
            let _ = pending_error(&self.socket);
            self.reply = None;
        } else if self.connected && !self.is_over() {
            self.reply = None;
        } else {
            return;
        }
        self.questions += 1;
        self.send();
    }

    /// Sends the question, or sends it once more, unless there is a reply. New connections need none.
    fn send(&mut self) {
        let message = match self.protocol {
            Protocol::Tcp if self.questions == 0 => return,
            Protocol::Sctp => {
                let (kind, verification, cookie) = (INIT, 0, Vec::new());
                Packet { kind, ports: self.ports(), verification, tag: self.tag, cookie }.encode()
            }
            _ => self.question().into_bytes(),
        };
        if self.reply.is_none()
            && let Err(errno) = send(self.socket.as_raw_fd(), &message, MsgFlags::MSG_NOSIGNAL)
            && !dropped_on_output(errno)
        {
            self.fail(errno);
        }
    }

    fn question(&self) -> String {
        format!("question {} {}\n", self.tag, self.questions)
    }

    fn ports(&self) -> [u16; 2] {
        [self.source.port(), self.to.port()]
    }

    /// Takes what has arrived.
    fn take(&mut self) -> Result<()> {
        self.take_icmp_errors();
        if self.reply.is_none() && self.is_half_open() {
            match pending_error(&self.socket)? {
                Some(errno) => self.fail(errno),
                None => self.connected = true,
            }
            return Ok(());
        }
        let mut buffer = [0; 2048];
        while self.reply.is_none() {
            match recv(self.socket.as_raw_fd(), &mut buffer, MsgFlags::empty()) {
                Ok(length) => self.read(&buffer[..length])?,
                Err(Errno::EAGAIN | Errno::EINTR) => break,
                Err(errno) => self.fail(errno),
            }
        }
        Ok(())
    }

    fn read(&mut self, bytes: &[u8]) -> Result<()> {
        let text = match self.protocol {
            Protocol::Tcp if bytes.is_empty() => {
                self.reply = Some(Outcome::Reset);
                return Ok(());
            }
            Protocol::Tcp => {
                self.received.extend(bytes);
                if !self.received.ends_with(b"\n") {
                    return Ok(());
                }
                std::mem::take(&mut self.received)
            }
            Protocol::Udp => bytes.to_vec(),
            Protocol::Sctp => {
                let packet = if self.to.is_ipv4() { after_ipv4_header(bytes) } else { bytes };
                let [own, peer] = self.ports();
                match Packet::decode(packet) {
                    Some(Packet { kind: INIT_ACK, ports, verification, cookie, .. })
                        if (verification, ports) == (self.tag, [peer, own]) =>
                    {
                        cookie
                    }
                    _ => return Ok(()),
                }
            }
        };
        let text = String::from_utf8_lossy(&text);
        let is_greeting = match self.protocol {
            Protocol::Tcp => self.questions == 0,
            Protocol::Udp => false,
            Protocol::Sctp => true,
        };
        // A late answer is not this one's.
        if is_greeting || text.ends_with(&self.question()) {
            let (server, source) = parse_greeting(text.lines().last().unwrap_or_default())?;
            self.reply = Some(Outcome::Reached { server, source });
        }
        Ok(())
    }

    fn take_icmp_errors(&mut self) {
        while let Some((errno, packet)) = next_icmp_error(&self.socket) {
            // Raw sockets have no ports: an error may be about another question.
            if self.protocol != Protocol::Sctp || sctp::ports(&packet) == Some(self.ports()) {
                self.reply = Some(Outcome::Icmp(errno));
            }
        }
    }

    /// Takes an error of a system call: what a packet had to do with it is in the queue.
    fn fail(&mut self, errno: Errno) {
        self.reply = Some(match (next_icmp_error(&self.socket), errno) {
            (Some((errno, _)), _) => Outcome::Icmp(errno),
            (_, Errno::ECONNREFUSED | Errno::ECONNRESET | Errno::EPIPE) => Outcome::Reset,
            (_, other) => Outcome::NotSent(other),
        });
    }
}
