//! The addresses of the node's own interfaces, as they come and go.

use std::io;

use nfnetlink::route::{AddressEvents, addresses};
use shunt_core::model::Change;

/// Tells when addresses appear or vanish, by the kernel's own events (rtnetlink): no polling.
pub struct Interfaces(AddressEvents);

impl Interfaces {
    /// Subscribes in the network namespace of this thread.
    ///
    /// # Errors
    /// If the kernel gives no socket for routing messages.
    pub fn subscribe() -> io::Result<Interfaces> {
        Ok(Interfaces(AddressEvents::follow()?))
    }

    /// Waits until something may have changed, and takes in all that has.
    ///
    /// # Errors
    /// If the subscription broke.
    pub fn wait(&self) -> io::Result<()> {
        Ok(self.0.wait()?)
    }
}

/// All addresses that the interfaces of this network namespace have now.
///
/// # Errors
/// If the kernel does not list them.
pub fn interface_addresses() -> io::Result<Change> {
    Ok(Change::InterfaceAddresses(addresses()?))
}
