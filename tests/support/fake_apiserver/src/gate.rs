//! The way to an API server, which can be cut, closed and blocked.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::AsRawFd as _;
use std::sync::Arc;

use anyhow::{Context, Result};
use nix::sys::socket::{Shutdown, shutdown};
use shunt_testbed::Netns;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::runtime::Runtime;

/// Makes connections to the server behind a gate, for a client whose connection it may use first.
type Connect = Arc<dyn Fn(&std::net::TcpStream) -> io::Result<std::net::TcpStream> + Send + Sync>;

/// A relay on a loopback address of one network namespace to a server elsewhere. It knows nothing
/// of what it relays.
pub struct Gate {
    netns: Netns,
    address: SocketAddr,
    state: watch::Sender<State>,
    runtime: Runtime,
}

#[derive(Debug, Default)]
struct State {
    listener: Option<Arc<TcpListener>>,
    /// How many connections it has taken so far.
    accepted: usize,
    /// This many connections, the first ones, are cut.
    cut: usize,
    /// In this many, nothing moves.
    still: usize,
}

impl Gate {
    /// Opens a gate in `netns` to what `connect` connects to.
    pub fn open(
        netns: &Netns,
        connect: impl Fn() -> io::Result<std::net::TcpStream> + Send + Sync + 'static,
    ) -> Result<Self> {
        Self::open_for(netns, move |_| connect())
    }

    /// The same where each client has something to say first.
    pub(crate) fn open_for(
        netns: &Netns,
        connect: impl Fn(&std::net::TcpStream) -> io::Result<std::net::TcpStream>
        + Send
        + Sync
        + 'static,
    ) -> Result<Self> {
        let first = bind(netns, 0)?;
        let address = first.local_addr()?;
        let state = watch::Sender::new(State::default());
        let runtime = Runtime::start("api-gate", guard(state.clone(), Arc::new(connect)))?;
        let gate = Self { netns: netns.clone(), address, state, runtime };
        gate.listen(first)?;
        Ok(gate)
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Cuts all connections: both sides get a reset.
    pub fn cut(&self) {
        self.state.send_modify(|state| state.cut = state.accepted);
    }

    /// Refuses connections, and cuts those that are open.
    pub fn refuse(&self) -> Result<()> {
        let mut given_up = None;
        self.state.send_modify(|state| given_up = state.listener.take());
        if let Some(listener) = given_up {
            // First, so that no client whose connection is cut finds it still listening. Closing it would not
            // do: a process that a test starts meanwhile has a copy of it until it executes its program.
            shutdown(listener.as_raw_fd(), Shutdown::Both)?;
        }
        self.cut();
        Ok(())
    }

    /// Takes connections and keeps those that are open, but lets nothing through.
    pub fn block(&self) {
        self.state.send_modify(|state| state.still = usize::MAX);
    }

    /// Lets nothing more through in connections that are open, without closing them, as when the
    /// other host is gone. New ones are not affected.
    pub fn abandon(&self) {
        self.state.send_modify(|state| state.still = state.accepted);
    }

    /// Lets everything through again.
    pub fn reopen(&self) -> Result<()> {
        if self.state.borrow().listener.is_none() {
            self.listen(bind(&self.netns, self.address.port())?)?;
        }
        self.state.send_modify(|state| state.still = 0);
        Ok(())
    }

    /// How many connections it has taken so far.
    pub fn accepted(&self) -> usize {
        self.state.borrow().accepted
    }

    fn listen(&self, listener: std::net::TcpListener) -> Result<()> {
        let listener = self.runtime.enter(|| TcpListener::from_std(listener))?;
        self.state.send_modify(|state| state.listener = Some(Arc::new(listener)));
        Ok(())
    }
}

fn bind(netns: &Netns, port: u16) -> Result<std::net::TcpListener> {
    let listener = netns.run(|| Ok(std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, port))?));
    let listener = listener.context("cannot open a gate to the API server")?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Takes connections while there is a listener.
async fn guard(state: watch::Sender<State>, connect: Connect) -> io::Result<()> {
    let mut changes = state.subscribe();
    let place = |listener: &Option<Arc<TcpListener>>| listener.as_ref().map(Arc::as_ptr);
    loop {
        let listener = changes.borrow_and_update().listener.clone();
        let accept = async {
            match &listener {
                Some(listener) => listener.accept().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            accepted = accept => match accepted {
                Ok((client, _)) => {
                    let mut number = 0;
                    state.send_modify(|state| {
                        number = state.accepted;
                        state.accepted += 1;
                    });
                    tokio::spawn(relay(client, number, state.subscribe(), Arc::clone(&connect)));
                }
                // It has been given up meanwhile, and another one may listen already.
                Err(_) if place(&changes.borrow().listener) != place(&listener) => {}
                Err(error) => return Err(error),
            },
            _ = changes.changed() => {}
        }
    }
}

/// Relays until one side ends, or the connection is cut.
async fn relay(
    client: TcpStream,
    number: usize,
    mut state: watch::Receiver<State>,
    connect: Connect,
) -> io::Result<()> {
    let client = client.into_std()?;
    client.set_nonblocking(false)?;
    let connected = tokio::task::spawn_blocking(move || anyhow::Ok((connect(&client)?, client)));
    let Ok((server, client)) = connected.await? else { return Ok(()) };
    let stream = |stream: std::net::TcpStream| {
        stream.set_nonblocking(true)?;
        // What one side sends at once goes on at once.
        stream.set_nodelay(true)?;
        TcpStream::from_std(stream)
    };
    let (mut client, mut server) = (stream(client)?, stream(server)?);
    let (mut up, mut down) = (vec![0; 16 * 1024], vec![0; 16 * 1024]);
    loop {
        let (is_cut, moves) = {
            let state = state.borrow_and_update();
            (number < state.cut, number >= state.still)
        };
        if is_cut {
            client.set_zero_linger()?;
            return server.set_zero_linger();
        }
        tokio::select! {
            // A command counts before the bytes that came after it.
            biased;
            changed = state.changed() => if changed.is_err() { return Ok(()) },
            count = client.read(&mut up), if moves => match count? {
                0 => return server.shutdown().await,
                count => server.write_all(&up[..count]).await?,
            },
            count = server.read(&mut down), if moves => match count? {
                0 => return client.shutdown().await,
                count => client.write_all(&down[..count]).await?,
            },
        }
    }
}
