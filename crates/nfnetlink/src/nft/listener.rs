//! The processes that write to nf_tables, from the kernel's notifications.

use super::uapi::kind;
use super::{Error, Generation, Kernel, Socket};
use crate::socket::{self, Bus};

/// A process that wrote to nf_tables.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Writer {
    /// The process id, in the view of the host.
    pub pid: u32,
    /// Its name.
    pub process: String,
}

/// A listener to the notifications of nf_tables (`NFNLGRP_NFTABLES`). As long as one is open in any
/// network namespace, element commits in all of them take 10 to 20 times as long.
#[derive(Debug)]
pub struct Listener {
    socket: socket::NetlinkSocket,
    /// The id of this process, in the same view.
    own_pid: u32,
}

impl Listener {
    /// Subscribes in the network namespace of this thread.
    ///
    /// # Errors
    /// If the kernel refuses the subscription.
    pub fn open() -> Result<Listener, Error> {
        const GROUPS: u32 = 1 << (libc::NFNLGRP_NFTABLES - 1);
        let own_pid = Socket::open()?.generation()?.pid;
        let socket = socket::NetlinkSocket::bind(Bus::Netfilter, 0, GROUPS)?;
        Ok(Listener { socket, own_pid })
    }

    /// Returns the processes that have written since the last call, without this one. The result
    /// lacks those of notifications that the kernel dropped.
    pub fn writers(&mut self) -> Vec<Writer> {
        let mut writers = Vec::new();
        // An unreadable socket returns no further notifications.
        let _ = self.socket.drain(|message| {
            if message.kind == kind(libc::NFT_MSG_NEWGEN)
                && let Some(Generation { pid, process, .. }) = Generation::parse(&message.attrs())
            {
                writers.push(Writer { pid, process });
            }
        });
        writers.retain(|writer| writer.pid != self.own_pid);
        writers.sort_unstable();
        writers.dedup();
        writers
    }
}
