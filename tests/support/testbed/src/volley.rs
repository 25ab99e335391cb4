//! Questions, one or many at the same time, with all that can be told apart about what becomes of them.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags};
use nix::sys::socket::{
    MsgFlags, SockType, SockaddrStorage, bind, connect, recv, send, setsockopt, sockopt,
};

use crate::datagram::{after_ipv4_header, sctp_socket, wildcard_like};
use crate::probe::{
    Outcome, Protocol, bound_socket, cannot_use, dropped_on_output, family_of, next_icmp_error,
    next_port, parse_greeting, pending_error, random, report_all_errors, wait_for,
};
use crate::sctp::{self, Init, InitAck};

/// Who is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Question {
    /// Over which protocol.
    pub protocol: Protocol,
    /// From which address, if not from the one that routing selects.
    pub source: Option<IpAddr>,
    /// Where.
    pub to: SocketAddr,
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
    let mut asked = Asked::new(Question { protocol, source, to })?;
    answers(std::slice::from_mut(&mut asked), deadline)?;
    Ok(asked.outcome.unwrap_or(Outcome::Dropped))
}

/// Asks all these at once, each from a new source port, in the network namespace of the calling
/// thread. What has not been answered after `patience` is [`Outcome::Dropped`]. Datagrams are sent three
/// times until then, since many of them can be too many for a server.
///
/// # Errors
/// Only what says nothing about the network, such as a source address that is not ours.
pub fn volley(questions: &[Question], patience: Duration) -> Result<Vec<Outcome>> {
    let start = Instant::now();
    let mut asked = Vec::with_capacity(questions.len());
    for question in questions {
        asked.push(Asked::new(*question)?);
    }
    for part in [patience / 4, patience / 2] {
        answers(&mut asked, start + part)?;
        asked.iter_mut().filter(|asked| asked.outcome.is_none()).for_each(Asked::send);
    }
    answers(&mut asked, start + patience)?;
    Ok(asked.into_iter().map(|asked| asked.outcome.unwrap_or(Outcome::Dropped)).collect())
}

/// Takes what is answered until then.
fn answers(asked: &mut [Asked], deadline: Instant) -> Result<()> {
    loop {
        let mut open: Vec<&mut Asked> = asked.iter_mut().filter(|a| a.outcome.is_none()).collect();
        let left = deadline.saturating_duration_since(Instant::now());
        if open.is_empty() || left.is_zero() {
            return Ok(());
        }
        let mut fds: Vec<PollFd<'_>> =
            open.iter().map(|asked| PollFd::new(asked.socket.as_fd(), asked.awaited())).collect();
        let ready = wait_for(&mut fds, deadline)?;
        for (asked, _) in open.iter_mut().zip(ready).filter(|(_, ready)| *ready) {
            asked.go_on()?;
        }
    }
}

/// A question that is on its way.
struct Asked {
    question: Question,
    socket: OwnedFd,
    /// TCP: whether the connection is there.
    connected: bool,
    /// What has come of the answer; for UDP what it has to end with.
    text: Vec<u8>,
    init: Option<Init>,
    outcome: Option<Outcome>,
}

impl Asked {
    fn new(question: Question) -> Result<Self> {
        let Question { protocol, source, to } = question;
        let source = source.unwrap_or_else(|| wildcard_like(to.ip()));
        let from = SocketAddr::new(source, 0);
        let socket = match protocol {
            Protocol::Tcp => bound_socket(SockType::Stream, from)?,
            Protocol::Udp => bound_socket(SockType::Datagram, from)?,
            Protocol::Sctp => sctp_socket(family_of(to.ip()))?,
        };
        report_all_errors(&socket, to.ip())?;
        let (text, init) = (Vec::new(), None);
        let mut asked = Self { question, socket, connected: false, text, init, outcome: None };
        match protocol {
            Protocol::Tcp => asked.ask_tcp()?,
            Protocol::Udp => {
                // The number makes a late answer to somebody else's datagram stand out.
                asked.text = format!("probe {}", random()).into_bytes();
                asked.connect(to);
                asked.send();
            }
            Protocol::Sctp => {
                // Raw sockets have no ports.
                bind(asked.socket.as_raw_fd(), &SockaddrStorage::from(from))
                    .with_context(|| cannot_use(source))?;
                let tag = random().max(1);
                let init = Init { source_port: next_port()?, destination_port: to.port(), tag };
                asked.init = Some(init);
                asked.connect(SocketAddr::new(to.ip(), 0));
                asked.send();
            }
        }
        Ok(asked)
    }

    fn ask_tcp(&mut self) -> Result<()> {
        // Reset instead of TIME_WAIT: the port is free again for one of the next thousands.
        setsockopt(&self.socket, sockopt::Linger, &libc::linger { l_onoff: 1, l_linger: 0 })?;
        self.connect(self.question.to);
        // An error can come before `connect` is through; the socket does not fail then.
        self.take_icmp_error();
        Ok(())
    }

    fn connect(&mut self, to: SocketAddr) {
        match connect(self.socket.as_raw_fd(), &SockaddrStorage::from(to)) {
            Ok(()) | Err(Errno::EINPROGRESS) => {}
            Err(errno) => self.outcome = Some(self.failure(errno)),
        }
    }

    /// Sends the datagram that the question is.
    fn send(&mut self) {
        let message = match (self.question.protocol, &self.init) {
            (Protocol::Udp, _) => self.text.clone(),
            (Protocol::Sctp, Some(init)) => init.encode(),
            _ => return,
        };
        if self.outcome.is_some() {
            return;
        }
        if let Err(errno) = send(self.socket.as_raw_fd(), &message, MsgFlags::empty())
            && !dropped_on_output(errno)
        {
            self.outcome = Some(self.failure(errno));
        }
    }

    fn awaited(&self) -> PollFlags {
        match (self.question.protocol, self.connected) {
            (Protocol::Tcp, false) => PollFlags::POLLOUT,
            _ => PollFlags::POLLIN,
        }
    }

    /// Takes what has come.
    fn go_on(&mut self) -> Result<()> {
        self.take_icmp_error();
        if self.outcome.is_some() {
            return Ok(());
        }
        if self.question.protocol == Protocol::Tcp && !self.connected {
            match pending_error(&self.socket)? {
                Some(errno) => self.outcome = Some(self.failure(errno)),
                None => self.connected = true,
            }
            return Ok(());
        }
        let mut buffer = [0; 2048];
        while self.outcome.is_none() {
            match recv(self.socket.as_raw_fd(), &mut buffer, MsgFlags::empty()) {
                Ok(length) => self.take(&buffer[..length])?,
                Err(Errno::EAGAIN | Errno::EINTR) => break,
                Err(errno) => self.outcome = Some(self.failure(errno)),
            }
        }
        Ok(())
    }

    fn take(&mut self, received: &[u8]) -> Result<()> {
        let greeting = match self.question.protocol {
            Protocol::Tcp if received.is_empty() => {
                self.outcome = Some(Outcome::Reset);
                return Ok(());
            }
            Protocol::Tcp => {
                self.text.extend(received);
                self.text.ends_with(b"\n").then_some(&*self.text)
            }
            Protocol::Udp => received.strip_suffix(&*self.text),
            Protocol::Sctp => {
                let answer = self.init.and_then(|init| init_ack(self.question.to, init, received));
                return answer.map_or(Ok(()), |answer| self.reached(&answer.cookie));
            }
        };
        greeting.map(<[u8]>::to_vec).map_or(Ok(()), |greeting| self.reached(&greeting))
    }

    fn reached(&mut self, greeting: &[u8]) -> Result<()> {
        let (server, source) = parse_greeting(&String::from_utf8_lossy(greeting))?;
        self.outcome = Some(Outcome::Reached { server, source });
        Ok(())
    }

    fn take_icmp_error(&mut self) {
        while let Some((errno, packet)) = next_icmp_error(&self.socket) {
            // Raw sockets have no ports: an error may be about another question.
            let ports = self.init.map(|init| (init.source_port, init.destination_port));
            if ports.is_none() || sctp::ports(&packet) == ports {
                self.outcome = Some(Outcome::Icmp(errno));
            }
        }
    }

    /// What an error of a system call means: what a packet had to do with it is in the queue.
    fn failure(&self, errno: Errno) -> Outcome {
        if let Some((errno, _)) = next_icmp_error(&self.socket) {
            return Outcome::Icmp(errno);
        }
        match errno {
            Errno::ECONNREFUSED | Errno::ECONNRESET => Outcome::Reset,
            other => Outcome::NotSent(other),
        }
    }
}

/// The answer to this INIT, if that is what the packet is.
fn init_ack(to: SocketAddr, init: Init, packet: &[u8]) -> Option<InitAck> {
    let packet = if to.is_ipv4() { after_ipv4_header(packet) } else { packet };
    InitAck::decode(packet).filter(|answer| {
        (answer.tag, answer.source_port, answer.destination_port)
            == (init.tag, init.destination_port, init.source_port)
    })
}
