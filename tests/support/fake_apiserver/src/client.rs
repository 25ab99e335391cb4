//! A plain client, so that servers are filled and looked at without what is under test.

use std::io;
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST};
use hyper::{Method, Response};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::runtime::Runtime;

/// How long a request, or a line of a stream, may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// Makes connections to the server.
type Connect = Box<dyn Fn() -> io::Result<TcpStream> + Send + Sync>;

/// A client of an API server, which speaks HTTP/1.1 on a connection for each request.
pub struct Client {
    connect: Connect,
    pub(crate) tls: Option<TlsConnector>,
    pub(crate) token: String,
    runtime: Runtime,
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
    pub(crate) fn new(status: u16, body: &[u8]) -> Self {
        let text = || Value::String(String::from_utf8_lossy(body).into_owned());
        Self { status, body: serde_json::from_slice(body).unwrap_or_else(|_| text()) }
    }
}

impl Client {
    /// A client that speaks TLS if it is given the server's authority in PEM.
    pub fn new(
        connect: impl Fn() -> io::Result<TcpStream> + Send + Sync + 'static,
        authority: Option<&str>,
        token: &str,
    ) -> Result<Self> {
        Ok(Self {
            connect: Box::new(connect),
            tls: authority.map(connector).transpose()?,
            token: token.to_owned(),
            runtime: Runtime::start("api-client", std::future::pending())?,
        })
    }

    /// Asks for a path, with its parameters.
    pub fn get(&self, path: &str) -> Result<Reply> {
        self.call(Method::GET, path, None)
    }

    /// Sends a request, with JSON if there is any.
    pub fn call(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Reply> {
        self.exchange(method, path, "application/json", body)
    }

    /// Sends a merge patch (RFC 7386).
    pub fn patch(&self, path: &str, patch: &Value) -> Result<Reply> {
        self.exchange(Method::PATCH, path, "application/merge-patch+json", Some(patch))
    }

    fn exchange(
        &self,
        method: Method,
        path: &str,
        content_type: &str,
        body: Option<&Value>,
    ) -> Result<Reply> {
        let answer = async {
            let response = self.send(method.clone(), path, content_type, body).await?;
            let status = response.status().as_u16();
            let bytes = response.into_body().collect().await?.to_bytes();
            anyhow::Ok(Reply::new(status, &bytes))
        };
        let answer = self.runtime.wait(PATIENCE, answer);
        answer.with_context(|| format!("{method} {path}"))
    }

    /// Opens a watch.
    pub fn watch(&self, path: &str) -> Result<Watching<'_>> {
        let response = self.runtime.wait(PATIENCE, self.send(Method::GET, path, "", None));
        let response = response.with_context(|| format!("GET {path}"))?;
        ensure!(response.status().is_success(), "GET {path}: {}", response.status());
        Ok(Watching { client: self, body: response.into_body(), line: Vec::new() })
    }

    pub(crate) async fn connect_tcp(&self) -> Result<tokio::net::TcpStream> {
        let connection = (self.connect)()?;
        connection.set_nonblocking(true)?;
        connection.set_nodelay(true)?;
        Ok(tokio::net::TcpStream::from_std(connection)?)
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        content_type: &str,
        body: Option<&Value>,
    ) -> Result<Response<Incoming>> {
        let connection = self.connect_tcp().await?;
        let mut sender = match &self.tls {
            None => converse(connection).await?,
            Some(tls) => {
                let name = ServerName::try_from("localhost")?;
                converse(tls.connect(name, connection).await?).await?
            }
        };
        let request = hyper::Request::builder()
            .method(method)
            .uri(path)
            .header(HOST, "localhost")
            .header(ACCEPT, "application/json")
            .header(CONTENT_TYPE, content_type)
            .header(AUTHORIZATION, format!("Bearer {}", self.token));
        let body = body.map(Value::to_string).unwrap_or_default();
        Ok(sender.send_request(request.body(Full::from(body))?).await?)
    }
}

/// Begins HTTP on a connection, which ends with its request.
pub(crate) async fn converse(
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

/// A watch that is open.
pub struct Watching<'a> {
    client: &'a Client,
    body: Incoming,
    /// What has come of the next line.
    line: Vec<u8>,
}

impl Watching<'_> {
    /// Waits for the next event; none if the server has ended the watch in good order.
    pub fn next_event(&mut self) -> Result<Option<Value>> {
        let Self { client, body, line } = self;
        let text = client.runtime.wait(PATIENCE, next_line(body, line))?;
        text.map(|text| serde_json::from_slice(&text).context("no JSON in a line")).transpose()
    }
}

async fn next_line(body: &mut Incoming, line: &mut Vec<u8>) -> Result<Option<Vec<u8>>> {
    loop {
        if let Some(end) = line.iter().position(|&byte| byte == b'\n') {
            let rest = line.split_off(end + 1);
            return Ok(Some(std::mem::replace(line, rest)));
        }
        match body.frame().await.transpose()? {
            Some(frame) => line.extend(frame.into_data().unwrap_or_default()),
            None => return Ok(None),
        }
    }
}
