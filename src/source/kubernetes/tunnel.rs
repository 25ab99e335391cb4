//! Connections through an HTTP proxy (`CONNECT`).

use std::pin::Pin;
use std::sync::Arc;
use std::task::{self, Poll};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http_body_util::Empty;
use hyper::body::Bytes;
use hyper::header::{HOST, HeaderValue, PROXY_AUTHORIZATION};
use hyper::rt::{Read, Write};
use hyper::{Request, StatusCode, Uri};
use tower::{BoxError, Service, ServiceExt};

use super::failure::innermost;
use super::proxy::Proxy;

/// The reason why the proxy makes no connection to the server.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct NoTunnel(String);

/// A connector through an HTTP proxy.
#[derive(Clone)]
pub(super) struct Tunnel<C> {
    proxy: Arc<Proxy>,
    inner: C,
}

impl<C> Tunnel<C> {
    /// Makes a connector; `inner` connects to the proxy.
    pub(super) fn new(proxy: Proxy, inner: C) -> Tunnel<C> {
        Tunnel { proxy: Arc::new(proxy), inner }
    }
}

impl<C> Service<Uri> for Tunnel<C>
where
    C: Service<Uri> + Clone + Send + 'static,
    C::Response: Read + Write + Unpin + Send + 'static,
    C::Future: Send + 'static,
    C::Error: Into<BoxError>,
{
    type Response = C::Response;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<C::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut task::Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, server: Uri) -> Self::Future {
        let (proxy, inner) = (self.proxy.clone(), self.inner.clone());
        Box::pin(async move {
            let connection = inner.oneshot(proxy.url.clone()).await.map_err(|error| {
                let error: BoxError = error.into();
                NoTunnel(format!("the proxy cannot be reached: {}", innermost(&*error)))
            })?;
            Ok(connect(connection, &proxy, &server).await?)
        })
    }
}

async fn connect<S>(connection: S, proxy: &Proxy, server: &Uri) -> Result<S, NoTunnel>
where
    S: Read + Write + Unpin + Send + 'static,
{
    let broken = |error: hyper::Error| {
        NoTunnel(format!("the proxy broke the connection: {}", innermost(&error)))
    };
    let request =
        request(proxy, server).ok_or_else(|| NoTunnel("the server has no host".into()))?;
    let (mut sender, driver) =
        hyper::client::conn::http1::handshake(connection).await.map_err(broken)?;
    // The task ends with the upgrade of the connection.
    tokio::spawn(driver.with_upgrades());
    let answer = sender.send_request(request).await.map_err(broken)?;
    match answer.status() {
        StatusCode::OK => {}
        StatusCode::PROXY_AUTHENTICATION_REQUIRED => {
            let reason = match proxy.credentials {
                Some(_) => "the proxy does not accept the credentials in its URL (407)",
                None => "the proxy requires credentials (407); give them in its URL",
            };
            return Err(NoTunnel(reason.to_owned()));
        }
        status => return Err(NoTunnel(format!("the proxy refuses to connect ({status})"))),
    }
    let upgraded = hyper::upgrade::on(answer).await.map_err(broken)?;
    match upgraded.downcast::<S>() {
        Ok(parts) if parts.read_buf.is_empty() => Ok(parts.io),
        _ => Err(NoTunnel("the proxy sent data before the first request to the server".to_owned())),
    }
}

fn request(proxy: &Proxy, server: &Uri) -> Option<Request<Empty<Bytes>>> {
    let default = if server.scheme_str() == Some("http") { 80 } else { 443 };
    let target = format!("{}:{}", server.host()?, server.port_u16().unwrap_or(default));
    let mut request = Request::connect(&target).header(HOST, &target);
    if let Some(credentials) = &proxy.credentials {
        let credentials = format!("{}:{}", credentials.user, credentials.password);
        let header = format!("Basic {}", STANDARD.encode(credentials));
        let mut header = HeaderValue::try_from(header).ok()?;
        header.set_sensitive(true);
        request = request.header(PROXY_AUTHORIZATION, header);
    }
    request.body(Empty::new()).ok()
}
