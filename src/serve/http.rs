//! A listener that answers GET requests and that clients cannot exhaust.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue, X_CONTENT_TYPE_OPTIONS};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::Semaphore;

/// What clients may take.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// The time for a request.
    pub(super) request: Duration,
    /// The time for a connection, with all of its requests.
    pub(super) connection: Duration,
    /// How many are served at a time; more wait in the kernel's queue.
    pub(super) connections: usize,
}

pub(super) const LIMITS: Limits = Limits {
    request: Duration::from_secs(5),
    connection: Duration::from_secs(60),
    connections: 64,
};

/// An answer: its status, its headers beside the usual ones, and its JSON body.
#[derive(Debug, Clone)]
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) headers: Vec<(&'static str, HeaderValue)>,
    pub(super) body: String,
}

impl Answer {
    pub(super) fn new(good: bool, body: String) -> Answer {
        let status = if good { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        Answer { status, headers: Vec::new(), body }
    }
}

/// What answers the request for a path; `None` for a path that there is not.
pub(super) type Handler = Arc<dyn Fn(&str) -> Option<Answer> + Send + Sync>;

/// Opens a listener. An IPv6 one takes no IPv4 clients: these have a listener of their own.
pub(super) fn listen(address: SocketAddr, only_own_family: bool) -> std::io::Result<TcpListener> {
    /// As the Go library asks for by default (`net.core.somaxconn`).
    const BACKLOG: u32 = 4096;
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    socket.set_reuseaddr(true)?;
    if address.is_ipv6() && only_own_family {
        nix::sys::socket::setsockopt(&socket, nix::sys::socket::sockopt::Ipv6V6Only, &true)?;
    }
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Answers requests for ever.
pub(super) async fn accept(listener: &TcpListener, handler: Handler, limits: Limits) {
    let slots = Arc::new(Semaphore::new(limits.connections));
    // The semaphore is never closed.
    while let Ok(slot) = slots.clone().acquire_owned().await {
        match listener.accept().await {
            Ok((stream, _)) => {
                let conversation = converse(stream, handler.clone(), limits.request);
                tokio::spawn(async move {
                    // A client that gives up or takes too long is no concern of ours.
                    let _ = tokio::time::timeout(limits.connection, conversation).await;
                    drop(slot);
                });
            }
            Err(error) => {
                // A connection that was cut before it was taken, or no file descriptor is left: the
                // listener itself is fine.
                tracing::debug!(%error, "accepting a health check failed");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn converse(stream: TcpStream, handler: Handler, limit: Duration) -> hyper::Result<()> {
    let service = service_fn(move |request: Request<Incoming>| {
        let answer = handler(request.uri().path());
        async move { Ok::<_, Infallible>(respond(answer)) }
    });
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limit)
        .title_case_headers(true)
        .serve_connection(TokioIo::new(stream), service)
        .await
}

fn respond(answer: Option<Answer>) -> Response<Full<Bytes>> {
    let Some(answer) = answer else {
        let mut response = Response::new(Full::default());
        *response.status_mut() = StatusCode::NOT_FOUND;
        return response;
    };
    let mut response = Response::new(Full::from(answer.body));
    *response.status_mut() = answer.status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    for (name, value) in answer.headers {
        headers.insert(name, value);
    }
    response
}

/// What `GET path` answers, for tests.
#[cfg(test)]
pub(super) async fn get(address: SocketAddr, path: &str) -> String {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    let mut stream = TcpStream::connect(address).await.expect("a listener");
    let request = format!("GET {path} HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("room in the buffer");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("an answer");
    answer
}
