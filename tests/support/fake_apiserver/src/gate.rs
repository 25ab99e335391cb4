//! The way to an API server, which can be cut, closed and blocked.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::AsRawFd as _;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::socket::{Shutdown, shutdown};
use shunt_testbed::Netns;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::runtime::Runtime;

const PATIENCE: Duration = Duration::from_secs(60);

/// Makes connections to the server behind a gate, for a client whose connection it may use first.
type Connect = Arc<dyn Fn(&std::net::TcpStream) -> io::Result<std::net::TcpStream> + Send + Sync>;

/// A relay on a loopback address of one network namespace to a server elsewhere. It knows nothing
/// of what it relays. Commands have taken effect when they return.
pub struct Gate {
    netns: Netns,
    address: SocketAddr,
    state: watch::Sender<State>,
    /// The number of commands that the listening side has carried out.
    carried_out: watch::Receiver<u64>,
    accepted: watch::Receiver<usize>,
    runtime: Runtime,
}

#[derive(Debug)]
struct State {
    commands: u64,
    /// It listens while anybody has it: nobody keeps it but who takes connections.
    listener: Option<Arc<TcpListener>>,
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
        let start = State { commands: 0, listener: None, cut: 0, still: 0 };
        let state = watch::Sender::new(start);
        let (carry_out, carried_out) = watch::channel(0);
        let (accept, accepted) = watch::channel(0);
        let connect: Connect = Arc::new(connect);
        let runtime = Runtime::start(
            "api-gate",
            guard(Guarded {
                state: state.subscribe(),
                carried_out: carry_out,
                accepted: accept,
                connect,
            }),
        )?;
        let gate = Self { netns: netns.clone(), address, state, carried_out, accepted, runtime };
        gate.listen(first)?;
        Ok(gate)
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Cuts all connections: both sides get a reset.
    pub fn cut(&self) -> Result<()> {
        self.command(|state| state.cut = self.accepted())
    }

    /// Refuses connections, and cuts those that are open.
    pub fn refuse(&self) -> Result<()> {
        // First, so that none of those that are cut finds it still listening.
        self.command(|state| state.listener = None)?;
        self.cut()
    }

    /// Takes connections and keeps those that are open, but lets nothing through.
    pub fn block(&self) -> Result<()> {
        self.command(|state| state.still = usize::MAX)
    }

    /// Lets nothing more through in connections that are open, without closing them, as when the
    /// other host is gone. New ones are not affected.
    pub fn abandon(&self) -> Result<()> {
        self.command(|state| state.still = self.accepted())
    }

    /// Lets everything through again.
    pub fn reopen(&self) -> Result<()> {
        if self.state.borrow().listener.is_none() {
            self.listen(bind(&self.netns, self.address.port())?)?;
        }
        self.command(|state| state.still = 0)
    }

    /// How many connections it has taken so far.
    pub fn accepted(&self) -> usize {
        *self.accepted.borrow()
    }

    /// Waits until it has taken this many connections.
    pub fn wait_for_accepted(&self, count: usize) -> Result<()> {
        let mut accepted = self.accepted.clone();
        let enough = async { accepted.wait_for(|accepted| *accepted >= count).await.map(drop) };
        self.runtime.wait(PATIENCE, enough).with_context(|| format!("not {count} connections"))
    }

    fn listen(&self, listener: std::net::TcpListener) -> Result<()> {
        let listener = self.runtime.enter(|| TcpListener::from_std(listener))?;
        self.command(|state| state.listener = Some(Arc::new(listener)))
    }

    fn command(&self, change: impl FnOnce(&mut State)) -> Result<()> {
        let mut number = 0;
        self.state.send_modify(|state| {
            state.commands += 1;
            number = state.commands;
            change(state);
        });
        let mut carried_out = self.carried_out.clone();
        let done = async { carried_out.wait_for(|done| *done >= number).await.map(drop) };
        self.runtime.wait(PATIENCE, done).context("the gate is stuck")
    }
}

fn bind(netns: &Netns, port: u16) -> Result<std::net::TcpListener> {
    let listener = netns.run(|| Ok(std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, port))?));
    let listener = listener.context("cannot open a gate to the API server")?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// The ends of a gate's channels that its thread holds.
struct Guarded {
    state: watch::Receiver<State>,
    carried_out: watch::Sender<u64>,
    accepted: watch::Sender<usize>,
    connect: Connect,
}

/// Takes connections while there is a listener.
async fn guard(mut gate: Guarded) -> io::Result<()> {
    loop {
        let (commands, listener) = {
            let state = gate.state.borrow_and_update();
            (state.commands, state.listener.clone())
        };
        gate.carried_out.send_replace(commands);
        let accept = async {
            match &listener {
                Some(listener) => listener.accept().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            connection = accept => {
                let (client, _) = connection?;
                let number = *gate.accepted.borrow();
                gate.accepted.send_replace(number + 1);
                tokio::spawn(relay(client, number, gate.state.clone(), Arc::clone(&gate.connect)));
            }
            changed = gate.state.changed() => {
                // A listener that is given up refuses before the command counts as carried out.
                // Closing it would not do: a process that a test starts meanwhile has a copy of it
                // until it executes its program.
                if let Some(listener) = listener
                    && gate.state.borrow().listener.is_none()
                {
                    shutdown(listener.as_raw_fd(), Shutdown::Both)?;
                }
                if changed.is_err() {
                    return Ok(());
                }
            }
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
