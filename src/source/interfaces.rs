//! The addresses of the node's own interfaces, and their changes.

use std::io;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use nfnetlink::route::{AddressEvents, addresses};
use shunt_core::model::{Change, ChangeBatch};

/// The pause after a failed listing.
const RETRY: Duration = Duration::from_secs(1);

/// A subscription to the kernel's events about addresses (rtnetlink), without polling.
pub struct Interfaces(AddressEvents);

impl Interfaces {
    /// Subscribes in the network namespace of this thread.
    ///
    /// # Errors
    /// If the kernel gives no socket for routing messages.
    pub fn subscribe() -> io::Result<Interfaces> {
        Ok(Interfaces(AddressEvents::follow()?))
    }

    /// Calls `sink` with the addresses whenever they may have changed, until it breaks. Must run in
    /// the network namespace of the subscription.
    ///
    /// # Errors
    /// If the runtime cannot wait for the socket.
    pub async fn follow(self, sink: impl Fn(ChangeBatch) -> ControlFlow<()>) -> io::Result<()> {
        let Interfaces(mut events) = self;
        let arrival = super::events(&events)?;
        loop {
            arrival.readable().await?.clear_ready();
            let change = loop {
                let discarded = events.discard().map_err(io::Error::from);
                match discarded.and_then(|()| interface_addresses()) {
                    Ok(change) => break change,
                    Err(error) => {
                        tracing::error!(%error, "cannot list the node's addresses; retrying");
                        // The event is gone, and what it was about is not known yet.
                        tokio::time::sleep(RETRY).await;
                    }
                }
            };
            if sink(ChangeBatch::new(vec![change], Instant::now())).is_break() {
                return Ok(());
            }
        }
    }
}

/// Returns all current addresses of the interfaces in this network namespace.
///
/// # Errors
/// If the kernel does not list them.
pub fn interface_addresses() -> io::Result<Change> {
    Ok(Change::InterfaceAddresses(addresses()?))
}
