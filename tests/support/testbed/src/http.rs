//! As much of HTTP as it takes to ask programs how they are.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result};

use crate::netns::Netns;
use crate::patience::patience;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// An answer over HTTP.
#[derive(Debug, Clone)]
pub struct HttpAnswer {
    /// The status code.
    pub status: u16,
    /// The status line and the headers, one a line.
    pub headers: String,
    /// The body.
    pub body: String,
}

/// The answer to an HTTP GET, asked from a network namespace.
pub fn http_get(from: &Netns, address: SocketAddr, path: &str) -> Result<HttpAnswer> {
    let answer = from.run(|| {
        let mut stream = TcpStream::connect_timeout(&address, patience(PATIENCE))?;
        stream.set_read_timeout(Some(patience(PATIENCE)))?;
        write!(stream, "GET {path} HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    })?;
    let code = answer.split_whitespace().nth(1).context("an empty answer")?;
    let status = code.parse().with_context(|| format!("not an HTTP answer: {answer:?}"))?;
    let (headers, body) = answer.split_once("\r\n\r\n").context("an answer without end")?;
    let chunked = headers.to_lowercase().contains("transfer-encoding: chunked");
    let body = if chunked { unchunked(body)? } else { body.to_owned() };
    Ok(HttpAnswer { status, headers: headers.to_owned(), body })
}

/// What was sent in chunks, each behind its length.
fn unchunked(mut chunks: &str) -> Result<String> {
    let mut body = String::new();
    loop {
        let (length, rest) = chunks.split_once("\r\n").context("a chunk without length")?;
        let length = usize::from_str_radix(length, 16).context("not the length of a chunk")?;
        if length == 0 {
            return Ok(body);
        }
        body += rest.get(..length).context("half a chunk")?;
        chunks = rest.get(length + 2..).context("a chunk without end")?;
    }
}
