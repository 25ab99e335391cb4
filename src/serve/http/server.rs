//! A server that retries a port in use, and moves when the address in the configuration changes.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::connections::Connections;
use super::protocol::{self, Handler};

/// The address of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bind {
    /// `None` turns the server off.
    pub address: Option<SocketAddr>,
    /// `bindAddressHardFail`: a port that cannot be bound is an error, without a retry.
    pub hard_fail: bool,
}

/// A port that cannot be bound, with [`Bind::hard_fail`].
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot listen on {address} for {purpose} ({field}): {reason}; free the port, choose another \
     address, or set bindAddressHardFail to false for retries"
)]
pub struct Unbound {
    purpose: &'static str,
    field: &'static str,
    address: SocketAddr,
    /// Not the source of this error: the text contains it.
    reason: io::Error,
}

/// A port that a server cannot bind, or has bound after that.
#[derive(Debug)]
pub struct PortReport<'a> {
    /// The purpose of the server, in messages.
    pub purpose: &'static str,
    /// The configuration field of the address.
    pub field: &'static str,
    /// The address that the server needs.
    pub address: SocketAddr,
    /// The error; `None` once the port is bound or not needed any more.
    pub error: Option<&'a io::Error>,
}

/// Receives reports of ports.
pub type OnPort = Arc<dyn Fn(PortReport<'_>) + Send + Sync>;

/// A server without its handler.
pub(super) struct Server {
    /// The purpose, in messages.
    pub(super) purpose: &'static str,
    /// The configuration field of the address.
    pub(super) field: &'static str,
    /// The pause before the retry of a port.
    pub(super) retry: Duration,
    /// The pool that all servers share.
    pub(super) connections: Connections,
    /// Receives reports of the port.
    pub(super) on_port: OnPort,
}

/// A reported port that is not bound. Dropping this reports it as bound.
struct Reported<'a>(&'a Server, SocketAddr);

impl Drop for Reported<'_> {
    fn drop(&mut self) {
        let Server { purpose, field, ref on_port, .. } = *self.0;
        on_port(PortReport { purpose, field, address: self.1, error: None });
    }
}

impl Server {
    /// Serves for ever, at the current address of `bind`. Reports a port that cannot be bound once.
    ///
    /// # Errors
    /// If the port cannot be bound and [`Bind::hard_fail`] is set.
    pub(super) async fn serve(
        &self,
        mut bind: watch::Receiver<Bind>,
        handler: Handler,
    ) -> Result<Infallible, Unbound> {
        loop {
            let now = *bind.borrow_and_update();
            tokio::select! {
                Err(unbound) = self.serve_at(now, &handler) => return Err(unbound),
                Ok(_) = bind.wait_for(|bind| *bind != now) => {}
            }
        }
    }

    async fn serve_at(&self, bind: Bind, handler: &Handler) -> Result<Infallible, Unbound> {
        let Some(address) = bind.address else { return std::future::pending().await };
        let Server { purpose, field, retry, .. } = *self;
        let mut reported = None;
        loop {
            match protocol::listen(address, false) {
                Ok(listener) => {
                    reported = None;
                    tracing::info!(%address, "serving {purpose}");
                    let error =
                        protocol::accept(&listener, handler.clone(), &self.connections).await;
                    tracing::error!(%address, %error, "listener for {purpose} closed, reopening it");
                    continue;
                }
                Err(reason) if bind.hard_fail => {
                    return Err(Unbound { purpose, field, address, reason });
                }
                Err(error) if reported.is_none() => {
                    tracing::error!(
                        %address, %error,
                        "cannot serve {purpose} ({field}), retrying every {} s; if another process \
                         holds the port, it answers meanwhile; the rules stay up to date",
                        retry.as_secs(),
                    );
                    (self.on_port)(PortReport { purpose, field, address, error: Some(&error) });
                    reported = Some(Reported(self, address));
                }
                Err(_) => {}
            }
            tokio::time::sleep(retry).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::protocol::{Answer, PLAIN_TEXT, get};
    use super::*;

    const RETRY: Duration = Duration::from_millis(10);

    fn server() -> Server {
        let connections = Connections::default();
        let on_port: OnPort = Arc::new(|_| {});
        Server { purpose: "tests", field: "testBindAddress", retry: RETRY, connections, on_port }
    }

    fn handler() -> Handler {
        Arc::new(|path, _| (path == "/").then(|| Answer::ok(PLAIN_TEXT, "here".to_owned()).into()))
    }

    /// A listener and its address.
    fn taken() -> (tokio::net::TcpListener, SocketAddr) {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let listener = protocol::listen(any, false).expect("a free port");
        let address = listener.local_addr().expect("an address");
        (listener, address)
    }

    async fn served(address: SocketAddr) {
        while tokio::net::TcpStream::connect(address).await.is_err() {
            tokio::task::yield_now().await;
        }
        let answer = get(address, "/").await;
        assert!(answer.ends_with("\r\n\r\nhere"), "{answer}");
    }

    #[tokio::test]
    async fn it_moves_to_another_address_and_away() {
        let ((one, first), (two, second)) = (taken(), taken());
        drop((one, two));
        let bind = |address| Bind { address, hard_fail: false };
        let (sender, receiver) = watch::channel(bind(Some(first)));
        tokio::spawn(async move { server().serve(receiver, handler()).await });
        served(first).await;
        sender.send(bind(Some(second))).expect("a server");
        served(second).await;
        assert!(tokio::net::TcpStream::connect(first).await.is_err());
        sender.send(bind(None)).expect("a server");
        while tokio::net::TcpStream::connect(second).await.is_ok() {
            tokio::task::yield_now().await;
        }
        sender.send(bind(Some(first))).expect("a server");
        served(first).await;
    }

    #[tokio::test]
    async fn a_taken_port_is_tried_again_until_it_is_free() {
        let (blocker, address) = taken();
        let bind = Bind { address: Some(address), hard_fail: false };
        let (_sender, receiver) = watch::channel(bind);
        let server = tokio::spawn(async move { server().serve(receiver, handler()).await });
        tokio::time::sleep(3 * RETRY).await;
        assert!(!server.is_finished());
        drop(blocker);
        served(address).await;
    }

    #[tokio::test]
    async fn a_taken_port_can_be_the_end() {
        let (_blocker, address) = taken();
        let bind = Bind { address: Some(address), hard_fail: true };
        let (_sender, receiver) = watch::channel(bind);
        let error =
            server().serve(receiver, handler()).await.expect_err("a taken port").to_string();
        assert!(
            error.contains(&address.to_string()) && error.contains("testBindAddress"),
            "{error}"
        );
    }
}
