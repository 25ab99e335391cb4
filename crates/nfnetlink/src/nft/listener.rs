//! Who writes to nf_tables? The kernel tells, but only those who listen.

use std::os::fd::{AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{
    self, AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType,
};

use super::batch::HEADERS;
use super::dump::messages;
use super::uapi::{NFTA_GEN_PROC_NAME, NFTA_GEN_PROC_PID};
use super::{Error, Kernel, Socket};
use crate::attr::Attrs;

/// A process that wrote to nf_tables.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Writer {
    /// Its process id, in the view of the host.
    pub pid: u32,
    /// Its name.
    pub process: String,
}

/// Listens to the notifications of nf_tables (`NFNLGRP_NFTABLES`). As long as one is open in any
/// network namespace, element commits in all of them take 10 to 20 times as long.
pub struct Listener {
    socket: OwnedFd,
    /// Ourselves.
    own_pid: u32,
}

impl Listener {
    /// Begins to listen in the network namespace of this thread.
    ///
    /// # Errors
    /// If the kernel lets us not.
    pub fn open() -> Result<Listener, Error> {
        const GROUPS: u32 = 1 << (libc::NFNLGRP_NFTABLES - 1);
        let own_pid = Socket::open()?.generation()?.pid;
        let open = || {
            let socket = socket::socket(
                AddressFamily::Netlink,
                SockType::Raw,
                SockFlag::SOCK_CLOEXEC,
                SockProtocol::NetlinkNetFilter,
            )?;
            socket::bind(socket.as_raw_fd(), &NetlinkAddr::new(0, GROUPS))?;
            Ok(socket)
        };
        let socket = open().map_err(|errno: Errno| Error::Open(errno.into()))?;
        Ok(Listener { socket, own_pid })
    }

    /// Who has written since the last call, we ourselves left out. What the kernel had no room to
    /// tell is lost.
    pub fn writers(&mut self) -> Vec<Writer> {
        const NEWGEN: [u8; 2] = [libc::NFT_MSG_NEWGEN as u8, libc::NFNL_SUBSYS_NFTABLES as u8];
        let mut buffer = vec![0; 64 * 1024];
        let mut writers = Vec::new();
        loop {
            let length =
                match socket::recv(self.socket.as_raw_fd(), &mut buffer, MsgFlags::MSG_DONTWAIT) {
                    Ok(length) => length,
                    Err(Errno::EINTR | Errno::ENOBUFS) => continue,
                    Err(_) => break,
                };
            for message in messages(&buffer[..length]).filter(|m| m.get(4..6) == Some(&NEWGEN)) {
                let attrs = Attrs::new(message.get(HEADERS..).unwrap_or(&[]));
                let process = attrs.find(NFTA_GEN_PROC_NAME).and_then(|a| a.text());
                if let Some(pid) = attrs.find(NFTA_GEN_PROC_PID).and_then(|a| a.be32()) {
                    let process = process.unwrap_or_default().to_owned();
                    writers.push(Writer { pid, process });
                }
            }
        }
        writers.retain(|writer| writer.pid != self.own_pid);
        writers.sort_unstable();
        writers.dedup();
        writers
    }
}
