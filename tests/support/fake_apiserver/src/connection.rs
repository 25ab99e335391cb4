//! Connections that stay open, for many requests, and for lists that nobody reads.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::client::conn::http1::SendRequest;
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST};
use hyper::{Method, Request};
use serde_json::Value;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;
use tokio_rustls::rustls::pki_types::ServerName;

use crate::client::{Client, Reply, converse};

/// How long a request may take.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A connection for one request after the other.
pub struct Connection<'a> {
    client: &'a Client,
    runtime: Runtime,
    sender: SendRequest<Full<Bytes>>,
}

impl Client {
    /// Opens a connection for many requests.
    pub fn connection(&self) -> Result<Connection<'_>> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let sender = runtime.block_on(self.open())?;
        Ok(Connection { client: self, runtime, sender })
    }

    /// Gets all paths at the same time, each on a new connection, and drops what the server sends.
    /// Returns the bytes of each body.
    pub fn drain(&self, paths: &[&str], accept: &str) -> Result<Vec<u64>> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let mut requests = JoinSet::new();
            for (at, path) in paths.iter().enumerate() {
                let mut sender = self.open().await?;
                let request = self.request(Method::GET, path, accept, Bytes::new())?;
                let context = format!("GET {path}");
                requests.spawn(async move {
                    let response = sender.send_request(request).await?;
                    ensure!(response.status().is_success(), "{context}: {}", response.status());
                    let (mut body, mut bytes) = (response.into_body(), 0);
                    while let Some(frame) = body.frame().await.transpose()? {
                        bytes += frame.data_ref().map_or(0, |data| data.len() as u64);
                    }
                    Ok((at, bytes))
                });
            }
            let mut drained = vec![0; paths.len()];
            while let Some(done) = requests.join_next().await {
                let (at, bytes) = done??;
                drained[at] = bytes;
            }
            Ok(drained)
        })
    }

    async fn open(&self) -> Result<SendRequest<Full<Bytes>>> {
        let connection = self.connect_tcp().await?;
        match &self.tls {
            None => converse(connection).await,
            Some(tls) => {
                converse(tls.connect(ServerName::try_from("localhost")?, connection).await?).await
            }
        }
    }

    fn request(
        &self,
        method: Method,
        path: &str,
        accept: &str,
        body: Bytes,
    ) -> Result<Request<Full<Bytes>>> {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(HOST, "localhost")
            .header(ACCEPT, accept)
            .header(CONTENT_TYPE, "application/json")
            .header(AUTHORIZATION, format!("Bearer {}", self.token));
        Ok(request.body(Full::from(body))?)
    }
}

impl Connection<'_> {
    /// Sends a request, with JSON if there is any, and waits for the answer.
    pub fn call(&mut self, method: Method, path: &str, body: Option<&Value>) -> Result<Reply> {
        let context = format!("{method} {path}");
        let body = body.map(Value::to_string).unwrap_or_default();
        let request = self.client.request(method, path, "application/json", body.into())?;
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
