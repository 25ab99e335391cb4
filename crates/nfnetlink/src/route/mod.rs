//! Interfaces, addresses, routes and neighbours (`NETLINK_ROUTE`).
//!
//! ```
//! use nfnetlink::route;
//!
//! // Follow first, then list: so no change is missed.
//! let _events = route::AddressEvents::follow()?;
//! let node_has = route::addresses()?;
//! assert!(node_has.iter().all(|address| !address.is_unspecified()));
//! # Ok::<(), nfnetlink::Error>(())
//! ```

mod link;
mod lookup;
mod neighbour;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};

use crate::attr::put_text;
use crate::message::Message;
use crate::socket::{Bus, NetlinkSocket, Request};
use crate::{Error, attr};

pub use link::{Link, links};
pub use lookup::{Route, RouteAnswer, RouteKind, RouteQuery, prefix_length, route_to};
pub use neighbour::{NeighbourState, neighbour};

/// The sizes of `struct ifaddrmsg` and `struct ifinfomsg`.
const ADDRESS_HEADER: usize = 8;
const LINK_HEADER: usize = 16;

/// A subscription to changes of interface addresses (`RTMGRP_IPV4_IFADDR`, `RTMGRP_IPV6_IFADDR`).
#[derive(Debug)]
pub struct AddressEvents(NetlinkSocket);

impl AddressEvents {
    /// Subscribes to the changes in the network namespace of this thread.
    ///
    /// # Errors
    /// [`Error::Open`] if the kernel refuses the socket or the subscription.
    pub fn follow() -> Result<AddressEvents, Error> {
        let groups = libc::RTMGRP_IPV4_IFADDR | libc::RTMGRP_IPV6_IFADDR;
        Ok(AddressEvents(NetlinkSocket::bind(Bus::Route, 0, groups as u32)?))
    }

    /// Discards all events that have arrived, without waiting. The descriptor is readable when there
    /// are any: addresses may have changed. Several changes can be one event, and so can the loss of
    /// events in a full receive buffer. List the [`addresses`] for the current state.
    ///
    /// # Errors
    /// [`Error::Receive`] if the socket fails.
    pub fn discard(&mut self) -> Result<(), Error> {
        self.0.drain(|_| {}).map(drop)
    }
}

impl AsFd for AddressEvents {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Lists the addresses of all interfaces in the network namespace of this thread.
///
/// # Errors
/// If the kernel refuses the dump, or changes interrupt every attempt.
pub fn addresses() -> Result<BTreeSet<IpAddr>, Error> {
    let found = list("list addresses", libc::RTM_GETADDR, &[0; ADDRESS_HEADER], |it| address(&it));
    Ok(found?.into_iter().collect())
}

/// Dumps the objects for which `parse` returns a value, with this header of the protocol.
fn list<T>(
    name: &'static str,
    kind: u16,
    header: &[u8],
    parse: impl Fn(Message<'_>) -> Option<T>,
) -> Result<Vec<T>, Error> {
    let body = |body: &mut Vec<u8>| body.extend_from_slice(header);
    NetlinkSocket::open(Bus::Route)?.list(Request::dump(name, kind), body, parse)
}

/// Reads the address of the interface itself; on a point-to-point link `IFA_ADDRESS` is the peer's.
fn address(message: &Message<'_>) -> Option<IpAddr> {
    let attrs = message.attrs_behind(ADDRESS_HEADER);
    let address = attrs.find(libc::IFA_LOCAL).or(attrs.find(libc::IFA_ADDRESS))?;
    match i32::from(*message.payload.first()?) {
        libc::AF_INET | libc::AF_INET6 => attr::ip(address.payload),
        _ => None,
    }
}

/// Reads a message as every kind of answer, for fuzzing.
#[cfg(any(test, feature = "fuzz"))]
pub(crate) fn parse_all(message: &Message<'_>) {
    let _ = address(message);
    let _ = (Route::parse(message), Link::parse(message));
    let _ = neighbour::state_of(message);
}

/// Deletes an interface by name, in the network namespace of this thread.
///
/// # Errors
/// [`Error::Request`] with `ENODEV` if no interface has that name.
pub fn delete_link(name: &str) -> Result<(), Error> {
    let delete = Request {
        name: "delete the interface",
        kind: libc::RTM_DELLINK,
        flags: libc::NLM_F_ACK as u16,
    };
    let body = |body: &mut Vec<u8>| {
        body.extend_from_slice(&[0; LINK_HEADER]);
        put_text(body, libc::IFLA_IFNAME, name);
    };
    NetlinkSocket::open(Bus::Route)?.request(delete, body, |_| {})
}
