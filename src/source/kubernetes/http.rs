//! The HTTP version: HTTP/2 on one connection, and HTTP/1 if the server has nothing else.
//!
//! hyper-util opens a connection for each of the first requests, because it knows only after the
//! handshake that HTTP/2 needs no other. A pool for HTTP/2 alone opens one, which the other requests
//! wait for. They wait for no answer, so the start takes no longer. If the connect fails, all fail.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{self, Poll};
use std::time::Duration;

use hyper::body::Incoming;
use hyper::http::uri::Scheme;
use hyper::rt::{Read, Write};
use hyper::{Request, Response, Uri};
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::Connection;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kube::client::Body;
use tokio::time::timeout;
use tower::{BoxError, Service};

use super::failure::innermost;

/// HTTP/2: the client sends a ping when the server was silent for this long (client-go: 30 s) …
const PING_AFTER: Duration = Duration::from_secs(20);
/// … and closes the connection without an answer within this time (client-go: 15 s).
const PING_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a connection may take until HTTP/2 is negotiated: TCP, a proxy, and TLS, which gets 10 s
/// in client-go. All requests wait for it.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(20);
/// HTTP/2: the bytes that the server may send before the agent has read them, in one answer and in
/// all. A list arrives with at most one window per round trip: 20 MB/s at 100 ms. A decoder that is
/// slower than the network buffers a whole window, so larger ones (client-go: 4 MiB and 1 GiB) cost
/// memory at the start.
const STREAM_WINDOW: u32 = 2 << 20;
const CONNECTION_WINDOW: u32 = 5 << 20;

/// The reason why a request has no answer.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct NoAnswer(String);

impl NoAnswer {
    fn new(error: &legacy::Error) -> NoAnswer {
        NoAnswer(innermost(error))
    }
}

/// The result of the last connect for HTTP/2.
#[derive(Debug, Clone, Default)]
enum Connected {
    #[default]
    Http2,
    /// The server does not negotiate HTTP/2.
    Http1,
    Failed(String),
}

/// A client for one server. `C` connects with TLS if the server has it.
#[derive(Clone)]
pub(super) struct Http<C> {
    http2: legacy::Client<Http2Only<C>, Body>,
    http1: legacy::Client<C, Body>,
    connected: Shared,
}

#[derive(Debug, Clone)]
struct Shared(Arc<Mutex<Connected>>);

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Connected> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_http1(&self) -> bool {
        matches!(*self.lock(), Connected::Http1)
    }
}

impl<C> Http<C>
where
    C: Service<Uri> + Clone,
    Http2Only<C>: legacy::connect::Connect + Clone,
    C: legacy::connect::Connect,
{
    /// Makes a client. HTTP/2 is negotiated in the TLS handshake, so servers without TLS get HTTP/1.
    pub(super) fn new(connector: C, server: &Uri) -> Http<C> {
        let is_plain = server.scheme() == Some(&Scheme::HTTP);
        let connected = if is_plain { Connected::Http1 } else { Connected::default() };
        let connected = Shared(Arc::new(Mutex::new(connected)));
        let mut builder = legacy::Client::builder(TokioExecutor::new());
        builder
            .timer(TokioTimer::new())
            .pool_timer(TokioTimer::new())
            // Another server of the same address may negotiate HTTP/2 later.
            .http2_keep_alive_interval(PING_AFTER)
            .http2_keep_alive_timeout(PING_TIMEOUT)
            .http2_initial_stream_window_size(STREAM_WINDOW)
            .http2_initial_connection_window_size(CONNECTION_WINDOW);
        let http1 = builder.build(connector.clone());
        let http2 = builder
            .http2_only(true)
            .build(Http2Only { inner: connector, connected: connected.clone() });
        Http { http2, http1, connected }
    }
}

impl<C> Service<Request<Body>> for Http<C>
where
    C: legacy::connect::Connect + Clone + Send + Sync + 'static,
    Http2Only<C>: legacy::connect::Connect + Clone + Send + Sync + 'static,
{
    type Response = Response<Incoming>;
    type Error = NoAnswer;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, NoAnswer>> + Send>>;

    fn poll_ready(&mut self, _: &mut task::Context<'_>) -> Poll<Result<(), NoAnswer>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let (http1, connected) = (self.http1.clone(), self.connected.clone());
        let http1 = move |request| async move {
            http1.request(request).await.map_err(|error| NoAnswer::new(&error))
        };
        if connected.is_http1() {
            return Box::pin(http1(request));
        }
        let copy = copy(&request);
        let answer = self.http2.request(request);
        Box::pin(async move {
            let error = match answer.await {
                Err(error) if error.is_connect() => error,
                answer => return answer.map_err(|error| NoAnswer::new(&error)),
            };
            // hyper-util has the reason for one of the requests that waited for the connection.
            let last = connected.lock().clone();
            match (last, copy) {
                (Connected::Http1, Some(copy)) => http1(copy).await,
                (Connected::Failed(reason), _) => Err(NoAnswer(reason)),
                _ => Err(NoAnswer::new(&error)),
            }
        })
    }
}

fn copy(request: &Request<Body>) -> Option<Request<Body>> {
    let mut copy = Request::new(request.body().try_clone()?);
    *copy.method_mut() = request.method().clone();
    *copy.uri_mut() = request.uri().clone();
    *copy.headers_mut() = request.headers().clone();
    Some(copy)
}

/// A connector that fails if the server does not negotiate HTTP/2.
#[derive(Clone)]
pub(super) struct Http2Only<C> {
    inner: C,
    connected: Shared,
}

impl<C> Service<Uri> for Http2Only<C>
where
    C: Service<Uri>,
    C::Response: Connection + Read + Write + Send + Unpin + 'static,
    C::Future: Send + 'static,
    C::Error: Into<BoxError>,
{
    type Response = C::Response;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<C::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, context: &mut task::Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let connected = self.connected.clone();
        let connecting = self.inner.call(uri);
        Box::pin(async move {
            let no_http2 = || Err("the server does not negotiate HTTP/2".into());
            if connected.is_http1() {
                return no_http2();
            }
            let connecting = match timeout(HANDSHAKE_TIMEOUT, connecting).await {
                Ok(connecting) => connecting.map_err(Into::into),
                Err(_) => {
                    Err(format!("no connection within {} s", HANDSHAKE_TIMEOUT.as_secs()).into())
                }
            };
            match connecting {
                Ok(connection) if connection.connected().is_negotiated_h2() => {
                    *connected.lock() = Connected::Http2;
                    Ok(connection)
                }
                Ok(_) => {
                    *connected.lock() = Connected::Http1;
                    no_http2()
                }
                Err(error) => {
                    *connected.lock() = Connected::Failed(innermost(&*error));
                    Err(error)
                }
            }
        })
    }
}
