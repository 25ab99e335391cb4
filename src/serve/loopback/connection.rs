//! One connection of a client, and its connection to an endpoint.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use nix::sys::socket::{Shutdown, setsockopt, shutdown, sockopt};
use shunt_core::model::Backend;
use tokio::io::Interest;
use tokio::net::{TcpSocket, TcpStream};

use super::{Port, Proxy, lock};
use crate::serve::metrics::Counted;
use shunt_core::jitter;

/// The timeout of a connection to an endpoint. kube-proxy's proxy has the same.
const DIAL_TIMEOUT: Duration = Duration::from_secs(5);
/// When the kernel begins to ask a silent endpoint whether it still has the connection, how often,
/// and how many questions it may leave unanswered. The client cannot find out itself: the proxy's
/// kernel answers it.
const KEEPALIVE_IDLE_SECONDS: u32 = 30;
const KEEPALIVE_INTERVAL_SECONDS: u32 = 10;
const KEEPALIVE_PROBES: u32 = 6;
/// The maximum number of bytes that one call moves.
const CHUNK: usize = 64 * 1024;

/// Serves a client to the end of its connection.
pub(super) async fn serve(client: TcpStream, port: Arc<Port>, proxy: Arc<Proxy>, _slot: Counted) {
    let backend = lock(&port).choose(Instant::now(), jitter::fraction());
    let Some(backend) = backend else {
        return reset(&client);
    };
    let endpoint = match dial(backend).await {
        Ok(endpoint) => endpoint,
        Err(error) => {
            lock(&port).failed(backend);
            proxy.ended("unreachable");
            tracing::debug!(
                service = %lock(&port).service(), endpoint = %address(backend), %error,
                "cannot connect to the endpoint; the client of the node port on loopback gets a \
                 reset"
            );
            return reset(&client);
        }
    };
    proxy.ended("forwarded");
    // Each side may rely on it that its small writes are sent at once.
    let _ = client.set_nodelay(true);
    // A client that has closed with more data than the endpoint accepts: its kernel gives up after
    // minutes, silently, and then answers with a reset.
    let _ = keep_alive(&client);
    let relay = Relay { client: &client, endpoint: &endpoint, moved: AtomicUsize::new(0) };
    if let Err(error) = relay.run(proxy.half_closed_timeout).await {
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
    keep_alive(&socket)?;
    match tokio::time::timeout(DIAL_TIMEOUT, socket.connect(address)).await {
        Ok(connected) => connected,
        Err(_) => Err(io::ErrorKind::TimedOut.into()),
    }
}

fn keep_alive(socket: &impl AsFd) -> io::Result<()> {
    setsockopt(socket, sockopt::KeepAlive, &true)?;
    setsockopt(socket, sockopt::TcpKeepIdle, &KEEPALIVE_IDLE_SECONDS)?;
    setsockopt(socket, sockopt::TcpKeepInterval, &KEEPALIVE_INTERVAL_SECONDS)?;
    setsockopt(socket, sockopt::TcpKeepCount, &KEEPALIVE_PROBES)?;
    Ok(())
}

fn address(backend: Backend) -> SocketAddr {
    SocketAddr::new(backend.address, backend.port)
}

/// Makes the kernel send a reset when the socket is closed.
pub(super) fn reset(stream: &TcpStream) {
    // It fails for no socket of TCP.
    let _ = stream.set_zero_linger();
}

/// Two connections, between which data moves.
struct Relay<'a> {
    client: &'a TcpStream,
    endpoint: &'a TcpStream,
    /// The number of bytes that have moved, in both directions.
    moved: AtomicUsize,
}

impl Relay<'_> {
    /// Copies in both directions until both streams have ended.
    async fn run(&self, half_closed_timeout: Duration) -> io::Result<()> {
        let (client, endpoint) = (self.client, self.endpoint);
        tokio::select! {
            biased;
            copied = async {
                tokio::try_join!(self.copy(client, endpoint), self.copy(endpoint, client))
            } => copied.map(|_| ()),
            () = self.stalled(half_closed_timeout) => Err(io::ErrorKind::TimedOut.into()),
        }
    }

    /// Copies until the end of the stream, and passes the end on.
    async fn copy(&self, from: &TcpStream, to: &TcpStream) -> io::Result<()> {
        loop {
            // Other connections get their turn.
            tokio::task::coop::consume_budget().await;
            from.readable().await?;
            let Some(unwritten) = self.move_chunk(from, to)? else {
                // A socket that is reset already makes the other direction fail.
                let _ = shutdown(to.as_raw_fd(), Shutdown::Write);
                return Ok(());
            };
            let mut unwritten = unwritten.as_slice();
            while !unwritten.is_empty() {
                self.writable(to).await?;
                let moved = or_nothing(to.try_write(unwritten))?;
                self.moved.fetch_add(moved, Ordering::Relaxed);
                unwritten = unwritten.get(moved..).unwrap_or_default();
            }
        }
    }

    /// Copies what can be read and written without waiting. Returns what could not be written; `None`
    /// at the end of the stream. So a connection holds memory only while its reader is slow.
    fn move_chunk(&self, from: &TcpStream, to: &TcpStream) -> io::Result<Option<Vec<u8>>> {
        let mut buffer = [0; CHUNK];
        let read = match from.try_read(&mut buffer) {
            Ok(0) => return Ok(None),
            read => or_nothing(read)?,
        };
        let read = buffer.get(..read).unwrap_or_default();
        if read.is_empty() {
            return Ok(Some(Vec::new()));
        }
        let moved = or_nothing(to.try_write(read))?;
        self.moved.fetch_add(moved, Ordering::Relaxed);
        Ok(Some(read.get(moved..).unwrap_or_default().to_vec()))
    }

    /// Waits until `to` accepts data. Fails if the client resets its connection: an endpoint that does
    /// not read would keep this one open for ever. Data of an endpoint that has reset still reaches a
    /// slow client.
    async fn writable(&self, to: &TcpStream) -> io::Result<()> {
        tokio::select! {
            biased;
            ready = to.writable() => ready,
            _ = self.client.ready(Interest::ERROR) => Err(io::ErrorKind::ConnectionReset.into()),
        }
    }

    /// Returns when one side has ended its stream, and no data has moved for at least the timeout, at
    /// most twice that. The kernel of a frozen endpoint answers keep-alives, so these do not end it.
    async fn stalled(&self, timeout: Duration) {
        let mut before = None;
        loop {
            tokio::time::sleep(timeout).await;
            let is_half_closed = has_ended(self.client).await || has_ended(self.endpoint).await;
            let moved = is_half_closed.then(|| self.moved.load(Ordering::Relaxed));
            if moved.is_some() && moved == before {
                return;
            }
            before = moved;
        }
    }
}

/// Returns 0 for a call that would have to wait.
fn or_nothing(moved: io::Result<usize>) -> io::Result<usize> {
    match moved {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
        moved => moved,
    }
}

/// Returns true if the other end sends nothing more, even if data waits before the end. Never waits.
async fn has_ended(stream: &TcpStream) -> bool {
    tokio::select! {
        biased;
        ready = stream.ready(Interest::READABLE) => ready.is_ok_and(|it| it.is_read_closed()),
        () = std::future::ready(()) => false,
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{TcpListener as StdListener, TcpStream as StdStream};
    use std::os::fd::OwnedFd;

    use shunt_core::model::ObjectName;
    use shunt_core::plan::LoopbackPort;
    use tokio::net::TcpListener;

    use super::*;
    use crate::serve::events::Recorder;
    use crate::serve::history::ChangeHistory;
    use crate::serve::loopback::balancer::Balancer;
    use crate::serve::metrics::Metrics;
    use crate::serve::unbound_ports::UnboundPorts;

    /// The timeout of a test that must not wait for it.
    const LONG: Duration = Duration::from_secs(3600);
    const SHORT: Duration = Duration::from_millis(20);
    /// The timeout of the test itself.
    const PATIENCE: Duration = Duration::from_secs(20);

    /// An endpoint whose kernel accepts connections, and which never reads or closes them.
    struct Hung {
        proxy: Arc<Proxy>,
        port: Arc<Port>,
        node_port: TcpListener,
        _endpoint: StdListener,
    }

    impl Hung {
        async fn new(half_closed_timeout: Duration) -> Hung {
            let endpoint = StdListener::bind("127.0.0.1:0").unwrap();
            let address = endpoint.local_addr().unwrap();
            let metrics = Metrics::new(&[], None, || 0);
            let (events, _) = Recorder::new(ChangeHistory::default());
            let mut proxy = Proxy::new(metrics.clone(), UnboundPorts::new(metrics, events));
            proxy.half_closed_timeout = half_closed_timeout;
            let port = Balancer::new(LoopbackPort {
                service: ObjectName::new("default", "hung"),
                pool: vec![Backend { address: address.ip(), port: address.port() }].into(),
                affinity: None,
            });
            Hung {
                proxy: Arc::new(proxy),
                port: Arc::new(port.into()),
                node_port: TcpListener::bind("127.0.0.1:0").await.unwrap(),
                _endpoint: endpoint,
            }
        }

        /// Connects through the proxy. Returns the client, and the proxy's end of its connection.
        async fn connect(&self) -> (StdStream, OwnedFd) {
            let client = StdStream::connect(self.node_port.local_addr().unwrap()).unwrap();
            let (accepted, _) = self.node_port.accept().await.unwrap();
            let end = accepted.as_fd().try_clone_to_owned().unwrap();
            let slot = self.proxy.enter().unwrap();
            tokio::spawn(serve(accepted, self.port.clone(), self.proxy.clone(), slot));
            (client, end)
        }

        /// Connects, and sends until the proxy reads no more.
        async fn connect_and_fill(&self) -> (StdStream, OwnedFd) {
            let (mut client, end) = self.connect().await;
            let mut unread = 0;
            while unread < 20 {
                match rustix::io::ioctl_fionread(&end).unwrap() {
                    0 => {
                        client.write_all(&[7; 16 << 10]).unwrap();
                        unread = 0;
                    }
                    _ => unread += 1,
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            (client, end)
        }

        /// Waits until all connections have ended.
        async fn closed(&self) {
            let all = async {
                while self.proxy.report().connections > 0 {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            };
            tokio::time::timeout(PATIENCE, all).await.expect("connections stay open");
        }
    }

    #[tokio::test]
    async fn connections_to_a_hung_endpoint_end_after_their_clients() {
        let hung = Hung::new(SHORT).await;
        for _ in 0..10 {
            drop(hung.connect().await);
        }
        hung.closed().await;
    }

    #[tokio::test]
    async fn closed_client_whose_data_no_endpoint_reads_ends_the_connection() {
        let hung = Hung::new(SHORT).await;
        let (client, _end) = hung.connect_and_fill().await;
        drop(client);
        hung.closed().await;
    }

    #[tokio::test]
    async fn reset_client_whose_data_no_endpoint_reads_ends_the_connection_at_once() {
        let hung = Hung::new(LONG).await;
        let (client, _end) = hung.connect_and_fill().await;
        setsockopt(&client, sockopt::Linger, &libc::linger { l_onoff: 1, l_linger: 0 }).unwrap();
        drop(client);
        hung.closed().await;
    }

    #[tokio::test(start_paused = true)]
    async fn half_closed_connection_stays_open_while_data_moves() {
        const TIMEOUT: Duration = Duration::from_secs(120);
        let listener = StdListener::bind("127.0.0.1:0").unwrap();
        let pair = || {
            let other = StdStream::connect(listener.local_addr().unwrap()).unwrap();
            let (one, _) = listener.accept().unwrap();
            one.set_nonblocking(true).unwrap();
            (TcpStream::from_std(one).unwrap(), other)
        };
        let ((client, its_end), (endpoint, _its_end)) = (pair(), pair());
        let relay = Relay { client: &client, endpoint: &endpoint, moved: 0.into() };
        let start = tokio::time::Instant::now();
        let open = tokio::time::timeout(10 * TIMEOUT, relay.stalled(TIMEOUT)).await;
        assert!(open.is_err(), "no side has ended");
        its_end.shutdown(std::net::Shutdown::Write).unwrap();
        let moves = async {
            for _ in 0..20 {
                tokio::time::sleep(TIMEOUT / 2).await;
                relay.moved.fetch_add(1, Ordering::Relaxed);
            }
            tokio::time::Instant::now()
        };
        let (last, ()) = tokio::join!(moves, relay.stalled(TIMEOUT));
        assert_eq!(last - start, 20 * TIMEOUT);
        assert!((TIMEOUT..=2 * TIMEOUT).contains(&last.elapsed()), "{:?}", last.elapsed());
    }
}
