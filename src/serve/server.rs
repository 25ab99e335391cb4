//! A server that is always there: on a port that is taken until it is free, and on another address
//! once the configuration asks for it.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::connections::Connections;
use super::http::{self, Handler};

/// Where to listen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bind {
    /// The address; `None` for no server.
    pub address: Option<SocketAddr>,
    /// `bindAddressHardFail`: if the port cannot be bound, it is not tried again.
    pub hard_fail: bool,
}

/// A port that cannot be bound, and that is not to be tried again.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot listen on {address} for {purpose} ({field}): {reason}; free the port, choose another \
     address, or set bindAddressHardFail to false to have it tried again"
)]
pub struct Unbound {
    purpose: &'static str,
    field: &'static str,
    address: SocketAddr,
    /// Not its source: the text has it.
    reason: io::Error,
}

/// A port that a server cannot have, or has again.
#[derive(Debug)]
pub struct PortReport<'a> {
    /// What the server is for.
    pub purpose: &'static str,
    /// The field of the configuration with its address.
    pub field: &'static str,
    /// The address.
    pub address: SocketAddr,
    /// Why it cannot be bound; `None` once it is, or is not wanted any more.
    pub error: Option<&'a io::Error>,
}

/// Takes reports of ports.
pub type OnPort = Arc<dyn Fn(PortReport<'_>) + Send + Sync>;

/// Which server it is, for people.
pub(super) struct Server {
    /// What it is for.
    pub(super) purpose: &'static str,
    /// The field of the configuration with its address.
    pub(super) field: &'static str,
    /// The pause before a port that cannot be bound is tried again.
    pub(super) retry: Duration,
    /// The connections of all servers.
    pub(super) connections: Connections,
    /// Takes reports of its port.
    pub(super) on_port: OnPort,
}

/// A port that was reported and is not bound, until this is dropped.
struct Reported<'a>(&'a Server, SocketAddr);

impl Drop for Reported<'_> {
    fn drop(&mut self) {
        let Server { purpose, field, ref on_port, .. } = *self.0;
        on_port(PortReport { purpose, field, address: self.1, error: None });
    }
}

impl Server {
    /// Serves for ever, wherever `bind` says at the moment.
    ///
    /// # Errors
    /// If a port cannot be bound and is not to be tried again. Other ports are reported once.
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
            match http::listen(address, false) {
                Ok(listener) => {
                    reported = None;
                    tracing::info!(%address, "serving {purpose}");
                    let error = http::accept(&listener, handler.clone(), &self.connections).await;
                    tracing::error!(%address, %error, "the listener for {purpose} was closed: opening it anew");
                    continue;
                }
                Err(reason) if bind.hard_fail => {
                    return Err(Unbound { purpose, field, address, reason });
                }
                Err(error) if reported.is_none() => {
                    tracing::error!(
                        %address, %error,
                        "cannot serve {purpose} ({field}): trying again every {} s; if another \
                         process has the port, that one answers; the rules are kept up to date \
                         meanwhile",
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
    use super::http::{Answer, PLAIN_TEXT, get};
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
        let listener = http::listen(any, false).expect("a free port");
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
