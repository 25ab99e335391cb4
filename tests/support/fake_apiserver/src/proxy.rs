//! A proxy between the agent and an API server.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use anyhow::Result;

type Connect = dyn Fn() -> io::Result<TcpStream> + Send + Sync;

/// An HTTP proxy that knows `CONNECT`, on a loopback address of the thread that starts it. Wherever
/// it is asked to connect to, it connects to one server.
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    connect: Box<Connect>,
    /// The value of `Proxy-Authorization` that it wants.
    authorization: Option<String>,
    requests: Mutex<Vec<String>>,
    stopped: AtomicBool,
}

impl Proxy {
    /// Starts it. `authorization` is the value of `Proxy-Authorization` that a client has to send.
    pub fn start(
        connect: impl Fn() -> io::Result<TcpStream> + Send + Sync + 'static,
        authorization: Option<&str>,
    ) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            connect: Box::new(connect),
            authorization: authorization.map(str::to_owned),
            requests: Mutex::default(),
            stopped: AtomicBool::new(false),
        });
        let of_thread = Arc::clone(&shared);
        let thread = thread::Builder::new().name("proxy".to_owned()).spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                if of_thread.stopped.load(Ordering::SeqCst) {
                    return;
                }
                let shared = Arc::clone(&of_thread);
                thread::spawn(move || serve(client, &shared));
            }
        })?;
        Ok(Self { address, shared, thread: Some(thread) })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The targets (`host:port`) that it was asked to connect to by clients with the right credentials.
    pub fn requests(&self) -> Vec<String> {
        self.shared.requests.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(self.address);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn serve(mut client: TcpStream, shared: &Shared) -> io::Result<()> {
    let mut reader = BufReader::new(client.try_clone()?);
    let mut head = Vec::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            return Ok(());
        }
        match line.trim_end() {
            "" => break,
            line => head.push(line.to_owned()),
        }
    }
    let Some(target) = head[0].strip_prefix("CONNECT ").and_then(|rest| rest.split(' ').next())
    else {
        return client.write_all(b"HTTP/1.1 405 Method Not Allowed\r\n\r\n");
    };
    let sent = head.iter().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("Proxy-Authorization").then(|| value.trim().to_owned())
    });
    if sent != shared.authorization {
        return client.write_all(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n");
    }
    shared.requests.lock().unwrap_or_else(PoisonError::into_inner).push(target.to_owned());
    let server = (shared.connect)()?;
    client.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n")?;
    let (to_server, from_client) = (server.try_clone()?, reader);
    thread::spawn(move || relay(from_client, to_server));
    relay(server, client);
    Ok(())
}

fn relay(mut from: impl Read, mut to: TcpStream) {
    let _ = io::copy(&mut from, &mut to);
    let _ = to.shutdown(Shutdown::Both);
}
