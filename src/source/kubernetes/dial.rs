//! Connections to the API server from the network namespace in which the agent was started, if it
//! works in another one.
//!
//! A kubeconfig usually fits the namespace of the start, but the server may be reachable only from
//! the other namespace. So the agent tries the namespace of the start first, then the other.

use std::future::Future;
use std::io;
use std::net::{TcpStream, ToSocketAddrs};
use std::pin::Pin;
use std::task::{self, Poll};
use std::time::Duration;

use hyper::Uri;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use nix::sys::socket::{setsockopt, sockopt};
use tokio::sync::{mpsc, oneshot};
use tower::{BoxError, Service};

/// HTTP/1 has no pings; TCP keepalive takes their place.
pub(super) const KEEPALIVE_AFTER: Duration = Duration::from_secs(20);
pub(super) const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
pub(super) const KEEPALIVE_PROBES: u32 = 3;
/// The timeout of a connect from the namespace of the start.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

struct Call {
    host: String,
    port: u16,
    answer: oneshot::Sender<io::Result<TcpStream>>,
}

/// A thread that connects from the network namespace in which it was started.
#[derive(Debug, Clone)]
pub struct Dialer(mpsc::UnboundedSender<Call>);

impl PartialEq for Dialer {
    fn eq(&self, other: &Dialer) -> bool {
        self.0.same_channel(&other.0)
    }
}

impl Eq for Dialer {}

impl Dialer {
    /// Starts a dialer in the namespace of this thread.
    ///
    /// # Errors
    /// If the system refuses to start a thread.
    pub fn here() -> io::Result<Dialer> {
        let (sender, mut calls) = mpsc::unbounded_channel::<Call>();
        std::thread::Builder::new().name("dialer".to_owned()).spawn(move || {
            while let Some(call) = calls.blocking_recv() {
                // The caller may have stopped waiting.
                let _ = call.answer.send(connect(&call.host, call.port));
            }
        })?;
        Ok(Dialer(sender))
    }

    async fn dial(&self, host: String, port: u16) -> io::Result<tokio::net::TcpStream> {
        let (answer, answered) = oneshot::channel();
        let gone = || io::Error::other("the thread that makes connections has ended");
        self.0.send(Call { host, port, answer }).map_err(|_| gone())?;
        tokio::net::TcpStream::from_std(answered.await.map_err(|_| gone())??)
    }
}

fn connect(host: &str, port: u16) -> io::Result<TcpStream> {
    let mut failure = io::Error::from(io::ErrorKind::NotFound);
    for address in (host, port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, CONNECT_TIMEOUT) {
            Ok(stream) => {
                stream.set_nonblocking(true)?;
                stream.set_nodelay(true)?;
                setsockopt(&stream, sockopt::KeepAlive, &true)?;
                setsockopt(&stream, sockopt::TcpKeepIdle, &seconds(KEEPALIVE_AFTER))?;
                setsockopt(&stream, sockopt::TcpKeepInterval, &seconds(KEEPALIVE_INTERVAL))?;
                setsockopt(&stream, sockopt::TcpKeepCount, &KEEPALIVE_PROBES)?;
                return Ok(stream);
            }
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

fn seconds(duration: Duration) -> u32 {
    u32::try_from(duration.as_secs()).unwrap_or(u32::MAX)
}

/// Connects from the dialer's namespace, if there is one, and otherwise from this one.
#[derive(Clone)]
pub(super) struct Connector {
    pub(super) there: Option<Dialer>,
    pub(super) here: HttpConnector,
}

impl Service<Uri> for Connector {
    type Response = TokioIo<tokio::net::TcpStream>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, context: &mut task::Context<'_>) -> Poll<Result<(), BoxError>> {
        self.here.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let there = self.there.clone();
        let mut here = self.here.clone();
        Box::pin(async move {
            if let (Some(there), Some(host)) = (there, uri.host()) {
                let default = if uri.scheme_str() == Some("http") { 80 } else { 443 };
                let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
                if let Ok(stream) = there.dial(host, uri.port_u16().unwrap_or(default)).await {
                    return Ok(TokioIo::new(stream));
                }
            }
            std::future::poll_fn(|context| here.poll_ready(context)).await?;
            Ok(here.call(uri).await?)
        })
    }
}
