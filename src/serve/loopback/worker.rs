//! The thread of the proxy: its listeners, and one task for each connection.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use shunt_core::plan::{LoopbackChanges, LoopbackNodePorts, LoopbackPort};
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::task::JoinHandle;

use super::balancer::Balancer;
use super::connection::{reset, serve};
use super::shared::{Complaint, Port, Shared, lock};

/// The pause before the retry of a port that cannot be bound.
const RETRY: Duration = Duration::from_secs(5);
/// The pause after a failed accept: without file descriptors the next one would fail as fast.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);
/// The maximum number of connections that wait for the proxy, for each port. The kernel's limit is
/// net.core.somaxconn.
const BACKLOG: u32 = 4096;

/// Starts the thread. Returns the sender for the changes of each sync.
pub(super) fn start(shared: Arc<Shared>) -> io::Result<UnboundedSender<LoopbackChanges>> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
    let (sender, messages) = mpsc::unbounded_channel();
    std::thread::Builder::new().name("loopback".to_owned()).spawn(move || {
        runtime.block_on(Worker { shared, messages, ports: BTreeMap::new() }.run());
    })?;
    Ok(sender)
}

struct Worker {
    shared: Arc<Shared>,
    messages: UnboundedReceiver<LoopbackChanges>,
    /// The ports to serve, each with its task.
    ports: BTreeMap<SocketAddr, (Arc<Port>, JoinHandle<()>)>,
}

impl Worker {
    async fn run(mut self) {
        let shared = self.shared.clone();
        while !self.ends() {
            tokio::select! {
                Some(changes) = self.messages.recv() => {
                    for ((family, number), port) in changes {
                        let address = LoopbackNodePorts::address(family);
                        self.change(SocketAddr::new(address, number), port).await;
                    }
                }
                () = shared.idle.notified() => {}
            }
        }
    }

    /// Returns true if there is nothing to do any more. Then the next change starts a new thread.
    fn ends(&self) -> bool {
        if !self.ports.is_empty() || self.shared.open() > 0 {
            return false;
        }
        let mut link = lock(&self.shared.link);
        let ends = self.messages.is_empty();
        if ends {
            *link = None;
        }
        ends
    }

    async fn change(&mut self, address: SocketAddr, new: Option<LoopbackPort>) {
        match (self.ports.get(&address), new) {
            (Some((port, _)), Some(new)) => lock(port).update(new),
            (Some(_), None) => {
                if let Some((_, task)) = self.ports.remove(&address) {
                    task.abort();
                    // The listener is closed when the task has ended. Another process, or the next
                    // change, may bind the address then.
                    let _ = task.await;
                }
                self.shared.forget(address);
            }
            (None, Some(new)) => {
                let port = Arc::new(Port::new(Balancer::new(new)));
                let task = tokio::spawn(listen(address, port.clone(), self.shared.clone()));
                self.ports.insert(address, (port, task));
            }
            (None, None) => {}
        }
    }
}

fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    // Connections of an earlier agent may be in TIME_WAIT.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Accepts connections for ever, once the address can be bound.
async fn listen(address: SocketAddr, port: Arc<Port>, shared: Arc<Shared>) {
    let listener = loop {
        match bind(address) {
            Ok(listener) => break listener,
            Err(error) => shared.unbound(address, lock(&port).service(), &error),
        }
        tokio::time::sleep(RETRY).await;
    };
    shared.bound(address);
    loop {
        match listener.accept().await {
            Ok((client, _)) => match shared.enter() {
                Some(slot) => {
                    tokio::spawn(serve(client, port.clone(), shared.clone(), slot));
                }
                None => reset(&client),
            },
            // The client has given up.
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(error) => {
                if shared.may_log(Complaint::CannotAccept) {
                    tracing::error!(
                        %error, service = %lock(&port).service(),
                        "cannot accept a connection to a node port on a loopback address; retrying"
                    );
                }
                tokio::time::sleep(ACCEPT_RETRY).await;
            }
        }
    }
}
