//! Connections to the API server from the network namespace in which the agent was started, if it
//! works in another one.
//!
//! A kubeconfig usually fits the namespace of the start, but the server may be reachable only from
//! the other namespace. So the agent tries the namespace of the start first, then the other.

use std::io;
use std::net::TcpStream;
use std::time::Duration;

use hyper::Uri;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use tokio::sync::{mpsc, oneshot};
use tower::util::BoxCloneSyncService;
use tower::{BoxError, ServiceExt, service_fn};

/// The timeout of a TCP connect, and of one from the namespace of the start.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const DIAL_TIMEOUT: Duration = Duration::from_secs(3);

/// A server, and where the connection to it goes.
type Call = (Uri, oneshot::Sender<io::Result<TcpStream>>);

/// Returns a connector for TCP in the namespace of the thread that uses it.
fn tcp(connect_timeout: Duration) -> HttpConnector {
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(Some(connect_timeout));
    tcp
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
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        std::thread::Builder::new().name("dialer".to_owned()).spawn(move || {
            runtime.block_on(async {
                while let Some((server, answer)) = calls.recv().await {
                    let connected = tcp(DIAL_TIMEOUT).oneshot(server).await;
                    let stream = connected.map_err(io::Error::other);
                    // The caller may have stopped waiting.
                    let _ = answer.send(stream.and_then(|stream| stream.into_inner().into_std()));
                }
            });
        })?;
        Ok(Dialer(sender))
    }

    async fn dial(&self, server: Uri) -> io::Result<tokio::net::TcpStream> {
        let (answer, answered) = oneshot::channel();
        let gone = || io::Error::other("the thread that makes connections has ended");
        self.0.send((server, answer)).map_err(|_| gone())?;
        tokio::net::TcpStream::from_std(answered.await.map_err(|_| gone())??)
    }
}

/// Returns a connector from the dialer's namespace, if there is one, and otherwise from this one.
pub(super) fn connector(
    there: Option<Dialer>,
) -> BoxCloneSyncService<Uri, TokioIo<tokio::net::TcpStream>, BoxError> {
    let here = tcp(CONNECT_TIMEOUT);
    BoxCloneSyncService::new(service_fn(move |server: Uri| {
        let (there, here) = (there.clone(), here.clone());
        async move {
            if let Some(there) = there
                && let Ok(stream) = there.dial(server.clone()).await
            {
                return Ok(TokioIo::new(stream));
            }
            here.oneshot(server).await.map_err(BoxError::from)
        }
    }))
}
