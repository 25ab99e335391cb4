//! Requests and answers over HTTP/1.1.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue, X_CONTENT_TYPE_OPTIONS};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use nix::sys::socket::{setsockopt, sockopt};
use tokio::net::TcpStream;

use super::connections::{Connections, Slot};

pub(super) type Answer = Response<Bytes>;

pub(super) const JSON: &str = "application/json";
pub(super) const PLAIN_TEXT: &str = "text/plain; charset=utf-8";

fn answer(status: StatusCode, content_type: &'static str, body: String) -> Answer {
    let mut answer = Response::new(body.into());
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    answer.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    answer
}

/// Returns an answer with status 200.
pub(super) fn ok(content_type: &'static str, body: impl Into<String>) -> Answer {
    answer(StatusCode::OK, content_type, body.into())
}

/// Returns the answer of a health check: status 200, or 503 if not `good`.
pub(super) fn json(good: bool, body: String) -> Answer {
    answer(if good { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }, JSON, body)
}

fn not_found() -> Answer {
    answer(StatusCode::NOT_FOUND, PLAIN_TEXT, "404 page not found\n".to_owned())
}

/// A page that takes long to make. Requests that come while it is made share the next one, which is
/// made after it. So no answer is older than its request, and many requests cost as much as two.
#[derive(Default)]
pub(super) struct SharedPage(tokio::sync::Mutex<Option<(Instant, Answer)>>);

impl SharedPage {
    /// Returns the page that `make` makes, in another thread.
    pub(super) async fn get(
        &self,
        make: impl FnOnce() -> Answer + Send + 'static,
    ) -> Option<Answer> {
        let asked = Instant::now();
        let mut last = self.0.lock().await;
        let is_older = |(begun, _): &(Instant, Answer)| *begun <= asked;
        if last.as_ref().is_none_or(is_older) {
            let begun = Instant::now();
            // It fails only while the process ends.
            *last = Some((begun, tokio::task::spawn_blocking(make).await.ok()?));
        }
        last.as_ref().map(|(_, page)| page.clone())
    }
}

/// Answers the requests of a client, `None` with status 404. Ignores clients that give up or time out.
pub(super) async fn converse<F: Future<Output = Option<Answer>>>(
    stream: TcpStream,
    slot: Arc<Slot>,
    connections: Connections,
    answer: impl Fn(String) -> F,
) {
    /// The timeout for the headers of a request.
    const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
    /// The maximum time of a connection with all its requests.
    const CONNECTION_TIMEOUT: Duration = Duration::from_secs(60);
    /// The maximum size of a request. hyper accepts half of that in any case.
    const REQUEST: usize = 16 * 1024;
    /// The maximum number of bytes of an answer in the kernel, and how long a client may leave them
    /// unread, in milliseconds.
    const SEND_BUFFER: usize = 64 * 1024;
    const UNREAD_FOR: u32 = 10_000;
    // They fail for no socket of TCP.
    let _ = setsockopt(&stream, sockopt::SndBuf, &SEND_BUFFER);
    let _ = setsockopt(&stream, sockopt::TcpUserTimeout, &UNREAD_FOR);
    let service = service_fn(async |request: Request<Incoming>| {
        // Of any method, as kube-proxy; hyper omits the body of an answer to HEAD.
        let answer = answer(request.uri().path().to_owned()).await.unwrap_or_else(not_found);
        connections.answers(&slot, answer.body().len());
        Ok::<_, Infallible>(answer.map(Full::new))
    });
    let mut conversation = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(REQUEST_TIMEOUT)
        .max_buf_size(REQUEST)
        .title_case_headers(true)
        .serve_connection(TokioIo::new(stream), service);
    tokio::select! {
        _ = tokio::time::timeout(CONNECTION_TIMEOUT, &mut conversation) => {}
        // A normal close would let the kernel keep the unread answer. It fails only for sockets other
        // than TCP.
        () = slot.closed.notified() => drop(conversation.into_parts().io.into_inner().set_zero_linger()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    /// Connects to a server that answers every request.
    async fn connect(pool: &Connections) -> TcpStream {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let client = TcpStream::connect(address).await.expect("a listener");
        let (stream, _) = listener.accept().await.expect("a client");
        let answer = |_| std::future::ready(Some(ok(PLAIN_TEXT, "ok")));
        tokio::spawn(converse(stream, pool.enter(), pool.clone(), answer));
        client
    }

    #[tokio::test]
    async fn connection_that_the_pool_closes_is_reset() {
        let pool = Connections::new(1);
        let (mut first, _second) = (connect(&pool).await, connect(&pool).await);
        let error = first.read(&mut [0]).await.expect_err("no connection");
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    }

    #[tokio::test]
    async fn answer_to_head_has_no_body() {
        let pool = Connections::default();
        let mut client = connect(&pool).await;
        let request = b"HEAD / HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n";
        client.write_all(request).await.expect("room in the buffer");
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.expect("an answer");
        assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("\r\n\r\n"), "{answer}");
    }

    #[tokio::test]
    async fn requests_that_come_together_share_a_page() {
        let (count, page) = (Arc::new(AtomicUsize::new(0)), Arc::new(SharedPage::default()));
        let (go, gate) = std::sync::mpsc::channel::<()>();
        let gate = Arc::new(Mutex::new(gate));
        let get = || {
            let (page, count, gate) = (page.clone(), count.clone(), gate.clone());
            let make = move || {
                let _ = gate.lock().expect("a lock").recv();
                ok(PLAIN_TEXT, count.fetch_add(1, Ordering::Relaxed).to_string())
            };
            tokio::spawn(async move { page.get(make).await.expect("a page") })
        };
        let first = get();
        // The page is being made, and later requests get another one.
        while page.0.try_lock().is_ok() {
            tokio::task::yield_now().await;
        }
        let later: Vec<_> = (0..100).map(|_| get()).collect();
        // Each has asked when its turn comes.
        tokio::task::yield_now().await;
        drop(go);
        assert_eq!(first.await.expect("an answer").body(), "0");
        for answer in later {
            // None is older than its request.
            assert_eq!(answer.await.expect("an answer").body(), "1");
        }
        assert_eq!(count.load(Ordering::Relaxed), 2);
    }
}
