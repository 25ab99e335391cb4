//! One connection of a client, and its connection to an endpoint.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::sys::socket::{Shutdown, setsockopt, shutdown, sockopt};
use shunt_core::model::Backend;
use tokio::io::Interest;
use tokio::net::{TcpSocket, TcpStream};

use super::pipes::Pipes;
use super::shared::{Ending, Port, Shared, Slot};
use crate::jitter;

/// The timeout of a connection to an endpoint. kube-proxy's proxy has the same.
const DIAL_TIMEOUT: Duration = Duration::from_secs(5);
/// When the kernel begins to ask a silent endpoint whether it still has the connection, how often,
/// and how many questions it may leave unanswered. The client cannot find out itself: the proxy's
/// kernel answers it.
const KEEPALIVE_IDLE_SECONDS: u32 = 30;
const KEEPALIVE_INTERVAL_SECONDS: u32 = 10;
const KEEPALIVE_PROBES: u32 = 6;
/// The number of chunks that a direction copies before other connections get their turn.
const CHUNKS_PER_TURN: u32 = 16;

/// Serves a client to the end of its connection.
pub(super) async fn serve(client: TcpStream, port: Arc<Port>, shared: Arc<Shared>, slot: Slot) {
    let backend = port.balancer().choose(Instant::now(), jitter::fraction());
    let Some(backend) = backend else {
        return reset(&client);
    };
    let endpoint = match dial(backend).await {
        Ok(endpoint) => endpoint,
        Err(error) => {
            port.balancer().failed(backend);
            slot.end(Ending::Unreachable);
            tracing::debug!(
                service = %port.service(), endpoint = %address(backend), %error,
                "cannot connect to the endpoint, reset the connection to the node port on loopback"
            );
            return reset(&client);
        }
    };
    slot.end(Ending::Forwarded);
    // Each side may rely on it that its small writes are sent at once.
    let _ = client.set_nodelay(true);
    let pipes = &shared.pipes;
    let copied = tokio::try_join!(copy(&client, &endpoint, pipes), copy(&endpoint, &client, pipes));
    if let Err(error) = copied {
        tracing::trace!(%error, "reset a connection to a node port on loopback");
        reset(&client);
        reset(&endpoint);
    }
}

async fn dial(backend: Backend) -> io::Result<TcpStream> {
    let address = address(backend);
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    socket.set_nodelay(true)?;
    socket.set_keepalive(true)?;
    setsockopt(&socket, sockopt::TcpKeepIdle, &KEEPALIVE_IDLE_SECONDS)?;
    setsockopt(&socket, sockopt::TcpKeepInterval, &KEEPALIVE_INTERVAL_SECONDS)?;
    setsockopt(&socket, sockopt::TcpKeepCount, &KEEPALIVE_PROBES)?;
    match tokio::time::timeout(DIAL_TIMEOUT, socket.connect(address)).await {
        Ok(connected) => connected,
        Err(_) => Err(io::ErrorKind::TimedOut.into()),
    }
}

fn address(backend: Backend) -> SocketAddr {
    SocketAddr::new(backend.address, backend.port)
}

/// Makes the kernel send a reset when the socket is closed.
pub(super) fn reset(stream: &TcpStream) {
    // It fails for no socket of TCP.
    let _ = stream.set_zero_linger();
}

/// Copies until the end of the stream, and passes the end on.
async fn copy(from: &TcpStream, to: &TcpStream, pipes: &Pipes) -> io::Result<()> {
    let mut held = None;
    let mut chunks = 0_u32;
    loop {
        let pipe = match held.take() {
            Some(pipe) => pipe,
            None => {
                from.readable().await?;
                pipes.take()?
            }
        };
        // The pipe is empty, so only the socket can block.
        let count = match from.try_io(Interest::READABLE, || pipe.fill(from)) {
            Ok(0) => {
                pipes.give(pipe);
                // A socket that is reset already makes the other direction fail.
                let _ = shutdown(to.as_raw_fd(), Shutdown::Write);
                return Ok(());
            }
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                pipes.give(pipe);
                continue;
            }
            Err(error) => return Err(error),
        };
        let mut left = count;
        while left > 0 {
            // The pipe has data, so only the socket can block.
            match to.try_io(Interest::WRITABLE, || pipe.drain(to, left)) {
                Ok(moved) => left = left.saturating_sub(moved),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => to.writable().await?,
                Err(error) => return Err(error),
            }
        }
        held = Some(pipe);
        chunks = chunks.wrapping_add(1);
        if chunks.is_multiple_of(CHUNKS_PER_TURN) {
            tokio::task::yield_now().await;
        }
    }
}
