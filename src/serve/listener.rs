//! A listening socket that stays: it retries a port in use, and opens the port again when another
//! process has closed it.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::socket::{setsockopt, sockopt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::time::sleep;

use super::time::Seldom;

/// The pause before the retry of a port that cannot be bound.
const RETRY: Duration = Duration::from_secs(5);
/// The pause after a failed accept: without file descriptors the next one would fail as fast.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// About the process or the system, which is out of file descriptors or memory for clients.
static SHORT: Seldom = Seldom::new();

/// A listener at an address.
pub(super) struct PortListener {
    address: SocketAddr,
    only_own_family: bool,
    socket: Option<TcpListener>,
    is_reported: bool,
}

/// What happened at a listener.
#[derive(Debug)]
pub(super) enum Happened {
    /// It listens now.
    Bound,
    /// It cannot listen, and retries silently.
    Unbound(io::Error),
    /// A client has connected.
    Accepted(TcpStream),
}

impl PortListener {
    /// Makes a listener, which is not bound yet. The unspecified address means both families unless
    /// `only_own_family`.
    pub(super) fn new(address: SocketAddr, only_own_family: bool) -> PortListener {
        PortListener { address, only_own_family, socket: None, is_reported: false }
    }

    /// Waits for what happens next.
    pub(super) async fn next(&mut self) -> Happened {
        loop {
            let Some(socket) = &self.socket else {
                match bind(self.address, self.only_own_family) {
                    Ok(socket) => {
                        self.socket = Some(socket);
                        self.is_reported = false;
                        return Happened::Bound;
                    }
                    Err(error) if !std::mem::replace(&mut self.is_reported, true) => {
                        return Happened::Unbound(error);
                    }
                    Err(_) => sleep(RETRY).await,
                }
                continue;
            };
            match socket.accept().await {
                Ok((client, _)) => return Happened::Accepted(client),
                Err(error) => match error.raw_os_error().map(Errno::from_raw) {
                    Some(Errno::EMFILE | Errno::ENFILE | Errno::ENOBUFS | Errno::ENOMEM) => {
                        if SHORT.may() {
                            let address = self.address;
                            tracing::error!(%address, %error, "cannot accept connections, retrying");
                        }
                        sleep(ACCEPT_RETRY).await;
                    }
                    // A process with CAP_NET_ADMIN can do that (`ss --kill`).
                    Some(Errno::EINVAL) => {
                        let address = self.address;
                        tracing::error!(%address, %error, "a listener was closed, reopening it");
                        self.socket = None;
                    }
                    // The client has reset the connection, or a firewall has refused it.
                    _ => {}
                },
            }
        }
    }
}

/// Listens on an address.
fn bind(mut address: SocketAddr, only_own_family: bool) -> io::Result<TcpListener> {
    /// The maximum number of connections that wait for the agent. The kernel's limit is
    /// net.core.somaxconn.
    const BACKLOG: u32 = 4096;
    let is_any = !only_own_family && address.ip().is_unspecified();
    if is_any {
        address.set_ip(Ipv6Addr::UNSPECIFIED.into());
    }
    let socket = match address.is_ipv6().then(TcpSocket::new_v6) {
        Some(Err(error)) if is_any && error.raw_os_error() == Some(Errno::EAFNOSUPPORT as i32) => {
            address.set_ip(Ipv4Addr::UNSPECIFIED.into());
            TcpSocket::new_v4()?
        }
        Some(socket) => socket?,
        None => TcpSocket::new_v4()?,
    };
    if address.is_ipv6() {
        setsockopt(&socket, sockopt::Ipv6V6Only, &only_own_family)?;
    }
    // Connections of an earlier agent may be in TIME_WAIT.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

#[cfg(test)]
mod tests {
    use nix::sys::socket::{Shutdown, shutdown};

    use super::*;

    #[tokio::test]
    async fn a_listener_that_was_closed_is_opened_again() {
        let mut listener = PortListener::new(([127, 0, 0, 1], 0).into(), false);
        assert!(matches!(listener.next().await, Happened::Bound));
        // As `ss --kill` does it.
        let socket = listener.socket.as_ref().expect("a socket");
        shutdown(std::os::fd::AsRawFd::as_raw_fd(socket), Shutdown::Both).expect("a listener");
        assert!(matches!(listener.next().await, Happened::Bound));
    }

    #[tokio::test(start_paused = true)]
    async fn a_port_in_use_is_reported_once_and_retried() {
        let other = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let mut listener = PortListener::new(other.local_addr().expect("an address"), false);
        assert!(matches!(listener.next().await, Happened::Unbound(_)));
        let silence = tokio::time::timeout(10 * RETRY, listener.next()).await;
        assert!(silence.is_err(), "{silence:?}");
        drop(other);
        assert!(matches!(listener.next().await, Happened::Bound));
    }
}
