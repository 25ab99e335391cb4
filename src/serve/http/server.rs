//! A server that retries a port in use, and moves when the address in the configuration changes.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::anyhow;
use tokio::sync::watch;

use super::connections::Connections;
use super::protocol::{self, Handler, RETRY};
use crate::config::Config;
use crate::serve::metrics::Gauge;
use crate::serve::unbound_ports::{UnboundPorts, UnboundServer};

/// Called for each port that a server cannot bind.
pub type OnUnbound = Arc<dyn Fn(&UnboundServer) + Send + Sync>;

/// What all servers share.
#[derive(Clone)]
pub struct Servers {
    /// The pool of their connections.
    pub connections: Connections,
    /// The ports that they cannot bind.
    pub unbound: UnboundPorts<UnboundServer>,
    /// Reports such a port.
    pub on_unbound: OnUnbound,
}

/// A server without its handler.
pub(super) struct Server {
    /// The purpose, in messages.
    pub(super) purpose: &'static str,
    /// The configuration field of the address.
    pub(super) field: &'static str,
    /// Returns the address; `None` turns the server off.
    pub(super) address: fn(&Config) -> Option<SocketAddr>,
    /// The gauge that counts the port while it cannot be bound.
    pub(super) gauge: Gauge,
    pub(super) servers: Servers,
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
    ) -> anyhow::Result<Infallible> {
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
    ) -> anyhow::Result<Infallible> {
        let Some(address) = address else { return std::future::pending().await };
        let Server { purpose, field, gauge, ref servers, .. } = *self;
        let taken = |error: io::Error| {
            if hard_fail {
                return Err(anyhow!(
                    "cannot listen on {address} for {purpose} ({field}): {error}; free the port, \
                     choose another address, or set bindAddressHardFail to false for retries"
                ));
            }
            tracing::error!(
                %address, %error,
                "cannot serve {purpose} ({field}), retrying every {} s; if another process \
                 holds the port, it answers meanwhile; the rules stay up to date",
                RETRY.as_secs(),
            );
            let unbound = UnboundServer {
                purpose: purpose.to_owned(),
                field: field.to_owned(),
                address: address.to_string(),
                reason: error.to_string(),
            };
            (servers.on_unbound)(&unbound);
            Ok(servers.unbound.add(address, gauge, unbound))
        };
        let connections = &servers.connections;
        let handler = handler.clone();
        Err(protocol::keep_listening(address, false, purpose, handler, connections, taken).await)
    }
}
