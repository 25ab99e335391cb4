//! The state of a frontend in a word.

use std::fmt;

use serde::{Serialize, Serializer};
use shunt_core::explain::Code;

/// The state of a frontend.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum State {
    /// New connections get an endpoint.
    #[default]
    Ok,
    /// No new connection gets an endpoint: the code says why.
    Unserved(Code),
    /// New connections get an endpoint at random, since a hash table or weights would need too many
    /// elements.
    Oversized,
    /// Another Service has the frontend.
    Conflict,
    /// The kernel refuses the frontend.
    Quarantined,
    /// The plan has the frontend, the kernel has not.
    NotInKernel,
    /// The kernel does something else with new connections than the plan.
    KernelDiffers,
    /// No address of the node has this node port.
    NoAddress,
    /// No agent runs that could tell.
    NoAgent,
}

impl State {
    /// Returns the word in text and JSON.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            State::Ok => "ok",
            State::Unserved(code) => code.as_str(),
            State::Oversized => "too-many-elements",
            State::Conflict => "conflict",
            State::Quarantined => "quarantined",
            State::NotInKernel => "not-in-kernel",
            State::KernelDiffers => "kernel-differs",
            State::NoAddress => "no-address",
            State::NoAgent => "no-agent",
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl Serialize for State {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}
