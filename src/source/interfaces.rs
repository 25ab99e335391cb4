//! The addresses of the node's own interfaces, and their changes.

use std::io;

use nfnetlink::route::{AddressEvents, addresses};
use shunt_core::model::Change;

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

    /// Waits until addresses may have changed, and consumes all waiting events.
    ///
    /// # Errors
    /// If the subscription fails.
    pub fn wait(&mut self) -> io::Result<()> {
        Ok(self.0.wait()?)
    }
}

/// Returns all current addresses of the interfaces in this network namespace.
///
/// # Errors
/// If the kernel does not list them.
pub fn interface_addresses() -> io::Result<Change> {
    Ok(Change::InterfaceAddresses(addresses()?))
}
