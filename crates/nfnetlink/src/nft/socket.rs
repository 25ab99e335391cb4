//! The one socket: commits a transaction in one `sendmsg`, reads the generation, lists tables.
#![allow(unsafe_code, reason = "netlink socket options and Send, which neither mnl nor nix has")]

use std::io::{self, IoSlice};
use std::os::fd::AsRawFd;

use nix::errno::Errno;
use nix::sys::socket::{self, MsgFlags, NetlinkAddr, sockopt};
use nix::sys::time::TimeVal;

use super::batch::{HEADERS, put_message, put_set_name, u32_at};
use super::dump::messages;
use super::error::Answer;
use super::uapi::{
    NFTA_GEN_ID, NFTA_GEN_PROC_NAME, NFTA_GEN_PROC_PID, NFTA_RULE_TABLE,
    NFTA_SET_ELEM_LIST_ELEMENTS, NFTA_SET_TABLE,
};
use super::{
    DumpedChain, DumpedElement, DumpedRule, DumpedSet, DumpedTable, Error, FinishedBatch,
    Generation, Kernel, TableFamily,
};
use crate::attr::{Attrs, put_text};
use crate::message::errno;

/// Room in the send buffer beside the transaction itself.
const SEND_MARGIN: usize = 64 * 1024;
/// Receive buffer: a transaction can be answered by one error per message.
const RECEIVE_BUFFER: usize = 4 * 1024 * 1024;
/// The kernel cuts the answers of a dump to at most 32 KiB (`netlink_dump`).
const READ_BUFFER: usize = 64 * 1024;
/// Answers are there by the time a request is sent. One that got lost must not be waited for.
const PATIENCE: TimeVal = TimeVal::new(10, 0);

/// A netlink socket to nf_tables in the network namespace of the thread that opened it, and a second
/// one for listings that are read part by part.
pub struct Socket {
    connection: Connection,
    listing: Connection,
}

/// One netlink socket.
struct Connection {
    mnl: mnl::Socket,
    send_buffer: usize,
    send_buffer_refusal: Option<Errno>,
    sequence: u32,
    buffer: Vec<u8>,
}

// SAFETY: mnl_socket is a descriptor and an address on the heap, without ties to a thread; only the
// missing Send of its raw pointer keeps mnl::Socket from being moved.
unsafe impl Send for Connection {}

impl Socket {
    /// Opens the socket.
    ///
    /// # Errors
    /// [`Error::Open`] if the kernel has no netlink for netfilter.
    pub fn open() -> Result<Socket, Error> {
        Ok(Socket { connection: Connection::open()?, listing: Connection::open()? })
    }
}

impl Connection {
    fn open() -> Result<Connection, Error> {
        let mnl = mnl::Socket::new(mnl::Bus::Netfilter).map_err(Error::Open)?;
        let netlink_option = |option: i32| {
            let on: i32 = 1;
            // SAFETY: the descriptor is open, the value is an int whose size is given.
            let result = unsafe {
                libc::setsockopt(
                    mnl.as_raw_fd(),
                    libc::SOL_NETLINK,
                    option,
                    (&raw const on).cast(),
                    size_of::<i32>() as libc::socklen_t,
                )
            };
            Errno::result(result)
        };
        // Both only make errors better: CAP_ACK shortens them, EXT_ACK explains them.
        let _ = netlink_option(libc::NETLINK_CAP_ACK);
        let _ = netlink_option(libc::NETLINK_EXT_ACK);
        if socket::setsockopt(&Fd(&mnl), sockopt::RcvBufForce, &RECEIVE_BUFFER).is_err() {
            let _ = socket::setsockopt(&Fd(&mnl), sockopt::RcvBuf, &RECEIVE_BUFFER);
        }
        socket::setsockopt(&Fd(&mnl), sockopt::ReceiveTimeout, &PATIENCE)
            .map_err(|errno| Error::Open(errno.into()))?;
        Ok(Connection {
            mnl,
            send_buffer: 0,
            send_buffer_refusal: None,
            sequence: 0,
            buffer: vec![0; READ_BUFFER],
        })
    }

    fn dump(
        &mut self,
        name: &'static str,
        message: i32,
        family: TableFamily,
        ask: impl FnOnce(&mut Vec<u8>),
        each: impl FnMut(&[u8]),
    ) -> Result<(), Error> {
        self.request(name, message, libc::NLM_F_DUMP as u16, family.number(), ask, each)
    }

    /// Sends one request and hands the messages of its answer to `each`.
    fn request(
        &mut self,
        name: &'static str,
        message: i32,
        flags: u16,
        family: u8,
        ask: impl FnOnce(&mut Vec<u8>),
        mut each: impl FnMut(&[u8]),
    ) -> Result<(), Error> {
        self.ask(message, flags, family, ask)?;
        let is_dump = flags != 0;
        let (mut interrupted, mut answered) = (false, false);
        while is_dump || !answered {
            let part = self.part(name, |message| {
                answered = true;
                interrupted |= message_flags(message) & libc::NLM_F_DUMP_INTR as u16 != 0;
                each(message);
            });
            match part {
                Ok(Part::More) => {}
                Ok(Part::Last { interrupted: last }) if interrupted || last => {
                    return Err(Error::Interrupted);
                }
                Ok(Part::Last { .. }) => return Ok(()),
                Err(_) if interrupted => return Err(Error::Interrupted),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Sends one request.
    fn ask(
        &mut self,
        message: i32,
        flags: u16,
        family: u8,
        ask: impl FnOnce(&mut Vec<u8>),
    ) -> Result<(), Error> {
        self.sequence = self.sequence.wrapping_add(1).max(1);
        let mut request = Vec::new();
        let kind = ((libc::NFNL_SUBSYS_NFTABLES as u16) << 8) | message as u16;
        put_message(&mut request, kind, flags, self.sequence, family, 0, ask);
        self.send(&request)
    }

    /// Receives one part of the answer to the last request and hands its messages to `each`.
    fn part(&mut self, request: &'static str, mut each: impl FnMut(&[u8])) -> Result<Part, Error> {
        let length =
            self.receive(MsgFlags::empty()).map_err(|errno| Error::Receive(errno.into()))?;
        for message in messages(&self.buffer[..length]) {
            // What an earlier request left unread is no answer to this one.
            if u32_at(message, 8) != self.sequence {
                continue;
            }
            match i32::from(message_type(message)) {
                libc::NLMSG_ERROR | libc::NLMSG_DONE => {
                    let flagged = message_flags(message) & libc::NLM_F_DUMP_INTR as u16 != 0;
                    return match errno(u32_at(message, 16) as i32) {
                        0 => Ok(Part::Last { interrupted: flagged }),
                        libc::EINTR => Ok(Part::Last { interrupted: true }),
                        errno => Err(Error::Request { request, errno: Errno::from_raw(errno) }),
                    };
                }
                _ => each(message),
            }
        }
        Ok(Part::More)
    }

    fn send(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.make_room(bytes.len());
        let to = NetlinkAddr::new(0, 0);
        let result = loop {
            let parts = [IoSlice::new(bytes)];
            let fd = self.mnl.as_raw_fd();
            match socket::sendmsg(fd, &parts, &[], MsgFlags::empty(), Some(&to)) {
                Err(Errno::EINTR) => {}
                other => break other,
            }
        };
        match (result, self.send_buffer_refusal) {
            (Ok(_), _) => Ok(()),
            (Err(Errno::EMSGSIZE), Some(refusal)) => {
                Err(Error::TooLarge { bytes: bytes.len(), reason: refusal.into() })
            }
            (Err(errno), _) => Err(Error::Send { bytes: bytes.len(), reason: errno.into() }),
        }
    }

    fn make_room(&mut self, bytes: usize) {
        let wanted = bytes + SEND_MARGIN;
        if wanted <= self.send_buffer {
            return;
        }
        self.send_buffer = wanted;
        self.send_buffer_refusal =
            socket::setsockopt(&Fd(&self.mnl), sockopt::SndBufForce, &wanted).err();
        if self.send_buffer_refusal.is_some() {
            let _ = socket::setsockopt(&Fd(&self.mnl), sockopt::SndBuf, &wanted);
        }
    }

    fn receive(&mut self, flags: MsgFlags) -> Result<usize, Errno> {
        loop {
            match socket::recv(self.mnl.as_raw_fd(), &mut self.buffer, flags) {
                Err(Errno::EINTR) => {}
                other => return other,
            }
        }
    }
}

/// What was received of an answer.
enum Part {
    /// There is more to come.
    More,
    /// It is complete.
    Last {
        /// The rules changed while they were listed.
        interrupted: bool,
    },
}

impl Kernel for Socket {
    fn commit(&mut self, batch: &FinishedBatch) -> Result<(), Error> {
        self.connection.send(batch.bytes())?;
        // Errors have been queued by the time sendmsg returns (nfnetlink is synchronous), so what
        // cannot be read now will never come: no error is success.
        let mut refusals = Vec::new();
        let mut stale = false;
        let mut overrun = false;
        loop {
            let length = match self.connection.receive(MsgFlags::MSG_DONTWAIT) {
                Ok(length) => length,
                Err(Errno::EAGAIN) => break,
                // More refusals than there is room for. The kernel says nothing any more, not even
                // to what is asked next, until those that are there are read.
                Err(Errno::ENOBUFS) => {
                    overrun = true;
                    continue;
                }
                Err(errno) => return Err(Error::Receive(errno.into())),
            };
            for message in messages(&self.connection.buffer[..length]) {
                if message_type(message) != libc::NLMSG_ERROR as u16 {
                    continue;
                }
                let answer = Answer::parse(&message[16..], message_flags(message))
                    .ok_or(Error::Malformed("a short error message"))?;
                match answer.errno {
                    0 => {}
                    libc::ERESTART if answer.sequence == 0 => stale = true,
                    _ => refusals.push(answer.refusal(batch)),
                }
            }
        }
        match (stale, refusals.is_empty()) {
            (true, _) => Err(Error::StaleGeneration),
            (false, true) if overrun => Err(Error::Receive(Errno::ENOBUFS.into())),
            (false, true) => Ok(()),
            (false, false) => Err(Error::Refused(refusals)),
        }
    }

    fn generation(&mut self) -> Result<Generation, Error> {
        let mut found = None;
        self.connection.request(
            "read the generation",
            libc::NFT_MSG_GETGEN,
            0,
            0,
            |_| {},
            |message| {
                let attrs = body(message);
                let number = |kind| attrs.find(kind).and_then(|a| a.be32());
                found = number(NFTA_GEN_ID).map(|id| Generation {
                    id,
                    pid: number(NFTA_GEN_PROC_PID).unwrap_or(0),
                    process: attrs
                        .find(NFTA_GEN_PROC_NAME)
                        .and_then(|a| a.text())
                        .unwrap_or_default()
                        .to_owned(),
                });
            },
        )?;
        found.ok_or(Error::Malformed("a generation without an id"))
    }

    fn table(&mut self, family: TableFamily, table: &str) -> Result<Option<DumpedTable>, Error> {
        let mut found = None;
        self.connection.dump(
            "list tables",
            libc::NFT_MSG_GETTABLE,
            family,
            |_| {},
            |message| {
                found =
                    DumpedTable::parse(&body(message)).filter(|t| t.name == table).or(found.take());
            },
        )?;
        Ok(found)
    }

    fn chains(&mut self, family: TableFamily, table: &str) -> Result<Vec<DumpedChain>, Error> {
        let mut found = Vec::new();
        self.connection.dump(
            "list chains",
            libc::NFT_MSG_GETCHAIN,
            family,
            |_| {},
            |message| {
                found.extend(DumpedChain::parse(&body(message), table));
            },
        )?;
        Ok(found)
    }

    fn sets(&mut self, family: TableFamily, table: &str) -> Result<Vec<DumpedSet>, Error> {
        let mut found = Vec::new();
        let ask = |request: &mut Vec<u8>| put_text(request, NFTA_SET_TABLE, table);
        self.connection.dump("list sets", libc::NFT_MSG_GETSET, family, ask, |message| {
            found.extend(DumpedSet::parse(&body(message)));
        })?;
        Ok(found)
    }

    fn rules(&mut self, family: TableFamily, table: &str) -> Result<Vec<DumpedRule>, Error> {
        let mut found = Vec::new();
        let ask = |request: &mut Vec<u8>| put_text(request, NFTA_RULE_TABLE, table);
        self.connection.dump("list rules", libc::NFT_MSG_GETRULE, family, ask, |message| {
            found.extend(DumpedRule::parse(&body(message)));
        })?;
        Ok(found)
    }

    fn elements(
        &mut self,
        family: TableFamily,
        table: &str,
        set: &str,
        each: &mut dyn FnMut(DumpedElement<'_>),
    ) -> Result<(), Error> {
        let ask = |request: &mut Vec<u8>| put_set_name(request, table, set);
        self.connection.dump(LIST_ELEMENTS, libc::NFT_MSG_GETSETELEM, family, ask, |message| {
            elements_of(message).for_each(&mut *each);
        })
    }

    fn start_listing(&mut self, family: TableFamily, table: &str, set: &str) -> Result<(), Error> {
        let ask = |request: &mut Vec<u8>| put_set_name(request, table, set);
        let dump = libc::NLM_F_DUMP as u16;
        self.listing.ask(libc::NFT_MSG_GETSETELEM, dump, family.number(), ask)
    }

    fn next_part(&mut self, each: &mut dyn FnMut(DumpedElement<'_>)) -> Result<bool, Error> {
        let part = self.listing.part(LIST_ELEMENTS, |message| {
            elements_of(message).for_each(&mut *each);
        })?;
        Ok(matches!(part, Part::More))
    }

    fn port(&self) -> u32 {
        self.connection.mnl.portid()
    }

    fn reconnect(&mut self) -> Result<(), Error> {
        *self = Socket::open()?;
        Ok(())
    }
}

/// mnl's socket as nix wants to see it.
struct Fd<'a>(&'a mnl::Socket);

impl std::os::fd::AsFd for Fd<'_> {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        // SAFETY: the socket outlives the borrow and keeps its descriptor open.
        unsafe { std::os::fd::BorrowedFd::borrow_raw(self.0.as_raw_fd()) }
    }
}

const LIST_ELEMENTS: &str = "list elements";

/// The elements that one message of a listing holds.
fn elements_of(message: &[u8]) -> impl Iterator<Item = DumpedElement<'_>> {
    let list = body(message).find(NFTA_SET_ELEM_LIST_ELEMENTS);
    let elements = list.map(|list| list.children()).into_iter().flatten();
    elements.filter_map(|element| DumpedElement::parse(&element))
}

fn body(message: &[u8]) -> Attrs<'_> {
    Attrs::new(message.get(HEADERS..).unwrap_or(&[]))
}

fn message_type(message: &[u8]) -> u16 {
    u16::from_ne_bytes([message[4], message[5]])
}

fn message_flags(message: &[u8]) -> u16 {
    u16::from_ne_bytes([message[6], message[7]])
}

impl From<Error> for io::Error {
    fn from(error: Error) -> io::Error {
        io::Error::other(error)
    }
}
