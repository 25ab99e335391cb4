//! A proxy between the agent and an API server.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Result;
use shunt_testbed::Netns;

use crate::gate::Gate;

/// An HTTP proxy that knows `CONNECT`, on a loopback address of this process's network namespace.
/// Wherever it is asked to connect to, it connects to one server.
pub struct Proxy {
    gate: Gate,
    requests: Arc<Mutex<Vec<String>>>,
}

impl Proxy {
    /// Starts it. `authorization` is the value of `Proxy-Authorization` that a client has to send.
    pub fn start(
        connect: impl Fn() -> io::Result<TcpStream> + Send + Sync + 'static,
        authorization: Option<&str>,
    ) -> Result<Self> {
        let authorization = authorization.map(str::to_owned);
        let requests = Arc::<Mutex<Vec<String>>>::default();
        let requested = Arc::clone(&requests);
        let gate = Gate::open_for(&Netns::own()?, move |client| {
            let target = admit(client, authorization.as_deref())?;
            requested.lock().unwrap_or_else(PoisonError::into_inner).push(target);
            let server = connect()?;
            let mut client = client;
            client.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n")?;
            Ok(server)
        })?;
        Ok(Self { gate, requests })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.gate.address()
    }

    /// The targets (`host:port`) that it was asked to connect to by clients with the right credentials.
    pub fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Reads a request, and returns where to connect to. A client sends nothing more before there is an answer.
fn admit(mut client: &TcpStream, authorization: Option<&str>) -> io::Result<String> {
    let mut head = Vec::new();
    for line in BufReader::new(client).lines() {
        match line? {
            end if end.is_empty() => break,
            line => head.push(line),
        }
    }
    let request = head.first().map(String::as_str).unwrap_or_default();
    let target = request.strip_prefix("CONNECT ").and_then(|rest| rest.split(' ').next());
    let sent = head.iter().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("Proxy-Authorization").then(|| value.trim())
    });
    let refusal: &[u8] = match target {
        Some(target) if sent == authorization => return Ok(target.to_owned()),
        Some(_) => b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n",
        None => b"HTTP/1.1 405 Method Not Allowed\r\n\r\n",
    };
    client.write_all(refusal)?;
    Err(io::ErrorKind::PermissionDenied.into())
}
