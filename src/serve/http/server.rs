//! A server that retries a port in use, and moves when the address in the configuration changes.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::sync::watch;

use super::connections::Connections;
use super::protocol::{self, Handler, RETRY};
use crate::config::Config;

/// A port that cannot be bound, with `bindAddressHardFail`.
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
    /// Returns the address; `None` turns the server off.
    pub(super) address: fn(&Config) -> Option<SocketAddr>,
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
    /// Serves for ever, at the address of the configuration. Reports a port that cannot be bound once.
    ///
    /// # Errors
    /// If the port cannot be bound and `bindAddressHardFail` is set.
    pub(super) async fn serve(
        &self,
        mut config: watch::Receiver<Config>,
        handler: Handler,
    ) -> Result<Infallible, Unbound> {
        let bind = |config: &Config| ((self.address)(config), config.bind_address_hard_fail);
        loop {
            let now = bind(&config.borrow_and_update());
            tokio::select! {
                Err(unbound) = self.serve_at(now, &handler) => return Err(unbound),
                Ok(_) = config.wait_for(|config| bind(config) != now) => {}
            }
        }
    }

    async fn serve_at(
        &self,
        (address, hard_fail): (Option<SocketAddr>, bool),
        handler: &Handler,
    ) -> Result<Infallible, Unbound> {
        let Some(address) = address else { return std::future::pending().await };
        let Server { purpose, field, .. } = *self;
        let taken = |error: io::Error| {
            if hard_fail {
                return Err(Unbound { purpose, field, address, reason: error });
            }
            tracing::error!(
                %address, %error,
                "cannot serve {purpose} ({field}), retrying every {} s; if another process \
                 holds the port, it answers meanwhile; the rules stay up to date",
                RETRY.as_secs(),
            );
            (self.on_port)(PortReport { purpose, field, address, error: Some(&error) });
            Ok(Reported(self, address))
        };
        let connections = &self.connections;
        let handler = handler.clone();
        Err(protocol::keep_listening(address, false, purpose, handler, connections, taken).await)
    }
}
