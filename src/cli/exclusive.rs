//! One agent at a time in a network namespace.
//!
//! The agent holds a name that the kernel keeps once per network namespace (an abstract socket
//! address, unix(7)) and gives back when the process ends, however it ends. Whoever waits for it is
//! connected to the holder and so learns of its end at once. It works on every kernel, and across
//! containers that share the namespace.

use std::io::{self, Read};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use nix::unistd::Uid;

const NAME: &str = "shunt/dataplane";

/// Held as long as it lives.
pub(super) struct Exclusive(#[expect(dead_code, reason = "it is there to be held")] UnixListener);

/// Somebody else programs this network namespace.
#[derive(Debug, thiserror::Error)]
#[error("another shunt (process {0}) programs this network namespace")]
pub(super) struct Held(i32);

/// Takes the name if it is free.
pub(super) fn try_hold() -> io::Result<Result<Exclusive, Held>> {
    let name = SocketAddr::from_abstract_name(NAME)?;
    loop {
        match UnixListener::bind_addr(&name) {
            Ok(listener) => return Ok(Ok(Exclusive(listener))),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            Err(error) => return Err(error),
        }
        if let Some((_, pid)) = holder(&name)? {
            return Ok(Err(Held(pid)));
        }
    }
}

/// Takes the name, or waits until it is free.
pub(super) fn hold() -> io::Result<Exclusive> {
    let name = SocketAddr::from_abstract_name(NAME)?;
    loop {
        match try_hold()? {
            Ok(exclusive) => return Ok(exclusive),
            Err(held) => {
                tracing::warn!("{held}: waiting until it ends; its rules stay meanwhile");
            }
        }
        if let Some((mut stream, _)) = holder(&name)? {
            // Nothing is ever sent: this ends, in whatever way, when the holder does.
            let _ = stream.read(&mut [0]);
        }
    }
}

/// A connection to the holder, and its process; `None` if it has just gone.
fn holder(name: &SocketAddr) -> io::Result<Option<(UnixStream, i32)>> {
    let stream = match UnixStream::connect_addr(name) {
        Ok(stream) => stream,
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => return Ok(None),
        Err(error) => return Err(error),
    };
    let peer = getsockopt(&stream, PeerCredentials)?;
    let user = Uid::from_raw(peer.uid());
    if !user.is_root() && user != Uid::effective() {
        return Err(io::Error::other(format!(
            "the name @{NAME} is taken by process {} of user {user}, who cannot be an agent: end \
             that process",
            peer.pid()
        )));
    }
    Ok(Some((stream, peer.pid())))
}
