//! The conversation with the kernel: list entries, delete entries.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};

use foldhash::{HashSet, HashSetExt as _};
use nfnetlink::message::{Head, messages, put_request};
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, recv, sendto,
    setsockopt, socket, sockopt,
};
use nix::sys::time::TimeVal;
use shunt_core::model::{Family, Protocol};

use super::entry::put_filter;
use super::uapi::{IPCTNL_MSG_CT_DELETE, IPCTNL_MSG_CT_GET};
use super::{Entry, Sweep};

/// Up to how many ports are asked for one by one: a Service has one, and a node port. Each dump
/// walks the whole hash table (9 ms for 262 144 buckets), an entry that is listed costs 1.4 µs. With
/// two ports, asking for each is the slower way below 10 000 UDP flows, by 9 ms at most, and twice
/// as fast with 100 000; from four ports on it never pays.
const MOST_FILTERED_DUMPS: usize = 2;
/// How long a half-open connection has for an answer that is on its way. Packets need less time from
/// anywhere in a cluster, and a client that gets no answer sends its SYN again after a second.
const ON_THE_WAY: Duration = Duration::from_millis(20);
/// How many entries are deleted in one `sendmsg`. Each may be answered by an error, which takes up
/// to 1 KiB of a receive buffer whose default is 208 KiB.
const BATCH: usize = 128;
/// The kernel cuts the answers of a dump to at most 32 KiB (`netlink_dump`).
const READ_BUFFER: usize = 64 * 1024;
/// The kernel answers within the call that asks. This only keeps a kernel that does not from
/// holding the thread for ever.
const PATIENCE: i64 = 10;

/// A failed call.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No socket.
    #[error("cannot open a netlink socket to connection tracking: {0}")]
    Open(io::Error),
    /// The kernel took no message.
    #[error("cannot send to connection tracking: {0}")]
    Send(io::Error),
    /// No answer could be read.
    #[error("cannot read the answer of connection tracking: {0}")]
    Receive(io::Error),
    /// The kernel said no: `EPERM` without CAP_NET_ADMIN, `EINVAL` without `nf_conntrack_netlink`.
    #[error("connection tracking refused to {request}: {errno}")]
    Refused {
        /// What was asked for.
        request: &'static str,
        /// The kernel's answer.
        errno: Errno,
    },
}

/// What a sweep of one family did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Report {
    /// The family.
    pub family: Family,
    /// How many entries the kernel listed.
    pub listed: usize,
    /// How many of them were deleted.
    pub deleted: usize,
    /// How many of these were half-open connections of TCP.
    pub half_open: usize,
    /// How long it took, without the pause in which half-open connections may be answered.
    pub took: Duration,
}

/// A netlink socket to the connection tracking of a network namespace: of the one that the thread
/// was in which opened it.
pub struct Conntrack {
    socket: OwnedFd,
    sequence: u32,
    buffer: Vec<u8>,
    kernel_filters: bool,
}

impl Conntrack {
    /// Opens the socket.
    ///
    /// # Errors
    /// [`Error::Open`] if the kernel has no netlink for netfilter.
    pub fn open() -> Result<Conntrack, Error> {
        let open = || -> Result<OwnedFd, Errno> {
            let socket = socket(
                AddressFamily::Netlink,
                SockType::Raw,
                SockFlag::SOCK_CLOEXEC,
                SockProtocol::NetlinkNetFilter,
            )?;
            setsockopt(&socket, sockopt::ReceiveTimeout, &TimeVal::new(PATIENCE, 0))?;
            Ok(socket)
        };
        Ok(Conntrack {
            socket: open().map_err(|errno| Error::Open(errno.into()))?,
            sequence: 0,
            buffer: vec![0; READ_BUFFER],
            kernel_filters: true,
        })
    }

    /// Asks a question, so that the kernel loads the modules of connection tracking if it has not.
    ///
    /// # Errors
    /// If the kernel does not answer.
    pub fn load(&mut self) -> Result<(), Error> {
        self.dump(Family::V4, |body| put_filter(body, Protocol::Udp, Some(0)), |_| {})
    }

    /// Deletes the stale entries of a family.
    ///
    /// Half-open connections to former backends are listed twice: what is answered meanwhile stays. So
    /// nobody loses a connection to a backend that was taken out of use a moment ago and works.
    ///
    /// # Errors
    /// If entries could not be listed or, other than because they are gone already, deleted. Some
    /// may have been deleted nevertheless.
    pub fn sweep(&mut self, family: Family, sweep: &Sweep) -> Result<Report, Error> {
        let started = Instant::now();
        let (mut listed, mut waited) = (0, Duration::ZERO);
        let mut unanswered = self.list_stale(family, Protocol::Tcp, sweep, &mut listed)?;
        let unanswered_at = Instant::now();
        let untranslated = unanswered.extract_if(|entry| !entry.is_translated()).collect();
        let mut half_open = self.delete(&untranslated)?;
        let stale = self.list_stale(family, Protocol::Udp, sweep, &mut listed)?;
        let flows = self.delete(&stale)?;
        if !unanswered.is_empty() {
            waited = ON_THE_WAY.saturating_sub(unanswered_at.elapsed());
            thread::sleep(waited);
            let mut still = self.list_stale(family, Protocol::Tcp, sweep, &mut 0)?;
            still.retain(|entry| unanswered.contains(entry));
            half_open += self.delete(&still)?;
        }
        let took = started.elapsed().saturating_sub(waited);
        Ok(Report { family, listed, deleted: flows + half_open, half_open, took })
    }

    /// Lists the stale entries of a protocol, and counts all that the kernel lists.
    fn list_stale(
        &mut self,
        family: Family,
        protocol: Protocol,
        sweep: &Sweep,
        listed: &mut usize,
    ) -> Result<HashSet<Entry>, Error> {
        let mut stale = HashSet::new();
        self.list_to(family, protocol, &sweep.ports(family, protocol), |entry| {
            *listed += 1;
            if entry.protocol == protocol.number() && sweep.is_stale(&entry) {
                stale.insert(entry);
            }
        })?;
        Ok(stale)
    }

    /// Hands to `each` all entries of a protocol to these ports, of TCP only the half-open ones, and
    /// perhaps others. Entries that come or go meanwhile may be handed over or not, or even twice.
    fn list_to(
        &mut self,
        family: Family,
        protocol: Protocol,
        ports: &BTreeSet<u16>,
        mut each: impl FnMut(Entry),
    ) -> Result<(), Error> {
        // An older kernel ignores the attribute and lists everything; one that knows it may refuse
        // what it does not support.
        let refused = |error: &Error| {
            let Error::Refused { errno, .. } = error else { return false };
            matches!(errno, Errno::EOPNOTSUPP | Errno::EINVAL)
        };
        if ports.is_empty() {
            return Ok(());
        }
        if self.kernel_filters {
            // Of TCP there is little to list: walking the hash table is most of the work.
            let most = if protocol == Protocol::Tcp { 1 } else { MOST_FILTERED_DUMPS };
            let asked = if ports.len() <= most {
                ports.iter().try_for_each(|port| {
                    self.dump(family, |body| put_filter(body, protocol, Some(*port)), &mut each)
                })
            } else {
                self.dump(family, |body| put_filter(body, protocol, None), &mut each)
            };
            match asked {
                Err(error) if refused(&error) => self.kernel_filters = false,
                other => return other,
            }
        }
        self.dump(family, |_| {}, each)
    }

    fn dump(
        &mut self,
        family: Family,
        filter: impl FnOnce(&mut Vec<u8>),
        mut each: impl FnMut(Entry),
    ) -> Result<(), Error> {
        let mut request = Vec::new();
        let flags = libc::NLM_F_DUMP as u16;
        self.put(&mut request, IPCTNL_MSG_CT_GET, flags, family, filter);
        self.send(&request)?;
        loop {
            let length = self.receive()?;
            let ours = |sequence| sequence == self.sequence;
            for message in messages(&self.buffer[..length]).filter(|m| ours(m.sequence)) {
                match message.verdict() {
                    None => Entry::parse(&message.attrs()).into_iter().for_each(&mut each),
                    Some(0) => return Ok(()),
                    Some(errno) => return Err(refusal("list entries", errno)),
                }
            }
        }
    }

    /// Deletes entries; returns how many there still were.
    fn delete(&mut self, entries: &HashSet<Entry>) -> Result<usize, Error> {
        let mut deleted = 0;
        let mut request = Vec::new();
        let entries: Vec<&Entry> = entries.iter().collect();
        for batch in entries.chunks(BATCH) {
            request.clear();
            let first = self.sequence.wrapping_add(1);
            for (position, entry) in batch.iter().enumerate() {
                // Errors come unasked. The last message is answered in any case, after the others.
                let last = position + 1 == batch.len();
                let flags = if last { libc::NLM_F_ACK as u16 } else { 0 };
                self.put(&mut request, IPCTNL_MSG_CT_DELETE, flags, entry.family(), |body| {
                    entry.put_name(body);
                });
            }
            self.send(&request)?;
            deleted += batch.len() - self.count_missing(first)?;
        }
        Ok(deleted)
    }

    /// Reads the answers to the deletions from sequence number `first` to the current one. Returns
    /// how many entries were gone already.
    fn count_missing(&mut self, first: u32) -> Result<usize, Error> {
        let last = self.sequence;
        let mut missing = 0;
        let mut failure = None;
        loop {
            let length = self.receive()?;
            for message in messages(&self.buffer[..length]) {
                // Answers to a request that was given up earlier may still lie there.
                if message.sequence.wrapping_sub(first) > last.wrapping_sub(first) {
                    continue;
                }
                match message.verdict() {
                    Some(libc::ENOENT) => missing += 1,
                    None | Some(0) => {}
                    Some(errno) => failure = Some(refusal("delete an entry", errno)),
                }
                if message.sequence == last {
                    return failure.map_or(Ok(missing), Err);
                }
            }
        }
    }

    fn put(
        &mut self,
        request: &mut Vec<u8>,
        message: u16,
        flags: u16,
        family: Family,
        body: impl FnOnce(&mut Vec<u8>),
    ) {
        self.sequence = self.sequence.wrapping_add(1);
        let family = match family {
            Family::V4 => libc::AF_INET,
            Family::V6 => libc::AF_INET6,
        };
        let head = Head {
            kind: (libc::NFNL_SUBSYS_CTNETLINK as u16) << 8 | message,
            flags,
            sequence: self.sequence,
            family: family as u8,
        };
        put_request(request, head, body);
    }

    fn send(&self, request: &[u8]) -> Result<(), Error> {
        let kernel = NetlinkAddr::new(0, 0);
        loop {
            match sendto(self.socket.as_raw_fd(), request, &kernel, MsgFlags::empty()) {
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(Error::Send(errno.into())),
                Ok(_) => return Ok(()),
            }
        }
    }

    fn receive(&mut self) -> Result<usize, Error> {
        loop {
            match recv(self.socket.as_raw_fd(), &mut self.buffer, MsgFlags::empty()) {
                Err(Errno::EINTR) => {}
                other => return other.map_err(|errno| Error::Receive(errno.into())),
            }
        }
    }
}

fn refusal(request: &'static str, errno: i32) -> Error {
    Error::Refused { request, errno: Errno::from_raw(errno) }
}
