//! The HTTP client: one shared connection, with pings that detect a dead server.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, HeaderValue, USER_AGENT};
use hyper::http::Request;
use hyper::{Method, Response, StatusCode, Uri};
use hyper_rustls::{HttpsConnectorBuilder, MaybeHttpsStream};
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::proxy::{SocksV5, Tunnel};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use kube::Client;
use kube::client::{Body, ConfigExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tower::util::BoxCloneSyncService;
use tower::{BoxError, ServiceBuilder, ServiceExt, service_fn};

use super::dial::connector;
use super::failure::innermost;
use super::kubeconfig::ClientParts;
use super::proxy::HttpProxy;
use super::server_name::server_name;
use super::{Access, AccessError, ContentType};

/// The timeout of a request, and of the body of its answer. A server that is busy queues a request
/// and answers within 60 s, its `--request-timeout`. This timeout also covers the connect, so it is
/// longer: a repeated request would wait anew. (Pings detect a dead connection earlier.)
pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(75);
/// How long a connection may take until HTTP/2 is negotiated: TCP, a proxy, and TLS, which gets 10 s
/// in client-go.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(20);
/// How long other requests wait for the first answer, so that they can share its connection.
const FIRST_ANSWER_TIMEOUT: Duration = Duration::from_secs(3);
/// HTTP/2: the client sends a ping when the server was silent for this long (client-go: 30 s) …
const PING_AFTER: Duration = Duration::from_secs(20);
/// … and closes the connection without an answer within this time (client-go: 15 s).
const PING_TIMEOUT: Duration = Duration::from_secs(10);
/// HTTP/2: the bytes that the server may send before the agent has read them, in one answer and in
/// all. A list arrives with at most one window per round trip: 20 MB/s at 100 ms. A decoder that is
/// slower than the network buffers a whole window, so larger ones (client-go: 4 MiB and 1 GiB) cost
/// memory at the start.
const STREAM_WINDOW: u32 = 2 << 20;
const CONNECTION_WINDOW: u32 = 5 << 20;

/// A callback for each request whose answer has begun, or that has failed: the method; the server, as
/// `host:port` where the URL has a port; the status, none after a failure; the latency, none for a watch,
/// whose answer begins at once and lasts for minutes.
pub type RequestObserver =
    Arc<dyn Fn(&Method, &str, Option<StatusCode>, Option<Duration>) + Send + Sync>;

/// A connection to the server, before TLS with it: to a proxy, there may be TLS already.
type Stream = MaybeHttpsStream<TokioIo<TcpStream>>;
type Connect<S> = BoxCloneSyncService<Uri, S, BoxError>;

/// Makes a client. kube's own client speaks HTTP/1 only: it has a connection for each watch, and
/// detects a dead host of the server only after minutes.
fn client(access: &Access, observer: &RequestObserver) -> Result<Client, AccessError> {
    let ClientParts { mut config, token, proxy, .. } = access.prepare()?;
    let agent = HeaderValue::from_static(concat!("shunt/", env!("CARGO_PKG_VERSION")));
    config.headers.push((USER_AGENT, agent));
    let tcp = connector(access.dialer.clone());
    let server = config.cluster_url.authority().map(ToString::to_string).unwrap_or_default();
    let mut way = server.clone();
    let connect = match &proxy {
        None => Connect::new(tcp.map_response(MaybeHttpsStream::Http)),
        Some(proxy) => {
            way.push_str(&format!(" through the proxy {proxy}"));
            let inner = HttpsConnectorBuilder::new()
                .with_tls_config(config.rustls_client_config()?)
                .https_or_http()
                .enable_http1()
                .wrap_connector(tcp);
            through(proxy, Connect::new(inner))
        }
    };
    let mut https = HttpsConnectorBuilder::new()
        .with_tls_config(config.rustls_client_config()?)
        .https_or_http();
    // The reader of the kubeconfig has refused an invalid one.
    if let Some(name) = config.tls_server_name.as_deref().and_then(server_name) {
        https = https.with_server_name_resolver(name);
    }
    let https = https.enable_all_versions().wrap_connector(connect);
    let connect = Connect::new(service_fn(move |server: Uri| {
        let connecting = Connect::new(https.clone()).oneshot(server);
        async move {
            let late = format!("no connection within {} s", HANDSHAKE_TIMEOUT.as_secs());
            timeout(HANDSHAKE_TIMEOUT, connecting).await.map_err(|_| late)?
        }
    }));
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .map_request(move |mut request: Request<Body>| {
            if let Some(header) = token.header(Instant::now()) {
                request.headers_mut().insert(AUTHORIZATION, header);
            }
            request
        })
        .layer(config.extra_headers_layer()?)
        // The resolver's error does not contain the name of the server.
        .map_err(move |error| BoxError::from(format!("{way}: {}", innermost(&error))))
        .service(shared(connect, server, observer.clone()));
    Ok(Client::new(service, config.default_namespace.clone()))
}

/// Returns a connector through a proxy, to which `inner` connects.
fn through(proxy: &HttpProxy, inner: Connect<Stream>) -> Connect<Stream> {
    let address = proxy.0.uri().clone();
    if address.scheme_str().is_some_and(|scheme| scheme.starts_with("socks")) {
        // There is no TLS on the way to such a proxy.
        let authority = address.authority().map(ToString::to_string).unwrap_or_default();
        let plain = format!("http://{authority}/").parse().unwrap_or(address);
        let mut socks = SocksV5::new(plain, inner);
        if let Some((user, password)) = proxy.0.raw_auth() {
            socks = socks.with_auth(user.to_owned(), password.to_owned());
        }
        return Connect::new(socks.map_err(Into::into));
    }
    let authorization = proxy.0.basic_auth().cloned();
    let wrong = match authorization {
        Some(_) => "the proxy does not accept the credentials in its URL (407)",
        None => "the proxy requires credentials (407); give them in its URL",
    };
    let inner =
        inner.map_err(|error: BoxError| format!("cannot reach the proxy: {}", innermost(&*error)));
    let mut tunnel = Tunnel::new(address, inner);
    if let Some(header) = authorization {
        tunnel = tunnel.with_auth(header);
    }
    Connect::new(tunnel.map_err(move |error| {
        let error: BoxError = error.into();
        match error.to_string().ends_with("authorization required") {
            true => wrong.into(),
            false => error,
        }
    }))
}

/// Returns an HTTP client whose requests share one connection if the server has HTTP/2. It calls the
/// observer for each of them.
///
/// hyper-util opens a connection for each request until it knows that they can share one. So one
/// request goes ahead, and the others wait for its answer.
fn shared(
    connect: Connect<MaybeHttpsStream<Stream>>,
    host: String,
    observer: RequestObserver,
) -> BoxCloneSyncService<Request<Body>, Response<Incoming>, legacy::Error> {
    let client = legacy::Client::builder(TokioExecutor::new())
        .timer(TokioTimer::new())
        .pool_timer(TokioTimer::new())
        .http2_keep_alive_interval(PING_AFTER)
        .http2_keep_alive_timeout(PING_TIMEOUT)
        .http2_initial_stream_window_size(STREAM_WINDOW)
        .http2_initial_connection_window_size(CONNECTION_WINDOW)
        .build(connect);
    let shared = Arc::new((host, observer, AtomicBool::new(false), tokio::sync::Mutex::new(())));
    BoxCloneSyncService::new(service_fn(move |request: Request<Body>| {
        let (client, shared) = (client.clone(), shared.clone());
        async move {
            let (host, observer, works, first) = &*shared;
            let started = Instant::now();
            let mut ahead = None;
            if !works.load(Ordering::Relaxed) {
                ahead = timeout(FIRST_ANSWER_TIMEOUT, first.lock()).await.ok();
            }
            if works.load(Ordering::Relaxed) {
                ahead = None;
            }
            let method = request.method().clone();
            let query = request.uri().query().unwrap_or_default();
            let is_watch = query.split('&').any(|parameter| parameter.starts_with("watch="));
            let answer = client.request(request).await;
            works.store(answer.is_ok(), Ordering::Relaxed);
            drop(ahead);
            let status = answer.as_ref().ok().map(Response::status);
            observer(&method, host, status, (!is_watch).then(|| started.elapsed()));
            answer
        }
    }))
}

/// The client in use, with the means to make a new one: when the server rejects the agent,
/// certificates, keys or addresses may have changed.
pub struct Connection {
    make: Box<dyn Fn() -> Result<Client, AccessError> + Send + Sync>,
    content_type: ContentType,
    current: Mutex<(u64, Client)>,
}

impl Connection {
    /// Prepares a client, without a request. Must be called within a tokio runtime. The client
    /// calls `observer` for each request.
    ///
    /// # Errors
    /// If the credentials or the server's address cannot be read or used.
    pub fn open(access: Access, observer: RequestObserver) -> Result<Connection, AccessError> {
        let content_type = access.content_type;
        let connection = Connection::new(move || client(&access, &observer))?;
        Ok(Connection { content_type, ..connection })
    }

    pub(crate) fn new(
        make: impl Fn() -> Result<Client, AccessError> + Send + Sync + 'static,
    ) -> Result<Connection, AccessError> {
        let client = make()?;
        Ok(Connection {
            make: Box::new(make),
            content_type: ContentType::default(),
            current: Mutex::new((0, client)),
        })
    }

    /// Returns the configured content type of lists and watches.
    pub(super) fn content_type(&self) -> ContentType {
        self.content_type
    }

    /// Returns the client and its number.
    #[must_use]
    pub fn client(&self) -> (u64, Client) {
        self.current.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces the client with this number after a failure, unless another watch has done so.
    pub fn renew(&self, failed: u64) {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if current.0 != failed {
            return;
        }
        match (self.make)() {
            Ok(client) => *current = (failed + 1, client),
            // The files may be half-written; the old credentials may still work.
            Err(error) => {
                tracing::debug!("cannot reload the credentials, keeping the old ones: {error}");
            }
        }
    }
}
