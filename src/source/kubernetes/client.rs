//! The HTTP client: one shared connection, with pings that detect a dead server.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use hyper::Uri;
use hyper::header::{AUTHORIZATION, HeaderValue, USER_AGENT};
use hyper::http::Request;
use hyper::rt::{Read, Write};
use hyper_rustls::HttpsConnectorBuilder;
use hyper_util::client::legacy::connect::proxy::{SocksV5, Tunnel};
use hyper_util::client::legacy::connect::{Connection as Connected, HttpConnector};
use kube::client::{Body, ConfigExt};
use kube::{Client, Config};
use tower::util::BoxCloneSyncService;
use tower::{BoxError, Service, ServiceBuilder, ServiceExt};

use super::access::Prepared;
use super::dial::{Connector, KEEPALIVE_AFTER, KEEPALIVE_INTERVAL, KEEPALIVE_PROBES};
use super::failure::innermost;
use super::http::{self, Http};
use super::proxy::Proxy;
use super::requests::{RequestObserver, observed};
use super::server_name::server_name;
use super::token::Token;
use super::{Access, AccessError, ContentType};

/// The timeout of a request, and of the body of its answer. A server that is busy queues a request
/// and answers within 60 s, its `--request-timeout`. This timeout also covers the connect, so it is
/// longer: a repeated request would wait anew. (Pings detect a dead connection earlier.)
pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(75);
/// The timeout of a TCP connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// An error that names the server: the resolver's error does not contain the name.
#[derive(Debug, thiserror::Error)]
#[error("{way}: {reason}")]
struct NoAnswer {
    /// The server, and the proxy in between.
    way: String,
    reason: String,
}

/// Makes a client. kube's own client speaks HTTP/1 only: it has a connection for each watch, and
/// detects a dead host of the server only after minutes.
fn client(access: &Access, observer: &RequestObserver) -> Result<Client, AccessError> {
    let Prepared { mut config, token, proxy, .. } = access.prepare()?;
    let agent = HeaderValue::from_static(concat!("shunt/", env!("CARGO_PKG_VERSION")));
    config.headers.push((USER_AGENT, agent));
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(Some(CONNECT_TIMEOUT));
    tcp.set_keepalive(Some(KEEPALIVE_AFTER));
    tcp.set_keepalive_interval(Some(KEEPALIVE_INTERVAL));
    tcp.set_keepalive_retries(Some(KEEPALIVE_PROBES));
    let tcp = Connector { there: access.dialer.clone(), here: tcp };
    let Some(proxy) = proxy else {
        return client_over(tcp, &config, token, "", observer);
    };
    let through = format!(" through the proxy {proxy}");
    match proxy.0.uri().scheme_str() {
        Some("http") => client_over(tunnel(&proxy, tcp), &config, token, &through, observer),
        Some("https") => {
            let https = HttpsConnectorBuilder::new()
                .with_tls_config(config.rustls_client_config()?)
                .https_only()
                .enable_http1()
                .wrap_connector(tcp);
            client_over(tunnel(&proxy, https), &config, token, &through, observer)
        }
        _ => {
            let mut socks = SocksV5::new(proxy.0.uri().clone(), tcp);
            if let Some((user, password)) = proxy.0.raw_auth() {
                socks = socks.with_auth(user.to_owned(), password.to_owned());
            }
            client_over(socks, &config, token, &through, observer)
        }
    }
}

/// Returns a connector through an HTTP proxy, to which `inner` connects.
fn tunnel<C>(proxy: &Proxy, inner: C) -> BoxCloneSyncService<Uri, C::Response, BoxError>
where
    C: Service<Uri> + Clone + Send + Sync + 'static,
    C::Response: Connected + Read + Write + Send + Unpin + 'static,
    C::Future: Send + 'static,
    C::Error: Into<BoxError>,
{
    let authorization = proxy.0.basic_auth().cloned();
    let wrong = match authorization {
        Some(_) => "the proxy does not accept the credentials in its URL (407)",
        None => "the proxy requires credentials (407); give them in its URL",
    };
    let inner = inner.map_err(|error: C::Error| {
        let error: BoxError = error.into();
        format!("the proxy cannot be reached: {}", innermost(&*error))
    });
    let mut tunnel = Tunnel::new(proxy.0.uri().clone(), inner);
    if let Some(header) = authorization {
        tunnel = tunnel.with_auth(header);
    }
    let tunnel = tunnel
        .map_err(move |error| {
            let error: BoxError = error.into();
            match error.to_string().ends_with("authorization required") {
                true => wrong.into(),
                false => error,
            }
        })
        // The tunnel takes 443 for the port of any server without one.
        .map_request(|server: Uri| match (server.scheme_str(), server.port(), server.host()) {
            (Some("http"), None, Some(host)) => {
                format!("http://{host}:80/").parse().unwrap_or(server)
            }
            _ => server,
        });
    BoxCloneSyncService::new(tunnel)
}

fn client_over<C>(
    connector: C,
    config: &Config,
    token: Token,
    through: &str,
    observer: &RequestObserver,
) -> Result<Client, AccessError>
where
    C: Service<Uri> + Clone + Send + Sync + 'static,
    C::Response: Connected + Read + Write + Send + Unpin + 'static,
    C::Future: Send + 'static,
    C::Error: Into<BoxError>,
{
    let mut https = HttpsConnectorBuilder::new()
        .with_tls_config(config.rustls_client_config()?)
        .https_or_http();
    if let Some(name) = &config.tls_server_name {
        let unusable = || AccessError::Credentials("the server's name is not valid".to_owned());
        https = https.with_server_name_resolver(server_name(name).ok_or_else(unusable)?);
    }
    let server = config.cluster_url.authority().map(ToString::to_string).unwrap_or_default();
    let way = format!("{server}{through}");
    let https = https.enable_all_versions().wrap_connector(connector);
    let http = Http::new(https, &config.cluster_url);
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
        .map_err(move |error: http::NoAnswer| -> BoxError {
            let (way, reason) = (way.clone(), error.to_string());
            Box::new(NoAnswer { way, reason })
        })
        .service(http);
    let service = observed(service, &server, observer);
    Ok(Client::new(service, config.default_namespace.clone()))
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
