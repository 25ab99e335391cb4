//! Connection tracking (ctnetlink): reads, dumps and deletes entries.
//!
//! ```
//! use nfnetlink::conntrack::{Entry, Tuple};
//!
//! let client = "192.0.2.1:40000".parse()?;
//! let entry = Entry {
//!     protocol: 17,
//!     original: Tuple { source: client, destination: "10.96.0.10:53".parse()? },
//!     reply: Tuple { source: "10.244.0.7:53".parse()?, destination: client },
//!     zoned: false,
//!     replied: false,
//!     id: [0; 4],
//! };
//! // The client sends to one address, and another one answers.
//! assert_eq!(entry.family(), nfnetlink::Family::Ip);
//! # Ok::<(), std::net::AddrParseError>(())
//! ```

mod connection;
mod entry;
mod events;
mod uapi;

use nix::errno::Errno;

pub use connection::{Connection, Destination, ProtocolState, Status, Usage};
pub use entry::{Entry, Filter, Tuple};
pub use events::NewConnections;

use crate::attr::Attrs;
use crate::message::put_netfilter_header;
use crate::socket::{Bus, Request, Socket};
use crate::{Error, Family};

use uapi::{
    CTA_STATS_DROP, CTA_STATS_EARLY_DROP, CTA_STATS_GLOBAL_ENTRIES, CTA_STATS_GLOBAL_MAX_ENTRIES,
    CTA_STATS_INSERT_FAILED, IPCTNL_MSG_CT_DELETE, IPCTNL_MSG_CT_GET, IPCTNL_MSG_CT_GET_STATS,
    IPCTNL_MSG_CT_GET_STATS_CPU,
};

/// The number of delete requests in one `send`: their errors must fit the receive buffer.
const BATCH: usize = 128;

/// A netlink socket to connection tracking.
#[derive(Debug)]
pub struct Conntrack {
    socket: Socket,
}

impl Conntrack {
    /// Opens the socket in the network namespace of this thread.
    ///
    /// # Errors
    /// [`Error::Open`] if the kernel has no netlink for netfilter.
    pub fn open() -> Result<Conntrack, Error> {
        Ok(Conntrack { socket: Socket::open(Bus::Netfilter)? })
    }

    /// Calls `each` with the entries of a family that match one of the filters; older kernels add
    /// other entries. Entries that appear or disappear meanwhile may be missing, or come twice. The
    /// kernel walks its whole table for each filter, and loads connection tracking if necessary.
    ///
    /// # Errors
    /// [`Error::Refused`] with `EPERM` without CAP_NET_ADMIN, with `EINVAL` without
    /// `nf_conntrack_netlink`.
    pub fn list(
        &mut self,
        family: Family,
        filters: &[Filter],
        mut each: impl FnMut(Entry),
    ) -> Result<(), Error> {
        let mut parse = |attrs: &Attrs<'_>| Entry::parse(attrs).into_iter().for_each(&mut each);
        filters
            .iter()
            .try_for_each(|filter| self.dump_filtered(family, |body| filter.put(body), &mut parse))
    }

    /// Dumps with a filter, or without it if the kernel refuses it. Older kernels ignore filters;
    /// newer ones may support only a part of them.
    fn dump_filtered(
        &mut self,
        family: Family,
        filter: impl FnOnce(&mut Vec<u8>),
        each: &mut dyn FnMut(&Attrs<'_>),
    ) -> Result<(), Error> {
        match self.dump(family, filter, &mut *each) {
            Err(Error::Refused { errno: Errno::EOPNOTSUPP | Errno::EINVAL, .. }) => {
                self.dump(family, |_| {}, each)
            }
            other => other,
        }
    }

    /// Looks up the connection of the default zone whose first packet had these addresses and
    /// ports. Takes no longer in a large table than in a small one.
    ///
    /// # Errors
    /// As [`list`](Conntrack::list).
    pub fn get(&mut self, protocol: u8, original: &Tuple) -> Result<Option<Connection>, Error> {
        let get = Request {
            name: "look up an entry of connection tracking",
            kind: kind(IPCTNL_MSG_CT_GET),
            flags: 0,
        };
        let body = |body: &mut Vec<u8>| {
            put_netfilter_header(body, Family::of(original.source.ip()).number(), 0);
            connection::put_original(body, protocol, original);
        };
        let mut found = None;
        match self.socket.request(get, body, |it| found = Connection::parse(&it.attrs())) {
            Ok(()) => Ok(found),
            Err(Error::Refused { errno: Errno::ENOENT, .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Calls `each` with all connections of a family. Those that appear or disappear meanwhile may
    /// be missing, or come twice.
    ///
    /// # Errors
    /// As [`list`](Conntrack::list).
    pub fn connections(
        &mut self,
        family: Family,
        mut each: impl FnMut(Connection),
    ) -> Result<(), Error> {
        self.dump(family, |_| {}, |attrs| Connection::parse(attrs).into_iter().for_each(&mut each))
    }

    /// Calls `each` with the connections whose clients send to a destination. The kernel walks its
    /// whole table; older kernels also dump all of it.
    ///
    /// # Errors
    /// As [`list`](Conntrack::list).
    pub fn connections_to(
        &mut self,
        destination: &Destination,
        mut each: impl FnMut(Connection),
    ) -> Result<(), Error> {
        let family = destination.family();
        let mut parse = |attrs: &Attrs<'_>| {
            let connection = Connection::parse(attrs).filter(|it| destination.is_of(it));
            connection.into_iter().for_each(&mut each);
        };
        self.dump_filtered(family, |body| destination.put(body), &mut parse)
    }

    /// Reads how full the table of this network namespace is, and how many packets that has cost.
    ///
    /// # Errors
    /// As [`list`](Conntrack::list).
    pub fn usage(&mut self) -> Result<Usage, Error> {
        let count = Request {
            name: "count the entries of connection tracking",
            kind: kind(IPCTNL_MSG_CT_GET_STATS),
            flags: 0,
        };
        let of_cpus = Request::dump(
            "read the statistics of connection tracking",
            kind(IPCTNL_MSG_CT_GET_STATS_CPU),
        );
        let header = |body: &mut Vec<u8>| put_netfilter_header(body, 0, 0);
        let mut usage = Usage::default();
        self.socket.request(count, header, |message| {
            let attrs = message.attrs();
            usage.entries = attrs.be32(CTA_STATS_GLOBAL_ENTRIES).unwrap_or(0);
            usage.limit = attrs.be32(CTA_STATS_GLOBAL_MAX_ENTRIES);
        })?;
        // One message per CPU.
        self.socket.request(of_cpus, header, |message| {
            let attrs = message.attrs();
            let number = |kind| u64::from(attrs.be32(kind).unwrap_or(0));
            usage.dropped += number(CTA_STATS_DROP);
            usage.early_dropped += number(CTA_STATS_EARLY_DROP);
            usage.insert_failed += number(CTA_STATS_INSERT_FAILED);
        })?;
        Ok(usage)
    }

    fn dump(
        &mut self,
        family: Family,
        filter: impl FnOnce(&mut Vec<u8>),
        mut each: impl FnMut(&Attrs<'_>),
    ) -> Result<(), Error> {
        let list = Request::dump("list entries of connection tracking", kind(IPCTNL_MSG_CT_GET));
        let body = |body: &mut Vec<u8>| {
            put_netfilter_header(body, family.number(), 0);
            filter(body);
        };
        self.socket.request(list, body, |message| each(&message.attrs()))
    }

    /// Deletes entries and returns the number of deleted ones. Calls `refused` for each one that
    /// exists and that the kernel does not delete: `EBUSY` if it is in a flow table of an older
    /// kernel.
    ///
    /// # Errors
    /// [`Error::Send`], [`Error::TooLarge`] or [`Error::Receive`] if the socket fails. The kernel may
    /// have deleted entries by then.
    pub fn delete<'a>(
        &mut self,
        entries: impl IntoIterator<Item = &'a Entry>,
        mut refused: impl FnMut(Errno),
    ) -> Result<usize, Error> {
        let entries: Vec<&Entry> = entries.into_iter().collect();
        let mut deleted = 0;
        for batch in entries.chunks(BATCH) {
            let mut kept = 0;
            let body = |entry: &&Entry, body: &mut Vec<u8>| {
                put_netfilter_header(body, entry.family().number(), 0);
                entry.put_name(body);
            };
            self.socket.order_all(kind(IPCTNL_MSG_CT_DELETE), batch, body, |errno| {
                kept += 1;
                if errno != Errno::ENOENT {
                    refused(errno);
                }
            })?;
            deleted += batch.len().saturating_sub(kept);
        }
        Ok(deleted)
    }
}

/// Returns the `nlmsg_type` of a ctnetlink message.
fn kind(message: u16) -> u16 {
    (libc::NFNL_SUBSYS_CTNETLINK as u16) << 8 | message
}

#[cfg(test)]
mod tests {
    use super::uapi::{CTA_FILTER, CTA_FILTER_ORIG_FLAGS};
    use super::*;
    use crate::attr::{nest, put};

    #[test]
    fn refused_filter_costs_its_own_dump_only() -> anyhow::Result<()> {
        let netns = shunt_testbed::Netns::new()?;
        netns.ip("link set lo up")?;
        netns.nft(
            "table ip t { chain output { type filter hook output priority 0; ct state new; }; }",
        )?;
        netns.run(|| {
            let client = std::net::UdpSocket::bind("127.0.0.1:0")?;
            for port in [80, 81] {
                client.send_to(b"question", ("127.0.0.1", port))?;
            }
            let mut conntrack = Conntrack::open()?;
            let mut listed = 0;
            // A filter for nothing.
            let refused = |body: &mut Vec<u8>| {
                nest(body, CTA_FILTER, |filter| put(filter, CTA_FILTER_ORIG_FLAGS, &[0; 4]));
            };
            conntrack.dump_filtered(Family::Ip, refused, &mut |_| listed += 1)?;
            assert!(listed >= 2, "{listed}");
            let filter = Filter { protocol: libc::IPPROTO_UDP as u8, port: Some(80) };
            let mut ports = Vec::new();
            conntrack.list(Family::Ip, &[filter], |entry| {
                ports.push(entry.original.destination.port());
            })?;
            assert_eq!(ports, [80]);
            Ok(())
        })
    }
}
