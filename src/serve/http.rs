//! A listener that answers GET and HEAD requests and that clients cannot exhaust.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderMap, HeaderValue, X_CONTENT_TYPE_OPTIONS};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::Semaphore;

/// The pause before a port that cannot be bound is tried again.
pub(super) const RETRY: Duration = Duration::from_secs(5);

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

/// An answer: its status, its body and that one's type, and its headers beside the usual ones.
#[derive(Debug, Clone)]
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) content_type: &'static str,
    pub(super) headers: Vec<(&'static str, HeaderValue)>,
    pub(super) body: String,
}

pub(super) const JSON: &str = "application/json";
/// What Go calls plain text.
pub(super) const PLAIN_TEXT: &str = "text/plain; charset=utf-8";

impl Answer {
    /// The JSON of something that is good (200) or not (503).
    pub(super) fn json(good: bool, body: String) -> Answer {
        let status = if good { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        Answer { status, content_type: JSON, headers: Vec::new(), body }
    }

    /// 200 with a body of that type.
    pub(super) fn ok(content_type: &'static str, body: String) -> Answer {
        Answer { status: StatusCode::OK, content_type, headers: Vec::new(), body }
    }

    /// What Go's library answers for a path that there is not.
    fn not_found() -> Answer {
        let body = "404 page not found\n".to_owned();
        Answer { status: StatusCode::NOT_FOUND, ..Answer::ok(PLAIN_TEXT, body) }
    }

    fn not_allowed() -> Answer {
        let body = "Method Not Allowed\n".to_owned();
        Answer {
            status: StatusCode::METHOD_NOT_ALLOWED,
            headers: vec![(ALLOW.as_str(), HeaderValue::from_static("GET, HEAD"))],
            ..Answer::ok(PLAIN_TEXT, body)
        }
    }
}

/// What answers the request for a path; `None` for a path that there is not.
pub(super) type Handler = Arc<dyn Fn(&str, &HeaderMap) -> Option<Answer> + Send + Sync>;

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
                tracing::debug!(%error, "accepting a connection failed");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn converse(stream: TcpStream, handler: Handler, limit: Duration) -> hyper::Result<()> {
    let service = service_fn(move |request: Request<Incoming>| {
        let answer = match *request.method() {
            // hyper leaves the body away where it was not asked for.
            Method::GET | Method::HEAD => {
                handler(request.uri().path(), request.headers()).unwrap_or_else(Answer::not_found)
            }
            _ => Answer::not_allowed(),
        };
        async move { Ok::<_, Infallible>(respond(answer)) }
    });
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limit)
        .title_case_headers(true)
        .serve_connection(TokioIo::new(stream), service)
        .await
}

fn respond(answer: Answer) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(answer.body));
    *response.status_mut() = answer.status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(answer.content_type));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    for (name, value) in answer.headers {
        headers.insert(name, value);
    }
    response
}

/// What `GET path` answers, for tests.
#[cfg(test)]
pub(super) async fn get(address: SocketAddr, path: &str) -> String {
    ask(address, &format!("GET {path}"), "").await
}

/// What a request with further header lines is answered with, for tests.
#[cfg(test)]
pub(super) async fn ask(address: SocketAddr, what: &str, headers: &str) -> String {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    let mut stream = TcpStream::connect(address).await.expect("a listener");
    let request = format!("{what} HTTP/1.1\r\nHost: node\r\nConnection: close\r\n{headers}\r\n");
    stream.write_all(request.as_bytes()).await.expect("room in the buffer");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("an answer");
    answer
}
