//! New connections, from the kernel's notifications.

use super::{Connection, kind};
use crate::Error;
use crate::socket::{Bus, Socket};

/// `IPCTNL_MSG_CT_NEW` of `linux/netfilter/nfnetlink_conntrack.h`.
const IPCTNL_MSG_CT_NEW: u16 = 0;

/// A listener to new connections (`NFNLGRP_CONNTRACK_NEW`), for a short time: the kernel composes a
/// message for each new connection of the namespace as long as one is open.
#[derive(Debug)]
pub struct NewConnections(Socket);

impl NewConnections {
    /// Subscribes in the network namespace of this thread.
    ///
    /// # Errors
    /// [`Error::Open`] if the kernel refuses the subscription, without CAP_NET_ADMIN for example.
    pub fn open() -> Result<NewConnections, Error> {
        const GROUPS: u32 = 1 << (libc::NFNLGRP_CONNTRACK_NEW - 1);
        Socket::bind(Bus::Netfilter, 0, GROUPS).map(NewConnections)
    }

    /// Calls `each` with the connections that have begun since the last call. Returns true if the
    /// kernel dropped notifications, because there were too many.
    ///
    /// # Errors
    /// [`Error::Receive`] if the socket fails.
    pub fn take(&mut self, mut each: impl FnMut(Connection)) -> Result<bool, Error> {
        self.0.drain(|message| {
            if message.kind == kind(IPCTNL_MSG_CT_NEW) {
                Connection::parse(&message.attrs()).into_iter().for_each(&mut each);
            }
        })
    }
}
