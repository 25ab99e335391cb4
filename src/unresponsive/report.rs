//! What the agent reports about endpoints that do not answer.

use std::fmt;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::status::{Time, span};

/// The endpoints under suspicion, and the ones found unresponsive.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Report {
    /// The value of `shunt.ejectUnresponsive`.
    pub mode: String,
    /// Why the agent cannot look for such endpoints; `None` if it can.
    pub trouble: Option<String>,
    /// The endpoints, in order.
    pub endpoints: Vec<EndpointReport>,
    /// The number of ejections since the start of the agent.
    pub ejections: u64,
    /// The number of restores since the start of the agent.
    pub restores: u64,
    /// The last restores, in their order.
    pub restored: Vec<Restored>,
}

/// A restore.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Restored {
    /// The address and port of the endpoint.
    pub endpoint: SocketAddr,
    /// When the first pool ejected it.
    pub ejected_at: Time,
    /// When the last pool had it again, or lost it.
    pub at: Time,
}

/// An endpoint of a [`Report`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EndpointReport {
    /// The address and port.
    pub endpoint: SocketAddr,
    /// The state.
    pub state: EndpointState,
    /// Since when it is in this state. An ejected one: since when it is unresponsive.
    pub since: Time,
    /// The evidence.
    pub reason: Reason,
    /// When the first slot went to another backend; `None` if no pool has ejected it.
    pub ejected_at: Option<Time>,
    /// The number of Services that have ejected it.
    pub services: usize,
    /// How often it was found unresponsive in the last ten minutes.
    pub recent: usize,
}

impl Report {
    /// Returns the endpoint of that address, if it does not answer.
    #[must_use]
    pub fn unresponsive(&self, endpoint: SocketAddr) -> Option<&EndpointReport> {
        let is_it =
            |it: &&EndpointReport| it.endpoint == endpoint && it.state != EndpointState::Suspected;
        self.endpoints.iter().find(is_it)
    }
}

/// What the commands say about an endpoint that does not answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Silence {
    /// Since when it is known.
    pub since: Time,
    /// The evidence.
    pub reason: Reason,
}

impl From<&EndpointReport> for Silence {
    fn from(report: &EndpointReport) -> Silence {
        Silence { since: report.since, reason: report.reason }
    }
}

impl Silence {
    /// Describes it, as in "12 s (the host answers nothing)".
    #[must_use]
    pub fn text(&self, now: Time) -> String {
        format!("{} ({})", span(self.since.before(now)), self.reason)
    }
}

/// The state of an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum EndpointState {
    /// Clients repeat their SYNs; the agent looks into it.
    Suspected,
    /// Nothing answers. It takes new connections nevertheless: the mode is observe, or its pools are at
    /// the limit.
    Unresponsive,
    /// Nothing answers, and at least one pool has ejected it.
    Ejected,
}

/// The evidence against an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Reason {
    /// Clients repeat their SYNs.
    RepeatedSyns,
    /// No other backend of its pools answers the agent either.
    NoOtherAnswers,
    /// The host shows no sign of life.
    SilentHost,
    /// The network reports that the host is unreachable.
    UnreachableHost,
    /// The host answers on another port, but not on this one.
    SilentPort,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Reason::RepeatedSyns => "clients repeat their SYNs",
            Reason::NoOtherAnswers => "no other backend of its pools answers the agent either",
            Reason::SilentHost => "the host answers nothing",
            Reason::UnreachableHost => "the host is unreachable",
            Reason::SilentPort => "the host answers, but not on this port",
        })
    }
}
