//! Finds TCP endpoints that do not answer, before the API says so.
//!
//! A pod or node can die without a word. Until the API server notices, every n-th connection hangs.
//! The kernel sees it first: clients repeat their SYNs. A rule notes these repetitions in a set, which
//! the agent reads several times a second. They are only a hint. The agent then looks for
//! answered flows in connection tracking, and connects to the endpoint itself. An endpoint that
//! answers any client, or the agent, stays.
//!
//! Owns: the tables with the hints ([`remove_tables`]), the probes, the decision (`detector`, a pure
//! state machine), the thread for all this ([`Search`]) and its [`Report`].
//!
//! Must not know: the rules of shunt, or how an endpoint is ejected. It only sends a list.

mod detector;
mod flows;
mod prober;
mod report;
mod table;
mod worker;

use std::str::FromStr;

pub use report::{EndpointReport, EndpointState, Reason, Report, Restored, Silence};
pub use table::{TABLE, remove_tables};
pub use worker::{Inputs, PlacementsOf, Search};

/// What the agent does about endpoints that do not answer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Mode {
    /// Nothing: no rule, no thread.
    Off,
    /// Finds and reports them.
    #[default]
    Observe,
    /// Also ejects them from the pools of their Services.
    On,
}

impl Mode {
    /// Returns the name in the configuration.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Mode::Off => "off",
            Mode::Observe => "observe",
            Mode::On => "on",
        }
    }
}

impl FromStr for Mode {
    type Err = String;

    fn from_str(name: &str) -> Result<Mode, String> {
        let named = [Mode::Off, Mode::Observe, Mode::On].into_iter().find(|it| it.name() == name);
        named.ok_or_else(|| "unknown; write off, observe or on".to_owned())
    }
}
