//! Connection tracking (ctnetlink): reads, dumps and deletes entries.

mod connection;
mod uapi;

use nix::errno::Errno;

pub use connection::{Connection, Destination, Tuple, Usage};

use crate::message::put_netfilter_header;
use crate::socket::{Bus, NetlinkSocket, Request};
use crate::{Error, Family};

use connection::put_tuple;
use uapi::{
    CTA_STATS_GLOBAL_ENTRIES, CTA_STATS_GLOBAL_MAX_ENTRIES, CTA_TUPLE_ORIG, IPCTNL_MSG_CT_DELETE,
    IPCTNL_MSG_CT_GET, IPCTNL_MSG_CT_GET_STATS,
};

/// The number of delete requests in one `send`: their errors must fit the receive buffer.
const BATCH: usize = 128;

/// A netlink socket to connection tracking.
#[derive(Debug)]
pub struct Conntrack {
    socket: NetlinkSocket,
}

impl Conntrack {
    /// Opens the socket in the network namespace of this thread.
    ///
    /// # Errors
    /// [`Error::Open`] if the kernel has no netlink for netfilter.
    pub fn open() -> Result<Conntrack, Error> {
        Ok(Conntrack { socket: NetlinkSocket::open(Bus::Netfilter)? })
    }

    /// Looks up the connection of the default zone whose first packet had these addresses and
    /// ports. Takes no longer in a large table than in a small one.
    ///
    /// # Errors
    /// [`Error::Request`] with `EPERM` without CAP_NET_ADMIN, with `EINVAL` without
    /// `nf_conntrack_netlink`.
    pub fn get(&mut self, protocol: u8, original: &Tuple) -> Result<Option<Connection>, Error> {
        let get = Request {
            name: "look up an entry of connection tracking",
            kind: kind(IPCTNL_MSG_CT_GET),
            flags: 0,
        };
        let body = |body: &mut Vec<u8>| {
            put_netfilter_header(body, Family::of(original.source.ip()).number(), 0);
            put_tuple(body, CTA_TUPLE_ORIG, protocol, original);
        };
        let mut found = None;
        match self.socket.request(get, body, |it| found = Connection::parse(&it.attrs())) {
            Ok(()) => Ok(found),
            Err(Error::Request { errno: Errno::ENOENT, .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Calls `each` with the connections of a family whose clients send to a destination. Those that
    /// appear or disappear meanwhile may be missing, or come twice. The kernel walks its whole table, and
    /// loads connection tracking if necessary.
    ///
    /// # Errors
    /// As [`get`](Conntrack::get).
    pub fn connections_to(
        &mut self,
        family: Family,
        destination: &Destination,
        mut each: impl FnMut(Connection),
    ) -> Result<(), Error> {
        let list = Request::dump("list entries of connection tracking", kind(IPCTNL_MSG_CT_GET));
        let body = |body: &mut Vec<u8>| {
            put_netfilter_header(body, family.number(), 0);
            destination.put(body);
        };
        self.socket.request(list, body, |message| {
            let connection = Connection::parse(&message.attrs());
            connection.filter(|it| destination.is_of(it)).into_iter().for_each(&mut each);
        })
    }

    /// Reads how full the table of this network namespace is.
    ///
    /// # Errors
    /// As [`get`](Conntrack::get).
    pub fn usage(&mut self) -> Result<Usage, Error> {
        let count = Request {
            name: "count the entries of connection tracking",
            kind: kind(IPCTNL_MSG_CT_GET_STATS),
            flags: 0,
        };
        let header = |body: &mut Vec<u8>| put_netfilter_header(body, 0, 0);
        let mut usage = Usage::default();
        self.socket.request(count, header, |message| {
            let attrs = message.attrs();
            usage.entries = attrs.be32(CTA_STATS_GLOBAL_ENTRIES).unwrap_or(0);
            usage.limit = attrs.be32(CTA_STATS_GLOBAL_MAX_ENTRIES);
        })?;
        Ok(usage)
    }

    /// Deletes entries and returns the number of deleted ones. Calls `refused` for each one that
    /// exists and that the kernel does not delete: `EBUSY` if it is in a flow table of an older
    /// kernel.
    ///
    /// # Errors
    /// [`Error::Send`], [`Error::TooLarge`] or [`Error::Receive`] if the socket fails. The kernel may
    /// have deleted entries by then.
    pub fn delete(
        &mut self,
        connections: &[Connection],
        mut refused: impl FnMut(Errno),
    ) -> Result<usize, Error> {
        let mut kept = 0;
        for batch in connections.chunks(BATCH) {
            let body = |connection: &Connection, body: &mut Vec<u8>| {
                // The endpoint's, like the tuple that names the entry.
                let family = Family::of(connection.reply.source.ip());
                put_netfilter_header(body, family.number(), 0);
                connection.put_name(body);
            };
            self.socket.request_all(kind(IPCTNL_MSG_CT_DELETE), batch, body, |_, answer| {
                let Err(errno) = answer else { return };
                kept += 1;
                if errno != Errno::ENOENT {
                    refused(errno);
                }
            })?;
        }
        Ok(connections.len().saturating_sub(kept))
    }
}

/// Returns the `nlmsg_type` of a ctnetlink message.
fn kind(message: u16) -> u16 {
    (libc::NFNL_SUBSYS_CTNETLINK as u16) << 8 | message
}
