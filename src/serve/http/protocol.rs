//! An HTTP listener for GET and HEAD that clients cannot exhaust.

use std::convert::Infallible;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue, X_CONTENT_TYPE_OPTIONS};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use nix::errno::Errno;
use nix::sys::socket::{setsockopt, sockopt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::oneshot;

use super::connections::{Connections, Limits, Slot};

/// The pause before the retry of a port that cannot be bound.
pub(super) const RETRY: Duration = Duration::from_secs(5);

/// An answer with its body at once. Clones share the body.
pub(super) type Answer = Response<Bytes>;

pub(super) const JSON: &str = "application/json";
/// The content type of Go's plain text.
pub(super) const PLAIN_TEXT: &str = "text/plain; charset=utf-8";

/// Makes an answer.
fn answer(status: StatusCode, content_type: &'static str, body: String) -> Answer {
    let mut answer = Response::new(body.into());
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    answer.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    answer
}

/// Makes an answer with status 200.
pub(super) fn ok(content_type: &'static str, body: String) -> Answer {
    answer(StatusCode::OK, content_type, body)
}

/// Makes a JSON answer with status 200 if `good`, else 503.
pub(super) fn json(good: bool, body: String) -> Answer {
    answer(if good { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }, JSON, body)
}

/// Makes the answer of Go's library for an unknown path.
fn not_found() -> Answer {
    answer(StatusCode::NOT_FOUND, PLAIN_TEXT, "404 page not found\n".to_owned())
}

fn not_allowed() -> Answer {
    let body = "Method Not Allowed\n".to_owned();
    let mut answer = answer(StatusCode::METHOD_NOT_ALLOWED, PLAIN_TEXT, body);
    answer.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
    answer
}

/// Answers the request for a path; `None` for an unknown path.
pub(super) type Handler = Arc<dyn Fn(&str) -> Option<Page> + Send + Sync>;

/// The page at a path.
pub(super) enum Page {
    /// An answer that is ready.
    Ready(Answer),
    /// An answer that another thread makes.
    Shared(oneshot::Receiver<Answer>),
}

impl From<Answer> for Page {
    fn from(answer: Answer) -> Page {
        Page::Ready(answer)
    }
}

/// A page that another thread makes, because it takes long. It makes the page once for all requests
/// that wait, so that many requests take no more time than one.
pub(super) struct SharedPage {
    make: Arc<dyn Fn() -> Answer + Send + Sync>,
    requests: Arc<Mutex<Requests>>,
}

#[derive(Default)]
struct Requests {
    is_made: bool,
    waiting: Vec<oneshot::Sender<Answer>>,
}

impl SharedPage {
    pub(super) fn new(make: impl Fn() -> Answer + Send + Sync + 'static) -> SharedPage {
        SharedPage { make: Arc::new(make), requests: Arc::default() }
    }

    /// Returns a page that is not older than this call. Must be called within a tokio runtime.
    pub(super) fn get(&self) -> Page {
        let (sender, answer) = oneshot::channel();
        let mut requests = lock(&self.requests);
        requests.waiting.push(sender);
        if !std::mem::replace(&mut requests.is_made, true) {
            let (make, requests) = (self.make.clone(), self.requests.clone());
            tokio::task::spawn_blocking(move || make_pages(&*make, &requests));
        }
        Page::Shared(answer)
    }
}

/// Makes pages as long as requests wait for one.
fn make_pages(make: &dyn Fn() -> Answer, requests: &Mutex<Requests>) {
    loop {
        let waiting = {
            let mut requests = lock(requests);
            requests.is_made = !requests.waiting.is_empty();
            std::mem::take(&mut requests.waiting)
        };
        if waiting.is_empty() {
            return;
        }
        let answer = make();
        for request in waiting {
            // The client may be gone.
            let _ = request.send(answer.clone());
        }
    }
}

fn lock(requests: &Mutex<Requests>) -> MutexGuard<'_, Requests> {
    requests.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Opens a listener. Without `only_own_family`, each unspecified address is that of both families, as
/// it is to Go, or that of IPv4 on a kernel without IPv6.
fn listen(mut address: SocketAddr, only_own_family: bool) -> io::Result<TcpListener> {
    /// The usual value of `net.core.somaxconn`, which Go uses.
    const BACKLOG: u32 = 4096;
    /// The kernel's limits for unread answers: bytes (it allocates twice as many) and milliseconds.
    /// Connections inherit them.
    const SEND_BUFFER: u32 = 64 * 1024;
    const UNREAD_FOR: u32 = 10_000;
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
    socket.set_reuseaddr(true)?;
    socket.set_send_buffer_size(SEND_BUFFER)?;
    setsockopt(&socket, sockopt::TcpUserTimeout, &UNREAD_FOR)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Answers requests at an address, for ever: opens a listener again that was closed, and retries a
/// port that cannot be bound. Calls `taken` with the first error, which returns a guard until the port
/// is bound, or the reason to end.
pub(super) async fn keep_listening<G, E>(
    address: SocketAddr,
    only_own_family: bool,
    purpose: &str,
    handler: Handler,
    connections: &Connections,
    taken: impl Fn(io::Error) -> Result<G, E>,
) -> E {
    let mut guard = None;
    loop {
        match listen(address, only_own_family) {
            Ok(listener) => {
                guard = None;
                if !only_own_family {
                    tracing::info!(%address, "serving {purpose}");
                }
                let error = accept(&listener, handler.clone(), connections).await;
                tracing::error!(%address, %error, "listener for {purpose} closed, reopening it");
                continue;
            }
            Err(error) if guard.is_none() => match taken(error) {
                Ok(new) => guard = Some(new),
                Err(end) => return end,
            },
            Err(_) => {}
        }
        tokio::time::sleep(RETRY).await;
    }
}

/// Answers requests until the listener fails, and returns its error.
async fn accept(listener: &TcpListener, handler: Handler, connections: &Connections) -> io::Error {
    /// The pause before the next `accept` after a shortage.
    const PAUSE: Duration = Duration::from_millis(100);
    // Let requests be answered before further connections can take their slots.
    let batch = (connections.limits().per_source / 4).max(1);
    let mut accepted: usize = 0;
    let mut is_short = false;
    loop {
        match listener.accept().await {
            Ok((stream, client)) => {
                let (slot, closed) = connections.enter(client.ip());
                let limits = connections.limits();
                tokio::spawn(converse(stream, slot, closed, handler.clone(), limits));
                accepted += 1;
                is_short = false;
                if accepted.is_multiple_of(batch) {
                    tokio::task::yield_now().await;
                }
            }
            Err(error) => match AcceptError::of(&error) {
                AcceptError::Connection => {}
                AcceptError::Shortage => {
                    // A closed connection is gone once its task has run.
                    if connections.make_room() {
                        tokio::task::yield_now().await;
                    } else {
                        if !std::mem::replace(&mut is_short, true) {
                            tracing::warn!(%error, "cannot accept connections, retrying");
                        }
                        tokio::time::sleep(PAUSE).await;
                    }
                }
                AcceptError::Listener => return error,
            },
        }
    }
}

/// The cause of a failed accept(2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AcceptError {
    /// The connection was reset, or a firewall refused it.
    Connection,
    /// The process or the system is out of file descriptors or memory.
    Shortage,
    /// The listener is closed; a process with CAP_NET_ADMIN can do that (`ss --kill`).
    Listener,
}

impl AcceptError {
    fn of(error: &io::Error) -> AcceptError {
        match error.raw_os_error().map(Errno::from_raw) {
            Some(Errno::EMFILE | Errno::ENFILE | Errno::ENOBUFS | Errno::ENOMEM) => {
                AcceptError::Shortage
            }
            Some(Errno::EINVAL | Errno::EBADF | Errno::ENOTSOCK) => AcceptError::Listener,
            _ => AcceptError::Connection,
        }
    }
}

/// Answers the requests of a client within the limits. Ignores clients that give up or time out.
/// `closed` ends when the pool closes the connection.
async fn converse(
    stream: TcpStream,
    client: Arc<Slot>,
    closed: oneshot::Receiver<Infallible>,
    handler: Handler,
    limits: Limits,
) {
    /// The maximum size of a request. hyper accepts half of that in any case.
    const REQUEST: usize = 16 * 1024;
    let service = service_fn(move |request: Request<Incoming>| {
        client.used();
        let page = match *request.method() {
            // hyper omits the body of an answer to HEAD.
            Method::GET | Method::HEAD => handler(request.uri().path()),
            _ => Some(not_allowed().into()),
        };
        let client = client.clone();
        async move {
            let answer = match page {
                None => not_found(),
                Some(Page::Ready(answer)) => answer,
                // The sender is dropped only when the process is ending.
                Some(Page::Shared(answer)) => answer.await.unwrap_or_else(|_| not_found()),
            };
            Ok::<_, Infallible>(answer.map(|body| Full::new(client.answer(body))))
        }
    });
    let mut conversation = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.request)
        .max_buf_size(REQUEST)
        .title_case_headers(true)
        .serve_connection(TokioIo::new(stream), service);
    tokio::select! {
        _ = tokio::time::timeout(limits.connection, &mut conversation) => {}
        // A normal close would let the kernel keep the unread answer. It fails only for sockets other
        // than TCP.
        _ = closed => drop(conversation.into_parts().io.into_inner().set_zero_linger()),
    }
}

/// Returns the answer to a request with further header lines, for tests.
#[cfg(test)]
async fn ask(address: SocketAddr, what: &str, headers: &str) -> String {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    let mut stream = TcpStream::connect(address).await.expect("a listener");
    let request = format!("{what} HTTP/1.1\r\nHost: node\r\nConnection: close\r\n{headers}\r\n");
    stream.write_all(request.as_bytes()).await.expect("room in the buffer");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("an answer");
    answer
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use nix::sys::socket::{Shutdown, shutdown};

    use super::*;

    #[tokio::test]
    async fn a_listener_that_was_closed_is_noticed() {
        let listener = listen(([127, 0, 0, 1], 0).into(), false).expect("a free port");
        // As `ss --kill` does it.
        shutdown(std::os::fd::AsRawFd::as_raw_fd(&listener), Shutdown::Both).expect("a listener");
        let handler: Handler = Arc::new(|_| None);
        let error = accept(&listener, handler, &Connections::default()).await;
        assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
    }

    #[tokio::test]
    async fn connection_that_the_pool_closes_is_reset() {
        use tokio::io::AsyncReadExt;

        let listener = listen(([127, 0, 0, 1], 0).into(), false).expect("a free port");
        let address = listener.local_addr().expect("an address");
        let limits = Limits { per_source: 1, ..Limits::default() };
        let handler: Handler = Arc::new(|_| None);
        tokio::spawn(async move { accept(&listener, handler, &Connections::new(limits)).await });
        let connect = async || TcpStream::connect(address).await.expect("a listener");
        let (mut first, _second) = (connect().await, connect().await);
        let error = first.read(&mut [0]).await.expect_err("no connection");
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    }

    #[tokio::test]
    async fn only_get_and_head_are_answered() {
        let listener = listen(([127, 0, 0, 1], 0).into(), false).expect("a free port");
        let address = listener.local_addr().expect("an address");
        let handler: Handler = Arc::new(|_| Some(ok(PLAIN_TEXT, "ok".to_owned()).into()));
        tokio::spawn(async move { accept(&listener, handler, &Connections::default()).await });
        let answer = ask(address, "HEAD /", "").await;
        assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("\r\n\r\n"), "{answer}");
        let answer = ask(address, "POST /", "Content-Length: 0\r\n").await;
        assert!(answer.starts_with("HTTP/1.1 405 "), "{answer}");
        assert!(answer.contains("Allow: GET, HEAD\r\n"), "{answer}");
    }

    #[tokio::test]
    async fn requests_that_come_together_share_a_page() {
        let count = Arc::new(AtomicUsize::new(0));
        let (go, gate) = std::sync::mpsc::channel::<()>();
        let (counted, gate) = (count.clone(), Mutex::new(gate));
        let page = SharedPage::new(move || {
            let _ = gate.lock().expect("a lock").recv();
            let made = counted.fetch_add(1, Ordering::Relaxed);
            ok(PLAIN_TEXT, made.to_string())
        });
        let get = || match page.get() {
            Page::Shared(answer) => answer,
            Page::Ready(_) => unreachable!("it is shared"),
        };
        let first = get();
        // The answer is being made once no other connection waits.
        while !lock(&page.requests).waiting.is_empty() {
            tokio::task::yield_now().await;
        }
        let later: Vec<_> = (0..100).map(|_| get()).collect();
        drop(go);
        assert_eq!(first.await.expect("an answer").body(), "0");
        for answer in later {
            // None is older than its request.
            assert_eq!(answer.await.expect("an answer").body(), "1");
        }
        assert_eq!(count.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn only_what_is_wrong_with_the_listener_ends_it() {
        for (errno, expected) in [
            (Errno::EMFILE, AcceptError::Shortage),
            (Errno::ENFILE, AcceptError::Shortage),
            (Errno::ECONNABORTED, AcceptError::Connection),
            (Errno::EPERM, AcceptError::Connection),
            (Errno::ENETDOWN, AcceptError::Connection),
            (Errno::EINVAL, AcceptError::Listener),
        ] {
            assert_eq!(AcceptError::of(&io::Error::from(errno)), expected, "{errno}");
        }
    }
}
