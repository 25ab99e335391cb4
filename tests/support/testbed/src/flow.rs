//! Flows that stay open while something changes, and are asked again and again.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags};
use nix::sys::socket::{
    MsgFlags, SockType, SockaddrStorage, connect, getsockname, recv, send, setsockopt, sockopt,
};

use crate::datagram::{socket_address, wildcard_like};
use crate::probe::{
    Protocol, bound_socket, next_icmp_error, pending_error, report_all_errors, wait_for,
};

/// The result of one question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// The echo server of this name answered.
    Server(String),
    /// A reset, or ICMP "port unreachable".
    Refused,
    /// Another error, such as another ICMP message.
    Failed(Errno),
    /// Nothing yet.
    Nothing,
}

/// A TCP connection, also one that is not established yet, or a UDP flow, to an echo server.
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
    questions: usize,
    /// The reply to the last question.
    pub reply: Reply,
}

impl Flow {
    /// Opens a flow from this address in the network namespace of the calling thread. TCP sends a
    /// SYN, and the kernel sends it again until there is an answer.
    pub fn open(protocol: Protocol, source: IpAddr, to: SocketAddr) -> Result<Self> {
        Self::open_from(protocol, SocketAddr::new(source, 0), to)
    }

    /// The same from this port, if it is not 0.
    pub fn open_from(protocol: Protocol, source: SocketAddr, to: SocketAddr) -> Result<Self> {
        let kind = match protocol {
            Protocol::Tcp => SockType::Stream,
            Protocol::Udp => SockType::Datagram,
            Protocol::Sctp => bail!("no flows of SCTP"),
        };
        let socket = bound_socket(kind, source)?;
        report_all_errors(&socket, to.ip())?;
        if protocol == Protocol::Tcp {
            // Reset instead of TIME_WAIT.
            setsockopt(&socket, sockopt::Linger, &libc::linger { l_onoff: 1, l_linger: 0 })?;
        }
        let mut reply = Reply::Nothing;
        match connect(socket.as_raw_fd(), &SockaddrStorage::from(to)) {
            Ok(()) | Err(Errno::EINPROGRESS) => {}
            Err(errno) => reply = failure(errno),
        }
        let local: SockaddrStorage = getsockname(socket.as_raw_fd())?;
        let source = socket_address(&local).context("a socket without an address")?;
        let (connected, received) = (false, Vec::new());
        Ok(Self { protocol, socket, source, to, connected, received, questions: 0, reply })
    }

    /// Connects, from the address that routing selects.
    pub fn connect(to: SocketAddr, patience: Duration) -> Result<Self> {
        let mut flow = Self::open(Protocol::Tcp, wildcard_like(to.ip()), to)?;
        flow.server(patience).map(|_| flow)
    }

    /// The name of the server, which is asked anew if the flow is established.
    pub fn server(&mut self, patience: Duration) -> Result<String> {
        let deadline = Instant::now() + patience;
        self.ask();
        loop {
            self.take()?;
            match &self.reply {
                Reply::Server(server) => return Ok(server.clone()),
                Reply::Nothing if Instant::now() < deadline => {
                    let what = self.awaited();
                    wait_for(&mut [PollFd::new(self.socket.as_fd(), what)], deadline)?;
                }
                reply => bail!("{reply:?} from {} after {patience:?} at the most", self.to),
            }
        }
    }

    fn awaited(&self) -> PollFlags {
        if self.is_half_open() { PollFlags::POLLOUT } else { PollFlags::POLLIN }
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
        self.protocol == Protocol::Tcp && matches!(self.reply, Reply::Refused | Reply::Failed(_))
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
            while Instant::now() < deadline {
                for flow in flows.iter_mut() {
                    flow.take()?;
                }
                thread::sleep(Duration::from_millis(5));
            }
        }
        Ok(())
    }

    fn ask(&mut self) {
        if self.is_over() || (self.protocol == Protocol::Tcp && !self.connected) {
            return;
        }
        self.questions += 1;
        self.reply = Reply::Nothing;
        let question = self.question();
        // An error of the question before is reported once, instead of sending.
        while next_icmp_error(&self.socket).is_some() {}
        if send(self.socket.as_raw_fd(), question.as_bytes(), MsgFlags::MSG_NOSIGNAL).is_err() {
            let _ = send(self.socket.as_raw_fd(), question.as_bytes(), MsgFlags::MSG_NOSIGNAL);
        }
    }

    fn question(&self) -> String {
        format!("question {}\n", self.questions)
    }

    /// Takes what has arrived.
    fn take(&mut self) -> Result<()> {
        if self.reply != Reply::Nothing {
            return Ok(());
        }
        if let Some((errno, _)) = next_icmp_error(&self.socket) {
            self.reply = failure(errno);
            return Ok(());
        }
        if self.protocol == Protocol::Tcp && !self.connected {
            let mut fds = [PollFd::new(self.socket.as_fd(), PollFlags::POLLOUT)];
            if wait_for(&mut fds, Instant::now())? == [false] {
                return Ok(());
            }
            match pending_error(&self.socket)? {
                Some(errno) => self.reply = failure(errno),
                None => self.connected = true,
            }
        }
        let mut buffer = [0; 2048];
        while self.reply == Reply::Nothing {
            match recv(self.socket.as_raw_fd(), &mut buffer, MsgFlags::empty()) {
                Ok(0) if self.protocol == Protocol::Tcp => self.reply = Reply::Refused,
                Ok(length) => self.read(&buffer[..length]),
                Err(Errno::EAGAIN | Errno::EINTR) => break,
                Err(errno) => self.reply = failure(errno),
            }
        }
        Ok(())
    }

    fn read(&mut self, bytes: &[u8]) {
        let text = if self.protocol == Protocol::Tcp {
            self.received.extend(bytes);
            if !self.received.ends_with(b"\n") {
                return;
            }
            std::mem::take(&mut self.received)
        } else {
            bytes.to_vec()
        };
        let text = String::from_utf8_lossy(&text);
        // A new connection is greeted before there is a question; a late answer is not this one's.
        let is_greeting = self.protocol == Protocol::Tcp && self.questions == 0;
        if is_greeting || text.ends_with(&self.question()) {
            let line = if self.protocol == Protocol::Tcp { text.lines().last() } else { None };
            let server = line.unwrap_or(&text).split_whitespace().next().unwrap_or_default();
            self.reply = Reply::Server(server.to_owned());
        }
    }
}

fn failure(errno: Errno) -> Reply {
    match errno {
        Errno::ECONNREFUSED | Errno::ECONNRESET => Reply::Refused,
        other => Reply::Failed(other),
    }
}
