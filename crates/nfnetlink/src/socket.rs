//! The netlink socket below all modules: sends requests, and receives their answers and the
//! kernel's events.
//!
//! ```
//! use nfnetlink::socket::{Bus, Request, NetlinkSocket};
//!
//! let list = Request::dump("list interfaces", libc::RTM_GETLINK);
//! let mut socket = NetlinkSocket::open(Bus::Route)?;
//! // The body begins with `struct ifinfomsg`, and so does each answer.
//! let names = socket.list(list, |body| body.extend([0; 16]), |message| {
//!     let name = message.attrs_behind(16).find(libc::IFLA_IFNAME)?;
//!     name.text().map(str::to_owned)
//! })?;
//! assert!(names.contains(&"lo".to_owned()));
//! # Ok::<(), nfnetlink::Error>(())
//! ```
#![allow(unsafe_code, reason = "what the crate mnl lacks: threads, descriptors and options")]

mod list;

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::{fmt, io};

pub use list::sockets;
pub use mnl::Bus;
use mnl::mnl_sys::mnl_socket_setsockopt;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FdFlag, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{getsockopt, setsockopt, sockopt};

use crate::Error;
use crate::message::{self, Message, messages};

/// The room in the send buffer beyond the messages themselves, in bytes.
const SEND_MARGIN: usize = 64 * 1024;
/// The kernel cuts the answers of a dump to at most 32 KiB (`netlink_dump`).
const READ_BUFFER: usize = 64 * 1024;
/// The kernel answers within the call that sends. The timeout only prevents a lost answer from
/// blocking the thread for ever.
const ANSWER_TIMEOUT: u16 = 10_000;

/// The number of attempts at a dump that changes interrupt.
const ATTEMPTS: usize = 20;

/// A request without its body: the fields of `struct nlmsghdr`, and a name for errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// The operation as a verb with its object, such as `list interfaces`: errors say "refused to
    /// …".
    pub name: &'static str,
    /// `nlmsg_type`: for netfilter, the upper byte is the subsystem.
    pub kind: u16,
    /// `NLM_F_DUMP` for a dump, `NLM_F_ACK` for a change; 0 for a query that the kernel answers
    /// with one message.
    pub flags: u16,
}

impl Request {
    /// Returns the request for a dump.
    #[must_use]
    pub fn dump(name: &'static str, kind: u16) -> Request {
        Request { name, kind, flags: libc::NLM_F_DUMP as u16 }
    }
}

/// A netlink socket in the network namespace of the thread that opened it.
pub struct NetlinkSocket {
    bus: Bus,
    mnl: mnl::Socket,
    send_buffer: usize,
    send_buffer_refusal: Option<Errno>,
    sequence: u32,
    /// True if the last request is a dump whose end has not been read.
    is_dumping: bool,
    /// Allocated on first use: some sockets only reserve their port number.
    buffer: Option<Box<Buffer>>,
}

/// A receive buffer, aligned as `struct nlmsghdr`.
#[repr(align(4))]
struct Buffer([u8; READ_BUFFER]);

// SAFETY: the pointer in `mnl` is to memory that nothing else refers to, and libmnl keeps nothing
// per thread.
unsafe impl Send for NetlinkSocket {}

impl NetlinkSocket {
    /// Opens a socket with a port number of the kernel's choice, in no multicast group.
    ///
    /// # Errors
    /// [`Error::Open`] if the kernel does not have the protocol.
    pub fn open(bus: Bus) -> Result<NetlinkSocket, Error> {
        NetlinkSocket::bind(bus, 0, 0)
    }

    /// Opens a socket with this port number (0: the kernel chooses), in these multicast groups (a
    /// bit mask).
    ///
    /// # Errors
    /// [`Error::Open`] with `EADDRINUSE` if another socket of the namespace has the port number,
    /// with `EPERM` if a group requires a privilege that the caller lacks.
    pub fn bind(bus: Bus, port: u32, groups: u32) -> Result<NetlinkSocket, Error> {
        let open = || {
            let mut socket = NetlinkSocket {
                bus,
                mnl: mnl::Socket::open(bus)?,
                send_buffer: 0,
                send_buffer_refusal: None,
                sequence: 0,
                is_dumping: false,
                buffer: None,
            };
            fcntl(&socket, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC))?;
            fcntl(&socket, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
            // Both options concern errors only: CAP_ACK shortens them, EXT_ACK adds an explanation.
            socket.enable(libc::NETLINK_CAP_ACK);
            socket.enable(libc::NETLINK_EXT_ACK);
            socket.mnl.bind(groups, port as i32)?;
            socket.send_buffer = getsockopt(&socket, sockopt::SndBuf)?;
            Ok(socket)
        };
        open().map_err(Error::Open)
    }

    fn enable(&self, option: i32) {
        let mut on: i32 = 1;
        let size = size_of::<i32>() as libc::socklen_t;
        let socket = self.mnl.as_raw_socket();
        // SAFETY: the socket is open, the value is an int whose size is given.
        unsafe { mnl_socket_setsockopt(socket, option, (&raw mut on).cast(), size) };
    }

    /// Replaces the socket by one without groups, in the network namespace of this thread.
    fn reopen(&mut self) -> Result<(), Error> {
        let fresh = NetlinkSocket::open(self.bus)?;
        // The kernel doubles a size that it is given.
        if let Ok(doubled) = getsockopt(self, sockopt::RcvBuf) {
            fresh.raise_receive_buffer(doubled / 2);
        }
        *self = fresh;
        Ok(())
    }

    /// Returns the socket's port number (`nl_pid`), which identifies it in the network namespace.
    #[must_use]
    pub fn port(&self) -> u32 {
        self.mnl.portid()
    }

    /// Raises the receive buffer to `bytes`, or to the kernel's limit (`rmem_max`) without
    /// CAP_NET_ADMIN.
    pub fn raise_receive_buffer(&self, bytes: usize) {
        if setsockopt(self, sockopt::RcvBufForce, &bytes).is_err() {
            let _ = setsockopt(self, sockopt::RcvBuf, &bytes);
        }
    }

    /// Sends a request and calls `each` with every message of the answer.
    ///
    /// # Errors
    /// [`Error::Request`] with the kernel's error. [`Error::Interrupted`] after the last message of
    /// a dump, if objects changed meanwhile.
    pub fn request(
        &mut self,
        request: Request,
        body: impl FnOnce(&mut Vec<u8>),
        mut each: impl FnMut(Message<'_>),
    ) -> Result<(), Error> {
        self.start(request, body)?;
        let Request { name: request, flags, .. } = request;
        let mut interrupted = false;
        let end = loop {
            let received = self.receive_answers(self.sequence, |message| {
                interrupted |= message.flags & libc::NLM_F_DUMP_INTR as u16 != 0;
                match message.error_code() {
                    None => {
                        each(message);
                        (flags == 0).then_some(Ok(()))
                    }
                    Some(0) => Some(Ok(())),
                    Some(libc::EINTR) => {
                        interrupted = true;
                        Some(Ok(()))
                    }
                    Some(errno) => {
                        Some(Err(Error::Request { request, errno: Errno::from_raw(errno) }))
                    }
                }
            });
            match received {
                Ok(None) => {}
                Ok(Some(end)) => {
                    self.is_dumping = false;
                    break end;
                }
                Err(error) => break Err(error),
            }
        };
        if interrupted { Err(Error::Interrupted) } else { end }
    }

    /// Dumps objects, and returns what `parse` makes of the messages. Repeats a dump while changes interrupt it
    /// or the kernel has no room for a part of it.
    ///
    /// # Errors
    /// [`Error::Request`] with the kernel's error; [`Error::Interrupted`] if every attempt is
    /// interrupted.
    pub fn list<Objects: IntoIterator>(
        &mut self,
        dump: Request,
        body: impl Fn(&mut Vec<u8>),
        parse: impl Fn(Message<'_>) -> Objects,
    ) -> Result<Vec<Objects::Item>, Error> {
        let mut attempts = 1;
        loop {
            let mut found = Vec::new();
            match self.request(dump, &body, |message| found.extend(parse(message))) {
                Err(error) if attempts < ATTEMPTS && error.is_passing() => attempts += 1,
                result => return result.map(|()| found),
            }
        }
    }

    /// Sends a request without reading its answer.
    ///
    /// If the last dump was not read to its end, such as after an error, this replaces the socket
    /// first, which gives it another port number: the kernel continues that dump, even where nothing
    /// more can be received, and refuses others (`EBUSY`). So a socket that owns tables must not dump.
    ///
    /// # Errors
    /// [`Error::Send`] or [`Error::TooLarge`] if the socket cannot send it.
    pub(crate) fn start(
        &mut self,
        request: Request,
        body: impl FnOnce(&mut Vec<u8>),
    ) -> Result<(), Error> {
        if self.is_dumping {
            self.reopen()?;
        }
        let mut bytes = Vec::new();
        let sequence = self.next_sequence();
        message::put(&mut bytes, request.kind, request.flags, sequence, body);
        self.is_dumping = request.flags == libc::NLM_F_DUMP as u16;
        self.send(&bytes)
    }

    /// Sends one request per item in a single call, waits for the last result, and calls `each` with
    /// the position of an item and its answer or error; a change has no answer. An error takes up to
    /// 1 KiB of the receive buffer and an answer some 5 KiB, so 128 changes or 32 queries fit the
    /// kernel's default.
    ///
    /// # Errors
    /// [`Error::Send`], [`Error::TooLarge`] or [`Error::Receive`] if the socket fails.
    pub fn request_all<T>(
        &mut self,
        kind: u16,
        items: &[T],
        mut body: impl FnMut(&T, &mut Vec<u8>),
        mut each: impl FnMut(usize, Result<Message<'_>, Errno>),
    ) -> Result<(), Error> {
        let mut bytes = Vec::new();
        let first = self.sequence.wrapping_add(1).max(1);
        for (position, item) in items.iter().enumerate() {
            // The kernel reports errors without `NLM_F_ACK`. With it, the kernel answers the last
            // message in any case, after the others.
            let is_last = position + 1 == items.len();
            let flags = if is_last { libc::NLM_F_ACK as u16 } else { 0 };
            message::put(&mut bytes, kind, flags, self.next_sequence(), |it| body(item, it));
        }
        if items.is_empty() {
            return Ok(());
        }
        self.send(&bytes)?;
        let last = self.sequence;
        let mut answer = |message: Message<'_>| {
            let position = message.sequence.wrapping_sub(first) as usize;
            let code = message.error_code();
            match code {
                None => each(position, Ok(message)),
                Some(0) => {}
                Some(errno) => each(position, Err(Errno::from_raw(errno))),
            }
            (code.is_some() && message.sequence == last).then_some(())
        };
        while self.receive_answers(first, &mut answer)?.is_none() {}
        Ok(())
    }

    /// Sends messages that the caller has encoded; [`drain`](NetlinkSocket::drain) reads the answers.
    ///
    /// # Errors
    /// [`Error::TooLarge`] if the kernel refuses a larger send buffer, otherwise [`Error::Send`].
    pub fn send(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.raise_send_buffer(bytes.len() + SEND_MARGIN);
        match (repeat(|| self.mnl.send(bytes)), self.send_buffer_refusal) {
            (Ok(_), _) => Ok(()),
            (Err(Errno::EMSGSIZE), Some(refusal)) => {
                Err(Error::TooLarge { bytes: bytes.len(), reason: refusal.into() })
            }
            (Err(errno), _) => Err(Error::Send { bytes: bytes.len(), reason: errno.into() }),
        }
    }

    fn raise_send_buffer(&mut self, wanted: usize) {
        if wanted <= self.send_buffer {
            return;
        }
        self.send_buffer = wanted;
        self.send_buffer_refusal = setsockopt(self, sockopt::SndBufForce, &wanted).err();
        if self.send_buffer_refusal.is_some() {
            let _ = setsockopt(self, sockopt::SndBuf, &wanted);
        }
    }

    /// Calls `each` with all messages that have arrived, without waiting for more. Returns true if
    /// the kernel dropped messages because the receive buffer was full.
    ///
    /// # Errors
    /// [`Error::Receive`] if the socket fails.
    pub fn drain(&mut self, mut each: impl FnMut(Message<'_>)) -> Result<bool, Error> {
        let mut lost = false;
        loop {
            match self.receive() {
                Ok(received) => messages(received).for_each(&mut each),
                Err(Errno::EAGAIN) => return Ok(lost),
                // The kernel sends nothing more, not even answers, until the receive buffer is
                // empty.
                Err(Errno::ENOBUFS) => lost = true,
                Err(errno) => return Err(unreadable(errno)),
            }
        }
    }

    fn wait(&self, timeout: PollTimeout) -> Result<(), Error> {
        let mut fds = [PollFd::new(self.as_fd(), PollFlags::POLLIN)];
        repeat(|| Ok(poll(&mut fds, timeout)?)).map(drop).map_err(unreadable)
    }

    /// Receives once, and calls `each` with the answers to the requests from `first` to the latest,
    /// until it returns a value. Skips answers to abandoned requests, which may still arrive.
    fn receive_answers<B>(
        &mut self,
        first: u32,
        mut each: impl FnMut(Message<'_>) -> Option<B>,
    ) -> Result<Option<B>, Error> {
        let count = self.sequence.wrapping_sub(first);
        self.wait(ANSWER_TIMEOUT.into())?;
        Ok(messages(self.receive().map_err(unreadable)?)
            .filter(|message| message.sequence.wrapping_sub(first) <= count)
            .find_map(&mut each))
    }

    fn receive(&mut self) -> Result<&[u8], Errno> {
        let Buffer(bytes) =
            &mut **self.buffer.get_or_insert_with(|| Box::new(Buffer([0; READ_BUFFER])));
        let length = repeat(|| self.mnl.recv_raw(bytes))?;
        Ok(&bytes[..length])
    }

    fn next_sequence(&mut self) -> u32 {
        self.sequence = self.sequence.wrapping_add(1).max(1);
        self.sequence
    }
}

impl AsFd for NetlinkSocket {
    /// Returns the descriptor, to wait for messages.
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open as long as `self` exists, whose lifetime the result has.
        unsafe { BorrowedFd::borrow_raw(self.mnl.as_raw_fd()) }
    }
}

impl fmt::Debug for NetlinkSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {}", self.bus, self.port())
    }
}

/// Repeats a call while a signal interrupts it (`EINTR`).
fn repeat<T>(mut call: impl FnMut() -> io::Result<T>) -> Result<T, Errno> {
    loop {
        match call().map_err(|error| Errno::from_raw(error.raw_os_error().unwrap_or_default())) {
            Err(Errno::EINTR) => {}
            other => return other,
        }
    }
}

fn unreadable(errno: Errno) -> Error {
    Error::Receive(errno.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A query that needs no privilege; the kernel answers with one message.
    const FIND_FAMILY: Request = Request { name: "find the family", kind: 0x10, flags: 0 };

    fn nlctrl(body: &mut Vec<u8>) {
        body.extend_from_slice(&[3, 1, 0, 0]);
        crate::attr::put_text(body, 2, "nlctrl");
    }

    #[test]
    fn answers_to_abandoned_requests_are_skipped() -> Result<(), Error> {
        let mut socket = NetlinkSocket::open(Bus::Generic)?;
        for _ in 0..3 {
            socket.start(FIND_FAMILY, nlctrl)?;
        }
        let mut sequences = Vec::new();
        socket.request(FIND_FAMILY, nlctrl, |message| sequences.push(message.sequence))?;
        assert_eq!(sequences, [4]);
        assert!(!socket.drain(|_| panic!("nothing else was asked"))?);
        Ok(())
    }

    #[test]
    fn dump_that_breaks_off_leaves_a_usable_socket() -> Result<(), Box<dyn std::error::Error>> {
        const LIST: Request =
            Request { name: "list sockets", kind: 20, flags: libc::NLM_F_DUMP as u16 };
        // `struct inet_diag_req_v2` for TCP sockets in all states.
        let all = |body: &mut Vec<u8>| {
            body.extend_from_slice(&[libc::AF_INET as u8, libc::IPPROTO_TCP as u8, 0, 0]);
            body.extend_from_slice(&u32::MAX.to_ne_bytes());
            body.extend_from_slice(&[0; 48]);
        };
        let _listed = std::net::TcpListener::bind("127.0.0.1:0")?;
        let mut socket = NetlinkSocket::open(Bus::SockDiag)?;
        socket.raise_receive_buffer(100_000);
        let size = getsockopt(&socket, sockopt::RcvBuf)?;
        for abandoned in [true, false] {
            socket.start(LIST, all)?;
            if !abandoned {
                // Refusals (EBUSY), until the kernel has no room for another.
                let mut again = Vec::new();
                message::put(&mut again, LIST.kind, LIST.flags, 0, all);
                for _ in 0..1000 {
                    socket.send(&again)?;
                }
                let received = socket.receive_answers(socket.sequence, |_| None::<()>);
                let Err(Error::Receive(reason)) = &received else { panic!("{received:?}") };
                assert_eq!(reason.raw_os_error(), Some(libc::ENOBUFS));
            }
            let mut count = 0;
            socket.request(LIST, all, |_| count += 1)?;
            assert!(count > 0);
            assert_eq!(getsockopt(&socket, sockopt::RcvBuf)?, size);
        }
        let port = socket.port();
        socket.request(LIST, all, |_| {})?;
        assert_eq!(socket.port(), port, "after the end of a dump");
        Ok(())
    }

    #[test]
    fn every_refused_order_is_reported() -> Result<(), Error> {
        let mut socket = NetlinkSocket::open(Bus::Route)?;
        let mut refused = Vec::new();
        // Interfaces that cannot be: their names are too long.
        let names = ["interface-that-is-not-there"; 100];
        let body = |name: &&str, body: &mut Vec<u8>| {
            body.extend_from_slice(&[0; 16]);
            crate::attr::put_text(body, libc::IFLA_IFNAME, name);
        };
        let mut order = |names: &[&str]| {
            let each = |_, answer: Result<Message<'_>, Errno>| refused.extend(answer.err());
            socket.request_all(libc::RTM_DELLINK, names, body, each)
        };
        order(&names)?;
        order(&[])?;
        assert_eq!(refused.len(), names.len());
        assert!(refused.iter().all(|errno| *errno == refused[0]), "{refused:?}");
        Ok(())
    }

    #[test]
    fn descriptors_end_with_the_program_and_never_block() -> Result<(), Box<dyn std::error::Error>>
    {
        let socket = NetlinkSocket::open(Bus::Route)?;
        assert_eq!(fcntl(&socket, FcntlArg::F_GETFD)?, FdFlag::FD_CLOEXEC.bits());
        let flags = OFlag::from_bits_retain(fcntl(&socket, FcntlArg::F_GETFL)?);
        assert!(flags.contains(OFlag::O_NONBLOCK), "{flags:?}");
        Ok(())
    }
}
