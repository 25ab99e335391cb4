//! A plain client, so that servers are filled and looked at without what is under test.

use std::io;
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST};
use hyper::http::request;
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::runtime::{Builder, Runtime};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

/// How long a request may take.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Makes connections to the server.
type Connect = Box<dyn Fn() -> io::Result<TcpStream> + Send + Sync>;

/// A client of an API server, which speaks HTTP/1.1 on a connection for each request.
pub struct Client {
    connect: Connect,
    tls: Option<TlsConnector>,
    token: String,
}

/// An answer: its status, and its body as JSON.
#[derive(Clone, Debug)]
pub struct Reply {
    /// The HTTP status.
    pub status: u16,
    /// The body; a string if it is no JSON.
    pub body: Value,
}

impl Reply {
    fn new(status: u16, body: &[u8]) -> Self {
        let text = || Value::String(String::from_utf8_lossy(body).into_owned());
        Self { status, body: serde_json::from_slice(body).unwrap_or_else(|_| text()) }
    }
}

/// A connection for one request after the other.
pub struct Connection<'a> {
    client: &'a Client,
    runtime: Runtime,
    sender: SendRequest<Full<Bytes>>,
}

impl Client {
    /// A client that speaks TLS if it is given the server's authority in PEM.
    pub fn new(
        connect: impl Fn() -> io::Result<TcpStream> + Send + Sync + 'static,
        authority: Option<&str>,
        token: &str,
    ) -> Result<Self> {
        let tls = authority.map(connector).transpose()?;
        Ok(Self { connect: Box::new(connect), tls, token: token.to_owned() })
    }

    /// Asks for a path, with its parameters.
    pub fn get(&self, path: &str) -> Result<Reply> {
        self.call(Method::GET, path, None)
    }

    /// Sends a request, with JSON if there is any.
    pub fn call(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Reply> {
        self.connection()?.call(method, path, body)
    }

    /// Sends a merge patch (RFC 7386).
    pub fn patch(&self, path: &str, patch: &Value) -> Result<Reply> {
        let patching = "application/merge-patch+json";
        self.connection()?.exchange(Method::PATCH, path, patching, Some(patch))
    }

    /// Opens a connection for many requests.
    pub fn connection(&self) -> Result<Connection<'_>> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let sender = runtime.block_on(self.open())?;
        Ok(Connection { client: self, runtime, sender })
    }

    async fn open(&self) -> Result<SendRequest<Full<Bytes>>> {
        let connection = (self.connect)()?;
        connection.set_nonblocking(true)?;
        connection.set_nodelay(true)?;
        let connection = tokio::net::TcpStream::from_std(connection)?;
        match &self.tls {
            None => converse(connection).await,
            Some(tls) => {
                converse(tls.connect(ServerName::try_from("localhost")?, connection).await?).await
            }
        }
    }

    fn request(&self, method: Method, path: &str, accept: &str) -> request::Builder {
        let request = Request::builder().method(method).uri(path).header(HOST, "localhost");
        request.header(ACCEPT, accept).header(AUTHORIZATION, format!("Bearer {}", self.token))
    }
}

impl Connection<'_> {
    /// Sends a request, with JSON if there is any, and waits for the answer.
    pub fn call(&mut self, method: Method, path: &str, body: Option<&Value>) -> Result<Reply> {
        self.exchange(method, path, "application/json", body)
    }

    fn exchange(
        &mut self,
        method: Method,
        path: &str,
        content_type: &str,
        body: Option<&Value>,
    ) -> Result<Reply> {
        let context = format!("{method} {path}");
        let body = body.map(Value::to_string).unwrap_or_default();
        let request = self.client.request(method, path, "application/json");
        let request = request.header(CONTENT_TYPE, content_type).body(Full::from(body))?;
        let sender = &mut self.sender;
        let answer = async {
            sender.ready().await?;
            let response = sender.send_request(request).await?;
            let status = response.status().as_u16();
            let bytes = response.into_body().collect().await?.to_bytes();
            anyhow::Ok(Reply::new(status, &bytes))
        };
        let answer = self.runtime.block_on(async { tokio::time::timeout(TIMEOUT, answer).await });
        answer.with_context(|| format!("not within {TIMEOUT:?}"))?.context(context)
    }
}

/// Begins HTTP on a connection.
async fn converse(
    connection: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) -> Result<SendRequest<Full<Bytes>>> {
    let (sender, connection) = http1::handshake(TokioIo::new(connection)).await?;
    tokio::spawn(connection);
    Ok(sender)
}

fn connector(authority: &str) -> Result<TlsConnector> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(authority.as_bytes())?)?;
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}
